"""Measures sagda and its rivals, and writes the results, the tables and the pictures.

    make bench
    .venv/bin/python benchmarks/bench.py [--quick] [--only SECTION ...] [--draw]

`results.json` keeps what was measured; a section measured again replaces its own.
"""

import argparse
import json
import platform
import subprocess
import time
from pathlib import Path

import entrants
import exchange
import growth
import jax
import layouts
import machine
import networks
import numpy as np
import page
import parts
import pictures
import sweep
import tables
from children import Failed

import sagda

RESULTS = Path(__file__).with_name("results.json")
SECTIONS = {
    "rivals": entrants.measure_rivals,
    "layouts": layouts.measure_layouts,
    "growth": growth.measure_growth,
    "million": growth.measure_million,
    "networks": networks.measure_networks,
    "sweep": sweep.measure_sweep,
    "profile": parts.measure_profile,
    "exchange": exchange.measure_exchange,
}


def say(line: str) -> None:
    print(line, flush=True)


def rounded(value: object) -> object:
    """Five figures are enough for a file."""
    if isinstance(value, dict):
        return {str(k): rounded(v) for k, v in value.items()}
    if isinstance(value, list):
        return [rounded(v) for v in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def read() -> dict:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def keep(section: str, found: dict) -> dict:
    """Write it at once, so that an interrupted run keeps what it has."""
    results = read()
    results[section] = rounded(found)
    ordered = {name: results[name] for name in SECTIONS if name in results}
    RESULTS.write_text(json.dumps(ordered, indent=1) + "\n")
    return ordered


def source() -> str:
    """The commit that is measured, with a + if the package differs from it."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(RESULTS.parent), *words]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()

    changed = git("status", "--porcelain", "--", "../src")
    return git("rev-parse", "--short", "HEAD") + "+" * bool(changed)


def measure(section: str, quick: bool) -> None:
    say(f"== {section}")
    clock = time.perf_counter()
    load = machine.others(1.0)
    try:
        found = SECTIONS[section](quick, say)
    except Failed as failed:
        say(f"   {section} is left out: {failed}")
        return
    versions = {
        "sagda": sagda.__version__,
        "jax": jax.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
    found["versions"] = versions | found.get("versions", {})
    found |= {
        "machine": machine.describe(),
        "date": time.strftime("%Y-%m-%d"),
        "source": source(),
        "others_cores": load,
        "seconds": time.perf_counter() - clock,
        "quick": quick,
    }
    results = keep(section, found)
    say(f"\n{page.as_text(tables.TABLES[section](results[section]))}\n")
    say(page.notes(results[section]))
    say("*: before a measurement, other programs used more than half a core.\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures sagda and its rivals.")
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--draw", action="store_true", help="only tables and pictures")
    options = parser.parse_args()
    for section in () if options.draw else options.only:
        measure(section, options.quick)
    results = read()
    page.fill(results)
    pictures.draw(results)


if __name__ == "__main__":
    main()
