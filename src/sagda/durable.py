"""Atomic files: after a crash, each is either complete or absent.

Symbolic links are never followed. Files in a private folder are private. `lock` needs
Linux, macOS or another Unix; all other functions also need POSIX permissions to keep
secrets.
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

TEMPORARY = ".part"  # the suffix of files that are not complete


def write(path: Path, content: bytes | str) -> str:
    """Write `content` to `path` atomically. Returns its SHA-256.

    The data reach the disk before the name does, and the name before this returns.
    """
    content = content.encode() if isinstance(content, str) else content
    part = path.with_name(path.name + TEMPORARY)
    open_to_others = path.parent.stat().st_mode & 0o077
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    handle = os.open(part, flags, 0o644 if open_to_others else 0o600)
    pour(handle, content)
    os.rename(part, path)
    sync_folder(path.parent)
    return digest(content)


def create(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write a new file. Raises if the name exists, even as a link."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    pour(os.open(path, flags, mode), content)
    sync_folder(path.parent)


def read(path: Path) -> bytes:
    """The content of a file that is not a link."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        return file.read()


def private(folder: Path) -> Path:
    """Make `folder` readable by its owner only, and return it."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise BadValue(f"{folder} must be a folder, and not a link to one.")
    if status.st_mode & 0o077:
        try:
            folder.chmod(0o700)
        except PermissionError:
            raise BadValue(
                f"{folder} is open to others and belongs to someone else; choose "
                "another folder."
            ) from None
    return folder


def check_secret(path: Path) -> None:
    """Raise unless `path` is a plain file that only its owner can read."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        raise BadValue(f"{path} does not exist.") from None
    if not stat.S_ISREG(status.st_mode):
        raise BadValue(f"{path} must be a file, and not a link to one.")
    if status.st_mode & 0o077:
        raise BadValue(
            f"{path} is a secret that others can read (mode "
            f"{stat.S_IMODE(status.st_mode):o}); `chmod 600 {path}`."
        )


def append(path: Path, content: bytes, after: int) -> None:
    """Keep the first `after` bytes of a file and write `content` behind them.

    This is not atomic: a reader must know how many bytes of the file are valid.
    """
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    os.ftruncate(handle, after)
    os.lseek(handle, 0, os.SEEK_END)
    pour(handle, content)


def pour(handle: int, content: bytes) -> None:
    """Write all of `content` to the disk, and close the file."""
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
    """Bring a folder's names to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def digest(content: bytes) -> str:
    """SHA-256, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


@contextlib.contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Be the only writer of `folder`. The lock ends when the process ends."""
    try:
        import fcntl
    except ImportError:
        raise BadValue(
            "folders of runs and sites need file locks, which sagda supports on Linux "
            "and macOS only; on Windows, use WSL."
        ) from None

    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    handle = os.open(folder / ".lock", flags, 0o644)
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


def as_json(value: Any) -> str:
    """Indented JSON, with lists of numbers on one line."""
    text = json.dumps(value, indent=1)
    short = lambda match: " ".join(match.group().split())
    return re.sub(r"\[[\d\s,.eE+-]*\]", short, text) + "\n"
