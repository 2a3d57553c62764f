"""`RunOptions`: the list of all keyword arguments of `simulate` and `sweep`.

To add an option, add a field, its description under `Args`, and its check. This module
checks each option alone. `checks.check_run` checks whether the options fit the method,
the problem and the data.
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
    LABELS,
    ChosenMetrics,
    MetricArgument,
    chosen_metrics,
)
from sagda.simulator.history import COUNTS
from sagda.simulator.layout import parse
from sagda.simulator.run import Callback, Callbacks, Run


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of a simulation: rounds, cohorts, evaluation, layout and callbacks.

    `chunk`, `eval_every` and `resume` do not change the iterates.

    Args:
        rounds: the number of communication rounds (T). For a resumed run, this number
            includes the rounds that it already has.
        cohort: the number of clients drawn per round (m). None takes all clients.
        batch_size: rows per stochastic gradient, drawn with replacement. None takes all
            rows of the client. If all clients take part, the run then has no
            randomness.
        dropout: the probability that a client fails in an exchange. A client that fails
            misses the rest of the round. A round in which a phase has no reply changes
            nothing.
        seeds: one seed, or several that run in one program. A seed decides the start,
            the cohorts and the samples. The partition of the data has a separate seed.
        eval_every: the number of rounds between evaluations. The start and the last
            round are always evaluated.
        chunk: the largest number of rounds between two calls of `progress`. None takes
            as many rounds as run in about half a second.
        metrics: additional columns of the history. Give names, functions, or a mapping
            of names to functions. `drift` is the mean of ||z_i^{K+1} - z_t||^2 over the
            cohort in the last round. `variate_lag` is the mean of
            ||v_i - grad f_i(z_t)||^2 over all clients. `potential` is Phi - f/10. A
            function is called as `function(problem, z, rows, weight)` and returns one
            number. For an array `values` with one value per row, `weight @ values` is
            the mean over clients.
        test: test rows to score in addition to the training rows.
        start: the start (x_0, y_0) for every seed. None takes the start that the
            problem draws.
        float64: whether to compute in double precision. The same rows are drawn.
        layout: how clients and seeds are divided over devices. `auto` chooses a layout.
            `mapped` computes clients one after the other, `batched` all at once, and
            `chunk-16` 16 at a time. `/2` uses two devices. They divide the runs
            (`:runs`) or the clients (`:clients`) among them. All layouts give the same
            results up to rounding. `run.layout` is the layout that was used.
        progress: one callback or several. Each receives a `Progress` after each chunk,
            and once when a run is resumed. If a callback returns True, the run is
            evaluated and returned at this round. A callback that is a context manager
            is entered before the first round and left after the last one. See
            `sagda.trackers`.
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
        """Check each option alone, and store seeds and callbacks as tuples."""
        check.integer("rounds", self.rounds, low=1)
        check.real("dropout", self.dropout, low=0, high=1)
        seeds = tuple(self.seeds) if isinstance(self.seeds, Iterable) else (self.seeds,)
        if not seeds:
            raise BadValue("`seeds` must contain at least one seed, got none.")
        top = 2**32 - 1
        seeds = tuple(check.integer("seeds", s, low=0, high=top) for s in seeds)
        object.__setattr__(self, "seeds", seeds)
        check.integer("eval_every", self.eval_every, low=1)
        if self.chunk is not None:
            check.integer("chunk", self.chunk, low=1)
        check.kind("layout", self.layout, str, "such as 'auto'")
        parse(self.layout)
        for name, metric in self.chosen_metrics:
            if metric.custom and name in (*LABELS, *COUNTS):
                raise BadValue(
                    f"`metrics` must not define {name!r}, because histories already "
                    "have a column of this name; choose another name."
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
        """The seeds as a tuple, even if the user gave a single seed."""
        return cast("tuple[int, ...]", self.seeds)

    @property
    def callbacks(self) -> tuple[Callback, ...]:
        """The callbacks as a tuple, which is empty if there are none."""
        return cast("tuple[Callback, ...]", self.progress)

    @property
    def chosen_metrics(self) -> ChosenMetrics:
        """The optional metrics, as pairs of a name and an `OptionalMetric`."""
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
    """Let a function with an argument `options` take its options as keyword arguments.

    The decorated function has the arguments methods, problem, federation and options.
    Type checkers, `help` and `inspect.signature` show the fields of `RunOptions` in
    place of `options`.
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
