"""The server's files: each commit replaces the whole durable state, or nothing (R5).

`manifest.json` is the one commit point. It names the files of arrays with their
digests, and says how many bytes of `log.jsonl` count. This module makes no decisions
about rounds: see `server.rounds`.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import safetensors.numpy

from sagda import durable
from sagda.check import BadValue
from sagda.federation.plan import Plan, Specs, added
from sagda.federation.protocol.letters import Introduction, adapter
from sagda.federation.protocol.server import Member, ServerState
from sagda.federation.protocol.wire import Spec
from sagda.federation.server.traffic import Traffic

SCHEMA = 1
MANIFEST, LOG = "manifest.json", "log.jsonl"
ARRAYS = ".safetensors"
Record = dict[str, Any]  # a line of the log: a round, a row of the history, a departure


class ArrayFile(NamedTuple):
    """A file of arrays in the server's folder."""

    name: str
    sha256: str


class LogPart(NamedTuple):
    """How much of the log counts: a killed server may have appended more."""

    bytes: int
    sha256: str


class Manifest(NamedTuple):
    """The content of manifest.json: the run's state, with arrays and log by digest."""

    schema: int
    terms: str
    introductions: dict[str, Introduction]
    state: ServerState  # without arrays and traffic
    variables: ArrayFile
    memories: dict[str, ArrayFile]  # of members whose memory is not the first one
    traffic: Traffic
    log: LogPart
    previous: str  # the digest of the manifest before this one

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """The manifest in a server's folder; raises BadValue if it is damaged."""
        path = folder / MANIFEST
        try:
            content = json.loads(durable.read(path))
            if (schema := content["schema"]) == SCHEMA:
                return adapter(cls).validate_python(content)
        except FileNotFoundError:
            raise BadValue(
                f"{path} does not exist: this folder holds no server's state."
            ) from None
        except (ValueError, KeyError, TypeError):
            raise BadValue(f"{path} is damaged or not a server's manifest.") from None
        raise BadValue(
            f"{path}: `schema` must be {SCHEMA} for this version, got {schema!r}."
        )


class ServerStore:
    """Reads and writes a server's folder.

    Args:
        folder: the server's own folder.
        plan: the settled run, which determines the shapes of all arrays.
        terms: the run's terms, which the manifest contains.
    """

    def __init__(self, folder: Path, plan: Plan, terms: str):
        self.folder, self.plan, self.terms = folder, plan, terms
        self.memory, self.first = Specs.of(plan).memory, plan.initial_memory()
        self.variables = Spec.of(plan.initial_variables())
        self.introductions: dict[str, Introduction] = {}
        self.previous = ""  # the digest of the manifest in the folder
        # By slot ("state", "member-NAME"): the file, and what its content follows from.
        self.files: dict[str, tuple[Any, ArrayFile]] = {}
        self.log_bytes, self.log_hash = 0, hashlib.sha256()

    def introduce(self, introduction: Introduction) -> None:
        """Remember what a site said; the next commit writes it."""
        # The terms contain the moments of all sites together.
        site = introduction._replace(mean=(), squares=())
        self.introductions[site.name] = site

    # Writing.

    def save(self, state: ServerState, records: list[Record]) -> None:
        """R5: commit a state and the records of what was done.

        Arrays are written first, under names that no manifest has used. Then one atomic
        replacement of the manifest makes them valid. Only then are the files that the
        old manifest named removed.
        """
        memories = {}
        for name, member in state.members.items():
            if member.memory is not None:
                # A version names one value for ever, so only members that were accepted
                # in this round have their files written.
                arrays = partial(self.memory.named, member.memory, "memory")
                memories[name] = self.file(f"member-{name}", arrays, member.version)
        # V changes with every round, opening, reset, and member that comes or leaves.
        source = state.round, state.opened, state.epoch, tuple(sorted(state.members))
        variables = self.file("state", partial(self.state_arrays, state), source)
        self.append(records)
        members = {name: m._replace(memory=None) for name, m in state.members.items()}
        manifest = Manifest(
            schema=SCHEMA,
            terms=self.terms,
            introductions=self.introductions,
            state=state._replace(variables=None, members=members, traffic=None),
            variables=variables,
            memories=memories,
            traffic=state.traffic,
            log=LogPart(self.log_bytes, self.log_hash.hexdigest()),
            previous=self.previous,
        )
        text = json.dumps(by_name(manifest), indent=1) + "\n"
        self.previous = durable.write(self.folder / MANIFEST, text)
        used = {file.name for file in (variables, *memories.values())}
        for path in self.folder.glob(f"*{ARRAYS}*"):
            if path.name not in used:
                durable.remove(path)

    def state_arrays(self, state: ServerState) -> dict[str, np.ndarray]:
        """The algorithm's state, and V if the algorithm uses the mean V / M."""
        arrays = self.variables.named(state.variables, "state")
        # V follows from the table. It is stored so that `sagda verify` can compare.
        if self.plan.algorithm.mean is not None:
            total = total_of(state.members, self.first)
            arrays |= Spec.of(total).named(total, "total")
        return arrays

    def file(
        self, slot: str, arrays: Callable[[], dict[str, np.ndarray]], source: Any
    ) -> ArrayFile:
        """A slot's file, written again if `source` has changed since the last time."""
        before, file = self.files.get(slot, (None, None))
        if file is None or before != source:
            content = safetensors.numpy.save(arrays())
            digest = durable.digest(content)
            # The digest in the name keeps the last manifest's file until the next one.
            file = ArrayFile(f"{slot}-{digest[:16]}{ARRAYS}", digest)
            durable.write(self.folder / file.name, content)
            self.files[slot] = source, file
        return file

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
        self.introductions = dict(manifest.introductions)
        self.previous = durable.digest(durable.read(self.folder / MANIFEST))
        members = dict(manifest.state.members)
        for name, file in manifest.memories.items():
            arrays = self.read(f"member-{name}", file, members[name].version)
            memory = self.memory.restored(arrays, "memory")
            members[name] = members[name]._replace(memory=memory)
        # No source equals None, so the first commit writes the state's file again.
        arrays = self.read("state", manifest.variables, None)
        variables = self.variables.restored(arrays, "state")
        return manifest.state._replace(
            variables=variables, members=members, traffic=manifest.traffic
        )

    def read(self, slot: str, file: ArrayFile, source: Any) -> dict[str, Any]:
        """The arrays of a file that a manifest names."""
        # The name comes from a file: only its last part is used as a path.
        path = self.folder / Path(file.name).name
        try:
            content = durable.read(path)
        except FileNotFoundError:
            raise BadValue(f"{path} is missing, which the manifest names.") from None
        check_digest(path, content, file.sha256)
        self.files[slot] = source, file
        return safetensors.numpy.load(content)

    def records(self) -> list[Record]:
        """The records that the manifest in the folder covers."""
        entry = LogPart(**json.loads((self.folder / MANIFEST).read_bytes())["log"])
        path = self.folder / LOG
        content = path.read_bytes()[: entry.bytes] if path.exists() else b""
        check_digest(path, content, entry.sha256)
        self.log_bytes, self.log_hash = len(content), hashlib.sha256(content)
        return [json.loads(line) for line in content.splitlines()]

    def rows(self) -> list[dict[str, Any]]:
        """The rows of the history that were committed."""
        return [record["row"] for record in self.records() if "row" in record]

    def calibration(self) -> list[float] | None:
        """Slope and offset of the newest evaluated model, if it was calibrated."""
        records = [record for record in self.records() if "row" in record]
        return records[-1].get("calibration") if records else None


def check_digest(path: Path, content: bytes, sha256: str) -> None:
    """Raise if a file has another content than the manifest says."""
    if durable.digest(content) != sha256:
        raise BadValue(f"{path} is damaged: its sha256 is not the manifest's.")


def by_name(value: Any) -> Any:
    """A value for JSON: each NamedTuple in it as a dict, which a person can read."""
    if (as_dict := getattr(value, "_asdict", None)) is not None:
        value = as_dict()
    if isinstance(value, dict):
        return {key: by_name(inner) for key, inner in value.items()}
    return value


def holds_run(folder: Path) -> bool:
    """Whether a server's folder holds a run."""
    return (folder / MANIFEST).exists()


def memories_of(members: Mapping[str, Member], first: Any) -> list[Any]:
    """Every v_i in the order of names (R5); `first` for members that have none yet."""
    memories = [members[name].memory for name in sorted(members)]
    return [first if memory is None else memory for memory in memories]


def total_of(members: Mapping[str, Member], first: Any) -> Any:
    """V, the sum of all v_i, in double precision."""
    zero = jax.tree.map(np.zeros_like, first)
    return jax.tree.map(added, zero, *memories_of(members, first))
