"""`again`: repeats a call to the SuperLink after a server error (HTTP status 5xx).

On a slow machine, or with many sites, the SuperLink's database can be locked for longer
than Flower waits. Flower then answers with status 500 and does not repeat the call. A
ServerApp would end, and a node would drop the answer of its site.
"""

import logging
import time
from collections.abc import Callable
from typing import Any

import httpx

PAUSES = (1.0, 2.0, 4.0)  # seconds before the second, third and fourth attempt
log = logging.getLogger("flwr")


def again(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return `call` with up to three more attempts after an answer with status 5xx.

    Other errors are raised at once. A status of 4xx means that the request is wrong.
    """

    def persistent(*args: Any, **kwargs: Any) -> Any:
        for pause in PAUSES:
            try:
                return call(*args, **kwargs)
            except httpx.HTTPStatusError as error:
                if error.response.status_code < 500:
                    raise
                log.warning("sagda: the SuperLink failed; trying again in %g s.", pause)
                time.sleep(pause)
        return call(*args, **kwargs)

    return persistent
