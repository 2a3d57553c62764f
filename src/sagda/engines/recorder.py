"""`Recorder`: the ledger of a run and the rows of its history."""

import jax
import numpy as np

from sagda.core import Point
from sagda.costs import PhaseCost, cost
from sagda.data.federation import Table
from sagda.engines.rounds import Carry, Tally, evaluate
from sagda.engines.setup import Setup, on_device
from sagda.history import History
from sagda.metrics import COLUMNS, auc


class Recorder:
    """Adds up what was counted and measures what is asked, one row per evaluation."""

    def __init__(
        self,
        setup: Setup,
        z: Point,
        seeds: tuple[int, ...],
        test: Table | None,
        metrics: tuple[str, ...],
    ):
        self.setup, self.seeds, self.metrics = setup, seeds, metrics
        algorithm = setup.method.build()
        self.phases = cost(algorithm, z, batch_size=setup.batch_size)
        self.opening = cost(algorithm, z, batch_size=setup.batch_size, opening=True)
        self.test = None
        if test is not None:
            columns = Table(test.features, test.label)
            self.test = jax.tree.map(
                lambda a: on_device(a, setup.weight.dtype), columns
            )
        none = lambda kind: np.zeros(len(seeds), kind)
        self.totals: dict[str, np.ndarray] = {
            "gradients": none(np.int64),
            "samples": none(np.float64),
            "bytes_down": none(np.int64),
            "bytes_up": none(np.int64),
            "lost_rounds": none(np.int64),
        }
        self.seconds = 0.0
        self.latest: dict[str, np.ndarray] = {}
        self.past: History | None = None
        self.rows: list[dict[str, np.ndarray]] = []

    def go_on(self, past: History) -> None:
        """Start where an earlier run stopped."""
        self.past = past
        self.totals = {name: past.columns[name][:, -1].copy() for name in self.totals}
        self.seconds = float(past.columns["seconds"][0, -1])

    def count(
        self,
        tally: Tally,
        phases: tuple[PhaseCost, ...],
        *,
        rounds: int,
        seconds: float,
    ) -> None:
        """Add the exchanges of some rounds: seeds may differ by drop-outs."""
        sent, replied, rows, lost = (np.asarray(a, np.int64) for a in tally)
        self.totals["lost_rounds"] += lost
        for p, phase in enumerate(phases):
            mean_rows = rows[:, p] / np.maximum(sent[:, p], 1)
            used = phase.rows + phase.passes * mean_rows
            self.totals["gradients"] += rounds * phase.gradients
            self.totals["samples"] += rounds * used
            self.totals["bytes_down"] += sent[:, p] * phase.bytes_down
            self.totals["bytes_up"] += replied[:, p] * phase.bytes_up
        self.seconds += seconds

    def evaluate(self, carry: Carry, t: int) -> None:
        """Append a row."""
        columns, scores, test_scores = jax.device_get(
            evaluate(self.setup, carry, self.test, self.metrics)
        )
        ones = np.ones(len(self.seeds))
        row: dict[str, np.ndarray] = {"round": t * ones.astype(np.int64)}
        row |= {name: total.copy() for name, total in self.totals.items()}
        row["seconds"] = self.seconds * ones
        first = [name for name in COLUMNS if name in columns]
        row |= {name: columns[name] for name in dict.fromkeys([*first, *columns])}
        if scores is not None:
            held = np.asarray(self.setup.weight) > 0
            label = np.asarray(self.setup.table.label)[held]
            row["auc_train"] = np.array([auc(s[held], label) for s in scores])
        if test_scores is not None and self.test is not None:
            label = np.asarray(self.test.label)
            row["auc_test"] = np.array([auc(s, label) for s in test_scores])
        self.latest = row
        self.rows.append(row)

    @property
    def history(self) -> History:
        if not self.rows and self.past is not None:
            return self.past
        columns = {
            name: np.stack([row[name] for row in self.rows], axis=1)
            for name in self.rows[0]
        }
        new = History(self.seeds, columns)
        return new if self.past is None else self.past.followed_by(new)
