"""`EarlyStop`: a run ends when a column of its history improves no more."""

from collections.abc import Iterable

import numpy as np

from sagda import check
from sagda.check import BadValue
from sagda.simulator.history import COUNTS, History
from sagda.simulator.run import Progress

GOALS = ("auto", "min", "max")


class EarlyStop:
    """Stop a run whose best value has not improved for some rounds.

    The value is the mean over seeds of a column of the history, and the history alone
    decides: a run that is stopped at one of its evaluations, or interrupted, and
    resumed ends where an unbroken one does. A mean that is not finite is no
    improvement.

    Args:
        metric: the column.
        patience: rounds without an improvement after which the run stops.
        least: by how much the best value must change to have improved.
        goal: whether `min` or `max` is better; `auto` takes `max` for AUC.
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
                "`EarlyStop` decides for one method at a time; use it with `simulate`, "
                "not with `sweep`."
            )
        return self.enough(now.history)

    def enough(self, history: History) -> bool:
        """Whether a run with this history should stop."""
        column = history[check_metric("metric", self.metric, history.columns)]
        with np.errstate(invalid="ignore", over="ignore"):
            value = self.sign * column.mean(axis=0)
        value = np.where(np.isfinite(value), value, np.inf)
        recent = history.rounds > history.rounds[-1] - self.patience
        if recent.all():
            return False
        return not value[recent].min() < value[~recent].min() - self.least


def check_metric(field: str, name: str, columns: Iterable[str]) -> str:
    """`name` if it is among the columns that are measured, not only counted."""
    return check.choice(field, name, [c for c in columns if c not in COUNTS])
