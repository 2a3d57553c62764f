"""Check large problems: memory-mapped columns, a million clients, networks, memory."""

import json
import os
import subprocess
import sys
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as Spec

import sagda
from sagda import Federation, Table
from sagda.algorithms import trace as traced
from sagda.check import BadValue
from sagda.keys import key_of, root_key
from sagda.methods import stack
from sagda.models.networks import row_by_row
from sagda.simulator.cohort import choose
from sagda.simulator.evaluator import EvaluatedState, Evaluator, evaluate
from sagda.simulator.exchange import packed, unpacked
from sagda.simulator.layout import Layout, StackedRuns, shared
from sagda.simulator.rounds import programs
from sagda.simulator.setup import Setup, View
from sagda.simulator.simulate import draw_starts
from support import flat, uneven_table


@pytest.fixture
def folder(tmp_path):
    """Write the columns of a small federation to files, sorted by client."""
    data = uneven_table([3, 5, 2, 4]).data
    site = np.repeat(np.arange(4), [3, 5, 2, 4])
    np.save(tmp_path / "features.npy", data.features.astype(np.float32))
    np.save(tmp_path / "label.npy", data.label.astype(np.float32))
    np.save(tmp_path / "site.npy", site)
    return tmp_path


def test_a_folder_of_columns_stays_on_the_disk(folder):
    table = sagda.load(folder, client="site").train
    clients = sagda.partition(table, "by-column")
    assert isinstance(clients.data.features, np.memmap)
    in_memory = Federation.of(
        Table(np.array(table.features), np.array(table.label)),
        np.arange(14),
        np.array([3, 5, 2, 4]),
    )
    run = lambda data: sagda.simulate(
        sagda.sagda_i(), sagda.AUC.of(data), data, rounds=4, batch_size=2
    )
    np.testing.assert_array_equal(flat(run(clients).z), flat(run(in_memory).z))


def test_mistakes_in_a_folder_name_the_file(folder):
    with pytest.raises(BadValue, match=r"must contain owner\.npy, which is missing"):
        sagda.load(folder, client="owner")
    (folder / "label.npy").write_bytes(b"not an array")
    with pytest.raises(BadValue, match=r"label\.npy is not a NumPy file with one"):
        sagda.load(folder)
    features = np.load(folder / "features.npy")
    features[7, 1] = np.nan
    np.save(folder / "features.npy", features)
    np.save(folder / "label.npy", np.ones(14, np.float32))
    with pytest.raises(BadValue, match=r"`features` must be finite .* row 7 is not"):
        sagda.load(folder)


def test_a_cohort_of_a_million_is_distinct_sorted_and_even():
    M, m, draws = 1_000_000, 1000, 50
    keys = jax.vmap(lambda t: key_of(root_key(0), t))(jnp.arange(draws))
    ids = np.asarray(jax.vmap(lambda key: choose(key, M, m))(keys))
    assert (np.diff(ids, axis=1) > 0).all()
    assert ids.min() >= 0
    assert ids.max() < M
    # The mean of draws * m uniform numbers, within five standard deviations.
    assert abs(ids.mean() / M - 0.5) < 5 * np.sqrt(1 / 12 / (draws * m))


def test_only_the_cohort_is_touched():
    """The memories of clients outside the cohort do not change."""
    M, m = 100_000, 20
    rng = np.random.default_rng(0)
    label = np.where(rng.random(M) < 0.5, 1.0, -1.0).astype(np.float32)
    table = Table(rng.normal(size=(M, 3)).astype(np.float32), label)
    clients = Federation.of(table, np.arange(M), np.ones(M, int))
    run = sagda.simulate(
        sagda.sagda_i(local_steps=2),
        sagda.AUC.of(clients),
        clients,
        rounds=3,
        cohort=m,
        batch_size=1,
        eval_every=3,
    )
    memory = unpacked(run.carry.memory, jax.tree.map(lambda a: a[0], run.z))
    touched = (np.asarray(memory.x.model[0]) != 0).any(axis=1).sum()
    assert 2 * m < touched <= 3 * m
    v, total = run.carry.state.v.x.model[0], memory.x.model[0].sum(axis=0)
    np.testing.assert_allclose(v, total / M, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize(
    ("model", "layout"),
    [
        pytest.param(sagda.MLP(64, width=8), "chunk-10/", id="mlp"),
        pytest.param(sagda.CNN(64, channels=2), "mapped/", id="cnn"),
    ],
)
@pytest.mark.slow
def test_networks_learn_to_rank(model, layout):
    """Small products are batched over clients, convolutions are not."""
    data = sagda.load("digits", positive=1)
    clients = sagda.partition(data.train, clients=10, samples=40)
    problem = sagda.AUC.of(clients, model)
    method = sagda.sagda_i(local_lr=0.1, server_lr=1.0)
    run = sagda.simulate(
        method,
        problem,
        clients,
        rounds=60,
        batch_size=10,
        eval_every=60,
        test=data.test,
    )
    assert run.layout.startswith(layout)
    before, after = run.history["auc_test"][0]
    assert after > max(0.85, before)


class Wide(NamedTuple):
    """A network whose layers need much more memory than the rows."""

    init = staticmethod(lambda key: jax.random.normal(key, (4,)) / 10)

    @staticmethod
    def apply(w, rows):
        spread = lambda row: jnp.tanh(jnp.outer(row @ w, jnp.arange(512.0)) / 512)
        return row_by_row(lambda row: spread(row).sum() / 32, rows)


def look_at_runs(runs, rows=3000):
    """Evaluate a number of runs. Returns the results and the memory that was needed."""
    clients = uneven_table([rows // 3] * 3, features=4)
    problem = sagda.AUC.of(clients, Wide())
    shape = {"cohort": 3, "batch_size": 2}
    setup = Setup.of(problem, clients, np.float32, **shape)
    evaluator = Evaluator(View.of(setup, clients, np.float32), None, ())
    starts = draw_starts(problem, jax.vmap(root_key)(np.arange(runs, dtype=np.uint32)))
    seen = EvaluatedState(jax.tree.map(np.asarray, starts))
    lowered = evaluate.lower(evaluator.view, evaluator.groups(seen)[0], None, ())
    held = lowered.compile().memory_analysis().temp_size_in_bytes
    return evaluator(seen), held


def test_an_evaluation_takes_as_many_rows_and_runs_as_fit(monkeypatch):
    """The layers of a network are not in memory for all rows of all runs at once."""
    at_once, much = look_at_runs(5)
    monkeypatch.setattr(traced, "MEMORY", 2**20)
    evaluate.clear_cache()
    in_parts, little = look_at_runs(5)
    evaluate.clear_cache()
    assert little < much / 4
    assert len(in_parts.scores) == 5
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6), *(
        (found.columns, found.scores) for found in (at_once, in_parts)
    ))  # fmt: skip


@pytest.mark.parametrize("kernel", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_round_needs_no_memory_for_those_who_are_away(kernel):
    """The table of all control variates is updated in place."""

    def beside(M):
        label = np.where(np.arange(M) % 3, 1.0, -1.0).astype(np.float32)
        clients = Federation.of(
            Table(np.ones((M, 8), np.float32), label), np.arange(M), np.ones(M, int)
        )
        problem = sagda.AUC.of(clients)
        setup = Setup.of(problem, clients, np.float32, cohort=10, batch_size=1)
        keys = jax.vmap(root_key)(np.zeros(1, np.uint32))
        layout = Layout(1 if kernel else 10, 1, 1, kernel)
        method = stack([sagda.sagda_i(local_steps=2)], np.float32)
        lanes = shared(
            StackedRuns(method, keys, draw_starts(problem, keys)), layout, Spec("runs")
        )
        made = programs(layout, split=False)
        carry, _ = jax.eval_shape(made.begin, setup, *lanes)
        span = np.int32(0), np.int32(5)
        lowered = made.advance.lower(setup, lanes.method, lanes.keys, carry, *span)
        sizes = lowered.compile().memory_analysis()
        return sizes.temp_size_in_bytes, sizes.alias_size_in_bytes

    (few, small), (many, large) = beside(1000), beside(30_000)
    assert (
        large > 30_000 * 8 * 4 > small
    )  # the table is one of the arrays that are updated in place
    assert many < few + 1000


def test_a_picture_is_square():
    with pytest.raises(BadValue, match="square image for a CNN"):
        sagda.CNN(65)


PROGRAM = """
import json, sys
import jax
from jax._src import monitoring
misses = []
monitoring.register_event_listener(
    lambda name, **_: misses.append(name) if name.endswith("cache_misses") else None
)
from sagda.commands.main import main
code = main(sys.argv[1:])
print(json.dumps({"code": code, "misses": len(misses)}), file=sys.stderr)
"""


@pytest.mark.slow
def test_a_second_command_of_the_same_shapes_compiles_nothing(tmp_path):
    """Rates and seeds are arguments of the stored programs."""
    env = os.environ | {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    env.pop("XLA_FLAGS", None)
    common = ["--problem", "quadratic", "--rounds", "4", "--batch-size", "2", "--json"]

    def misses(*words):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, "run", *common, *words],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
        told = json.loads(done.stderr.splitlines()[-1])
        assert told["code"] == 0
        return told["misses"]

    assert misses("--local-lr", "0.01", "--seed", "0") > 0
    assert misses("--local-lr", "0.02,0.03", "--seed", "7", "--server-lr", "1") == 0


def test_use_cores_comes_before_jax():
    words = "import jax, sagda; jax.numpy.ones(1) + 1; sagda.use_cores()"
    env = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, "-c", words], env=env, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "must be called before anything else uses JAX" in done.stderr


class Counted(NamedTuple):
    z: sagda.Point


@sagda.method
def counting(*, parts: int = 1) -> sagda.Algorithm:
    """The memories of clients can be integers too large for single precision."""

    def client(f, z, memory, turn):
        return f.grad(z, f.draw(turn.key("step"))), memory

    move = lambda state, g, share, t: Counted(state.z - 0.01 * g)
    more = lambda memory, reply: jax.tree.map(
        lambda a: a + jnp.asarray(1, a.dtype), memory
    )
    phase = sagda.Phase("step", client, move, lambda s: s.z, renew=more)
    memory = lambda z: [jnp.int32(2**24 + 1), jnp.float32(0), jnp.uint8(0)][:parts]
    return sagda.Algorithm(Counted, (phase,), memory=memory)


@pytest.mark.parametrize("parts", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("cohort", [3, 5])
def test_memories_keep_their_types_where_devices_share_clients(parts, cohort):
    clients = uneven_table([3, 2, 4, 3, 2])
    run = lambda layout: sagda.simulate(
        counting(parts=parts), sagda.AUC.of(clients), clients, rounds=2, batch_size=1,
        cohort=cohort, layout=layout,
    )  # fmt: skip
    one, two = run("mapped/1").carry.memory, run("mapped/2:clients").carry.memory
    assert {k: a.dtype.name for k, a in two.items()} == {k: k for k in one}
    jax.tree.map(np.testing.assert_array_equal, one, two)
    assert np.asarray(one["int32"]).sum() == 5 * (2**24 + 1) + 2 * cohort


def test_memories_of_several_types_lie_in_a_table_each():
    like = {"v": np.zeros((2, 3), np.float32), "seen": np.zeros((), np.int32)}
    many = {
        "v": np.arange(24, dtype=np.float32).reshape(4, 2, 3),
        "seen": np.int32(2) ** np.arange(27, 31, dtype=np.int32) + 1,
    }
    tables = packed(many)
    assert {kind: a.shape for kind, a in tables.items()} == {
        "float32": (4, 6), "int32": (4, 1)
    }  # fmt: skip
    jax.tree.map(np.testing.assert_array_equal, unpacked(tables, like), many)
    assert packed(()) == {}
    assert unpacked({}, ()) == ()
