"""`Recorder`: counts messages and gradients, and collects the rows of the history.

The metrics of a row are measured by an evaluator, see `evaluator.py`. The history
itself is in `history.py`, and the costs of one client are in `algorithms/costs.py`.
"""

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
    """The counts of a run up to now.

    Counts are 64-bit integers, so that they neither overflow nor depend on the length
    of the chunks.
    """

    opening: Tally
    rounds: Tally
    seconds: float  # time spent in rounds, without compilation


def used(
    tally: Tally, phases: tuple[PhaseCost, ...], rounds: int
) -> dict[str, np.ndarray]:
    """Return the costs of `rounds` rounds, as columns of a history with runs on axis 0.

    `tally` has the counts of these rounds, and `phases` the costs of one client.
    """
    sent, replied, rows, _ = tally
    column = lambda name: np.array([getattr(phase, name) for phase in phases], np.int64)
    # Clients differ in their number of rows. So a gradient on all local rows counts as
    # the mean number of rows of the clients that took part.
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
    """Counts messages and gradients, and adds one row to the history per evaluation.

    `evaluator(state)` returns the `Measurements` of every run, on the host.
    """

    def __init__(
        self,
        evaluator: Any,
        algorithm: Algorithm,
        z: Point,
        seeds: tuple[int, ...],
    ):
        self.evaluator, self.seeds = evaluator, seeds
        # The fields of the carry that the chosen metrics need in addition to z.
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
        """Add the counts of the opening phases."""
        opening = jax.tree.map(np.add, self.ledger.opening, tally)
        self.ledger = self.ledger._replace(opening=opening)

    def count(self, tally: Tally, seconds: float) -> None:
        """Add the counts and the time of a chunk of rounds."""
        rounds = jax.tree.map(np.add, self.ledger.rounds, tally)
        seconds += self.ledger.seconds
        self.ledger = self.ledger._replace(rounds=rounds, seconds=seconds)

    def evaluate(self, carry: Carry, t: int) -> None:
        """Evaluate the runs at round `t`, and add a row to the history."""
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
