"""`Recorder`: counts what runs exchange, and collects the rows of their history."""

from typing import Any, NamedTuple

import jax
import numpy as np

from sagda.algorithms.costs import PhaseCost, cost
from sagda.core import Algorithm, Point
from sagda.problems.metrics import auc, in_order
from sagda.simulator.evaluator import EvaluatedState
from sagda.simulator.history import History, HistoryBuffer
from sagda.simulator.rounds import Carry, Tally, no_counts


class Tallies(NamedTuple):
    """Whole-number counts of a run so far. Chunks of any length add up to the same.

    They have 64 bits, which no run overflows.
    """

    opening: Tally
    rounds: Tally
    seconds: float  # in rounds, without compiling


def used(
    tally: Tally, phases: tuple[PhaseCost, ...], rounds: int
) -> dict[str, np.ndarray]:
    """What `rounds` rounds with these counts cost: columns of a history, by run."""
    sent, replied, rows, _ = tally
    column = lambda name: np.array([getattr(phase, name) for phase in phases], np.int64)
    # A pass over all local rows counts the participants' mean number of rows.
    mean_rows = rows / np.maximum(sent, 1)
    samples = column("rows") + column("passes") * mean_rows
    everyone = np.ones(len(sent), np.int64)
    return {
        "gradients": rounds * column("gradients").sum() * everyone,
        "samples": rounds * samples.sum(axis=1),
        "bytes_down": sent @ column("bytes_down"),
        "bytes_up": replied @ column("bytes_up"),
    }


class Recorder:
    """Counts what is exchanged, and adds a row to the history per evaluation.

    `evaluator(state)` gives the `Measurements` of every run, on the host.
    """

    def __init__(
        self,
        evaluator: Any,
        algorithm: Algorithm,
        z: Point,
        seeds: tuple[int, ...],
    ):
        self.evaluator, self.seeds = evaluator, seeds
        # Fields of the carry that an evaluation uses in addition to the iterate.
        self.needs = {
            field for _, metric in evaluator.metrics for field in metric.needs
        }
        batch_size = evaluator.batch_size
        self.phases = cost(algorithm, z, batch_size=batch_size)
        self.opening = cost(algorithm, z, batch_size=batch_size, opening=True)
        none = lambda costs: no_counts(len(seeds), len(costs), dtype=np.int64)
        self.ledger = Tallies(none(self.opening), none(self.phases), 0.0)
        self.latest: dict[str, np.ndarray] = {}
        self.rows = HistoryBuffer(seeds)

    def resume(self, past: History, ledger: Tallies) -> None:
        """Continue the history and the counts of an earlier run."""
        self.rows.resume(past)
        self.ledger = ledger
        self.latest = {name: column[:, -1] for name, column in past.columns.items()}

    def open(self, tally: Tally) -> None:
        """Record the counts of the opening phases."""
        opening = jax.tree.map(np.add, self.ledger.opening, tally)
        self.ledger = self.ledger._replace(opening=opening)

    def count(self, tally: Tally, seconds: float) -> None:
        """Add the counts and the time of a chunk of rounds."""
        rounds = jax.tree.map(np.add, self.ledger.rounds, tally)
        seconds += self.ledger.seconds
        self.ledger = self.ledger._replace(rounds=rounds, seconds=seconds)

    def evaluate(self, carry: Carry, t: int) -> None:
        """Evaluate the runs at round `t` and append a row."""
        needed = {name: getattr(carry, name) for name in self.needs}
        state = EvaluatedState(carry.state.z, **needed)
        columns, scores, test_scores = self.evaluator(state)
        everyone = np.ones(len(self.seeds), np.int64)
        before = used(self.ledger.opening, self.opening, 1)
        since = used(self.ledger.rounds, self.phases, t)
        row: dict[str, np.ndarray] = {"round": t * everyone}
        row |= {name: before[name] + since[name] for name in since}
        # The simulator reads the clients' rows directly, so evaluations send nothing.
        row["eval_bytes"] = 0 * everyone
        row["lost_rounds"] = self.ledger.rounds.lost
        row["seconds"] = self.ledger.seconds * everyone
        row |= {name: columns[name] for name in in_order(columns)}
        scored = {
            "auc_train": (scores, self.evaluator.label),
            "auc_test": (test_scores, self.evaluator.test_label),
        }
        for name, (values, labels) in scored.items():
            if values is not None:
                label = np.asarray(labels)[: len(values[0])]
                row[name] = np.array([auc(s, label) for s in values])
        self.latest = row
        self.rows.append(row)
