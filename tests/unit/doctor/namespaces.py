"""Network namespaces of a test's own: made with a sleeping process each, gone when that ends."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest


class Namespace:
    """A network namespace, held by a process."""

    def __init__(self, name: str) -> None:
        self.name = name
        # The process says when it is inside: until then its namespace is still ours.
        self._holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo inside; exec sleep 600"], stdout=subprocess.PIPE, text=True
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "inside\n"
        self.pid = self._holder.pid
        self.run("ip", "link", "set", "lo", "up")

    def command(self, *words: str) -> list[str]:
        return ["nsenter", f"--net=/proc/{self.pid}/ns/net", *words]

    def run(self, *words: str) -> None:
        result = subprocess.run(self.command(*words), capture_output=True, text=True)
        assert result.returncode == 0, f"{self.name}: {' '.join(words)}: {result.stderr}"

    def address(self, interface: str, address: str, mtu: int) -> None:
        self.run("ip", "link", "set", interface, "mtu", str(mtu), "up")
        nodad = ["nodad"] if ":" in address else []
        self.run("ip", "addr", "add", address, "dev", interface, *nodad)

    def end(self) -> None:
        self._holder.kill()
        self._holder.wait()
        assert self._holder.stdout is not None
        self._holder.stdout.close()


@contextmanager
def namespaces(names: Sequence[str]) -> Iterator[list[Namespace]]:
    """So many namespaces, without any link but loopback."""
    missing = [tool for tool in ("unshare", "nsenter", "ip") if shutil.which(tool) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"network namespaces need root and {', '.join(missing) or 'no more tools'}")
    made: list[Namespace] = []
    try:
        for name in names:
            made.append(Namespace(name))
        yield made
    finally:
        for each in made:
            each.end()


def join(a: Namespace, b: Namespace, interface_a: str, interface_b: str) -> None:
    """A wire: an interface in each namespace."""
    a.run(
        "ip", "link", "add", interface_a, "type", "veth", "peer", "name", interface_b, "netns", str(b.pid)
    )  # fmt: skip
