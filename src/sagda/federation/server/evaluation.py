"""The server's part of an evaluation: it asks the sites, and computes a history row.

The sites' part is in `site.measure`. The questions are defined in
`federation.questions`. An evaluation is not a round: it changes no control variate, and
its bytes are counted separately.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from sagda.core import Point
from sagda.federation.events import Event
from sagda.federation.plan import on_host
from sagda.federation.protocol.letters import Evaluate, Evaluated, Letter
from sagda.federation.protocol.wire import Part, Refused, Spec
from sagda.federation.questions import (
    BITS,
    SCORES,
    ScoreCounts,
    answer_spec,
    question_of,
)
from sagda.federation.server.rounds import FederatedRounds, no_answer
from sagda.problems.inner import norm_sq
from sagda.problems.metrics import COLUMNS, auc_of_counts
from sagda.scoring.calibration import calibrated


class SiteAnswer(NamedTuple):
    """The answer of one site to a question, after it was checked."""

    means: Any  # means over the rows of the site; the question determines which
    counts: ScoreCounts | None  # None: the problem has no scores


def evaluate(
    rounds: FederatedRounds, share_losses: bool = False
) -> tuple[dict[str, float], list[ScoreCounts | None]]:
    """Evaluate the present point, in one or two exchanges.

    Returns the columns of a history row, and the counts by score of each site that
    answered. Both are empty if no site answered.

    For the question "sums", Phi needs a second exchange: the server first computes y*
    from the sums. For `dro` these sums are the losses of single rows, so sites send
    them only with `share_losses`.
    """
    problem, z = rounds.plan.problem, on_host(rounds.state.variables.z)
    question = question_of(problem, share_losses)
    answers = ask(rounds, question, z, list(rounds.state.members))
    at_optimum = None
    if not answers:
        return {}, []
    if question == "sums":
        with jax.enable_x64(True):
            y = problem.y_from(mean_of(answers)["sums"])
        to = lambda a, like: np.asarray(a, like.dtype)
        optimum = Point(z.x, jax.tree.map(to, on_host(y), z.y))
        at_optimum = ask(rounds, "point", optimum, list(answers))
        # f and Phi must be means over the same sites.
        answers = {name: answers[name] for name in at_optimum}
        if not answers:
            return {}, []
    columns = columns_of(z, question, answers, at_optimum)
    return columns, [answer.counts for answer in answers.values()]


def ask(
    rounds: FederatedRounds, question: str, z: Point, names: list[str]
) -> dict[str, SiteAnswer]:
    """Ask the sites `names` a question at z, and return the valid answers by name."""
    state = rounds.state
    note = Evaluate(
        run=state.run,
        config=state.config,
        round=state.round,
        question=question,
        message=rounds.specs.point.pack(z),
    )
    letters = {
        name: Letter(note, state.members[name].number, rounds.terms) for name in names
    }
    spec = answer_spec(rounds.plan, z, question)
    size = sum(letter.bytes for letter in letters.values())
    framing = rounds.transport.framing
    answers = {}
    rounds.notify(Event.ASKED, phase="evaluate", names=sorted(names))
    for name, letter in rounds.send(letters):
        size += letter.bytes
        try:
            if name not in letters:
                raise Refused("late", f"{name} answered a question it was not asked.")
            if not isinstance(letter.note, Evaluated):
                raise Refused(*no_answer(name, letter.note))
            # The first four fields of both notes are run, config, round and question.
            if letter.note[:4] != note[:4]:
                raise Refused("round", f"{name} evaluated another point.")
            rows = rounds.rows.get(name)
            answers[name] = read_answer(spec, letter.note.payload, rows)
            rounds.notify(Event.ACCEPTED, name=name, phase="evaluate", letter=letter)
        except Refused as refused:
            rounds.refuse(name, refused.refusal, letter)
    framing = rounds.transport.framing - framing
    rounds.traffic = rounds.traffic.plus(evaluation=size, framing=framing)
    return answers


def read_answer(spec: Spec, parcel: Any, rows: int | None) -> SiteAnswer:
    """Return the answer of a site; raise `Refused` if it is not as specified.

    Args:
        spec: the spec of the means.
        parcel: the arrays that the site sent.
        rows: the number of rows of the site, which its counts must add up to. None: the
            number is unknown.
    """
    if not isinstance(parcel, dict):
        raise Refused("format", "a parcel must hold arrays by name.")
    means = {name: part for name, part in parcel.items() if name not in SCORES}
    tree = spec.unpack(means)
    if len(means) == len(parcel):
        return SiteAnswer(tree, None)
    first = parcel.get(SCORES[0])
    if not isinstance(first, Part) or len(first.shape) != 1:
        raise Refused("format", "counts by score must be arrays of one axis.")
    if first.shape[0] < 1 or (rows and first.shape[0] > rows):
        raise Refused(
            "size",
            f"counts by score must have 1 to {rows} entries, got {first.shape[0]}.",
        )
    # The site chooses the length, but its three arrays must have the same length.
    column: Any = jax.ShapeDtypeStruct(first.shape, np.int32)
    columns = Spec.of(ScoreCounts(column, column, column)).unpack(
        {name: part for name, part in parcel.items() if name in SCORES}
    )
    counts = jax.tree.map(np.int64, columns)
    total = int(counts.positives.sum() + counts.negatives.sum())
    least = min(counts.positives.min(), counts.negatives.min())
    if least < 0:
        raise Refused("counts", f"counts by score must be at least 0, got {least}.")
    if rows and total != rows:
        raise Refused(
            "counts", f"counts by score must add up to {rows} rows, got {total}."
        )
    return SiteAnswer(tree, counts)


# From answers to columns.


def mean_of(answers: Mapping[str, SiteAnswer]) -> Any:
    """Return the mean of the sites' means, added in the order of the sites' names."""
    trees = [answers[name].means for name in sorted(answers)]
    return jax.tree.map(lambda *a: np.mean(a, axis=0), *trees)


def columns_of(
    z: Point,
    question: str,
    answers: Mapping[str, SiteAnswer],
    at_optimum: Mapping[str, SiteAnswer] | None = None,
) -> dict[str, float]:
    """Return the columns of a history row.

    Args:
        z: the point that was evaluated.
        question: the first question.
        answers: the answers to the first question, by name.
        at_optimum: the answers at (x, y*) of the second exchange, if there was one.
    """
    mean = mean_of(answers)
    value = lambda tree: float(tree["f"])
    if question == "quadratic":
        value = lambda tree: polynomial(tree["f"])(float(z.y))
    columns = {
        "f": value(mean),
        "worst_client_loss": max(value(answer.means) for answer in answers.values()),
    }
    with jax.enable_x64(True):
        if question == "quadratic":
            columns |= at_best(mean)
        elif at_optimum is not None:
            best = mean_of(at_optimum)
            columns["phi"] = value(best)
            columns["grad_phi_sq"] = float(norm_sq(best["grad"].x))
        else:
            columns["grad_x_sq"] = float(norm_sq(mean["grad"].x))
            columns["grad_y_sq"] = float(norm_sq(mean["grad"].y))
    if "phi" in columns:
        columns["gap"] = columns["phi"] - columns["f"]
    columns = {name: columns[name] for name in COLUMNS if name in columns}
    counts = [answer.counts for answer in answers.values() if answer.counts is not None]
    if len(counts) == len(answers):
        columns["auc_train"] = pooled_auc(counts)
    return columns | {"evaluated": len(answers)}


def polynomial(f: np.ndarray) -> Callable[[float], float]:
    """Return the quadratic function with the values `f` at -1, 0 and 1 (`NODES`)."""
    below, at, above = map(float, f)
    slope, bend = (above - below) / 2, (above + below) / 2 - at
    return lambda y: at + slope * y + bend * y * y


def at_best(mean: Any) -> dict[str, float]:
    """Return Phi and the squared norm of its gradient, for the question "quadratic".

    f is quadratic in y, and its gradient in x is linear in y. So the means at `NODES`
    determine both at y*, the y that maximises f.
    """
    below, at, above = map(float, mean["f"])
    bend = above + below - 2 * at
    if not bend < 0:  # f must be concave in y, so some site sent false values
        return {"phi": float("nan"), "grad_phi_sq": float("nan")}
    y = (below - above) / (2 * bend)
    grad = jax.tree.map(lambda g: g[0] + y * (g[1] - g[0]), mean["grad"])
    return {"phi": polynomial(mean["f"])(y), "grad_phi_sq": float(norm_sq(grad))}


def calibration_of(counts: list[ScoreCounts]) -> list[float] | None:
    """Return slope and offset of Platt scaling, from the counts by score of all sites.

    Returns None if a score is not finite.
    """
    parts = []
    for score, positives, negatives in counts:
        # `site.measure.counted` made integers of the scores. Here these integers
        # become numbers in single precision again.
        ordered = (score << (32 - BITS)).astype(np.int32)
        word = np.where(ordered < 0, np.int32(-(2**31)) - ordered, ordered)
        value = word.view(np.float32).astype(np.float64)
        if not np.isfinite(value).all():
            return None
        parts.append((np.repeat(value, positives), np.ones(positives.sum(), bool)))
        parts.append((np.repeat(value, negatives), np.zeros(negatives.sum(), bool)))
    return list(calibrated(parts))


def pooled_auc(counts: list[ScoreCounts]) -> float:
    """Return the AUC over the rows of all sites together."""
    score, positive, negative = map(np.concatenate, zip(*counts, strict=True))
    _, rank = np.unique(score, return_inverse=True)
    return auc_of_counts(np.bincount(rank, positive), np.bincount(rank, negative))
