"""`sweep`: runs many methods at once, in as few compiled programs as possible.

It returns one `Run` per method, and does not compare them. The search for good rates is
in `runs`. A single method is run by `simulate.py`.
"""

from collections.abc import Sequence
from typing import Any

import jax

from sagda.check import BadValue
from sagda.data.federation import Federation
from sagda.methods import Method
from sagda.problems.base import Problem
from sagda.simulator.checks import check_run
from sagda.simulator.history import History
from sagda.simulator.options import RunOptions, takes_options
from sagda.simulator.recorder import Tallies
from sagda.simulator.run import Run
from sagda.simulator.simulate import simulate_stacked


@takes_options(RunOptions)
def sweep(
    methods: Sequence[Method],
    problem: Problem,
    federation: Federation,
    options: RunOptions,
) -> list[Run]:
    """Run each of several methods with every seed. Returns one `Run` per method.

    Methods that differ only in rates and other real numbers share one compiled program.
    Different algorithms or numbers of local steps need separate programs. There is no
    warning when a run diverges: see `run.diverged`. The column `seconds` is the time of
    all runs of a program together. The options are those of `simulate` without
    `resume`.

    Args:
        methods: algorithms with their hyperparameters.
        problem: the objective, such as `AUC.of(federation)`.
        federation: the clients and their rows.

    Examples:
        >>> from sagda import Quadratic, fsgda
        >>> problem, clients = Quadratic.make(clients=4, heterogeneity=0.0)
        >>> methods = [fsgda(local_lr=lr) for lr in (0.001, 0.03)]
        >>> slow, fast = sweep(methods, problem, clients, rounds=100, seeds=(0, 1))
        >>> bool((fast.history["phi"][:, -1] < slow.history["phi"][:, -1]).all())
        True
    """
    if not methods:
        raise BadValue("`methods` must contain at least one method, got none.")
    if options.resume is not None:
        raise BadValue(
            "`sweep` cannot resume a run; call `simulate` once for each method instead."
        )
    check_run(methods, problem, federation, options)
    runs: dict[int, Run] = {}
    for group in alike(methods):
        chosen = [methods[i] for i in group]
        stacked = simulate_stacked(chosen, problem, federation, options)
        runs |= zip(group, apart(stacked, chosen), strict=True)
    return [runs[i] for i in range(len(methods))]


def alike(methods: Sequence[Method]) -> list[list[int]]:
    """Group methods that one compiled program can run. Returns lists of indices."""
    groups: dict[Any, list[int]] = {}
    for i, method in enumerate(methods):
        groups.setdefault(jax.tree.structure(method), []).append(i)
    return list(groups.values())


def apart(run: Run, methods: Sequence[Method]) -> list[Run]:
    """Split a run of several methods into one `Run` per method."""
    # The runs are sorted by method, with the same number of seeds for each.
    seeds = len(run.history.seeds) // len(methods)

    def one(k: int, method: Method) -> Run:
        part = slice(k * seeds, (k + 1) * seeds)
        cut = lambda tree: jax.tree.map(lambda a: a[part], tree)
        opening, rounds, seconds = run.ledger
        seeds_of_method = run.history.seeds[part]
        # Without `jax.tree.map`, which would sort the columns by name.
        columns = {name: column[part] for name, column in run.history.columns.items()}
        setting = {"method": repr(method), "seeds": str(seeds_of_method)}
        return run._replace(
            history=History(seeds_of_method, columns),
            carry=cut(run.carry),
            ledger=Tallies(cut(opening), cut(rounds), seconds),
            setting=run.setting and run.setting | setting,
        )

    return [one(k, method) for k, method in enumerate(methods)]
