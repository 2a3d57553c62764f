"""How time and memory grow: one number at a time, and a million clients."""

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import machine
import numpy as np
import point
from children import HERE, Failed, ask
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


def one_point(fields: dict) -> dict:
    """A process with data of its own; what it printed, and who else was busy."""
    with tempfile.TemporaryDirectory() as folder:
        point.write(Path(folder), fields["M"] * fields["n"], fields["d"])
        load = machine.others()
        found = ask("point.py", json.dumps(fields | {"folder": folder}))
    return found | {"disturbed": int(load > machine.DISTURBED)}


def measure_growth(quick: bool, say: Callable) -> dict:
    curves = {}
    for axis, (values, extra) in AXES.items():
        points = []
        for value in values[::2] if quick else values:
            fields = BASE | extra | {axis: value}
            if axis == "m":
                fields["M"] = value
            points.append({"at": value} | one_point(fields))
            found = points[-1]
            say(
                f"  {axis} = {value}: {found['ms']:.3f} ms, "
                f"{found['VmHWM'] / 2**20:.0f} MiB, {found['layout']}"
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
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        pair = []
        for clients in (1000, many):
            here = Path(folder) / str(clients)
            here.mkdir()
            point.write(here, clients * BASE["n"], BASE["d"])
            fields = BASE | {"M": clients, "m": 1000, "serve": 100, "folder": str(here)}
            command = [sys.executable, str(HERE / "point.py"), json.dumps(fields)]
            pair.append(Contestant(str(clients), command, rounds=100))
        hold(pair, 5 if quick else 41)
    for one in pair:
        if one.failure:
            raise Failed(one.failure)
        found[one.name] = one.result() | one.ready | {"ms": one.result()["ms"]}
        say(f"  M = {one.name}: {found[one.name]['ms']:.2f} ms a round")
    ratio = found[str(many)]["ms"] / found["1000"]["ms"]
    return {"points": found, "many": many, "ratio": ratio}
