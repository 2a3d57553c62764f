"""`sweep`: many methods that differ in their numbers, in as few programs as shapes."""

from collections.abc import Sequence
from typing import Any

import jax

from sagda import check
from sagda.check import BadValue
from sagda.data.federation import Federation
from sagda.methods import Method
from sagda.problems.base import Problem
from sagda.simulator.history import History
from sagda.simulator.recorder import Tallies
from sagda.simulator.run import Run
from sagda.simulator.simulate import run_side_by_side


def sweep(
    methods: Sequence[Method],
    problem: Problem,
    federation: Federation,
    **options: Any,
) -> list[Run]:
    """Run methods side by side, each with every seed; one `Run` per method.

    Methods that differ in rates and other real numbers share one compiled program;
    other local steps, names or algorithms make another. `options` are those of
    `simulate` but `resume`. Rates that diverge are no warning here: `run.diverged`
    tells. The column `seconds` is the time of all that ran together.

    Examples:
        >>> from sagda import Quadratic, fsgda
        >>> problem, clients = Quadratic.make(clients=4, heterogeneity=0.0)
        >>> methods = [fsgda(local_lr=lr) for lr in (0.001, 0.03)]
        >>> slow, fast = sweep(methods, problem, clients, rounds=100, seeds=(0, 1))
        >>> bool((fast.history["phi"][:, -1] < slow.history["phi"][:, -1]).all())
        True
    """
    if not methods:
        raise BadValue("`methods` must hold at least one method, got none.")
    for method in methods:
        check.kind("methods", method, Method, "such as sagda.algorithm('sagda-i')")
    if "resume" in options:
        raise BadValue("`sweep` cannot resume; `simulate` can, method by method.")
    runs: dict[int, Run] = {}
    for group in alike(methods):
        together = run_side_by_side(
            [methods[i] for i in group], problem, federation, **options
        )
        own = apart(together, [methods[i] for i in group])
        runs |= zip(group, own, strict=True)
    return [runs[i] for i in range(len(methods))]


def alike(methods: Sequence[Method]) -> list[list[int]]:
    """The places of methods that one program can run."""
    groups: dict[Any, list[int]] = {}
    for i, method in enumerate(methods):
        groups.setdefault(jax.tree.structure(method), []).append(i)
    return list(groups.values())


def apart(run: Run, methods: Sequence[Method]) -> list[Run]:
    """A run of several methods as one run for each, as `simulate` would return it."""
    seeds = len(run.history.seeds) // len(methods)

    def one(k: int, method: Method) -> Run:
        own = slice(k * seeds, (k + 1) * seeds)
        cut = lambda tree: jax.tree.map(lambda a: a[own], tree)
        opening, rounds, seconds = run.ledger
        mine = run.history.seeds[own]
        # Not by JAX, which would put them in order of their names.
        columns = {name: column[own] for name, column in run.history.columns.items()}
        setting = {"method": repr(method), "seeds": str(mine)}
        return run._replace(
            history=History(mine, columns),
            carry=cut(run.carry),
            ledger=Tallies(cut(opening), cut(rounds), seconds),
            setting=run.setting and run.setting | setting,
        )

    return [one(k, method) for k, method in enumerate(methods)]
