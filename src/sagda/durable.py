"""Files that are whole or not there: every write is atomic and survives a crash."""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from sagda.check import BadValue

TEMPORARY = ".part"  # the ending of files that were never finished


def write(path: Path, content: bytes | str) -> str:
    """Put `content` at `path`, whole or not at all; its sha256.

    The data reach the disk before the name does, and the name before this returns.
    """
    content = content.encode() if isinstance(content, str) else content
    part = path.with_name(path.name + TEMPORARY)
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    pour(handle, content)
    os.rename(part, path)
    sync_folder(path.parent)
    return digest(content)


def append(path: Path, content: bytes, after: int) -> None:
    """Put `content` behind the first `after` bytes of a file; what follows them goes.

    Without a name of its own: whoever reads must know how much of the file counts.
    """
    handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    os.ftruncate(handle, after)
    os.lseek(handle, 0, os.SEEK_END)
    pour(handle, content)


def pour(handle: int, content: bytes) -> None:
    """Write all of it to the disk, and close."""
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(handle, view) :]
        os.fsync(handle)
    finally:
        os.close(handle)


def remove(path: Path) -> None:
    """Delete a file that nothing refers to any more."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@contextlib.contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Be the only writer of `folder`; however the process ends, so does the lock."""
    import fcntl

    handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(handle, 32, 0).decode(errors="replace").strip()
            raise BadValue(
                f"{folder} is being written by process {holder or 'unknown'}; wait for "
                "it, or choose another folder with --out."
            ) from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(handle)
