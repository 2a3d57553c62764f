"""One more phase: the columns of a history row, measured by the clients."""

from typing import Any, NamedTuple

import jax
import numpy as np

from sagda.core import Point
from sagda.federation.events import Event
from sagda.federation.plan import on_host
from sagda.federation.protocol.letters import Evaluate, Evaluated, Letter
from sagda.federation.protocol.wire import Refused
from sagda.federation.server.rounds import FederatedRounds
from sagda.federation.site import measure as assess


class Measured(NamedTuple):
    """What an evaluation found."""

    columns: dict[str, float]  # of a history row; none if nobody answered
    counts: list[Any]  # of every client that answered, by score


NOTHING = Measured({}, [])


def evaluate(server: FederatedRounds, share_losses: bool = False) -> Measured:
    """What all members that answer see at the present point.

    Phi takes a second exchange where clients must learn y* first; for DRO the first one
    sends the losses of single rows, so it is done only if `share_losses`.
    """
    problem, z = server.plan.problem, on_host(server.book.state.z)
    question = assess.question_of(problem, share_losses)
    replies = ask(server, question, z, list(server.book.members))
    if not replies:
        return NOTHING
    outer = None
    if question == "sums":
        with jax.enable_x64(True):
            y = problem.y_from(assess.mean_of(replies)["sums"])
        to = lambda a, like: np.asarray(a, like.dtype)
        best = Point(z.x, jax.tree.map(to, on_host(y), z.y))
        outer = ask(server, "point", best, list(replies))
        replies = {name: replies[name] for name in outer}
        if not replies:
            return NOTHING
    columns = assess.columns_of(z, question, replies, outer)
    return Measured(columns, [counts for _, counts in replies.values()])


def ask(
    server: FederatedRounds, question: str, z: Point, names: list[str]
) -> dict[str, tuple[Any, Any]]:
    """One exchange: by name, a client's means and its counts of scores."""
    book, spec = server.book, assess.expected(server.plan, z, question)
    parcel = server.specs.point.pack(z)
    look = Evaluate(book.run, book.config, book.round, question, parcel)
    number = lambda name: book.members[name].number
    letters = {name: Letter(look, number(name), server.terms) for name in names}
    size = sum(letter.bytes for letter in letters.values())
    framing = server.transport.framing
    replies = {}
    server.notify(Event.ASKED, phase="evaluate", names=sorted(names))
    for name, letter in server.exchange(letters):
        size += letter.bytes
        try:
            if name not in letters:
                raise Refused("late", f"{name} was not asked this.")
            replies[name] = checked(server, spec, name, question, letter.note)
            server.notify(Event.ACCEPTED, name=name, phase="evaluate", letter=letter)
        except Refused as refused:
            server.refuse(name, refused.refusal, letter)
    ledger = server.ledger.looked(size)
    server.ledger = ledger.framed(server.transport.framing - framing)
    return replies


def checked(
    server: FederatedRounds, spec: Any, name: str, question: str, note: Any
) -> tuple[Any, Any]:
    if not isinstance(note, Evaluated):
        code, text = getattr(note, "code", "format"), getattr(note, "text", "")
        raise Refused(code, text or f"{name} answered with a {type(note).__name__}.")
    book = server.book
    about = book.run, book.config, book.round, question
    if (note.run, note.config, note.round, note.question) != about:
        raise Refused("round", f"{name} measured another point.")
    return assess.opened(spec, note.payload, server.rows.get(name))
