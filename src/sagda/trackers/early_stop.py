"""`EarlyStop`: a callback that stops a run when a chosen metric stops improving.

It writes nothing: see `base.py` for callbacks that do.
"""

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass

import numpy as np

from sagda import check
from sagda.check import BadValue
from sagda.simulator.history import COUNTS, History
from sagda.simulator.run import Progress


@dataclass(frozen=True)
class EarlyStop:
    """Stop a run whose best value has not improved for `patience` rounds.

    The value is the mean over seeds of one column of the history. A mean that is not
    finite does not count as an improvement. The decision depends only on the history.
    So a run that was interrupted and resumed stops at the same round as an
    uninterrupted run.

    Args:
        metric: name of the column.
        patience: number of rounds without an improvement before the run stops.
        least: smallest change of the best value that counts as an improvement.
        goal: `min` if smaller values are better, `max` if larger values are better.
            `auto` means `max` for AUC columns and `min` for all others.
    """

    metric: str = "grad_phi_sq"
    _: KW_ONLY
    patience: int
    least: float = 0.0
    goal: str = "auto"

    def __post_init__(self) -> None:
        check.kind("metric", self.metric, str, "such as 'grad_phi_sq'")
        check.choice("goal", self.goal, ("auto", "min", "max"))
        check.integer("patience", self.patience, low=1)
        check.real("least", self.least, low=0)

    def __call__(self, now: Progress) -> bool:
        if len(set(map(repr, now.methods))) > 1:
            raise BadValue(
                "`EarlyStop` must be used with one method at a time, got several; use "
                "it with `simulate`, not with `sweep`."
            )
        return self.enough(now.history)

    def enough(self, history: History) -> bool:
        """Return True if a run with this history should stop."""
        column = history[check_metric("metric", self.metric, history.columns)]
        goal = self.goal
        if goal == "auto":
            goal = "max" if self.metric.startswith("auc") else "min"
        with np.errstate(invalid="ignore", over="ignore"):
            value = (-1 if goal == "max" else 1) * column.mean(axis=0)
        value = np.where(np.isfinite(value), value, np.inf)
        recent = history.rounds > history.rounds[-1] - self.patience
        if recent.all():
            return False
        return not value[recent].min() < value[~recent].min() - self.least


def check_metric(field: str, name: str, columns: Iterable[str]) -> str:
    """Return `name` if it is a measured column of the history.

    Raises `BadValue` for other names, also for counts such as `samples`.
    """
    return check.choice(field, name, [c for c in columns if c not in COUNTS])
