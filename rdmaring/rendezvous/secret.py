"""The job's secret: what a rank must prove before anything it says is believed."""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from rdmaring.rendezvous.protocol import RendezvousError

SECRET_BYTES = 32
SECRET_FILE_BYTES_MAX = 4096


def new_secret() -> str:
    return secrets.token_hex(SECRET_BYTES)


def secret_path(env: Mapping[str, str]) -> Path:
    """The user's secret file; a cluster's shared home carries it to every host."""
    config = env.get("XDG_CONFIG_HOME")
    # The basis directory specification tells to ignore a relative path here.
    base = Path(config) if config and Path(config).is_absolute() else Path.home() / ".config"
    return base / "rdmaring" / "secret"


def load_secret(env: Mapping[str, str]) -> bytes:
    """RDMARING_SECRET, or the content of the user's secret file, which is made on first use.

    Raises RendezvousError where the file is readable by others, not ours, or empty.
    """
    given = env.get("RDMARING_SECRET")
    if given:
        return given.encode(errors="surrogatepass")
    path = secret_path(env)
    try:
        if not path.exists():
            _make(path)
        return _read(path)
    except OSError as error:
        raise RendezvousError(
            f"the job's secret cannot be had from {path}: {error.strerror or error}",
            hint="set RDMARING_SECRET to the same text on every rank",
        ) from error


def _make(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Ranks that start together race here: each writes a file of its own, and link() lets one win.
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".secret-")  # mode 0600
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(new_secret() + "\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)
        except FileExistsError:
            return
    finally:
        os.unlink(temporary)


def _read(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "rb") as file:
        facts = os.fstat(file.fileno())
        mode = stat.S_IMODE(facts.st_mode)
        if facts.st_uid != os.geteuid():
            raise RendezvousError(
                f"the secret file {path} belongs to user id {facts.st_uid}, not to us ({os.geteuid()})",
                hint="remove it, or set RDMARING_SECRET",
            )
        if not stat.S_ISREG(facts.st_mode) or mode != 0o600:
            raise RendezvousError(
                f"the secret file {path} has mode {mode:04o}: others may have read it",
                hint=f"rm {path} (a new one is made), or chmod 600 if it was never readable by others",
            )
        secret = file.read(SECRET_FILE_BYTES_MAX).strip()
    if not secret:
        raise RendezvousError(f"the secret file {path} is empty", hint=f"rm {path}: a new one is made")
    return secret
