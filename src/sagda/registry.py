"""`Registry`: a dictionary of objects by name, imported when they are first used.

An entry such as "auc:AUC" names the module and the attribute of an object. So a new
entry is one line and needs no import. There are registries of algorithms, models, data
sets, problems and trackers. Each is in the `__init__.py` of its folder, or in the
module of its class.
"""

from collections.abc import Iterator, Mapping, MutableMapping
from importlib import import_module
from typing import Any, TypeVar

T = TypeVar("T")


class Registry(MutableMapping[str, T]):
    """A dictionary whose values may be strings of the form "module:attribute".

    Reading such a value imports the module and returns the attribute.

    Args:
        package: the package of these modules, such as "sagda.problems".
        entries: for each name, an object or a string "module:attribute".

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
