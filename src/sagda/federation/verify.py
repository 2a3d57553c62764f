"""What a server's files prove: V = sum of v_i, and the run computed a second time.

`sagda verify` checks every digest and the invariant of `federation.protocol`, and can
replay the recorded rounds in one process with the sites' own rows. This module stands
above `server` and `site`, because a replay needs both.
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
from sagda.federation.server.results import SERVER
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
    """The content of a server's folder, read and checked."""

    plan: Plan
    terms: Terms
    state: ServerState
    first: Any  # the first memory of every member
    total: Any  # V as it was stored; None for algorithms without it
    records: list[Record]


def read_saved(folder: Path) -> SavedRun:
    """The server's files in a run folder; raises BadValue if a digest is wrong."""
    home = folder / SERVER
    if not holds_run(home):
        raise BadValue(
            f"{folder} holds no federation: no {SERVER}/manifest.json; `sagda serve` "
            "and `sagda federation-demo` make one."
        )
    manifest = Manifest.read(home)
    terms = Terms.read(manifest.terms)
    plan = terms.plan(manifest.state.run)
    store = ServerStore(home, plan, manifest.terms)
    state, first, total = store.load(manifest), store.first, None
    # Rounds compute V from the table: the stored sum is there to be compared with.
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
    """One thing that was checked."""

    what: str
    holds: bool
    seen: str


def verify(saved: SavedRun, sites: Mapping[str, Path]) -> list[Finding]:
    """Check the invariants. `sites` are folders of sites, by name, where available."""
    state = saved.state
    rounds = [record.get("round") for record in saved.records]
    rounds = [t for t in rounds if t is not None]  # None: not a round, or the opening
    # `read_saved` raises if a digest is wrong, so the first check holds here.
    size = f"{len(state.members)} members, round {state.round}"
    whole, count = rounds == list(range(state.round)), f"{len(rounds)} rounds"
    findings = [
        Finding("every file is as its digest says", True, size),
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
    """Whether a site's cache holds the v_i that the server's version names (R11)."""
    member, what = saved.state.members[name], f"{name} holds the v_i of the table"
    cache = SiteCacheFile(folder, saved.state.run, Specs.of(saved.plan)).load()
    if member.version is None:
        return Finding(what, True, "nothing accepted yet")
    if cache.pending is not None and cache.pending.version == member.version:
        memory, seen = cache.pending.memory, "accepted; the site will learn it next"
    elif cache.committed == member.version:
        memory, seen = cache.memory, "accepted"
    else:
        return Finding(what, True, "lost; the server will send it")
    return Finding(what, same_bits(memory, member.memory), seen)


class ReplayTransport:
    """Sites in this process, of which only the recorded ones answer.

    Args:
        saved: the run to replay.
        sites: the folders of all sites that ever answered, by name.
    """

    framing = 0

    def __init__(self, saved: SavedRun, sites: Mapping[str, SiteFolder]):
        self.saved, self.folders = saved, sites
        self.sites: dict[str, Site] = {}
        self.accepted: dict[str, list[str]] = {}  # of the recorded round, by phase
        # Versions need only differ here: nothing else depends on them.
        self.nonces = itertools.count(1)

    def follow(self, record: Record) -> None:
        """Answer from here on as in this record of a round."""
        self.accepted = record["accepted"]

    def cohort(self, phase: Phase) -> list[str]:
        """The sites to ask: those whose replies were accepted."""
        return self.accepted[phase.name]

    def exchange(
        self,
        letters: Mapping[str, Letter],
        *,
        largest: int,
        seconds: float | None = None,
    ) -> Iterator[tuple[str, Letter]]:
        for name, letter in letters.items():
            # The opening asks every member; only the recorded ones answer again.
            if name in self.accepted[letter.note.phase]:
                answer = self.site(name).handle(letter)
                if answer is not None:
                    yield name, answer

    def arrivals(self, *, moments: bool = False) -> list[Introduction]:
        return []

    def barred(self, names: Iterable[str]) -> list[str]:
        return []

    def site(self, name: str) -> Site:
        """The site of that name, with its own rows and an empty cache at first."""
        if name not in self.sites:
            if name not in self.folders:
                raise BadValue(
                    f"a replay needs the rows of {name}; give its folder with --sites."
                )
            rows = self.folders[name].rows(self.saved.terms.scaling)
            save = lambda cache: None
            nonce = lambda: next(self.nonces)
            self.sites[name] = Site(self.saved.plan, rows, Cache(), save, nonce)
        return self.sites[name]


def replay(saved: SavedRun, sites: Mapping[str, SiteFolder]) -> ServerState:
    """The state that the recorded answers lead to, computed in this process."""
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
        # Sites that joined before this round are members with the recorded numbers,
        # from which their random draws follow.
        members = {
            name: rounds.state.members.get(name, Member())._replace(number=number)
            for name, number in record["members"].items()
        }
        rounds.protocol.change(members)
        transport.follow(record)
        if not rounds.attempt():
            raise BadValue(
                f"round {record['round']} cannot be replayed: too few of the recorded "
                "sites answered; check that their rows are unchanged."
            )
    return rounds.state


def same_bits(a: Any, b: Any) -> bool:
    """Whether two trees have one structure, and equal arrays of equal types."""
    return jax.tree.structure(a) == jax.tree.structure(b) and all(
        np.asarray(p).dtype == np.asarray(q).dtype and np.array_equal(p, q)
        for p, q in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


def same_state(a: ServerState, b: ServerState) -> bool:
    """Bit for bit: the algorithm's state, and every memory of common members."""
    return same_bits(a.variables, b.variables) and all(
        same_bits(a.members[name].memory, b.members[name].memory)
        for name in set(a.members) & set(b.members)
    )
