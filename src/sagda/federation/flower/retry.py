"""`again`: calls to the SuperLink that are repeated after a server error.

The SuperLink's database can be locked for longer than Flower waits, on a slow machine
or with many sites. Flower then answers with status 500 and gives the call up: a
ServerApp would end, and a node would drop its site's answer.
"""

import logging
import time
from collections.abc import Callable
from typing import Any

import httpx

PAUSES = (1.0, 2.0, 4.0)  # seconds before the second, third and fourth attempt
log = logging.getLogger("flwr")


def again(call: Callable[..., Any]) -> Callable[..., Any]:
    """`call` with up to three more attempts while the SuperLink answers with 5xx.

    Other errors are raised at once: with 4xx the request itself is wrong.
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
