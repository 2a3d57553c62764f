"""The server's files: each commit replaces the whole durable state, or nothing (R5).

The folder holds `manifest.json`, which is the one commit point; the files of arrays
that it names with their digests; and `log.jsonl`, of which the manifest says how many
bytes count. This module decides nothing about rounds: see `server.rounds`.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import safetensors.numpy

from sagda import durable
from sagda.check import BadValue
from sagda.federation.plan import Plan, Specs, added
from sagda.federation.protocol.letters import Introduction, version_of
from sagda.federation.protocol.server import Member, ServerState
from sagda.federation.protocol.wire import Spec
from sagda.federation.server.traffic import Traffic

SCHEMA = 1
MANIFEST, LOG = "manifest.json", "log.jsonl"
ARRAYS = ".safetensors"
KEYS = {
    "run", "terms", "introductions", "incarnation", "round", "epoch", "opened",
    "traffic", "members", "state", "log",
}  # fmt: skip
Record = dict[str, Any]  # a line of the log: a round, a row of the history, a departure


class Manifest(NamedTuple):
    """A manifest that was read, and its own digest."""

    content: dict[str, Any]
    digest: str

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """The manifest in a server's folder; raises BadValue if it is damaged."""
        path = folder / MANIFEST
        try:
            text = durable.read(path)
            content = json.loads(text)
            schema = content["schema"]
            if schema == SCHEMA:
                check_content(content)
        except FileNotFoundError:
            raise BadValue(
                f"{path} does not exist: this folder holds no server's state."
            ) from None
        except (ValueError, KeyError, TypeError):
            raise BadValue(f"{path} is damaged or not a server's manifest.") from None
        if schema != SCHEMA:
            raise BadValue(
                f"{path}: `schema` must be {SCHEMA} for this version, got {schema!r}."
            )
        return cls(content, durable.digest(text))

    @property
    def run(self) -> str:
        """The run's name."""
        return self.content["run"]

    @property
    def terms(self) -> str:
        """The run's terms, as `Terms.read` takes them."""
        return self.content["terms"]

    @property
    def introductions(self) -> dict[str, Introduction]:
        """What every site said of its rows, by name."""
        stored = self.content["introductions"]
        return {name: Introduction(**fields) for name, fields in stored.items()}


class StoreLayout(NamedTuple):
    """The shapes by which a store reads and writes arrays."""

    config: str  # the digest of the configuration
    memory: Spec
    variables: Spec
    stores_sum: bool  # whether the algorithm uses V, the sum of all memories
    first: Any  # the first memory

    @classmethod
    def of(cls, plan: Plan) -> "StoreLayout":
        """The layout for a plan."""
        return cls(
            config=plan.config,
            memory=Specs.of(plan).memory,
            variables=Spec.of(plan.initial_variables()),
            stores_sum=plan.algorithm.mean is not None,
            first=plan.initial_memory(),
        )


class StoredFile(NamedTuple):
    """A file of arrays that the manifest names."""

    source: Any  # identifies the content: written again only if this changes
    name: str
    sha256: str


class ServerStore:
    """Reads and writes a server's folder.

    Args:
        folder: the server's own folder.
        layout: the shapes of all arrays.
        terms: the run's terms, as every manifest has them.
        introductions: what the sites said, by name; see `introduce`.
        previous: the digest of the manifest in the folder, if there is one.
    """

    def __init__(
        self,
        folder: Path,
        layout: StoreLayout,
        terms: str,
        introductions: Mapping[str, Introduction],
        previous: str = "",
    ):
        self.folder, self.layout, self.terms = folder, layout, terms
        self.introductions = dict(introductions)
        self.previous = previous
        self.files: dict[str, StoredFile] = {}  # by slot: "state", "member-NAME"
        self.log_bytes, self.log_hash = 0, hashlib.sha256()

    @classmethod
    def opened(cls, folder: Path, plan: Plan, manifest: Manifest) -> "ServerStore":
        """The store of a run that the folder holds."""
        return cls(
            folder,
            StoreLayout.of(plan),
            manifest.terms,
            manifest.introductions,
            manifest.digest,
        )

    def introduce(self, introduction: Introduction) -> None:
        """Remember what a site said; the next commit writes it."""
        site = introduction.without_moments
        self.introductions[site.name] = site

    # Writing.

    def save(self, state: ServerState, records: list[Record]) -> None:
        """R5: commit a state and the records of what was done.

        Arrays are written first, under names that no manifest has used. Then one atomic
        replacement of the manifest makes them valid. Only then are the files that the
        old manifest named removed.
        """
        slots = {
            f"member-{name}"
            for name, member in state.members.items()
            if member.memory is not None
        }
        self.files = {k: v for k, v in self.files.items() if k in slots | {"state"}}
        members = {name: self.entry(name, m) for name, m in state.members.items()}
        # V changes with every round, opening, reset, and member that comes or leaves.
        source = state.round, state.opened, state.epoch, tuple(sorted(members))
        variables = self.file("state", lambda: self.state_arrays(state), source)
        self.append(records)
        introductions = {n: i._asdict() for n, i in self.introductions.items()}
        content = {
            "schema": SCHEMA,
            "run": state.run,
            "terms": self.terms,
            "introductions": introductions,
            "incarnation": state.incarnation,
            "round": state.round,
            "epoch": state.epoch,
            "opened": state.opened,
            "traffic": (state.traffic or Traffic())._asdict(),
            "members": members,
            "state": variables,
            "log": {"bytes": self.log_bytes, "sha256": self.log_hash.hexdigest()},
            "previous": self.previous,
        }
        text = json.dumps(content, indent=1) + "\n"
        self.previous = durable.write(self.folder / MANIFEST, text)
        used = {file.name for file in self.files.values()}
        for path in self.folder.glob(f"*{ARRAYS}*"):
            if path.name not in used:
                durable.remove(path)

    def entry(self, name: str, member: Member) -> dict[str, Any]:
        """A member as the manifest has it; its memory is in a file of its own.

        A version names one value for ever, so only members that were accepted in this
        round have their files written.
        """
        entry = {
            "number": member.number,
            "missed": member.missed,
            "version": member.version,
        }
        if member.memory is None:
            return entry
        arrays = lambda: self.layout.memory.named(member.memory, "memory")
        return entry | self.file(f"member-{name}", arrays, member.version)

    def state_arrays(self, state: ServerState) -> dict[str, np.ndarray]:
        """The algorithm's state, and V if the algorithm uses the mean V / M."""
        arrays = self.layout.variables.named(state.variables, "state")
        if self.layout.stores_sum:
            total = total_of(state.members, self.layout.first)
            arrays |= Spec.of(total).named(total, "total")
        return arrays

    def file(
        self, slot: str, arrays: Callable[[], dict[str, np.ndarray]], source: Any
    ) -> dict[str, str]:
        """Name and digest of a slot's file, written again if its source has changed."""
        stored = self.files.get(slot)
        if stored is None or stored.source != source:
            content = safetensors.numpy.save(arrays())
            digest = durable.digest(content)
            # The digest in the name keeps the last manifest's file until the next one.
            stored = StoredFile(source, f"{slot}-{digest[:16]}{ARRAYS}", digest)
            durable.write(self.folder / stored.name, content)
            self.files[slot] = stored
        return {"file": stored.name, "sha256": stored.sha256}

    def append(self, records: list[Record]) -> None:
        """Add records to the log. They count once a manifest covers them."""
        if not records:
            return
        content = "".join(json.dumps(record) + "\n" for record in records).encode()
        # Writing at `log_bytes` replaces what a killed server wrote after its commit.
        durable.append(self.folder / LOG, content, self.log_bytes)
        self.log_bytes += len(content)
        self.log_hash.update(content)

    # Reading.

    def load(self, manifest: Manifest) -> ServerState:
        """The state that a manifest names; the digest of every file is checked."""
        self.records()
        content, layout = manifest.content, self.layout
        members = {}
        for name, entry in content["members"].items():
            version, memory = version_of(entry["version"]), None
            if "file" in entry:
                arrays = self.read(f"member-{name}", entry, version)
                memory = layout.memory.restored(arrays, "memory")
            members[name] = Member(
                version=version,
                memory=memory,
                missed=entry["missed"],
                number=entry["number"],
            )
        arrays = self.read("state", content["state"], None)
        return ServerState(
            run=content["run"],
            config=layout.config,
            incarnation=content["incarnation"],
            round=content["round"],
            variables=layout.variables.restored(arrays, "state"),
            members=members,
            epoch=content["epoch"],
            traffic=Traffic(**content["traffic"]),
            opened=content["opened"],
        )

    def read(self, slot: str, entry: dict[str, str], source: Any) -> dict[str, Any]:
        """The arrays of a file that a manifest names."""
        path = self.folder / Path(entry["file"]).name
        try:
            content = durable.read(path)
        except FileNotFoundError:
            raise BadValue(f"{path} is missing, which the manifest names.") from None
        if durable.digest(content) != entry["sha256"]:
            raise BadValue(f"{path} is damaged: its sha256 is not the manifest's.")
        self.files[slot] = StoredFile(source, path.name, entry["sha256"])
        return safetensors.numpy.load(content)

    def records(self) -> list[Record]:
        """The records that the manifest in the folder covers."""
        entry = json.loads((self.folder / MANIFEST).read_bytes())["log"]
        path = self.folder / LOG
        # A killed server may have appended lines that no manifest covers.
        content = path.read_bytes()[: entry["bytes"]] if path.exists() else b""
        self.log_bytes, self.log_hash = len(content), hashlib.sha256(content)
        if self.log_hash.hexdigest() != entry["sha256"]:
            raise BadValue(f"{path} is damaged: its sha256 is not the manifest's.")
        return [json.loads(line) for line in content.splitlines()]

    def rows(self) -> list[dict[str, Any]]:
        """The rows of the history that were committed."""
        return [record["row"] for record in self.records() if "row" in record]

    def calibration(self) -> list[float] | None:
        """Slope and offset of the newest evaluated model, if it was calibrated."""
        records = [record for record in self.records() if "row" in record]
        return records[-1].get("calibration") if records else None


def check_content(content: dict[str, Any]) -> None:
    """Raise if a manifest lacks a key, or has values of another kind."""
    if not set(content) >= KEYS:
        raise KeyError
    Traffic(**content["traffic"])
    for fields in content["introductions"].values():
        Introduction(**fields)
    for entry in content["members"].values():
        version_of(entry["version"])


def holds_run(folder: Path) -> bool:
    """Whether a server's folder holds a run."""
    return (folder / MANIFEST).exists()


def total_of(members: Mapping[str, Member], first: Any) -> Any:
    """V, in double precision and in the order of names (R5)."""
    memories = [members[name].memory for name in sorted(members)]
    memories = [first if memory is None else memory for memory in memories]
    zero = jax.tree.map(np.zeros_like, first)
    return jax.tree.map(added, zero, *memories)
