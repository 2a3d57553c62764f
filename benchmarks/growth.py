"""The sections *growth* and *million*: time and memory as one number grows.

Every point is a process that runs `point.py`.
"""

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
# For each number that grows: its values, and the other differences from BASE.
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
    """Fit the slope of log y in log x by least squares."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def contestant(folder: Path, fields: dict, rounds: int | None = None) -> Contestant:
    """Write data of the given sizes, and return a contestant that simulates on them."""
    name = "-".join(map(str, fields.values()))
    here = folder / name
    here.mkdir()
    point.write(here, fields["M"] * fields["n"], fields["d"])
    fields = fields | {"serve": rounds or 4, "folder": str(here)}
    command = [sys.executable, str(HERE / "point.py"), json.dumps(fields)]
    return Contestant(name, command, rounds=rounds)


def measured(points: list[Contestant], repeats: int) -> list[dict]:
    """Measure all points in turn. Return the result of each."""
    hold(points, repeats)
    for one in points:
        if one.failure:
            raise Failed(one.failure)
    return [one.ready | one.result() for one in points]


def measure_growth(quick: bool, say: Callable) -> dict:
    """Measure every axis of `AXES`."""
    curves = {}
    for axis, (values, extra) in AXES.items():
        values = values[::2] if quick else values
        with tempfile.TemporaryDirectory() as folder:
            contestants = []
            for value in values:
                fields = BASE | extra | {axis: value}
                if axis == "m":
                    fields["M"] = value
                contestants.append(contestant(Path(folder), fields))
            results = measured(contestants, 3 if quick else 7)
        points = [{"at": at} | one for at, one in zip(values, results, strict=True)]
        for one_point in points:
            say(
                f"  {axis} = {one_point['at']}: {one_point['ms']:.3f} ms, "
                f"{one_point['VmHWM'] / 2**20:.0f} MiB, {one_point['layout']}"
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
    """Compare M = 1,000,000 with M = 1,000 at m = 1,000, on memory-mapped files."""
    many = 100_000 if quick else 1_000_000
    sizes = 1000, many
    with tempfile.TemporaryDirectory() as folder:
        both = [
            contestant(Path(folder), BASE | {"M": clients, "m": 1000}, rounds=100)
            for clients in sizes
        ]
        pair = measured(both, 5 if quick else 41)
    points = {str(M): result for M, result in zip(sizes, pair, strict=True)}
    for name, result in points.items():
        say(f"  M = {name}: {result['ms']:.2f} ms per round")
    ratio = points[str(many)]["ms"] / points["1000"]["ms"]
    return {"points": points, "many": many, "ratio": ratio}
