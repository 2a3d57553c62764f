"""The private parts of flwr 1.41 that sagda replaces, and what the guards check.

Flower has no public hooks at the two places where a stranger's data does harm first:

- `guard_grid`, on the server: Flower builds a message from objects as the objects say.
  They can name a piece a million times, or name one that never arrives.
- `guard_node`, at a site: Flower runs any app that the SuperLink sends.

Each guard first checks that the parts exist, and says in one sentence if they do not:
an error is better than a federation without its guards. All imports of flwr are late,
because a node and a server load different halves of it.
"""

import contextlib
import functools
import importlib
import importlib.metadata
import inspect
import io
import json
import logging
import tomllib
import zipfile
from collections.abc import Callable
from typing import Any, NamedTuple

from sagda.check import BadValue
from sagda.federation.flower.app_config import APP
from sagda.federation.flower.processes import FLOWER_VERSION
from sagda.federation.flower.retry import again

log = logging.getLogger("flwr")


class PrivatePart(NamedTuple):
    """A function inside Flower that is used or replaced."""

    module: str
    name: str
    parameters: tuple[str, ...] = ()  # that its callers pass by these names

    def get(self) -> Any:
        """The function. Raises `BadValue` if this flwr has none like it."""
        with contextlib.suppress(ImportError, AttributeError):
            part = getattr(importlib.import_module(self.module), self.name)
            # Exceptions have no signature that could be read, and no parameters here.
            known = inspect.signature(part).parameters if self.parameters else {}
            if {*self.parameters} <= {*known}:
                return part
        version = importlib.metadata.version("flwr")
        raise BadValue(
            f"sagda needs {self.name}({', '.join(self.parameters)}) in {self.module} "
            f"of flwr {FLOWER_VERSION}, which flwr {version} does not have; install "
            f"flwr {FLOWER_VERSION}."
        )

    def replace(self, part: Any) -> None:
        setattr(importlib.import_module(self.module), self.name, part)


# On the server: the grid pulls the objects of a message, and then joins them.
OBJECT = "flwr.supercore.inflatable.inflatable_object"
UTILS = "flwr.supercore.inflatable.inflatable_utils"
GRID = "flwr.superlink.grid.http_grid"
PULL_OBJECTS = PrivatePart(GRID, "pull_objects", ("object_ids", "pull_object_fn"))
# The same function where it is defined, which no guard replaces.
ORIGINAL_PULL = PrivatePart(
    UTILS, "pull_objects", (*PULL_OBJECTS.parameters, "max_time")
)
PULL_ERROR = PrivatePart(UTILS, "ObjectPullError")
OBJECT_HEAD = PrivatePart(
    OBJECT, "get_object_head_values_from_object_content", ("object_content",)
)
OBJECT_BODY = PrivatePart(OBJECT, "get_object_body", ("object_content", "cls"))
GRID_PARTS = (PULL_OBJECTS, ORIGINAL_PULL, PULL_ERROR, OBJECT_HEAD, OBJECT_BODY)

# At a site: the node's two loops. Their parameters are the calls to the SuperLink.
NODE = "flwr.supernode.start_client_internal"
PULL_MESSAGE = PrivatePart(
    NODE,
    "_pull_and_store_message",
    ("receive", "get_run", "get_fab", "pull_object", "confirm_message_received"),
)
PUSH_MESSAGES = PrivatePart(NODE, "_push_messages", ("send", "push_object"))
NOT_RUNNING = PrivatePart("flwr.supercore.run", "RunNotRunningException")
NODE_PARTS = (PULL_MESSAGE, PUSH_MESSAGES, NOT_RUNNING)

# An array is two objects or more: a SAGDA-I letter of a linear model has 20 in all.
MAX_OBJECTS = 2000  # in one message
MAX_HEADER = 1 << 18  # bytes of an object that is not a piece of an array
ARRAY_PIECE = "ArrayChunk"  # Flower's type of the only objects that hold numbers

APP_FILES = [".info/CONTENT", "pyproject.toml"]  # sorted
MAX_APP_FILE = 1 << 16  # bytes


def guard_grid(limit: Callable[[], int], patience: Callable[[], float]) -> None:
    """Bound the messages that the server unpacks.

    Args:
        limit: gives the most bytes that one message may hold, at the time of a pull.
        patience: gives the seconds to wait for missing objects of a message.
    """
    _, original, error, *_ = [part.get() for part in GRID_PARTS]

    @functools.wraps(original)
    def pull(object_ids: list[str], pull_object_fn: Any, **options: Any) -> dict:
        if len(object_ids) > MAX_OBJECTS:
            raise error(object_ids[0], f"more than {MAX_OBJECTS} objects")
        left = limit()

        # Flower calls this from several threads. They can subtract at the same time,
        # which at worst lets a message pass that is larger by one piece per thread.
        def fetch(object_id: str) -> bytes:
            nonlocal left
            content = pull_object_fn(object_id)
            left -= len(content)
            if left < 0:
                raise error(object_id, "more bytes than a reply may have")
            return content

        # Without it a message whose objects never arrive blocks its thread for long.
        contents = original(object_ids, fetch, **options | {"max_time": patience()})
        for object_id, content in contents.items():
            if flaw := flaw_of_object(content):
                raise error(object_id, flaw)
        return contents

    PULL_OBJECTS.replace(pull)


def flaw_of_object(content: bytes) -> str | None:
    """Why Flower must not build a message from this object, or None if it may."""
    from flwr.app import Array

    get_head, get_body = OBJECT_HEAD.get(), OBJECT_BODY.get()
    try:
        kind, children, _ = get_head(content)
        if kind == ARRAY_PIECE:
            return None
        if len(content) > MAX_HEADER:
            return "an object without numbers that is too long"
        if kind == "Array":
            # Flower concatenates pieces in this order, so a repeated number would
            # multiply the memory that a small message takes.
            order = json.loads(get_body(content, Array))["arraychunk_ids"]
            if sorted(order) != list(range(len(children))):
                return "an array that names its pieces more than once"
    except Exception:
        return "an object that cannot be read"
    return None


def guard_node() -> None:
    """Run only sagda's app at this node, and repeat calls after server errors."""
    pull, push, not_running = [part.get() for part in NODE_PARTS]

    @functools.wraps(pull)
    def guarded_pull(**calls: Any) -> int | None:
        calls |= {name: again(calls[name]) for name in PULL_MESSAGE.parameters}
        get_fab = calls["get_fab"]

        # A FAB is Flower's archive of an app. This runs before it is unpacked.
        def get_checked(fab_hash: str, run_id: int) -> Any:
            fab = get_fab(fab_hash, run_id)
            if not is_our_app(fab.content):
                log.error("sagda: refused run %s, whose app contains code.", run_id)
                raise not_running  # the one error that makes Flower drop a message
            return fab

        return pull(**calls | {"get_fab": get_checked})

    @functools.wraps(push)
    def guarded_push(**calls: Any) -> None:
        push(**calls | {name: again(calls[name]) for name in PUSH_MESSAGES.parameters})

    PULL_MESSAGE.replace(guarded_pull)
    PUSH_MESSAGES.replace(guarded_push)


def is_our_app(archive: bytes) -> bool:
    """Whether an app's archive holds sagda's own description and nothing else."""
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as files:
            entries = files.infolist()
            return (
                sorted(entry.filename for entry in entries) == APP_FILES
                # Before anything is unpacked: an archive of bytes can hold gigabytes.
                and all(entry.file_size <= MAX_APP_FILE for entry in entries)
                and tomllib.loads(files.read("pyproject.toml").decode()) == APP
            )
    except (zipfile.BadZipFile, ValueError, OSError, RuntimeError, NotImplementedError):
        return False
