"""Where a run's rates stand in the theory, as a section of its page.

`sagda report` measures it into theory.json; the page has what that file says.
"""

import html
import json
from pathlib import Path
from typing import Any

from sagda.report.markup import in_table, scrolled

FILE = "theory.json"
MISSING = (
    "Where these rates stand in the theory: `sagda report FOLDER` measures it, and "
    "writes this page again."
)
NOTE = (
    "Room: 1 where nothing of a condition is used, 0 at its edge, below it outside; "
    "conditions as their proofs support them. The theorem's own rates are those that "
    "make its bound least. Of rates that fail it says nothing, and they may work well."
)


def section(folder: Path, federation: bool) -> str:
    """What was measured, or how to have it measured where data are at hand."""
    path = folder / FILE
    if not path.is_file():
        return "" if federation else note(MISSING)
    facts = json.loads(path.read_text(encoding="utf-8"))
    if not facts:
        return note("The paper's theorems are about none of these algorithms.")
    remarks = dict.fromkeys(text for own in facts.values() for text in own["remarks"])
    return "\n".join(
        [
            "<h2>Where these rates stand in the theory</h2>",
            scrolled(constants(facts)),
            scrolled(conditions(facts)),
            scrolled(bounds(facts)),
            *map(note, [NOTE, *remarks]),
        ]
    )


def note(text: str) -> str:
    return f'<p class="note">{html.escape(text)}</p>'


def constants(facts: dict[str, Any]) -> str:
    """The same for all algorithms."""
    rows = []
    for own in next(iter(facts.values()))["constants"].values():
        value = f"{own['value']:.4g}"
        if own["low"] is not None:
            value += f" [{own['low']:.4g}, {own['high']:.4g}]"
        rows.append([own["symbol"], value, own["how"], own["where"]])
    return in_table(rows, ["constant", "value", "how", "where it holds"])


def conditions(facts: dict[str, Any]) -> str:
    rows = []
    for name, own in facts.items():
        for one in own["given"]["proof"]["conditions"]:
            word = "holds" if one["holds"] else "fails"
            left, right = one["left"], one["right"]
            room = f"{1 - right / left:.2g}" if left > 0 else "none at any K"
            rows.append([name, one["name"], word, room, one["says"]])
    return in_table(rows, ["algorithm", "condition", "verdict", "room", "says"])


def bounds(facts: dict[str, Any]) -> str:
    """The bound on the mean of ||grad Phi||^2, at the run's rates and at the best."""
    rows, terms = [], []
    for name, own in facts.items():
        for whose, at in (("run", own["given"]["proof"]), ("theorem", own["best"])):
            e, terms = at["rates"], list(at["bound"])
            local = f"{e['x_local']:.3g}, {e['y_local']:.3g}"
            server = f"{e['x_server']:.3g}, {e['y_server']:.3g}"
            values = [f"{value:.3g}" for value in at["bound"].values()]
            rows.append([name, whose, local, server, *values])
    return in_table(rows, ["algorithm", "rates of", "local", "server", *terms])
