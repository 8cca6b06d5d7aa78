"""Which driver a check's processes find: the machine's own, or the simulated one of tests/cuda_sim."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RDMARING = str(Path(sys.executable).with_name("rdmaring"))
FOLDERS = os.pathsep.join(str(ROOT / name) for name in ("tests", "scripts"))


class PartError(Exception):
    """A part could not be carried out: what its process said."""


@dataclass(frozen=True)
class Driver:
    """Where processes run. simulated: on tests/cuda_sim. ends: time.monotonic() at which all has to be over."""

    simulated: bool
    ends: float
    variables: Mapping[str, str] = field(default_factory=dict)

    def environment(self, **settings: Any) -> dict[str, str]:
        """Of a child process; settings: of cuda_sim.environment, where the driver is the simulated one."""
        own = {**os.environ, "PYTHONPATH": FOLDERS, **self.variables}
        if self.simulated:
            from cuda_sim.environment import environment

            own.update(environment(**settings))
        elif settings.get("one_queue"):
            own["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
        return own

    def left_s(self) -> float:
        """Of the whole run."""
        return max(0.0, self.ends - time.monotonic())

    def run(self, command: list[str], limit_s: float, accepted: tuple[int, ...] = (0,), **settings: Any) -> str:
        """Standard output of a command that ends with one of the ``accepted`` statuses.

        Raises:
            PartError: it did not, or not within ``limit_s`` or the time that is left.
        """
        limit_s = min(limit_s, self.left_s())
        try:
            done = subprocess.run(
                command,
                cwd=ROOT / "scripts",  # not where the package's source lies, which would be found first
                env=self.environment(**settings),
                capture_output=True,
                text=True,
                timeout=max(1.0, limit_s),
            )
        except subprocess.TimeoutExpired as error:
            said = error.stdout.decode(errors="replace") if isinstance(error.stdout, bytes) else error.stdout or ""
            raise PartError(f"did not end within {limit_s:.0f} s; it had said: {said[-500:]}") from None
        if done.returncode not in accepted:
            raise PartError(f"status {done.returncode}: {(done.stderr or done.stdout).strip()[-2000:]}")
        return done.stdout

    def module(self, name: str, *arguments: str, limit_s: float = 120.0, **settings: Any) -> Any:
        """The JSON that ``python -m name`` writes as its last line."""
        out = self.run([sys.executable, "-m", name, *arguments], limit_s, **settings)
        return json.loads(out.strip().splitlines()[-1])
