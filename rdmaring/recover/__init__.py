"""Going on after a failure: survivors agree on who they are, and meet again."""

from __future__ import annotations
