"""A SuperNode that runs one app: sagda's own, which holds no code.

Flower's nodes run whatever their SuperLink sends them. This one looks at the app first:
it must hold nothing but the description that this installation has itself, which points
at the installed `sagda.engines.flower`.
"""

import inspect
import io
import logging
import sys
import tomllib
import zipfile
from typing import Any

from flwr.supercore.fab import Fab
from flwr.supercore.run import RunNotRunningException
from flwr.supernode import start_client_internal as internal
from flwr.supernode.cli import flower_supernode

from sagda.federated.app import APP

DESCRIPTION, LIST = "pyproject.toml", ".info/CONTENT"
LARGEST = 1 << 16  # bytes of either file
HOOK = "_pull_and_store_message"
log = logging.getLogger("flwr")


def is_ours(content: bytes) -> bool:
    """Whether an app is sagda's description and nothing else."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as files:
            found = files.infolist()
            names = [entry.filename for entry in found]
            if sorted(names) != sorted([DESCRIPTION, LIST]):
                return False
            if any(entry.file_size > LARGEST for entry in found):
                return False
            told = tomllib.loads(files.read(DESCRIPTION).decode())
    except (zipfile.BadZipFile, ValueError, OSError, RuntimeError, NotImplementedError):
        return False
    return told == tomllib.loads(APP)


def guard() -> None:
    """Put the look before what Flower does with an app; nothing runs without it."""
    original = getattr(internal, HOOK, None)
    if original is None or "get_fab" not in inspect.signature(original).parameters:
        sys.exit(
            "sagda: this version of Flower has no place to check an app before it "
            "runs; install flwr 1.41."
        )

    def guarded(*, get_fab: Any, **others: Any) -> int | None:
        def checked(fab_hash: str, run_id: int) -> Fab:
            fab = get_fab(fab_hash, run_id)
            if not is_ours(fab.content):
                log.error("sagda: run %s brought an app of its own: refused.", run_id)
                raise RunNotRunningException  # as Flower drops a message
            return fab

        return original(get_fab=checked, **others)

    setattr(internal, HOOK, guarded)


def main() -> None:
    guard()
    flower_supernode()


if __name__ == "__main__":
    main()
