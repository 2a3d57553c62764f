"""`EarlyStop`: a callback that stops a run when a column stops improving."""

from collections.abc import Iterable

import numpy as np

from sagda import check
from sagda.check import BadValue
from sagda.simulator.history import COUNTS, History
from sagda.simulator.run import Progress

GOALS = ("auto", "min", "max")


class EarlyStop:
    """Stop a run whose best value has not improved for `patience` rounds.

    The value is the mean over seeds of a column of the history. A mean that is not
    finite is not an improvement. The decision depends on the history only. So a run
    that was interrupted and resumed stops at the same round as an uninterrupted one.

    Args:
        metric: the column.
        patience: number of rounds without an improvement before the run stops.
        least: minimal change of the best value that counts as an improvement.
        goal: `min` or `max`, whichever is better. `auto` is `max` for AUC columns and
            `min` for all others.
    """

    def __init__(
        self,
        metric: str = "grad_phi_sq",
        *,
        patience: int,
        least: float = 0.0,
        goal: str = "auto",
    ):
        check.kind("metric", metric, str, "such as 'grad_phi_sq'")
        check.choice("goal", goal, GOALS)
        self.metric = metric
        self.patience = check.integer("patience", patience, low=1)
        self.least = check.real("least", least, low=0)
        upwards = metric.startswith("auc") if goal == "auto" else goal == "max"
        self.sign = -1 if upwards else 1

    def __call__(self, now: Progress) -> bool:
        if len(set(map(repr, now.methods))) > 1:
            raise BadValue(
                "`EarlyStop` decides for one method at a time. Use it with `simulate`, "
                "not with `sweep`."
            )
        return self.enough(now.history)

    def enough(self, history: History) -> bool:
        """True if a run with this history should stop."""
        column = history[check_metric("metric", self.metric, history.columns)]
        with np.errstate(invalid="ignore", over="ignore"):
            value = self.sign * column.mean(axis=0)
        value = np.where(np.isfinite(value), value, np.inf)
        recent = history.rounds > history.rounds[-1] - self.patience
        if recent.all():
            return False
        return not value[recent].min() < value[~recent].min() - self.least


def check_metric(field: str, name: str, columns: Iterable[str]) -> str:
    """`name` if it is a measured column; counts such as samples are refused."""
    return check.choice(field, name, [c for c in columns if c not in COUNTS])
