"""Everything that an installation of sagda brings with it: name, version, licence.

Reads what is installed beside this interpreter: `make licences`, or
`python scripts/licences.py core`, `... flower report` for some of the extras.
"""

import sys
from importlib import metadata
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

EXTRAS = ("flower", "mlflow", "parquet", "report", "sweep", "tensorboard", "torch")


def wanted(name: str, extras: set[str]) -> list[Requirement]:
    """What a distribution needs on this machine, with these of its extras."""
    found = []
    for text in metadata.requires(name) or []:
        need = Requirement(text)
        holds = [{"extra": extra} for extra in (extras or {""})]
        if need.marker is None or any(need.marker.evaluate(e) for e in holds):
            found.append(need)
    return found


def gathered(extras: set[str]) -> dict[str, metadata.Distribution]:
    """sagda and all that it leads to, as far as it is installed."""
    seen: dict[str, set[str]] = {}
    todo = [("sagda", extras)]
    found: dict[str, metadata.Distribution] = {}
    while todo:
        name, own = todo.pop()
        if name in seen and own <= seen[name]:
            continue
        seen[name] = seen.get(name, set()) | own
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            print(f"{name} is not installed", file=sys.stderr)
            continue
        for need in wanted(name, seen[name]):
            todo.append((canonicalize_name(need.name), set(need.extras)))
    return found


def licence(of: metadata.Distribution) -> str:
    """As the package says: an expression, its classifiers, or a first line."""
    about: Any = of.metadata
    if about.get("License-Expression"):
        return about["License-Expression"]
    lines = [c for c in about.get_all("Classifier") or [] if c.startswith("License ::")]
    names = [line.rpartition("::")[2].strip() for line in lines]
    if names:
        return ", ".join(names)
    text = (about.get("License") or "").strip().splitlines()
    return text[0][:60] if text else "not stated"


def main() -> int:
    asked = set(sys.argv[1:]) or set(EXTRAS)
    unknown = asked - {*EXTRAS, "core"}
    if unknown:
        print(f"extras must be among {', '.join(EXTRAS)}, got {', '.join(unknown)}.")
        return 2
    found = gathered(asked - {"core"})
    width = max(len(name) for name in found)
    for name in sorted(found):
        print(f"{name:{width}}  {found[name].version:12}  {licence(found[name])}")
    missing = [name for name in found if licence(found[name]) == "not stated"]
    print(f"{len(found)} packages, {len(missing)} without a stated licence")
    return 0


if __name__ == "__main__":
    sys.exit(main())
