"""Checks of arguments: each error is one sentence with field, expected value, value.

Checks that need data, a problem or a method are in `simulator.checks` and with each
class.
"""

import contextlib
import difflib
import inspect
import math
import numbers
from collections.abc import Callable, Iterable, Iterator
from typing import Any


class BadValue(ValueError):
    """Invalid input: the type is right, the value is not."""


class BadKind(TypeError):
    """Invalid input: the type is not the expected one."""


@contextlib.contextmanager
def quoting(what: str) -> Iterator[None]:
    """Turn another library's exception into a sentence: `what`, and its first line."""
    try:
        yield
    except (BadValue, BadKind):
        raise
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise BadValue(f"{what}: {lines[0].rstrip('.')}.") from error


def wrong_kind(name: str, expected: str, value: Any) -> BadKind:
    """The error of a value whose type is not the expected one."""
    kind = type(value).__name__
    return BadKind(f"`{name}` must be {expected}, got {value!r:.60} of type {kind}.")


def integer(
    name: str, value: Any, *, low: int, high: int | None = None, what: str = ""
) -> int:
    """`value` as an int from `low` to `high`. `what` explains the upper bound."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise wrong_kind(name, "a whole number", value)
    value = int(value)
    if value < low or (high is not None and value > high):
        between = f"at least {low}" if high is None else f"between {low} and {high}"
        raise BadValue(f"`{name}` must be {between}{what}, got {value}.")
    return value


def real(
    name: str, value: Any, *, low: float = -math.inf, high: float = math.inf
) -> float:
    """`value` as a finite float in [low, high)."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise wrong_kind(name, "a number", value)
    value = float(value)
    if not math.isfinite(value):
        raise BadValue(f"`{name}` must be finite, got {value}.")
    if not low <= value < high:
        between = f"at least {low:g}" if high == math.inf else f"in [{low:g}, {high:g})"
        raise BadValue(f"`{name}` must be {between}, got {value:g}.")
    return value


def positive(name: str, value: Any) -> float:
    """`value` as a finite float above zero."""
    if real(name, value) <= 0:
        raise BadValue(f"`{name}` must be above zero, got {value:g}.")
    return float(value)


def choice(name: str, value: Any, allowed: Iterable[str]) -> str:
    """`value` if it is allowed. Otherwise the error suggests the nearest name."""
    allowed = list(allowed)
    if value in allowed:
        return value
    close = difflib.get_close_matches(str(value), allowed, n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]!r}?" if close else "."
    raise BadValue(f"`{name}` must be one of {', '.join(allowed)}, got {value!r}{hint}")


def kind(name: str, value: Any, expected: type, example: str) -> None:
    """Raise unless `value` is an instance of the expected class."""
    if not isinstance(value, expected):
        raise wrong_kind(name, f"a {expected.__name__}, {example}", value)


def keywords(what: str, function: Callable, given: Iterable[str]) -> None:
    """Raise if `function` lacks one of the keywords, and suggest the nearest one."""
    known = list(inspect.signature(function).parameters)
    for name in given:
        if not known:
            raise BadValue(f"{what} takes no options, got {name!r}.")
        choice(f"option of {what}", name, known)
