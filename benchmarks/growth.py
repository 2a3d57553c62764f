"""How time and memory grow: one number at a time, and a million clients."""

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import point
from children import HERE, Failed
from contest import Contestant, hold

BASE = {"M": 100, "m": 100, "n": 10, "d": 20, "K": 10}
# By the number that grows: its values, and what else differs from BASE.
AXES = {
    "M": ([1000, 3162, 10_000, 31_623, 100_000], {}),
    "m": ([10, 32, 100, 316, 1000], {}),
    "K": ([1, 3, 10, 32, 100], {}),
    "n": ([10, 32, 100, 316, 1000], {"batch": None}),
    "d": ([10, 32, 100, 316, 1000], {}),
}
TITLES = {
    "M": "clients M, at m = 100",
    "m": "clients in a round m, M = m",
    "K": "local steps K",
    "n": "rows of a client n, whole batches",
    "d": "features d",
}


def exponent(x: list[float], y: list[float]) -> float:
    """The slope of a line through the logarithms, by least squares."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def contestant(folder: Path, fields: dict, rounds: int | None = None) -> Contestant:
    """A process with data of its own."""
    name = "-".join(map(str, fields.values()))
    here = folder / name
    here.mkdir()
    point.write(here, fields["M"] * fields["n"], fields["d"])
    fields = fields | {"serve": rounds or 4, "folder": str(here)}
    command = [sys.executable, str(HERE / "point.py"), json.dumps(fields)]
    return Contestant(name, command, rounds=rounds)


def held(points: list[Contestant], repeats: int) -> list[dict]:
    """What each point measured, bout by bout in turn."""
    hold(points, repeats)
    for one in points:
        if one.failure:
            raise Failed(one.failure)
    return [one.ready | one.result() for one in points]


def measure_growth(quick: bool, say: Callable) -> dict:
    curves = {}
    for axis, (values, extra) in AXES.items():
        values = values[::2] if quick else values
        with tempfile.TemporaryDirectory() as folder:
            asked = []
            for value in values:
                fields = BASE | extra | {axis: value}
                if axis == "m":
                    fields["M"] = value
                asked.append(contestant(Path(folder), fields))
            found = held(asked, 3 if quick else 7)
        points = [{"at": at} | own for at, own in zip(values, found, strict=True)]
        for own in points:
            say(
                f"  {axis} = {own['at']}: {own['ms']:.3f} ms, "
                f"{own['VmHWM'] / 2**20:.0f} MiB, {own['layout']}"
            )
        at, ms = [p["at"] for p in points], [p["ms"] for p in points]
        last = [i for i, value in enumerate(at) if 11 * value >= at[-1]]
        curves[axis] = {
            "points": points,
            "exponent": exponent(at, ms),
            "exponent_last": exponent([at[i] for i in last], [ms[i] for i in last]),
        }
    return {"base": BASE, "curves": curves}


def measure_million(quick: bool, say: Callable) -> dict:
    """M = 1,000,000 against M = 1,000 at m = 1,000, mapped files, 100 rounds a bout."""
    many = 100_000 if quick else 1_000_000
    sizes = 1000, many
    with tempfile.TemporaryDirectory() as folder:
        both = [
            contestant(Path(folder), BASE | {"M": clients, "m": 1000}, rounds=100)
            for clients in sizes
        ]
        pair = held(both, 5 if quick else 41)
    found = {str(M): own for M, own in zip(sizes, pair, strict=True)}
    for name, own in found.items():
        say(f"  M = {name}: {own['ms']:.2f} ms a round")
    ratio = found[str(many)]["ms"] / found["1000"]["ms"]
    return {"points": found, "many": many, "ratio": ratio}
