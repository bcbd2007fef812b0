"""The user's cache folder, and files that are either whole or not there.

Compiled kernels and tuning results are kept in $MINICNN_CACHE, else $XDG_CACHE_HOME/minicnn, else
~/.cache/minicnn: private to the user (mode 0700), since what lies there is loaded and run. Deleting it is
always safe.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

from minicnn.errors import OutputError


@cache
def _temporary_folder() -> Path:
    holder = tempfile.TemporaryDirectory(prefix="minicnn-")
    _HOLDERS.append(holder)
    return Path(holder.name)


_HOLDERS: list[tempfile.TemporaryDirectory[str]] = []  # they vanish with the process


def wanted_folder() -> Path:
    """Where the cache is meant to be, whether or not it can be used."""
    if chosen := os.environ.get("MINICNN_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification has relative paths ignored.
    return (Path(base) if os.path.isabs(base) else Path("~/.cache").expanduser()) / "minicnn"


def folder(name: str = "") -> Path:
    """The cache folder (or its subfolder `name`), made if need be.

    Where it can't be made or written, or belongs to somebody else: a temporary folder of this process.
    """
    for root in (wanted_folder(), _temporary_folder()):
        with suppress(OSError, RuntimeError):
            if _is_ours(root):
                path = root / name
                path.mkdir(mode=0o700, exist_ok=True)
                return path
    raise OutputError("no folder for the cache", remedy="set MINICNN_CACHE to a folder that you can write")


def _is_ours(root: Path) -> bool:
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = root.stat()
    if status.st_uid != os.geteuid():
        return False
    if stat.S_IMODE(status.st_mode) & 0o077:
        root.chmod(0o700)
    return os.access(root, os.W_OK | os.X_OK)


def write_atomically(path: Path, content: bytes | Callable[[Path], None]) -> None:
    """Puts `content` at `path` in one step; a callable is given the path of a temporary file to write.

    Raises    OutputError: it can't be written; what lay there before is untouched
    """
    temporary = None
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        temporary = Path(name)
        if isinstance(content, bytes):
            with os.fdopen(handle, "wb") as file:
                file.write(content)
        else:
            os.close(handle)
            content(temporary)
        os.replace(temporary, path)
    except OSError as error:
        raise OutputError("a file can't be written", file=path, found=error.strerror or error) from None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
