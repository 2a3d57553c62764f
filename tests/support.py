"""What several test modules share: small problems, short runs, and the command."""

from pathlib import Path

import jax
import numpy as np

import sagda
from sagda.data.federation import Federation, Table
from sagda.simulator.run import Run

ROOT = Path(__file__).parents[1]


def uneven_table(sizes, features=4, seed=0) -> Federation:
    """Random rows of both classes for clients of the given sizes."""
    rng = np.random.default_rng(seed)
    rows = sum(sizes)
    label = np.where(rng.random(rows) < 0.4, 1.0, -1.0)
    label[:2] = 1.0, -1.0
    table = Table(rng.normal(size=(rows, features)), label)
    return Federation.of(table, np.arange(rows), np.array(sizes))


def run64(method, problem, federation, **options) -> Run:
    """A short run in double precision."""
    options = {"rounds": 5, "float64": True, "batch_size": 2} | options
    return sagda.simulate(method, problem, federation, **options)


def flat(z) -> np.ndarray:
    """All numbers of a tree in one vector."""
    return np.concatenate([np.ravel(a) for a in jax.tree.leaves(z)])


def same_bits(a: Run, b: Run) -> None:
    """The final states of two runs are equal, bit for bit."""
    for one, other in zip(
        jax.tree.leaves(a.carry), jax.tree.leaves(b.carry), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def command(*arguments, capsys) -> tuple[int, str, str]:
    """Run `sagda` in this process: its exit code, standard output and error."""
    from sagda.commands import main as cli

    capsys.readouterr()
    code = cli.main([str(a) for a in arguments])
    out, err = capsys.readouterr()
    return code, out, err
