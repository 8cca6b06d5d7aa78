"""python3 -m beds.install: all that both beds and their tests need, so that no test waits for a download."""

from __future__ import annotations

import sys

from beds import kernel, packages
from beds.job import BedError


def main() -> int:
    try:
        packages.need({**packages.HOSTS, **packages.HOST_TOOLS, **packages.GUESTS, **packages.GUEST_TOOLS})
        kernel.get()
    except BedError as error:
        print(f"beds.install: {error}", file=sys.stderr)
        return error.status
    return 0


if __name__ == "__main__":
    sys.exit(main())
