"""Atomic files, private folders and locks. After a crash, no file is half written.

A file written here is either complete or absent. Symbolic links are never followed.
New files in a private folder can be read by their owner only. `lock` needs Linux, macOS
or another Unix. The other functions run everywhere, but keep secrets only where the
file system has POSIX permissions. What the files contain is decided in `runs` and
`federation`.
"""

import contextlib
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sagda.check import BadValue

TEMPORARY = ".part"  # the suffix of incomplete files


def write(path: Path, content: bytes | str) -> str:
    """Write `content` to `path` atomically. Returns the SHA-256 of the content.

    When the function returns, both the data and the name of the file are on the disk.
    """
    content = content.encode() if isinstance(content, str) else content
    part = path.with_name(path.name + TEMPORARY)
    open_to_others = path.parent.stat().st_mode & 0o077
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    handle = os.open(part, flags, 0o644 if open_to_others else 0o600)
    # The order matters: data on the disk, then the new name, then the name on the disk.
    pour(handle, content)
    os.rename(part, path)
    sync_folder(path.parent)
    return digest(content)


def create(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write a new file. Raises if `path` exists, even as a link."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    pour(os.open(path, flags, mode), content)
    sync_folder(path.parent)


def read(path: Path) -> bytes:
    """Return the content of a file. Raises if `path` is a link."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        return file.read()


def private(folder: Path) -> Path:
    """Create `folder` if needed, let only its owner access it, and return it."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise BadValue(f"{folder} must be a folder, not a file or a link.")
    if status.st_mode & 0o077:
        try:
            folder.chmod(0o700)
        except PermissionError:
            raise BadValue(
                f"{folder} belongs to another user, and others can read it; choose "
                "another folder."
            ) from None
    return folder


def check_secret(path: Path) -> None:
    """Raise unless `path` is an ordinary file that only its owner can read."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        raise BadValue(f"{path} does not exist.") from None
    if not stat.S_ISREG(status.st_mode):
        raise BadValue(f"{path} must be a file, not a folder or a link.")
    if status.st_mode & 0o077:
        raise BadValue(
            f"{path} is secret, but others can read it (mode "
            f"{stat.S_IMODE(status.st_mode):o}); run `chmod 600 {path}`."
        )


def append(path: Path, content: bytes, after: int) -> None:
    """Cut a file after its first `after` bytes, and write `content` there.

    This is not atomic: a reader must know how many bytes of the file are valid.
    """
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    os.ftruncate(handle, after)
    os.lseek(handle, 0, os.SEEK_END)
    pour(handle, content)


def pour(handle: int, content: bytes) -> None:
    """Write all of `content` to an open file, flush it to the disk and close it."""
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(handle, view) :]
        os.fsync(handle)
    finally:
        os.close(handle)


def remove(path: Path) -> None:
    """Delete a file, if it exists."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def sync_folder(folder: Path) -> None:
    """Flush the list of names in `folder` to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def digest(content: bytes) -> str:
    """Return the SHA-256 of `content` in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


@contextlib.contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Hold the lock of `folder`, so that no other process writes to it.

    The lock is released at the end of the `with` block, or when the process ends.
    """
    try:
        import fcntl
    except ImportError:
        raise BadValue(
            "the folders of runs and sites need file locks, which sagda supports on "
            "Linux and macOS only; on Windows, use WSL."
        ) from None

    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    handle = os.open(folder / ".lock", flags, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(handle, 32, 0).decode(errors="replace").strip()
            raise BadValue(
                f"process {holder or 'unknown'} is writing to {folder}; wait until it "
                "ends, or choose another folder with --out."
            ) from None
        # The file names the process that holds the lock, for the message above.
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(handle)


def as_json(value: Any) -> str:
    """Return `value` as indented JSON. Lists of numbers stay on one line."""
    text = json.dumps(value, indent=1)
    short = lambda match: " ".join(match.group().split())
    return re.sub(r"\[[\d\s,.eE+-]*\]", short, text) + "\n"
