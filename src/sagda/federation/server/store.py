"""The files of the server: each commit replaces the durable state as a whole.

A commit is one atomic replacement of `manifest.json` (rule R5 in
`federation/protocol`). The manifest lists the files of arrays and their digests. It
also records how many bytes of `log.jsonl` belong to the state. This module makes no
decisions about rounds: see `server.rounds`.
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
# A line of the log: a round, a row of the history, a member that left, or a reset.
Record = dict[str, Any]


class ArrayFile(NamedTuple):
    """The name and digest of a file of arrays in the server's folder."""

    name: str
    sha256: str


class LogPart(NamedTuple):
    """The part of the log that belongs to the state: its first bytes and their digest.

    A server that was killed may have appended more bytes, which are ignored.
    """

    bytes: int
    sha256: str


class Manifest(NamedTuple):
    """The content of manifest.json: the state of the run, with digests of all files."""

    schema: int
    terms: str  # as JSON
    introductions: dict[str, Introduction]  # by name of the site
    state: ServerState  # without arrays and traffic
    variables: ArrayFile  # the state of the algorithm, and V
    memories: dict[str, ArrayFile]  # v_i by name, where it is not the first value
    traffic: Traffic
    log: LogPart
    previous: str  # the digest of the manifest before this one

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Read the manifest in a server's folder; raise `BadValue` if it is damaged."""
        path = folder / MANIFEST
        try:
            content = json.loads(durable.read(path))
            if (schema := content["schema"]) == SCHEMA:
                return adapter(cls).validate_python(content)
        except FileNotFoundError:
            raise BadValue(
                f"{path} does not exist; give a folder that holds a federation."
            ) from None
        except (ValueError, KeyError, TypeError):
            raise BadValue(
                f"{path} is damaged, or not the manifest of a server; restore the "
                "folder from a backup."
            ) from None
        raise BadValue(
            f"{path}: `schema` must be {SCHEMA}, got {schema!r}; use the version of "
            "sagda that wrote the file."
        )


class ServerStore:
    """Reads and writes the files of a server.

    Args:
        folder: the server's folder, which is `server` in the run folder.
        plan: the settled run, which determines the shapes of all arrays.
        terms: the terms of the run as JSON, for the manifest.
    """

    def __init__(self, folder: Path, plan: Plan, terms: str):
        self.folder, self.plan, self.terms = folder, plan, terms
        self.memory, self.first = Specs.of(plan).memory, plan.initial_memory()
        self.variables = Spec.of(plan.initial_variables())
        self.introductions: dict[str, Introduction] = {}
        self.previous = ""  # the digest of the manifest in the folder
        # The newest file of each slot ("state" or "member-NAME"), with its `source`: a
        # value that changes whenever the arrays in the file change.
        self.files: dict[str, tuple[Any, ArrayFile]] = {}
        self.log_bytes, self.log_hash = 0, hashlib.sha256()

    def introduce(self, introduction: Introduction) -> None:
        """Store the introduction of a site. The next commit writes it."""
        # Moments of single sites are not written: the terms have those of all sites.
        site = introduction._replace(mean=(), squares=())
        self.introductions[site.name] = site

    # Writing.

    def save(self, state: ServerState, records: list[Record]) -> None:
        """Commit a state, with the new lines of the log.

        Three steps in this order keep the files valid if the server is killed between
        them (rule R5 in `federation/protocol`):

        1. Write the files of arrays under new names.
        2. Replace the manifest, which makes the new files part of the state.
        3. Remove the files that only the old manifest named.
        """
        memories = {}
        for name, member in state.members.items():
            if member.memory is not None:
                # A version always names the same value. So a file is written only if
                # the version changed, which means that a reply was accepted.
                arrays = partial(self.memory.named, member.memory, "memory")
                memories[name] = self.file(f"member-{name}", arrays, member.version)
        # V changes if a round, the opening or a reset is committed, and if a member
        # joins or leaves.
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
        """Return the state of the algorithm, and V if the algorithm uses V / M.

        V is the sum of the control variates v_i of all M members.
        """
        arrays = self.variables.named(state.variables, "state")
        # V is computed from the table, and stored only so that `sagda verify` can
        # compare it.
        if self.plan.algorithm.mean is not None:
            total = total_of(state.members, self.first)
            arrays |= Spec.of(total).named(total, "total")
        return arrays

    def file(
        self, slot: str, arrays: Callable[[], dict[str, np.ndarray]], source: Any
    ) -> ArrayFile:
        """Return the file of a slot. Write a new one if `source` has changed.

        Args:
            slot: "state" or "member-NAME".
            arrays: returns the arrays to write, by name.
            source: a value that changes whenever the arrays change.
        """
        before, file = self.files.get(slot, (None, None))
        if file is None or before != source:
            content = safetensors.numpy.save(arrays())
            digest = durable.digest(content)
            # The digest in the name gives a new file, so that the old one stays valid
            # until the manifest is replaced.
            file = ArrayFile(f"{slot}-{digest[:16]}{ARRAYS}", digest)
            durable.write(self.folder / file.name, content)
            self.files[slot] = source, file
        return file

    def append(self, records: list[Record]) -> None:
        """Append records to the log. The next manifest makes them part of the state."""
        if not records:
            return
        content = "".join(json.dumps(record) + "\n" for record in records).encode()
        # Writing at `log_bytes` replaces lines that a killed server did not commit.
        durable.append(self.folder / LOG, content, self.log_bytes)
        self.log_bytes += len(content)
        self.log_hash.update(content)

    # Reading.

    def load(self, manifest: Manifest) -> ServerState:
        """Return the state that a manifest describes, with the arrays from its files.

        Raises `BadValue` if a file is missing or has another digest.
        """
        self.records()
        self.introductions = dict(manifest.introductions)
        self.previous = durable.digest(durable.read(self.folder / MANIFEST))
        members = dict(manifest.state.members)
        for name, file in manifest.memories.items():
            arrays = self.read(f"member-{name}", file, members[name].version)
            memory = self.memory.restored(arrays, "memory")
            members[name] = members[name]._replace(memory=memory)
        # The source None differs from all others, so the first commit writes this file.
        arrays = self.read("state", manifest.variables, None)
        variables = self.variables.restored(arrays, "state")
        return manifest.state._replace(
            variables=variables, members=members, traffic=manifest.traffic
        )

    def read(self, slot: str, file: ArrayFile, source: Any) -> dict[str, Any]:
        """Return the arrays of a file that the manifest names, after a digest check."""
        # The name comes from a file, so only its last part is used as a path.
        path = self.folder / Path(file.name).name
        try:
            content = durable.read(path)
        except FileNotFoundError:
            raise BadValue(
                f"{path} is missing, but the manifest names it; restore the folder "
                "from a backup."
            ) from None
        check_digest(path, content, file.sha256)
        self.files[slot] = source, file
        return safetensors.numpy.load(content)

    def records(self) -> list[Record]:
        """Return the committed lines of the log, after a digest check."""
        entry = LogPart(**json.loads((self.folder / MANIFEST).read_bytes())["log"])
        path = self.folder / LOG
        content = path.read_bytes()[: entry.bytes] if path.exists() else b""
        check_digest(path, content, entry.sha256)
        self.log_bytes, self.log_hash = len(content), hashlib.sha256(content)
        return [json.loads(line) for line in content.splitlines()]

    def rows(self) -> list[dict[str, Any]]:
        """Return the committed rows of the history."""
        return [record["row"] for record in self.records() if "row" in record]

    def calibration(self) -> list[float] | None:
        """Return slope and offset of the scores at the newest evaluation, or None."""
        records = [record for record in self.records() if "row" in record]
        return records[-1].get("calibration") if records else None


def check_digest(path: Path, content: bytes, sha256: str) -> None:
    """Raise `BadValue` if `content` does not have the digest in the manifest."""
    if durable.digest(content) != sha256:
        raise BadValue(
            f"{path} is damaged: its sha256 must be that in the manifest; restore the "
            "folder from a backup."
        )


def by_name(value: Any) -> Any:
    """Return `value` with each NamedTuple in it as a dict, so that JSON has names."""
    if (as_dict := getattr(value, "_asdict", None)) is not None:
        value = as_dict()
    if isinstance(value, dict):
        return {key: by_name(inner) for key, inner in value.items()}
    return value


def holds_run(folder: Path) -> bool:
    """Return whether a server's folder holds a run."""
    return (folder / MANIFEST).exists()


def memories_of(members: Mapping[str, Member], first: Any) -> list[Any]:
    """Return the control variates v_i of all members, sorted by the members' names.

    Args:
        members: the server's table.
        first: the first value of v_i, for members without an accepted reply.
    """
    memories = [members[name].memory for name in sorted(members)]
    return [first if memory is None else memory for memory in memories]


def total_of(members: Mapping[str, Member], first: Any) -> Any:
    """Return V, the sum of the control variates v_i of all members.

    The sum is taken in double precision and in the order of the members' names, as
    rule R5 in `federation/protocol` requires. So the same table always gives exactly
    the same V.

    Args:
        members: the server's table.
        first: the first value of v_i, for members without an accepted reply.
    """
    zero = jax.tree.map(np.zeros_like, first)
    return jax.tree.map(added, zero, *memories_of(members, first))
