"""Calls that are made again where a SuperLink fails for a reason of its own.

Its database may be locked for longer than Flower waits, where a machine is slow or has
many sites. Flower answers 500 then and gives the call up: a ServerApp would end with
it, a node would drop its site's answer.
"""

import logging
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import httpx

PAUSES = (1.0, 2.0, 4.0)  # seconds before the second call and those after it
log = logging.getLogger("flwr")
P = ParamSpec("P")
T = TypeVar("T")


def again(call: Callable[P, T]) -> Callable[P, T]:
    """`call`, made up to four times if the SuperLink says the failure is its own."""

    def patient(*args: P.args, **kwargs: P.kwargs) -> T:
        for pause in PAUSES:
            try:
                return call(*args, **kwargs)
            except httpx.HTTPStatusError as error:
                if error.response.status_code < 500:
                    raise
                log.warning("sagda: the SuperLink failed; asked again in %g s.", pause)
                time.sleep(pause)
        return call(*args, **kwargs)

    return patient
