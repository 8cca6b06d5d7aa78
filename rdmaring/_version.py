"""The version, stated once: the build and the C library read it from this file."""

__version__ = "0.1.0"
