"""The tables, as rows of text made from the results."""

import growth
from entrants import JOBS, OURS

MIB, GIB = 2**20, 2**30
HEADS = {
    (p, b): f"{p.upper()}, {'batch 10' if b == '10' else 'all rows'}" for p, b in JOBS
}
Table = list[list[str]]


def best_variants(rows: list[dict]) -> list[dict]:
    """Of contestants measured in several ways, the faster."""
    best: dict[tuple, dict] = {}
    for row in rows:
        key = row["name"], row["problem"], row["batch"]
        if key not in best or row["ms"] < best[key]["ms"]:
            best[key] = row
    return list(best.values())


def in_order(rows: list[dict]) -> list[str]:
    """The contestants' names, those of the DRO job first: they are the most."""
    rows = sorted(rows, key=lambda row: row["problem"] != "dro")
    return list(dict.fromkeys(row["name"] for row in rows))


def number(value: float) -> str:
    """Three figures, none of them an exponent."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:,.{digits}f}"


def rivals(found: dict) -> Table:
    rows = best_variants(found["rows"])
    table = [["", *HEADS.values(), "apart", "threads"]]
    at = {(row["name"], row["problem"], row["batch"]): row for row in rows}
    for name in in_order(rows):
        mine = [at.get((name, *where)) for where in JOBS]
        cells = []
        for where, row in zip(JOBS, mine, strict=True):
            if row is None:
                cells.append("")
                continue
            ratio = row["ms"] / at[OURS, *where]["ms"]
            mark = "*" if row["disturbed"] else ""
            cells.append(f"{number(row['ms'])}{mark} ({number(ratio)}x)")
        apart = [r["difference"] for r in mine if r and r["difference"] is not None]
        variants = [r["variant"] for r in mine if r and r["variant"]]
        if len(set(variants)) == 1:
            variants = variants[:1]
        far = f"{max(apart):.0e}" if apart else "not compared"
        far = "" if name == OURS else far
        table.append([name, *cells, far, ", ".join(variants)])
    return table


def layouts(found: dict) -> Table:
    table = [["task", "auto is", "ms", "best other", "ms", "auto / other"]]
    for row in found["rows"]:
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


def growths(found: dict) -> Table:
    head = ["grows", "from", "to", "exponent", "in the last decade", "ms", "peak MiB"]
    table = [head]
    for axis, curve in found["curves"].items():
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


def million(found: dict) -> Table:
    head = ["clients M", "ms a round", "least, most", "ratio", "peak GiB", "no file"]
    head.append("seconds")
    table = [head]
    first = next(iter(found["points"].values()))
    for clients, point in found["points"].items():
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


def sweep(found: dict) -> Table:
    table = [["way", "seconds", "ratio", ""]]
    first = found["rows"][0]["seconds"]
    for row in found["rows"]:
        ratio = f"{row['seconds'] / first:.1f}"
        table.append([row["name"], f"{row['seconds']:.1f}", ratio, row["note"]])
    return table


def profile(found: dict) -> Table:
    jobs = found["jobs"]
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
        line = [f"beside it: {name}"]
        for at in jobs.values():
            line += [f"{at['beside'][name]:,.0f}", ""]
        table.append(line)
    return table


def total(us: float) -> list[str]:
    return [f"{us:,.0f}", "100"]


def exchange(found: dict) -> Table:
    """Seconds per exchange over Flower, and the ratio of the means."""
    names = {
        "empty": f"Flower's own, empty, {found['bytes']:,} bytes each way",
        "ours": "a round of SAGDA-I, the same bytes",
    }
    base = next(row for row in found["rows"] if row["name"] == "empty")
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
            for row in found["rows"]
        ),
    ]


def networks(found: dict) -> Table:
    head = ["model", "layout", "is", "ms a round", "set aside MiB", "peak MiB"]
    table = [head]
    for row in found["rows"]:
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
