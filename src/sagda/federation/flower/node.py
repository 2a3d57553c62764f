"""A SuperNode that runs one app: sagda's own, which holds no code.

Flower's nodes run whatever their SuperLink sends them. This one looks at the app first:
it must hold nothing but the description that this installation has itself, which points
at the installed `sagda.federation.flower.apps`. And what its SuperLink could not do at
once it asks again.
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

from sagda.federation.flower.app_config import APP
from sagda.federation.flower.retry import again

DESCRIPTION, LIST = "pyproject.toml", ".info/CONTENT"
LARGEST = 1 << 16  # bytes of either file
# What Flower's functions ask of the SuperLink, by the names they give it.
PULLING = ("receive", "get_run", "get_fab", "pull_object", "confirm_message_received")
PUSHING = ("send", "push_object")
PULL, PUSH = "_pull_and_store_message", "_push_messages"
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


def place(name: str, parameters: tuple[str, ...]) -> Any:
    """A function of Flower's that is about to be replaced."""
    found = getattr(internal, name, None)
    if found is None or not {*parameters} <= {*inspect.signature(found).parameters}:
        sys.exit(
            "sagda: this version of Flower has no place to check an app before it "
            "runs, or to ask its SuperLink again; install flwr 1.41."
        )
    return found


def patient(calls: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return calls | {name: again(calls[name]) for name in names}


def guard() -> None:
    """Put the look before what Flower does with an app; nothing runs without it."""
    pull, push = place(PULL, PULLING), place(PUSH, PUSHING)

    def guarded(**calls: Any) -> int | None:
        calls = patient(calls, PULLING)
        get_fab = calls["get_fab"]

        def checked(fab_hash: str, run_id: int) -> Fab:
            fab = get_fab(fab_hash, run_id)
            if not is_ours(fab.content):
                log.error("sagda: run %s brought an app of its own: refused.", run_id)
                raise RunNotRunningException  # as Flower drops a message
            return fab

        return pull(**calls | {"get_fab": checked})

    setattr(internal, PULL, guarded)
    setattr(internal, PUSH, lambda **calls: push(**patient(calls, PUSHING)))


def main() -> None:
    guard()
    flower_supernode()


if __name__ == "__main__":
    main()
