"""Checks of a finished run: digests, V = sum of v_i, and a replay of all rounds.

`sagda verify` checks the digest of every file, and that V is the sum of all control
variates v_i. It can also replay the recorded rounds in one process, on the rows of the
sites. A replay needs code of `server` and `site`, so this module imports both.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from sagda.check import BadValue
from sagda.core import Phase
from sagda.federation.plan import Plan, Specs
from sagda.federation.protocol.client import Cache
from sagda.federation.protocol.letters import Introduction, Letter
from sagda.federation.protocol.server import Member, ServerState
from sagda.federation.protocol.wire import Spec
from sagda.federation.server.process import SERVER
from sagda.federation.server.rounds import FederatedRounds, first_state
from sagda.federation.server.store import (
    Manifest,
    Record,
    ServerStore,
    holds_run,
    total_of,
)
from sagda.federation.site.cache import SiteCacheFile
from sagda.federation.site.folder import SiteFolder
from sagda.federation.site.site import Site
from sagda.federation.terms import Terms


class SavedRun(NamedTuple):
    """The content of a server's folder, after its digests were checked."""

    plan: Plan
    terms: Terms
    state: ServerState
    first: Any  # the first value of v_i, which is the same for all members
    total: Any  # V as it is stored; None for algorithms without control variates
    records: list[Record]  # the lines of the log


def read_saved(folder: Path) -> SavedRun:
    """Read the server's files in a run folder.

    Raises `BadValue` if a file does not have its digest.
    """
    home = folder / SERVER
    if not holds_run(home):
        raise BadValue(
            f"{folder} holds no federation: {SERVER}/manifest.json does not exist; "
            "give the folder of `sagda serve` or `sagda federation-demo`."
        )
    manifest = Manifest.read(home)
    terms = Terms.read(manifest.terms)
    plan = terms.plan(manifest.state.run)
    store = ServerStore(home, plan, manifest.terms)
    state, first, total = store.load(manifest), store.first, None
    # Rounds compute V from the table. The stored sum is only for this comparison.
    if plan.algorithm.mean is not None:
        arrays = store.read("state", manifest.variables, None)
        total = Spec.of(total_of({}, first)).restored(arrays, "total")
    return SavedRun(
        plan=plan,
        terms=terms,
        state=state,
        first=first,
        total=total,
        records=store.records(),
    )


class Finding(NamedTuple):
    """The result of one check."""

    what: str  # the statement that was checked
    holds: bool  # whether the statement is true
    seen: str  # details, for a person to read


def verify(saved: SavedRun, sites: Mapping[str, Path]) -> list[Finding]:
    """Check the files of a run, and the caches of the sites whose folders are given.

    Args:
        saved: the content of the server's folder.
        sites: the folders of sites by name. Sites without a folder are not checked.
    """
    state = saved.state
    rounds = [record.get("round") for record in saved.records]
    rounds = [t for t in rounds if t is not None]  # None: not a round, or the opening
    # `read_saved` raises if a digest is wrong, so the first statement is true here.
    size = f"{len(state.members)} members, round {state.round}"
    whole, count = rounds == list(range(state.round)), f"{len(rounds)} rounds"
    findings = [
        Finding("every file has the digest in the manifest", True, size),
        Finding("every round was committed once", whole, count),
    ]
    if saved.total is not None:
        total = total_of(state.members, saved.first)
        pairs = zip(jax.tree.leaves(total), jax.tree.leaves(saved.total), strict=True)
        error = max(float(np.abs(a - b).max()) for a, b in pairs)
        seen = f"M = {len(state.members)}, error {error:g}"
        what = "V is the sum of v_i over all M members"
        findings.append(Finding(what, error == 0.0, seen))
    members = [name for name in sorted(sites) if name in state.members]
    return findings + [agrees(saved, name, sites[name]) for name in members]


def agrees(saved: SavedRun, name: str, folder: Path) -> Finding:
    """Check that the cache of a site and the server have the same v_i.

    See rule R11 in `federation/protocol`.
    """
    member, what = saved.state.members[name], f"{name} has the v_i of the server"
    cache = SiteCacheFile(folder, saved.state.run, Specs.of(saved.plan)).load()
    if member.version is None:
        return Finding(what, True, "nothing accepted yet")
    if cache.pending is not None and cache.pending.version == member.version:
        memory, seen = cache.pending.memory, "accepted; the next letter tells the site"
    elif cache.committed == member.version:
        memory, seen = cache.memory, "accepted"
    else:
        return Finding(what, True, "lost by the site; the server will send it")
    return Finding(what, same_bits(memory, member.memory), seen)


class ReplayTransport:
    """A transport to sites in this process, for the replay of a run.

    In each round, only the sites answer whose replies are recorded for that round.

    Args:
        saved: the run to replay.
        sites: the folders of all sites with a recorded reply, by name.
    """

    framing = 0

    def __init__(self, saved: SavedRun, sites: Mapping[str, SiteFolder]):
        self.saved, self.folders = saved, sites
        self.sites: dict[str, Site] = {}
        self.accepted: dict[str, list[str]] = {}  # names in this round, by phase
        # A replay needs nonces that differ, not random ones: no result depends on them.
        self.nonces = itertools.count(1)

    def follow(self, record: Record) -> None:
        """Let the sites answer as in this record of a round."""
        self.accepted = record["accepted"]

    def cohort(self, phase: Phase) -> list[str]:
        """Return the sites whose replies were accepted in this phase."""
        return self.accepted[phase.name]

    def exchange(
        self,
        letters: Mapping[str, Letter],
        *,
        largest: int,
        seconds: float | None = None,
    ) -> Iterator[tuple[str, Letter]]:
        for name, letter in letters.items():
            # The opening asks all members, but not all of their replies were accepted.
            if name in self.accepted[letter.note.phase]:
                answer = self.site(name).handle(letter)
                if answer is not None:
                    yield name, answer

    def arrivals(self, *, moments: bool = False) -> list[Introduction]:
        return []

    def barred(self, names: Iterable[str]) -> list[str]:
        return []

    def site(self, name: str) -> Site:
        """Return the site called `name`. Make it, with an empty cache, if it is new."""
        if name not in self.sites:
            if name not in self.folders:
                raise BadValue(
                    f"`--sites` must include the folder of {name}, whose rows the "
                    "replay needs; add it."
                )
            rows = self.folders[name].rows(self.saved.terms.scaling)
            save = lambda cache: None
            nonce = lambda: next(self.nonces)
            self.sites[name] = Site(self.saved.plan, rows, Cache(), save, nonce)
        return self.sites[name]


def replay(saved: SavedRun, sites: Mapping[str, SiteFolder]) -> ServerState:
    """Run the recorded rounds again in this process, and return the final state.

    Args:
        saved: the run to replay.
        sites: the folders of all sites with a recorded reply, by name.
    """
    transport = ReplayTransport(saved, sites)
    rounds = FederatedRounds(
        saved.plan,
        first_state(saved.plan, []),
        transport,
        lambda state, records: None,
        cohort=transport.cohort,
    )
    for record in saved.records:
        if "left" in record:
            rounds.protocol.leave(record["left"])
        if "reset" in record:
            rounds.protocol.reset()
        if "accepted" not in record:
            continue
        # Random draws depend on the numbers of members, so the recorded numbers are
        # used. Sites that joined before this round become members here.
        members = {
            name: rounds.state.members.get(name, Member())._replace(number=number)
            for name, number in record["members"].items()
        }
        rounds.protocol.change(members)
        transport.follow(record)
        if not rounds.attempt():
            raise BadValue(
                f"round {record['round']} cannot be replayed: too few sites sent a "
                "valid reply; check that the rows of the sites are unchanged."
            )
    return rounds.state


def same_bits(a: Any, b: Any) -> bool:
    """Return whether two trees have one structure, and equal arrays of equal types."""
    return jax.tree.structure(a) == jax.tree.structure(b) and all(
        np.asarray(p).dtype == np.asarray(q).dtype and np.array_equal(p, q)
        for p, q in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


def same_state(a: ServerState, b: ServerState) -> bool:
    """Return whether two states have exactly the same numbers.

    The state of the algorithm is compared, and v_i of each member that both states
    have.
    """
    return same_bits(a.variables, b.variables) and all(
        same_bits(a.members[name].memory, b.members[name].memory)
        for name in set(a.members) & set(b.members)
    )
