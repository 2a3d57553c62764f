"""What strangers send, looked at before Flower puts it together.

Flower joins a message from objects by what is written in them: pieces may be named a
million times over, and a name may never be followed by its object. So objects are
counted, weighed and looked at first, and waited for only so long.
"""

import json
from collections.abc import Callable
from typing import Any

from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_head_values_from_object_content,
)
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError
from flwr.superlink.grid import http_grid

MOST = 2000  # objects of one message
SHEET = 1 << 18  # bytes of an object that is not a piece of an array
PIECE = "ArrayChunk"
HOOK = "pull_objects"
original: Any = getattr(http_grid, HOOK)


def guard(limit: Callable[[], int], patience: Callable[[], float]) -> None:
    """Bound what one message may hold, in bytes, and how long it is waited for."""

    def pull(object_ids: list[str], pull_object_fn: Any, **others: Any) -> dict:
        if len(object_ids) > MOST:
            raise ObjectPullError(object_ids[0], f"more than {MOST} objects")
        left = limit()

        def fetch(object_id: str) -> bytes:
            nonlocal left
            content = pull_object_fn(object_id)
            left -= len(content)
            if left < 0:
                raise ObjectPullError(object_id, "more bytes than a reply may have")
            return content

        others["max_time"] = patience()
        contents = original(object_ids, fetch, **others)
        for object_id, content in contents.items():
            if why := unfit(content):
                raise ObjectPullError(object_id, why)
        return contents

    setattr(http_grid, HOOK, pull)


def unfit(content: bytes) -> str | None:
    """Why an object must not be put together, if so."""
    try:
        kind, children, _ = get_object_head_values_from_object_content(content)
        if kind == PIECE:
            return None
        if len(content) > SHEET:
            return "an object without numbers that is too long"
        if kind == "Array":
            from flwr.app import Array

            body = json.loads(get_object_body(content, Array))
            order = body["arraychunk_ids"]
            if sorted(order) != list(range(len(children))):
                return "an array that names its pieces more than once"
    except Exception:
        return "an object that cannot be read"
    return None
