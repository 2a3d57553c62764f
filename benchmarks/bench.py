"""Measure sagda and its rivals; write results, tables and pictures.

    make bench
    .venv/bin/python benchmarks/bench.py [--quick] [--only SECTION ...] [--draw]

Each section of docs/performance.md is a function in `SECTIONS`. The results are in
`results.json`; measuring a section again replaces its results. `tables` and `pictures`
show them, and `page` writes them into docs/performance.md.
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
    """Round all numbers in `value` to five significant digits."""
    if isinstance(value, dict):
        return {str(k): rounded(v) for k, v in value.items()}
    if isinstance(value, list):
        return [rounded(v) for v in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def read() -> dict:
    """Read all stored results, by section."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def store(section: str, result: dict) -> dict:
    """Write the result of a section to `results.json`, and return all results."""
    results = read()
    results[section] = rounded(result)
    ordered = {name: results[name] for name in SECTIONS if name in results}
    RESULTS.write_text(json.dumps(ordered, indent=1) + "\n")
    return ordered


def source() -> str:
    """Return the commit that is measured, with a + if src/ has uncommitted changes."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(RESULTS.parent), *words]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()

    changed = git("status", "--porcelain", "--", "../src")
    return git("rev-parse", "--short", "HEAD") + "+" * bool(changed)


def measure(section: str, quick: bool) -> None:
    """Measure one section, store its result and print its table."""
    say(f"== {section}")
    clock = time.perf_counter()
    load = machine.others(1.0)
    try:
        result = SECTIONS[section](quick, say)
    except Failed as failed:
        say(f"   {section} is left out: {failed}")
        return
    versions = {
        "sagda": sagda.__version__,
        "jax": jax.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
    result["versions"] = versions | result.get("versions", {})
    result |= {
        "machine": machine.describe(),
        "date": time.strftime("%Y-%m-%d"),
        "source": source(),
        "others_cores": load,
        "seconds": time.perf_counter() - clock,
        "quick": quick,
    }
    results = store(section, result)
    say(f"\n{page.as_text(tables.TABLES[section](results[section]))}\n")
    say(page.notes(results[section]))
    say("*: before a measurement, other programs used more than half a core.\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure sagda and its rivals.")
    parser.add_argument("--quick", action="store_true", help="repeat less often")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=SECTIONS,
        default=list(SECTIONS),
        help="measure only these sections",
    )
    parser.add_argument(
        "--draw", action="store_true", help="only write tables and pictures again"
    )  # fmt: skip
    options = parser.parse_args()
    for section in () if options.draw else options.only:
        measure(section, options.quick)
    results = read()
    page.fill(results)
    pictures.draw(results)


if __name__ == "__main__":
    main()
