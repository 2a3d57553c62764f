"""What a server keeps on its disk: one atomic commit a round, no more and no less.

Its folder holds `manifest.json`, the one commit point; the arrays that it names with
their digests; and `log.jsonl`, of which the manifest says how much counts.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors.numpy

from sagda import durable
from sagda.check import BadValue
from sagda.federation.plan import Specs, added
from sagda.federation.protocol.letters import adapter
from sagda.federation.protocol.messages import Version
from sagda.federation.protocol.server import Member, ServerState
from sagda.federation.protocol.wire import Spec
from sagda.federation.server.traffic import Traffic

SCHEMA = 1
MANIFEST, LOG = "manifest.json", "log.jsonl"
ARRAYS = ".safetensors"


def flat(spec: Spec, tree: Any, prefix: str) -> dict[str, np.ndarray]:
    """The arrays of a tree by the names that its specification gives them."""
    arrays = spec.structure.flatten_up_to(tree)
    return {
        f"{prefix}/{leaf.name}": np.asarray(array, order="C")
        for leaf, array in zip(spec.leaves, arrays, strict=True)
    }


def whole(spec: Spec, arrays: Mapping[str, np.ndarray], prefix: str) -> Any:
    found = []
    for leaf in spec.leaves:
        array = arrays.get(f"{prefix}/{leaf.name}")
        if array is None or array.shape != leaf.shape or array.dtype.str != leaf.dtype:
            raise BadValue(f"no array {prefix}/{leaf.name} of the right shape.")
        found.append(array)
    return spec.structure.unflatten(found)


class ServerStore:
    """The server's folder."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.facts: dict[str, Any] = {}  # terms and census, as the manifest has them
        self.files: dict[str, tuple[Any, str, str]] = {}  # what each file was made of
        self.log_bytes, self.log_hash = 0, hashlib.sha256()
        self.previous = ""

    @property
    def exists(self) -> bool:
        return (self.folder / MANIFEST).exists()

    # Writing.

    def save(self, book: ServerState, records: list[dict[str, Any]]) -> None:
        """R5: everything, or nothing."""
        memory = self.facts["specs"].memory
        members = {}
        held = {f"member-{n}" for n, m in book.members.items() if m.memory is not None}
        self.files = {k: v for k, v in self.files.items() if k in held | {"state"}}
        for name, member in book.members.items():
            entry: dict[str, Any] = {
                "number": member.number,
                "missed": member.missed,
                "version": member.version,
            }
            if member.memory is not None:
                make = lambda member=member: flat(memory, member.memory, "memory")
                entry |= self.keep(f"member-{name}", make, member.version)
            members[name] = entry
        made_of = book.round, book.opened, book.epoch, tuple(sorted(members))
        state = self.keep("state", lambda: self.state_arrays(book), made_of)
        self.append(records)
        content = {
            "schema": SCHEMA,
            "run": book.run,
            "terms": self.facts["terms"],
            "census": self.facts["census"],
            "incarnation": book.incarnation,
            "round": book.round,
            "epoch": book.epoch,
            "opened": book.opened,
            "ledger": (book.ledger or Traffic())._asdict(),
            "members": members,
            "state": state,
            "log": {"bytes": self.log_bytes, "sha256": self.log_hash.hexdigest()},
            "previous": self.previous,
        }
        text = json.dumps(content, indent=1) + "\n"
        self.previous = durable.write(self.folder / MANIFEST, text)
        used = {file for _, file, _ in self.files.values()}
        for path in self.folder.glob(f"*{ARRAYS}*"):
            if path.name not in used:
                durable.remove(path)

    def state_arrays(self, book: ServerState) -> dict[str, np.ndarray]:
        """The state, and V: the sum of all memories, which their mean follows from."""
        arrays = flat(self.facts["state"], book.state, "state")
        if self.facts["mean"]:
            total = total_of(book.members, self.facts["first"])
            arrays |= flat(Spec.of(total), total, "total")
        return arrays

    def keep(self, slot: str, make: Any, made_of: Any) -> dict[str, str]:
        """A file of arrays, written again only when what it is made of has changed."""
        held = self.files.get(slot)
        if held is None or held[0] != made_of:
            content = safetensors.numpy.save(make())
            digest = durable.digest(content)
            # A name of its own: the last manifest's files stay until the next one.
            file = f"{slot}-{digest[:16]}{ARRAYS}"
            durable.write(self.folder / file, content)
            self.files[slot] = made_of, file, digest
        _, file, digest = self.files[slot]
        return {"file": file, "sha256": digest}

    def append(self, records: list[dict[str, Any]]) -> None:
        if not records:
            return
        content = "".join(json.dumps(record) + "\n" for record in records).encode()
        # What a killed server wrote behind the last commit never counted.
        durable.append(self.folder / LOG, content, self.log_bytes)
        self.log_bytes += len(content)
        self.log_hash.update(content)

    # Reading.

    def manifest(self) -> dict[str, Any]:
        path = self.folder / MANIFEST
        try:
            content = durable.read(path)
            found = json.loads(content)
            if found["schema"] != SCHEMA:
                raise BadValue(
                    f"{path}: `schema` must be {SCHEMA} for this version, got "
                    f"{found['schema']!r}."
                )
            found["ledger"] = Traffic(**found["ledger"])
            found["members"] = {
                name: entry | {"version": version_of(entry["version"])}
                for name, entry in found["members"].items()
            }
            expected = {
                "run",
                "terms",
                "census",
                "incarnation",
                "round",
                "state",
                "log",
            }
            if not expected <= set(found):
                raise KeyError
        except FileNotFoundError:
            raise BadValue(
                f"{path} does not exist: no server has kept anything."
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, BadValue):
                raise
            raise BadValue(f"{path} is damaged or not a server's manifest.") from None
        self.previous = durable.digest(content)
        return found

    def describe(self, terms: str, census: dict[str, Any], parts: "Parts") -> None:
        """What is needed to write books, and to read them."""
        self.facts = {"terms": terms, "census": census, **parts}

    def load(self, found: dict[str, Any]) -> ServerState:
        """The book of a manifest, every file of it checked."""
        self.records()
        members = {}
        memory = self.facts["specs"].memory
        for name, entry in found["members"].items():
            value = None
            if "file" in entry:
                arrays = self.read(f"member-{name}", entry, entry["version"])
                value = whole(memory, arrays, "memory")
            members[name] = Member(
                entry["version"], value, entry["missed"], entry["number"]
            )
        arrays = self.read("state", found["state"], None)
        state = whole(self.facts["state"], arrays, "state")
        plan = self.facts["config"]
        return ServerState(
            found["run"], plan, found["incarnation"], found["round"], state, members,
            found["epoch"], found["ledger"], found["opened"],
        )  # fmt: skip

    def read(self, slot: str, entry: dict[str, str], made_of: Any) -> dict[str, Any]:
        path = self.folder / Path(entry["file"]).name
        try:
            content = durable.read(path)
        except FileNotFoundError:
            raise BadValue(f"{path} is missing, which the manifest names.") from None
        if durable.digest(content) != entry["sha256"]:
            raise BadValue(f"{path} is damaged: its sha256 is not the manifest's.")
        self.files[slot] = made_of, path.name, entry["sha256"]
        return safetensors.numpy.load(content)

    def records(self) -> list[dict[str, Any]]:
        """What was done, as far as the manifest says that it counts."""
        entry = json.loads((self.folder / MANIFEST).read_bytes())["log"]
        path = self.folder / LOG
        content = path.read_bytes()[: entry["bytes"]] if path.exists() else b""
        self.log_bytes, self.log_hash = len(content), hashlib.sha256(content)
        if self.log_hash.hexdigest() != entry["sha256"]:
            raise BadValue(f"{path} is damaged: its sha256 is not the manifest's.")
        return [json.loads(line) for line in content.splitlines()]


Parts = dict[str, Any]


def parts_of(plan: Any, book: ServerState, specs: Specs, first: Any) -> Parts:
    """The shapes by which a journal reads and writes."""
    return {
        "config": plan.config,
        "specs": specs,
        "state": Spec.of(book.state),
        "mean": plan.algorithm.mean is not None,
        "first": first,
    }


def total_of(members: Mapping[str, Member], first: Any) -> Any:
    """V, in double precision and in the order of names."""
    held = [members[name].memory for name in sorted(members)]
    held = [first if memory is None else memory for memory in held]
    nothing = jax.tree.map(np.zeros_like, first)
    return jax.tree.map(added, nothing, *held)


def version_of(value: Any) -> Version | None:
    return None if value is None else adapter(Version).validate_python(value)
