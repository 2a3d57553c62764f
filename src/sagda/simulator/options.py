"""`RunOptions`: the keyword arguments of `simulate` and `sweep`, in one list.

A new option is a field here, with its line in `Args` and its check. Whether options fit
a method, a problem and its data is decided by `checks.check_run`.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import numpy as np

from sagda import check
from sagda.check import BadValue
from sagda.core import Point
from sagda.data.federation import Federation, Table
from sagda.problems.base import Problem
from sagda.problems.metrics import (
    METRICS,
    ChosenMetrics,
    MetricArgument,
    chosen_metrics,
)
from sagda.simulator.history import COUNTS
from sagda.simulator.layout import parse
from sagda.simulator.run import Callback, Callbacks, Run


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How to simulate: rounds, participation, evaluation, layout, checkpoints.

    `chunk`, `eval_every` and `resume` do not change any result.

    Args:
        rounds: number of communication rounds (T), counted from the start of the run
            also where it is resumed.
        cohort: number of clients drawn per round (m). None takes all clients.
        batch_size: rows per stochastic gradient, drawn with replacement. None takes all
            rows of the client; with all clients, the run then has no randomness.
        dropout: probability that a client fails in an exchange. It then misses the
            rest of the round. A round without any reply changes nothing.
        seeds: one seed or several; several run in one program. A seed decides the
            start, the cohorts and the samples. The split has a seed of its own.
        eval_every: rounds between evaluations. The start and the last round are always
            evaluated.
        chunk: largest number of rounds between two calls of `progress`. None takes as
            many as run in about half a second.
        metrics: more columns for the history: names, functions, or a mapping of names
            to functions. The names are `drift`, the mean over the cohort of
            ||z_i^{K+1} - z_t||^2 in the last round; `variate_lag`, the mean over
            clients of ||v_i - grad f_i(z_t)||^2; and `potential`, Phi - f/10. A
            function is called as `function(problem, z, rows, weight)` and returns one
            number; `weight @ values` is the clients' mean of values per row.
        test: rows to score in addition to the training rows.
        start: (x_0, y_0) for every seed, in place of the problem's own start.
        float64: compute in double precision. The rows drawn are the same.
        layout: how clients and seeds share devices. `auto` chooses; `mapped` takes
            clients one after the other, `batched` all at once, `chunk-16` sixteen at a
            time. `/2` uses two devices, which share `:runs` or `:clients`. Results of
            two layouts agree up to rounding. `run.layout` is the layout that was used.
        progress: one callback or several. Each receives a `Progress` after each chunk,
            and once when a run is resumed. If one returns True, the run stops there, is
            evaluated and returned. A callback that is a context manager is entered
            before the rounds and left after them. See `sagda.trackers`.
        resume: a run of the same configuration to continue, or its `arrays()`.

    Examples:
        >>> RunOptions(rounds=10, seeds=(0, 1)).seed_list
        (0, 1)
    """

    rounds: int = 500
    cohort: int | None = None
    batch_size: int | None = 10
    dropout: float = 0.0
    seeds: int | Sequence[int] = 0
    eval_every: int = 1
    chunk: int | None = None
    metrics: MetricArgument = ()
    test: Table | None = None
    start: Point | None = None
    float64: bool = False
    layout: str = "auto"
    progress: Callbacks | None = None
    resume: Run | Mapping[str, np.ndarray] | None = None

    def __post_init__(self) -> None:
        """Check each option that can be checked without the others."""
        check.integer("rounds", self.rounds, low=1)
        check.real("dropout", self.dropout, low=0, high=1)
        seeds = tuple(self.seeds) if isinstance(self.seeds, Iterable) else (self.seeds,)
        if not seeds:
            raise BadValue("`seeds` must hold at least one seed, got none.")
        top = 2**32 - 1
        seeds = tuple(check.integer("seeds", s, low=0, high=top) for s in seeds)
        object.__setattr__(self, "seeds", seeds)
        check.integer("eval_every", self.eval_every, low=1)
        if self.chunk is not None:
            check.integer("chunk", self.chunk, low=1)
        check.kind("layout", self.layout, str, "such as 'auto'")
        parse(self.layout)
        for name, metric in self.chosen_metrics:
            if metric.custom and name in (*METRICS, *COUNTS):
                raise BadValue(
                    f"`metrics` may not define {name!r}, which is a column that sagda "
                    "measures; choose another name."
                )
        given: Any = () if self.progress is None else self.progress
        several = isinstance(given, Iterable) and not callable(given)
        callbacks = tuple(given) if several else (given,)
        object.__setattr__(self, "progress", callbacks)
        for callback in callbacks:
            if not callable(callback):
                expected = "a callable or a sequence of them"
                raise check.wrong_kind("progress", expected, callback)

    @property
    def seed_list(self) -> tuple[int, ...]:
        """The seeds as a tuple, also where one was given."""
        return cast("tuple[int, ...]", self.seeds)

    @property
    def callbacks(self) -> tuple[Callback, ...]:
        """The callbacks as a tuple, also where one was given or none."""
        return cast("tuple[Callback, ...]", self.progress)

    @property
    def chosen_metrics(self) -> ChosenMetrics:
        """`metrics` as pairs of a name and an `OptionalMetric`."""
        return chosen_metrics(self.metrics)


P = ParamSpec("P")
First = TypeVar("First")
Result = TypeVar("Result")


def takes_options(
    options: Callable[P, RunOptions],
) -> Callable[
    [Callable[[First, Problem, Federation, RunOptions], Result]],
    Callable[Concatenate[First, Problem, Federation, P], Result],
]:
    """Decorate `f(methods, problem, federation, options)` to take options as keywords.

    Type checkers, `help` and `inspect.signature` see the fields of `RunOptions`.
    """
    keywords = list(inspect.signature(options).parameters.values())
    documented = (inspect.getdoc(options) or "").partition("Args:\n")[2]
    arguments = documented.partition("\n\nExamples:")[0]

    def decorate(
        function: Callable[[First, Problem, Federation, RunOptions], Result],
    ) -> Callable[Concatenate[First, Problem, Federation, P], Result]:
        signature = inspect.signature(function)
        leading = list(signature.parameters.values())[:3]
        names = [parameter.name for parameter in (*leading, *keywords)]

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Result:
            for name in kwargs:
                check.choice(f"option of {function.__name__}", name, names)
            bound = call.__signature__.bind(*args, **kwargs)  # type: ignore[attr-defined]
            first, problem, federation = (bound.arguments.pop(p.name) for p in leading)
            chosen = options(**bound.arguments)  # type: ignore[call-arg]
            return function(first, problem, federation, chosen)

        call.__signature__ = signature.replace(parameters=[*leading, *keywords])  # type: ignore[attr-defined]
        head, heading, examples = (inspect.getdoc(function) or "").partition(
            "\n\nExamples:"
        )
        call.__doc__ = f"{head}\n{arguments}{heading}{examples}"
        return call  # type: ignore[return-value]

    return decorate
