"""What a server's files prove: the invariant, and the run computed anew."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from sagda.check import BadValue
from sagda.core import Phase
from sagda.federation.plan import Plan, Specs, on_host
from sagda.federation.protocol.client import Cache
from sagda.federation.protocol.letters import Introduction, Letter
from sagda.federation.protocol.server import Member, ServerState
from sagda.federation.protocol.wire import Spec
from sagda.federation.server.results import SERVER
from sagda.federation.server.rounds import FederatedRounds, first_state
from sagda.federation.server.store import ServerStore, flat, parts_of, total_of
from sagda.federation.site.cache import SiteCacheFile
from sagda.federation.site.folder import SiteFolder
from sagda.federation.site.site import Site
from sagda.federation.terms import Terms


class SavedRun(NamedTuple):
    """All that a server's folder holds, read and checked."""

    plan: Plan
    specs: Specs
    first: Any
    terms: Terms
    book: ServerState
    total: Any  # V as it was stored; None for algorithms without memories
    records: list[dict[str, Any]]


def read_kept(folder: Path) -> SavedRun:
    """A run folder's server, every digest checked."""
    home = folder / SERVER
    if not (home / "manifest.json").exists():
        raise BadValue(
            f"{folder} holds no federation: no {SERVER}/manifest.json; `sagda serve` "
            "and `sagda federation-demo` make one."
        )
    journal = ServerStore(home)
    found = journal.manifest()
    terms = Terms.read(found["terms"])
    plan = terms.plan(found["run"])
    specs = Specs.of(plan)
    with jax.enable_x64(plan.float64):
        first = on_host(plan.algorithm.memory(plan.start()))
    parts = parts_of(plan, first_state(plan, []), specs, first)
    journal.describe(terms.text, found["census"], parts)
    book = journal.load(found)
    total = None
    if plan.algorithm.mean is not None:
        arrays = journal.read("state", found["state"], None)
        like = jax.tree.map(lambda a: np.zeros(np.shape(a), np.float64), first)
        total = {name: arrays[name] for name in flat(Spec.of(like), like, "total")}
    return SavedRun(plan, specs, first, terms, book, total, journal.records())


class Finding(NamedTuple):
    """One thing that was checked."""

    what: str
    holds: bool
    seen: str


def verify(kept: SavedRun, sites: Mapping[str, Path]) -> list[Finding]:
    """What the files must say; `sites` are folders of sites, where they are at hand."""
    book = kept.book
    rounds = [record["round"] for record in kept.records if "accepted" in record]
    rounds = [t for t in rounds if t is not None]
    found = [
        Finding(
            "every file is as its digest says",
            True,
            f"{len(book.members)} members, round {book.round}",
        ),
        Finding(
            "every round was committed once",
            rounds == list(range(book.round)),
            f"{len(rounds)} rounds",
        ),
    ]
    if kept.total is not None:
        now = total_of(book.members, kept.first)
        now = flat(Spec.of(now), now, "total")
        error = max(float(np.abs(now[k] - kept.total[k]).max()) for k in now)
        found.append(
            Finding(
                "V is the sum of v_i over all M members",
                error == 0.0,
                f"M = {len(book.members)}, error {error:g}",
            )
        )
    for name, state in sorted(sites.items()):
        if name in book.members:
            holds, seen = agrees(kept, name, state)
            found.append(Finding(f"{name} holds the v_i of the table", holds, seen))
    return found


def agrees(kept: SavedRun, name: str, state: Path) -> tuple[bool, str]:
    """Whether a site's own file says what the server's record points at."""
    member = kept.book.members[name]
    cache = SiteCacheFile(state, kept.book.run, kept.specs).load()
    if member.version is None:
        return True, "none accepted yet"
    if cache.pending is not None and cache.pending.version == member.version:
        held, seen = cache.pending.memory, "accepted, not yet told so"
    elif cache.committed == member.version:
        held, seen = cache.memory, "accepted"
    else:
        return True, "lost; the server will send it"
    same = all(
        np.array_equal(a, b)
        for a, b in zip(
            jax.tree.leaves(held), jax.tree.leaves(member.memory), strict=True
        )
    )
    return same, seen


class RepeatedTransport:
    """Sites in this process, of which only recorded answers count."""

    framing = 0

    def __init__(self, kept: SavedRun, desks: Mapping[str, SiteFolder]):
        self.kept, self.desks = kept, desks
        self.sites: dict[str, Site] = {}
        self.allowed: dict[str, list[str]] = {}
        self.nonces = 0

    def nonce(self) -> int:
        self.nonces += 1
        return self.nonces

    def site(self, name: str) -> Site:
        if name not in self.sites:
            if name not in self.desks:
                raise BadValue(
                    f"the rows of {name} are needed to compute the run anew; name its "
                    "folder with --sites."
                )
            rows = self.desks[name].rows(self.kept.terms.scaling)
            save = lambda cache: None
            self.sites[name] = Site(self.kept.plan, rows, Cache(), save, self.nonce)
        return self.sites[name]

    def exchange(
        self,
        letters: Mapping[str, Letter],
        *,
        largest: int,
        seconds: float | None = None,
    ) -> Iterator[tuple[str, Letter]]:
        for name, letter in letters.items():
            if name in self.allowed[letter.note.phase]:
                answer = self.site(name).handle(letter)
                if answer is not None:
                    yield name, answer

    def arrivals(self, *, moments: bool = False) -> list[Introduction]:
        return []

    def barred(self, names: Iterable[str]) -> list[str]:
        return []


class Repeated(FederatedRounds):
    """Asks those whose answers were recorded."""

    def cohort(self, phase: Phase) -> list[str]:
        assert isinstance(self.transport, RepeatedTransport)
        return self.transport.allowed[phase.name]


def replay(kept: SavedRun, desks: Mapping[str, SiteFolder]) -> ServerState:
    """The book that the recorded answers lead to, computed in this process."""
    again = RepeatedTransport(kept, desks)
    server = Repeated(
        kept.plan, first_state(kept.plan, []), again, lambda book, records: None
    )
    for record in kept.records:
        if "left" in record:
            server.server.leave(record["left"])
        if "reset" in record:
            server.server.reset()
        if "accepted" not in record:
            continue
        members = {
            name: server.book.members.get(name, Member())._replace(number=number)
            for name, number in record["members"].items()
        }
        server.server.change(members)
        again.allowed = record["accepted"]
        if not server.attempt():
            raise BadValue(f"round {record['round']} cannot be computed anew.")
    return server.book


def same_state(a: ServerState, b: ServerState) -> bool:
    """Bit for bit: the state, and every memory of those who are members of both."""
    pair = lambda x, y: (
        jax.tree.structure(x) == jax.tree.structure(y)
        and all(
            p.dtype == q.dtype and np.array_equal(p, q)
            for p, q in zip(jax.tree.leaves(x), jax.tree.leaves(y), strict=True)
        )
    )
    return pair(a.state, b.state) and all(
        pair(a.members[name].memory, b.members[name].memory)
        for name in set(a.members) & set(b.members)
    )
