"""`Registry`: objects by name, each imported when it is first used.

An entry says where its object is defined, as in "auc:AUC". A new entry is therefore one
line and needs no import. Algorithms, models, data sets, problems and trackers have a
registry each, in the `__init__.py` of their room or next to their class.
"""

from collections.abc import Iterator, Mapping, MutableMapping
from importlib import import_module
from typing import Any, TypeVar

T = TypeVar("T")


class Registry(MutableMapping[str, T]):
    """A dictionary whose values may be written as "module:attribute".

    Args:
        package: where the modules of such values lie, such as "sagda.problems".
        entries: by name, an object or where to import it from.

    Examples:
        >>> registry = Registry("sagda.problems", {"auc": "auc:AUC"})
        >>> registry["auc"].__name__
        'AUC'
    """

    def __init__(self, package: str, entries: Mapping[str, T | str]):
        self.package, self.entries = package, dict(entries)

    def __getitem__(self, name: str) -> T:
        entry: Any = self.entries[name]
        if isinstance(entry, str):
            module, _, attribute = entry.partition(":")
            entry = getattr(import_module(f"{self.package}.{module}"), attribute)
            self.entries[name] = entry
        return entry

    def __setitem__(self, name: str, entry: T) -> None:
        self.entries[name] = entry

    def __delitem__(self, name: str) -> None:
        del self.entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)
