"""List every package that sagda depends on, with its version and licence.

    python scripts/licences.py [core | EXTRA ...]

The script reads the packages that are installed for this interpreter. With `core`, it
omits all extras. With names such as `flower report`, it includes only these extras.
`make licences` runs this script.
"""

import sys
from importlib import metadata
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

EXTRAS = ("flower", "mlflow", "parquet", "report", "sweep", "tensorboard", "torch")


def wanted(name: str, extras: set[str]) -> list[Requirement]:
    """Return the requirements of a package on this machine, with some of its extras."""
    requirements = []
    for text in metadata.requires(name) or []:
        need = Requirement(text)
        holds = [{"extra": extra} for extra in (extras or {""})]
        if need.marker is None or any(need.marker.evaluate(e) for e in holds):
            requirements.append(need)
    return requirements


def gathered(extras: set[str]) -> dict[str, metadata.Distribution]:
    """Return sagda and all its installed requirements, direct and indirect, by name."""
    seen: dict[str, set[str]] = {}
    todo = [("sagda", extras)]
    packages: dict[str, metadata.Distribution] = {}
    while todo:
        name, more = todo.pop()
        if name in seen and more <= seen[name]:
            continue
        seen[name] = seen.get(name, set()) | more
        try:
            packages[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            print(f"{name} is not installed", file=sys.stderr)
            continue
        for need in wanted(name, seen[name]):
            todo.append((canonicalize_name(need.name), set(need.extras)))
    return packages


def licence(of: metadata.Distribution) -> str:
    """Return the licence that a package states.

    It is the licence expression, else the classifiers, else the first line of the text.
    """
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
    extras = set(sys.argv[1:]) or set(EXTRAS)
    unknown = extras - {*EXTRAS, "core"}
    if unknown:
        known = ", ".join(("core", *EXTRAS))
        print(f"extras must be among {known}, got {', '.join(unknown)}.")
        return 2
    packages = gathered(extras - {"core"})
    width = max(len(name) for name in packages)
    for name, package in sorted(packages.items()):
        print(f"{name:{width}}  {package.version:12}  {licence(package)}")
    missing = [n for n, package in packages.items() if licence(package) == "not stated"]
    print(f"{len(packages)} packages, {len(missing)} without a stated licence")
    return 0


if __name__ == "__main__":
    sys.exit(main())
