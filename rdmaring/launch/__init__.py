"""Start the ranks of one job on this machine, show what they print, and end them together."""

from __future__ import annotations

from rdmaring.launch.job import CommandError, Job, run_job

__all__ = ["CommandError", "Job", "run_job"]
