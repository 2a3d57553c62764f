"""A new problem, data set or model is one class or function, and one line in a table.

Each is registered here, and then works with the command, a stored model and a
federation, without any other edit.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
import pytest

import sagda
from sagda.data.datasets import DATASETS, Dataset, DataSource
from sagda.data.federation import Facts, Table
from sagda.models import MODELS, as_model
from sagda.problems import PROBLEMS
from sagda.problems.logistic import Logistic
from sagda.runs.results import read_results
from sagda.scoring.scorer import Scorer
from support import command, run_in, sites_of, uneven_table


@dataclass(frozen=True)
class Toy(Logistic):
    """A classifier whose mean score is pushed to zero, by a price y."""

    federates: ClassVar[bool] = True

    penalty: float = 1.0

    @classmethod
    def of(cls, data: Any, model: Any = None, *, penalty: float = 1.0) -> "Toy":
        return cls(as_model(model, Facts.of(data).width), penalty)

    def init(self, key):
        return sagda.Point(self.model.init(key), jnp.zeros(()))

    def loss(self, z, batch, key):
        priced = z.y * self.score(z.x, batch) - self.penalty / 2 * z.y**2
        return self.logistic(z.x, batch) + priced

    def inner_sums(self, x, rows, weight):
        return weight @ self.score(x, rows)

    def y_from(self, sums):
        return sums / self.penalty


@dataclass(frozen=True)
class Scaled:
    """A linear model that is twice as steep."""

    features: int

    def init(self, key):
        return jnp.zeros(self.features)

    def apply(self, parameters, features):
        return 2 * (features @ parameters)


def load_toy(positive=None) -> Dataset:
    """Sixty rows of three features, in three classes."""
    rng = np.random.default_rng(0)
    label = np.repeat([0.0, 1.0, 2.0], 20)
    features = rng.normal(size=(60, 3)) + label[:, None]
    table = Table(features.astype(np.float32), label)
    return Dataset("toy", table if positive is None else sagda.binary(table, positive))


@pytest.fixture(autouse=True)
def registered(monkeypatch, tmp_path):
    monkeypatch.setitem(PROBLEMS, "toy", Toy)
    monkeypatch.setitem(DATASETS, "toy", DataSource(load_toy, positive="2"))
    monkeypatch.setitem(MODELS, "toy", Scaled)
    monkeypatch.chdir(tmp_path)


SHORT = ("--rounds", "2", "--clients", "3", "--samples", "10", "--batch-size", "5")


def test_one_line_each_makes_problem_data_and_model_run_and_predict(capsys):
    words = ("--problem", "toy", "--data", "toy", "--model", "toy", "--out", "r")
    code, _, err = command(
        "run", *words, *SHORT, "--set", "penalty=0.5", "--partition", "iid",
        capsys=capsys,
    )  # fmt: skip
    assert code == 0, err
    columns = read_results(Path("r")).columns["sagda-i"]
    assert np.isfinite(columns["grad_phi_sq"]).all()
    scorer = Scorer.load("r")
    assert scorer.problem == Toy(Scaled(3), penalty=0.5)
    table = load_toy().train
    np.savez("rows.npz", features=table.features, label=table.label)
    assert command("predict", "r", "rows.npz", capsys=capsys)[0] == 0
    code, out, _ = command("evaluate", "r", "rows.npz", capsys=capsys)
    assert code == 0
    assert "60 rows" in out
    code, out, _ = command("data", "toy", "--positive", "1", capsys=capsys)
    assert code == 0
    assert "20" in out


def test_what_a_problem_has_decides_what_may_be_asked_of_it(capsys):
    code, _, err = command("run", "--problem", "toy", "--set", "price=1", capsys=capsys)
    assert code == 2
    assert "penalty" in err
    code, _, err = command("run", "--problem", "dro", "--model", "mlp", capsys=capsys)
    assert code == 2
    assert "only for problem adversarial or agnostic or auc or fair or toy" in err


def test_a_registered_problem_runs_in_a_federation_and_agrees(tmp_path, monkeypatch):
    pytest.importorskip("flwr", reason="needs Flower: pip install 'sagda[flower]'")
    from sagda.federation.flower import apps
    from sagda.federation.server import process

    for module in (apps, process):
        monkeypatch.setattr(module, "keep_programs", lambda folder: None, raising=False)
    clients = uneven_table([4] * 5)
    features = clients.data.features.astype(np.float32)
    clients = clients._replace(data=clients.data._replace(features=features))
    folder = run_in(
        tmp_path, sites_of(clients, tmp_path), problem="toy", model="toy",
        table="share_losses = true\n[set.toy]\npenalty = 0.5",
    )  # fmt: skip
    method = sagda.sagda_i(local_lr=0.05, server_lr=2.0, local_steps=3)
    run = sagda.simulate(
        method, Toy.of(clients, Scaled(4), penalty=0.5), clients, rounds=3, cohort=3,
        batch_size=2, seeds=4, float64=True,
    )  # fmt: skip
    columns = read_results(folder).columns["sagda-i"]
    for name in ("phi", "grad_phi_sq", "f"):
        np.testing.assert_allclose(columns[name], run.history[name], rtol=1e-9)
    assert Scorer.load(folder).problem == Toy(Scaled(4), penalty=0.5)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("adversarial", ("--set", "radius=0.2", "--set", "norm=inf")),
        ("fair", ("--set", "group=3", "--set", "slack=0.1")),
    ],
)
def test_a_stored_model_is_restored_as_its_own_problem(name, options, capsys):
    words = ("--data", "digits", "--out", "r", *SHORT, *options)
    assert command("run", "--problem", name, *words, capsys=capsys)[0] == 0
    problem: Any = Scorer.load("r").problem
    assert type(problem) is PROBLEMS[name]
    if name == "adversarial":
        assert problem.ball == sagda.Ball(0.2, "inf", rows=True)
    else:
        assert (problem.group, problem.slack) == (3, 0.1)
