"""Guards: checks that sagda adds to private functions of flwr 1.41.

Flower has no public hooks at the two places where a stranger's data can do harm first:

- `guard_grid`, on the server: Flower builds a message from objects. An object can name
  one piece of an array a million times, or name a piece that never arrives.
- `guard_node`, at a site: Flower runs any app that the SuperLink sends.

A guard raises `BadValue` if the installed flwr lacks one of the private functions: an
error is better than a federation without guards. All imports of flwr are late, because
a node and a server need different parts of it. Seals are checked in `grid`, not here.
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
    """One private function or exception of Flower that sagda uses or replaces."""

    module: str
    name: str
    parameters: tuple[str, ...] = ()  # parameters that callers pass by name

    def get(self) -> Any:
        """Return the function. Raises `BadValue` if flwr lacks it or a parameter."""
        with contextlib.suppress(ImportError, AttributeError):
            part = getattr(importlib.import_module(self.module), self.name)
            # Python cannot read the signature of an exception, so it is not checked.
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
        """Make Flower call `part` instead of its own function."""
        setattr(importlib.import_module(self.module), self.name, part)


# On the server: the grid pulls the objects of a message, then joins them.
OBJECT = "flwr.supercore.inflatable.inflatable_object"
UTILS = "flwr.supercore.inflatable.inflatable_utils"
GRID = "flwr.superlink.grid.http_grid"
PULL_OBJECTS = PrivatePart(GRID, "pull_objects", ("object_ids", "pull_object_fn"))
# The same function in the module that defines it, where it is not replaced.
ORIGINAL_PULL = PrivatePart(
    UTILS, "pull_objects", (*PULL_OBJECTS.parameters, "max_time")
)
PULL_ERROR = PrivatePart(UTILS, "ObjectPullError")
OBJECT_HEAD = PrivatePart(
    OBJECT, "get_object_head_values_from_object_content", ("object_content",)
)
OBJECT_BODY = PrivatePart(OBJECT, "get_object_body", ("object_content", "cls"))
GRID_PARTS = (PULL_OBJECTS, ORIGINAL_PULL, PULL_ERROR, OBJECT_HEAD, OBJECT_BODY)

# At a site: the node's two loops. They call the SuperLink through these parameters.
NODE = "flwr.supernode.start_client_internal"
PULL_MESSAGE = PrivatePart(
    NODE,
    "_pull_and_store_message",
    ("receive", "get_run", "get_fab", "pull_object", "confirm_message_received"),
)
PUSH_MESSAGES = PrivatePart(NODE, "_push_messages", ("send", "push_object"))
NOT_RUNNING = PrivatePart("flwr.supercore.run", "RunNotRunningException")
NODE_PARTS = (PULL_MESSAGE, PUSH_MESSAGES, NOT_RUNNING)

# An array has at least two objects. A SAGDA-I letter of a linear model has 20.
MAX_OBJECTS = 2000  # in one message
MAX_HEADER = 1 << 18  # bytes of an object that is not a piece of an array
ARRAY_PIECE = "ArrayChunk"  # Flower's type of the only objects that hold numbers

APP_FILES = [".info/CONTENT", "pyproject.toml"]  # sorted
MAX_APP_FILE = 1 << 16  # bytes


def guard_grid(limit: Callable[[], int], patience: Callable[[], float]) -> None:
    """Limit the size of the messages that the server unpacks, and the wait for them.

    Both arguments are called at every pull, because the limits change during a run.

    Args:
        limit: returns the bytes that one message may have.
        patience: returns the seconds to wait for missing objects of a message.
    """
    _, original, error, *_ = [part.get() for part in GRID_PARTS]

    @functools.wraps(original)
    def pull(object_ids: list[str], pull_object_fn: Any, **options: Any) -> dict:
        if len(object_ids) > MAX_OBJECTS:
            raise error(object_ids[0], f"more than {MAX_OBJECTS} objects")
        left = limit()

        # Flower calls this from several threads. If two subtract at the same time, a
        # message can exceed the limit by at most one piece per thread.
        def fetch(object_id: str) -> bytes:
            nonlocal left
            content = pull_object_fn(object_id)
            left -= len(content)
            if left < 0:
                raise error(object_id, "more bytes than a reply may have")
            return content

        # `max_time`: a message whose objects never arrive must not block its thread.
        contents = original(object_ids, fetch, **options | {"max_time": patience()})
        for object_id, content in contents.items():
            if flaw := flaw_of_object(content):
                raise error(object_id, flaw)
        return contents

    PULL_OBJECTS.replace(pull)


def flaw_of_object(content: bytes) -> str | None:
    """Return why Flower must not unpack the object `content`, or None if it may."""
    from flwr.app import Array

    get_head, get_body = OBJECT_HEAD.get(), OBJECT_BODY.get()
    try:
        kind, children, _ = get_head(content)
        if kind == ARRAY_PIECE:
            return None
        if len(content) > MAX_HEADER:
            return "an object without numbers that is too long"
        if kind == "Array":
            # Flower concatenates the pieces in this order. With repeated numbers, a
            # small message would fill the memory.
            order = json.loads(get_body(content, Array))["arraychunk_ids"]
            if sorted(order) != list(range(len(children))):
                return "an array that names its pieces more than once"
    except Exception:
        return "an object that cannot be read"
    return None


def guard_node() -> None:
    """Make this node run only sagda's app, and repeat its calls after server errors."""
    pull, push, not_running = [part.get() for part in NODE_PARTS]

    @functools.wraps(pull)
    def guarded_pull(**calls: Any) -> int | None:
        calls |= {name: again(calls[name]) for name in PULL_MESSAGE.parameters}
        get_fab = calls["get_fab"]

        # A FAB is Flower's archive of an app. Flower unpacks it after this check.
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
    """Return True if an app's `archive` holds only the pyproject.toml of `APP`."""
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as files:
            entries = files.infolist()
            return (
                sorted(entry.filename for entry in entries) == APP_FILES
                # Checked before unpacking: a small archive can expand to gigabytes.
                and all(entry.file_size <= MAX_APP_FILE for entry in entries)
                and tomllib.loads(files.read("pyproject.toml").decode()) == APP
            )
    except (zipfile.BadZipFile, ValueError, OSError, RuntimeError, NotImplementedError):
        return False
