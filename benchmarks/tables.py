"""Makes the tables of docs/performance.md, as rows of text, from the results."""

import growth
from entrants import JOBS, OURS

MIB, GIB = 2**20, 2**30
HEADS = {
    (p, b): f"{p.upper()}, {'batch 10' if b == '10' else 'all rows'}" for p, b in JOBS
}
Table = list[list[str]]


def best_variants(rows: list[dict]) -> list[dict]:
    """Return the fastest variant of each contestant for each job."""
    best: dict[tuple, dict] = {}
    for row in rows:
        key = row["name"], row["problem"], row["batch"]
        if key not in best or row["ms"] < best[key]["ms"]:
            best[key] = row
    return list(best.values())


def in_order(rows: list[dict]) -> list[str]:
    """Return the names of the contestants, those of the DRO jobs first.

    The DRO jobs have the most contestants.
    """
    rows = sorted(rows, key=lambda row: row["problem"] != "dro")
    return list(dict.fromkeys(row["name"] for row in rows))


def number(value: float) -> str:
    """Format a number with three significant digits, without an exponent."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:,.{digits}f}"


def rivals(result: dict) -> Table:
    """Return the times of all contestants on the four jobs, with ratios to sagda."""
    rows = best_variants(result["rows"])
    table = [["", *HEADS.values(), "difference", "threads"]]
    at = {(row["name"], row["problem"], row["batch"]): row for row in rows}
    for name in in_order(rows):
        jobs = [at.get((name, *where)) for where in JOBS]
        cells = []
        for where, row in zip(JOBS, jobs, strict=True):
            if row is None:
                cells.append("")
                continue
            ratio = row["ms"] / at[OURS, *where]["ms"]
            mark = "*" if row["disturbed"] else ""
            cells.append(f"{number(row['ms'])}{mark} ({number(ratio)}x)")
        apart = [r["difference"] for r in jobs if r and r["difference"] is not None]
        variants = [r["variant"] for r in jobs if r and r["variant"]]
        if len(set(variants)) == 1:
            variants = variants[:1]
        difference = f"{max(apart):.0e}" if apart else "not compared"
        difference = "" if name == OURS else difference
        table.append([name, *cells, difference, ", ".join(variants)])
    return table


def layouts(result: dict) -> Table:
    """Return the time of `auto` and of the best other layout, for each task."""
    table = [["task", "auto is", "ms", "best other", "ms", "auto / other"]]
    for row in result["rows"]:
        what = f"n = {row['n']}, d = {row['d']}" if "n" in row else "a9a"
        what += f", MLP {row['width']}" if "width" in row else ""
        title = f"{row['problem'].upper()}, {what}, "
        title += f"batch {row['batch']}" if row["batch"] else "all rows"
        title += f", m = {row['cohort']}" if row["cohort"] else ""
        title += f", {row['seeds']} seeds" if row["seeds"] > 1 else ""
        cells = [
            text
            for layout in (row["auto"], row["best"])
            for text in (layout, number(row["layouts"][layout]["ms"]))
        ]
        ratio = f"{row['ratio']:.2f}" + "*" * bool(row["disturbed"])
        table.append([title, *cells, ratio])
    return table


def growths(result: dict) -> Table:
    """Return the exponent, the times and the memory of each number that grows."""
    head = ["grows", "from", "to", "exponent", "in the last decade", "ms", "peak MiB"]
    table = [head]
    for axis, curve in result["curves"].items():
        points = curve["points"]
        span = lambda of, points=points: " to ".join(
            number(of(points[i])) for i in (0, -1)
        )
        table.append(
            [
                growth.TITLES[axis],
                f"{points[0]['at']:,}",
                f"{points[-1]['at']:,}",
                f"{curve['exponent']:.2f}",
                f"{curve['exponent_last']:.2f}",
                span(lambda p: p["ms"]) + "*" * any(p["disturbed"] for p in points),
                span(lambda p: p["VmHWM"] / MIB),
            ]
        )
    return table


def million(result: dict) -> Table:
    """Return the time and the memory of a round with few and with many clients."""
    head = ["clients M", "ms per round", "least, most", "ratio", "peak GiB"]
    table = [[*head, "without files", "seconds"]]
    first = next(iter(result["points"].values()))
    for clients, point in result["points"].items():
        table.append(
            [
                f"{int(clients):,}",
                number(point["ms"]) + "*" * bool(point["disturbed"]),
                f"{number(point['low_ms'])} to {number(point['high_ms'])}",
                f"{point['ms'] / first['ms']:.2f}",
                f"{point['VmHWM'] / GIB:.2f}",
                f"{point['RssAnon'] / GIB:.2f}",
                f"{point['total_seconds']:.0f}",
            ]
        )
    return table


def sweep(result: dict) -> Table:
    """Return the seconds of each way to run the grid."""
    table = [["way", "seconds", "ratio", ""]]
    first = result["rows"][0]["seconds"]
    for row in result["rows"]:
        ratio = f"{row['seconds'] / first:.1f}"
        table.append([row["name"], f"{row['seconds']:.1f}", ratio, row["note"]])
    return table


def profile(result: dict) -> Table:
    """Return the parts of a round, in microseconds and percent."""
    jobs = result["jobs"]
    head = [f"{HEADS['dro', batch]}" for batch in jobs]
    table = [["part", *(f"{h}, {u}" for h in head for u in ("us", "%"))]]
    first = next(iter(jobs.values()))
    for name in first["parts"]:
        line = [name]
        for at in jobs.values():
            us = at["parts"][name]
            line += [f"{us:,.0f}", f"{100 * us / at['round']:.0f}"]
        table.append(line)
    table.append(["round", *(c for at in jobs.values() for c in total(at["round"]))])
    for name in first["beside"]:
        line = [f"separately: {name}"]
        for at in jobs.values():
            line += [f"{at['beside'][name]:,.0f}", ""]
        table.append(line)
    return table


def total(us: float) -> list[str]:
    """Return the two cells of a whole round."""
    return [f"{us:,.0f}", "100"]


def exchange(result: dict) -> Table:
    """Return the seconds per exchange over Flower, and the ratio of the means."""
    names = {
        "empty": f"Flower's own, empty, {result['bytes']:,} bytes each way",
        "ours": "a round of SAGDA-I, the same bytes",
    }
    base = next(row for row in result["rows"] if row["name"] == "empty")
    head = ["", "exchanges", "mean, s", "standard error", "median, s", "ratio"]
    return [
        head,
        *(
            [
                names[row["name"]],
                str(row["count"]),
                f"{row['mean']:.2f}",
                f"{row['error']:.2f}",
                f"{row['median']:.2f}",
                f"{row['mean'] / base['mean']:.2f}",
            ]
            for row in result["rows"]
        ),
    ]


def networks(result: dict) -> Table:
    """Return the time and the memory of each network and layout."""
    head = ["model", "layout", "is", "ms per round", "set aside MiB", "peak MiB"]
    table = [head]
    for row in result["rows"]:
        ms = number(row["ms"]) + "*" * bool(row["disturbed"])
        sizes = [number(row[name] / MIB) for name in ("set_aside", "VmHWM")]
        table.append([row["model"].upper(), row["name"], row["layout"], ms, *sizes])
    return table


TABLES = {
    "rivals": rivals,
    "layouts": layouts,
    "growth": growths,
    "million": million,
    "networks": networks,
    "sweep": sweep,
    "exchange": exchange,
    "profile": profile,
}
