"""Models of one's own: frozen parts, pairs of functions, files with code."""

import json

import equinox as eqx
import jax
import numpy as np
import pytest

import sagda
from sagda.check import BadValue
from sagda.commands.main import main
from sagda.models import user_code
from support import flat, uneven_table


@pytest.fixture(scope="module")
def clients():
    return uneven_table([6, 5, 8])


def short_run(problem, clients, **options):
    told = {"rounds": 3, "batch_size": 2} | options
    return sagda.simulate(sagda.sagda_i(local_lr=0.05), problem, clients, **told)


@pytest.mark.slow
def test_a_pair_of_functions_is_a_model(clients):
    linear = sagda.Linear(4)
    pair = linear.init, linear.apply
    one = short_run(sagda.AUC.of(clients), clients)
    two = short_run(sagda.AUC.of(clients, pair), clients)
    np.testing.assert_array_equal(flat(one.z), flat(two.z))


def test_frozen_parts_are_not_in_x_and_still_at_work(clients):
    make = lambda key: eqx.nn.MLP(4, "scalar", 3, 1, key=key)
    whole = sagda.Equinox(make)
    part = sagda.Equinox(make, frozen=("layers.0",))
    key = sagda.keys.root_key(7)
    assert part.init(key).layers[0].weight is None
    fixed = make(jax.random.key(0)).layers[0]
    rows = clients.data.features.astype(np.float32)
    x = part.init(key)
    both = eqx.tree_at(
        lambda m: (m.layers[0].weight, m.layers[0].bias),
        whole.init(key),
        (fixed.weight, fixed.bias),
    )
    np.testing.assert_allclose(part.apply(x, rows), whole.apply(both, rows), rtol=1e-6)
    with pytest.raises(BadValue, match=r"`frozen` must name parts.*got 'layer.0'"):
        sagda.Equinox(make, frozen=("layer.0",)).init(key)


def test_weight_decay_is_in_the_objective_and_clipping_in_the_gradients(clients):
    problem = sagda.AUC.of(clients)
    steady = sagda.Treated(problem, weight_decay=0.5, clip=0.05)
    z = problem.init(sagda.keys.root_key(1))
    key = sagda.keys.root_key(0)
    more = steady.loss(z, clients.data, key) - problem.loss(z, clients.data, key)
    square = sum(float((a**2).sum()) for a in jax.tree.leaves(z.x))
    np.testing.assert_allclose(more, 0.25 * square, rtol=1e-5)
    g = jax.tree.map(lambda a: a + 3.0, z)
    short = steady.treat(g)
    for half, own in ((short.x, g.x), (short.y, g.y)):
        length = np.linalg.norm(flat(half))
        assert length == pytest.approx(0.05, rel=1e-6)
        np.testing.assert_allclose(
            flat(half) / length, flat(own) / np.linalg.norm(flat(own)), rtol=1e-5
        )
    tiny = jax.tree.map(lambda a: a * 1e-6, z)
    np.testing.assert_array_equal(flat(steady.treat(tiny)), flat(tiny))
    run = short_run(steady, clients, batch_size=None, rounds=50)
    gap = run.history["phi"] - run.history["f"]
    assert (gap >= -1e-6).all()
    with pytest.raises(BadValue, match="`clip` must be above zero"):
        sagda.Treated(problem, clip=0.0)


@pytest.mark.slow
def test_a_run_leaves_frozen_parts_out(clients):
    make = lambda key: eqx.nn.MLP(4, "scalar", 3, 1, key=key)
    model = sagda.Equinox(make, frozen=("layers.0",))
    run = short_run(sagda.AUC.of(clients, model), clients)
    assert run.z.x.model.layers[0].weight is None
    assert run.z.x.model.layers[1].weight is not None


NETS = """
import equinox as eqx
import sagda

def make(features):
    return sagda.Equinox(lambda key: eqx.nn.MLP(features, "scalar", 4, 1, key=key))

def number(features):
    return 3
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(user_code, "OWN", {})
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "nets.py").write_text(NETS)
    rows = ["a,b,label", *(f"{i},{i * i % 7},{i % 2}" for i in range(40))]
    (tmp_path / "rows.csv").write_text("\n".join(rows) + "\n")
    return tmp_path


RUN = (
    "run --problem auc --data rows.csv --partition iid --clients 4 --samples all "
    "--rounds 3 --out out"
)


@pytest.mark.slow
def test_a_model_of_ones_own_code_from_the_command(here, capsys, monkeypatch):
    assert main([*RUN.split(), "--model", "code/nets.py:make"]) == 0
    assert json.loads((here / "out/recipe.json").read_text())["model"] == "nets.py:make"
    assert main(["predict", "out", "rows.csv", "--out", "scores.csv"]) == 0
    # In another process nobody has named the file yet.
    monkeypatch.setattr(user_code, "OWN", {})
    capsys.readouterr()
    assert main(["resume", "out"]) == 2
    said = capsys.readouterr().err
    assert "is Python code, which runs only if you name its file" in said
    assert main(["predict", "out", "rows.csv"]) == 2
    assert main(["resume", "out", "--model", "code/nets.py:make"]) == 0
    monkeypatch.setattr(user_code, "OWN", {})
    assert main(["predict", "out", "rows.csv", "--model", "code/nets.py:make"]) == 0


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("code/none.py:make", "FILE.py:FUNCTION with an existing file"),
        ("code/nets.py:other", "needs a function other in "),
        ("code/nets.py:number", "must return a torch.nn.Module, or a model with"),
        ("os:system", "FILE.py:FUNCTION with an existing file"),
    ],
)
def test_a_model_that_cannot_be_had_gets_one_sentence(model, said, here, capsys):
    assert main([*RUN.split(), "--model", model]) == 2
    assert said in capsys.readouterr().err
    assert not (here / "out").exists()
