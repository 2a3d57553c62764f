"""Checks of single arguments. An error names the field, its value and what it must be.

Checks that need data, a problem or a method are in `simulator/checks.py` or in the
classes that they concern.
"""

import contextlib
import difflib
import inspect
import math
import numbers
from collections.abc import Callable, Iterable, Iterator
from typing import Any


class BadValue(ValueError):
    """Invalid input: the value is not allowed, although its type is."""


class BadKind(TypeError):
    """Invalid input: the type of the value is wrong."""


@contextlib.contextmanager
def quoting(what: str) -> Iterator[None]:
    """Turn an exception of another library into a `BadValue`.

    Its message is `what`, followed by the first line of the exception.
    """
    try:
        yield
    except (BadValue, BadKind):
        raise
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise BadValue(f"{what}: {lines[0].rstrip('.')}.") from error


def wrong_kind(name: str, expected: str, value: Any) -> BadKind:
    """Return the error for a value of the wrong type."""
    kind = type(value).__name__
    return BadKind(f"`{name}` must be {expected}, got {value!r:.60} of type {kind}.")


def integer(
    name: str, value: Any, *, low: int, high: int | None = None, what: str = ""
) -> int:
    """Return `value` as an int between `low` and `high`, or raise.

    `what` is appended to the bounds in the message, to explain the upper bound.
    """
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
    """Return `value` as a finite float in [low, high), or raise."""
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
    """Return `value` as a finite float above zero, or raise."""
    if real(name, value) <= 0:
        raise BadValue(f"`{name}` must be above zero, got {value:g}.")
    return float(value)


def choice(name: str, value: Any, allowed: Iterable[str]) -> str:
    """Return `value` if it is allowed. Otherwise raise, and suggest a similar name."""
    allowed = list(allowed)
    if value in allowed:
        return value
    close = difflib.get_close_matches(str(value), allowed, n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]!r}?" if close else "."
    raise BadValue(f"`{name}` must be one of {', '.join(allowed)}, got {value!r}{hint}")


def kind(name: str, value: Any, expected: type, example: str) -> None:
    """Raise unless `value` is an instance of `expected`. The message has `example`."""
    if not isinstance(value, expected):
        raise wrong_kind(name, f"a {expected.__name__}, {example}", value)


def keywords(what: str, function: Callable, given: Iterable[str]) -> None:
    """Raise if `function` lacks a parameter of a given name; suggest a similar name."""
    known = list(inspect.signature(function).parameters)
    for name in given:
        if not known:
            raise BadValue(f"{what} takes no options, got {name!r}.")
        choice(f"option of {what}", name, known)
