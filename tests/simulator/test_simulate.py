"""Check the simulator: chunks, resuming, drop-outs, cohorts and divergence."""

import dataclasses
import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sagda
from sagda import ALGORITHMS, Algorithm, Federation, Phase, Point, sagda_i
from sagda.simulator.exchange import unpacked
from sagda.simulator.layout import Layout
from sagda.simulator.rounds import programs
from support import flat, run64, same_bits, uneven_table

START = Point(np.ones(3), np.ones(2))


# The docstrings of the other functions are almost the same.
QUICK = ("sagda-i", "sagda-ii")


@pytest.fixture(
    params=[
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
        for name in sorted(ALGORITHMS)
    ]
)
def name(request):
    return request.param


def method(name, **more):
    own = {} if name == "parallel-sgda" else {"local_steps": 2}
    return sagda.algorithm(name, local_lr=(0.02, 0.05), **own, **more)


def run(name, quadratic, **options):
    common = {"rounds": 12, "cohort": 3, "batch_size": 2, "dropout": 0.2, "seeds": [3]}
    return sagda.simulate(method(name), *quadratic, **common | options)


def test_however_a_run_is_cut_its_bits_are_the_same(name, quadratic):
    """Repeated, chunked and resumed runs are bit-for-bit the same."""
    whole = run(name, quadratic)
    same_bits(whole, run(name, quadratic))
    same_bits(whole, run(name, quadratic, chunk=5))
    seldom = run(name, quadratic, eval_every=5)
    same_bits(whole, seldom)
    first = run(name, quadratic, rounds=7)
    resumed = run(name, quadratic, resume=first)
    same_bits(whole, resumed)
    assert resumed.round == 12
    for column, values in whole.history.columns.items():
        if column == "seconds":
            continue
        np.testing.assert_array_equal(resumed.history[column], values)
        every_fifth = np.isin(whole.history.rounds, seldom.history.rounds)
        np.testing.assert_array_equal(seldom.history[column], values[:, every_fifth])
    np.testing.assert_array_equal(seldom.history.rounds, [0, 5, 10, 12])


def test_counts_do_not_depend_on_how_a_run_is_cut(uneven):
    """The clients are unequal, compute gradients on all rows, and drop out."""
    problem = sagda.AUC.of(uneven)
    runs = [
        sagda.simulate(
            method("sagda-ii"),
            problem,
            uneven,
            rounds=21,
            cohort=3,
            batch_size=None,
            dropout=0.3,
            eval_every=21,
            chunk=chunk,
        )
        for chunk in (1, 4, 21)
    ]
    for column in ("samples", "gradients", "bytes_down", "bytes_up", "lost_rounds"):
        counts = {run.history[column][0, -1].item() for run in runs}
        assert len(counts) == 1


def test_structure_and_dtype_are_kept_and_nothing_compiles_twice(name, quadratic):
    before, advance = None, programs(Layout(6, 1, 1, kernel=False), False).advance
    for lr, seed in ((0.02, 0), (0.03, 5)):
        changed = sagda.algorithm(name, local_lr=lr)
        out = sagda.simulate(
            changed, *quadratic, rounds=2, batch_size=2, seeds=seed, layout="batched/1"
        )
        assert all(a.dtype == np.float32 for a in jax.tree.leaves(out.carry.state)), (
            "single precision throughout"
        )
        assert out.layout == "chunk-6/1:runs"
        if before is not None:
            assert advance._cache_size() == before > 0
        before = advance._cache_size()


def test_phase_names_are_identifiers_and_unique(name):
    algorithm = method(name).build()
    names = [phase.name for phase in (*algorithm.opening, *algorithm.phases)]
    assert all(n.isidentifier() for n in names)
    assert len(set(names)) == len(names)


def test_every_method_converges_without_heterogeneity(name):
    problem, federation = sagda.Quadratic.make(clients=4, heterogeneity=0.0)
    server = {"rate": "product"} if name == "parallel-sgda" else {}
    local_lr = 0.2 if name == "parallel-sgda" else 0.03
    if name == "local-sgda-plus":
        server = {"snapshot_every": 1}
    steps = sagda.algorithm(name, local_lr=local_lr, **server)
    out = sagda.simulate(
        steps, problem, federation, rounds=600, eval_every=600, batch_size=None
    )
    assert out.history["distance_sq"][0, -1] < 1e-6 * out.history["distance_sq"][0, 0]


@pytest.mark.parametrize(
    "name", ["sagda-i", pytest.param("sagda-ii", marks=pytest.mark.slow)]
)
def test_seeds_side_by_side_are_the_single_runs(name, quadratic):
    both = run(name, quadratic, seeds=[3, 4], float64=True)
    for i, seed in enumerate((3, 4)):
        alone = run(name, quadratic, seeds=seed, float64=True)
        pick = jax.tree.map(lambda a, i=i: a[i], both.z)
        np.testing.assert_allclose(flat(pick), flat(alone.z), rtol=1e-12)
        np.testing.assert_array_equal(
            both.history["bytes_up"][i], alone.history["bytes_up"][0]
        )
    assert not np.allclose(both.z.x[0], both.z.x[1])


@pytest.mark.parametrize(
    "name", ["sagda-i", pytest.param("sagda-ii", marks=pytest.mark.slow)]
)
def test_single_precision_follows_double(name, quadratic):
    single = run(name, quadratic)
    double = run(name, quadratic, float64=True)
    assert double.z.x.dtype == np.float64
    np.testing.assert_allclose(flat(single.z), flat(double.z), rtol=1e-4, atol=1e-5)


def test_whole_batches_of_all_clients_leave_nothing_to_chance(name, quadratic):
    options = {"batch_size": None, "cohort": None, "dropout": 0.0, "start": START}
    one, other = (
        run(name, quadratic, seeds=seed, float64=True, **options) for seed in (0, 99)
    )
    np.testing.assert_allclose(flat(one.z), flat(other.z), rtol=1e-13)


def test_permuting_clients_changes_nothing_beyond_rounding(name):
    federation = uneven_table([3, 5, 2, 4])
    order = [2, 0, 3, 1]
    rows = np.concatenate(
        [
            np.arange(federation.start[i], federation.start[i] + federation.size[i])
            for i in order
        ]
    )
    shuffled = Federation.of(federation.data, rows, federation.size[order])
    problem = sagda.DRO.of(federation)
    results = [
        run64(method(name), problem, data, batch_size=None)
        for data in (federation, shuffled)
    ]
    one, other = (flat(r.z) for r in results)
    np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-13)
    for column in ("grad_phi_sq", "worst_client_loss", "auc_train"):
        one, other = (r.history[column] for r in results)
        np.testing.assert_allclose(one, other, rtol=1e-9)


def test_a_round_without_replies_changes_nothing(quadratic):
    """One of six clients takes part and fails with probability 0.4: rounds are lost."""
    out = None
    for rounds in range(1, 9):
        before = out
        out = run(
            "sagda-ii", quadratic, rounds=rounds, cohort=1, dropout=0.4, resume=out
        )
        if before is None:
            continue
        lost = out.history["lost_rounds"][0, -1] - before.history["lost_rounds"][0, -1]
        unchanged = np.array_equal(flat(out.z), flat(before.z))
        assert unchanged == bool(lost)
    total = out.history["lost_rounds"][0, -1]
    assert 2 <= total <= 7


def test_dropouts_are_counted_in_bytes_up_not_down(quadratic):
    out = run("fsgda", quadratic, rounds=200, eval_every=200, dropout=0.25)
    down, up = (out.history[f"bytes_{way}"][0, -1] for way in ("down", "up"))
    message = 5 * 4  # three entries of x and two of y in single precision
    assert down == 200 * 3 * message
    assert abs(up / down - 0.75) < 5 * np.sqrt(0.25 * 0.75 / 600)


def test_who_misses_the_first_exchange_is_not_asked_again(quadratic):
    out = run("sagda-ii", quadratic, rounds=200, eval_every=200, dropout=0.25)
    down, up = (out.history[f"bytes_{way}"][0, -1] for way in ("down", "up"))
    message, lost = 5 * 4, out.history["lost_rounds"][0, -1]
    second = down / message - 600  # messages of the second exchange
    assert abs(second / 600 - 0.75) < 5 * np.sqrt(0.25 * 0.75 / 600)
    assert up < down
    assert lost > 0


class Marked(NamedTuple):
    z: Point
    wrong: Any


@sagda.method
def three_exchanges():
    """Return an algorithm whose second phase draws a new cohort, used by the third."""

    def mark(f, state, turn):  # clients have different gradients
        return f.grad(state.z, f.whole(turn.key("mark"))).x[0]

    def first(f, state, memory, turn):
        return jnp.zeros(()), mark(f, state, turn)

    def again(f, state, kept, turn):
        return (kept != mark(f, state, turn)).astype(jnp.float32), kept

    def note(state, mean, share, t):
        return state._replace(wrong=state.wrong + mean)

    return Algorithm(
        lambda z: Marked(z, jnp.zeros(())),
        (
            Phase("a", first, lambda state, mean, share, t: state),
            Phase("b", first, lambda state, mean, share, t: state, resample=True),
            Phase("c", again, note),
        ),
        memory=lambda z: jnp.zeros(()),
    )


def test_a_phase_goes_on_with_the_latest_cohort(quadratic):
    common = {"rounds": 12, "cohort": 2, "batch_size": 2}
    out = sagda.simulate(three_exchanges(), *quadratic, **common)
    assert out.carry.state.wrong[0] == 0


def test_truth_values_stay_truth_values(uneven):
    """A Boolean field of a problem can be negated inside the loss."""

    @dataclass(frozen=True)
    class Masked(sagda.Problem):
        mask: Any

        def init(self, key):
            return Point(jnp.ones(4), jnp.zeros(()))

        def loss(self, z, batch, key):
            x = jnp.where(~self.mask, z.x, 0)
            return batch.features @ x + z.y - z.y**2

    problem = Masked(np.array([True, True, False, True]))
    out = sagda.simulate(method("fsgda"), problem, uneven, rounds=2, batch_size=None)
    assert (out.z.x[0] != 1).tolist() == [False, False, True, False]


def test_a_network_may_hold_whole_numbers(uneven):
    class Picked(eqx.Module):
        order: jax.Array
        weight: jax.Array

        def __call__(self, a):
            return self.weight @ a[self.order]

    make = lambda key: Picked(jnp.array([3, 1]), jnp.ones(2))
    problem = sagda.AUC.of(uneven, sagda.Equinox(make))
    out = sagda.simulate(method("fsgda"), problem, uneven, rounds=2, batch_size=None)
    assert out.z.x.model.order is None
    assert out.z.x.model.weight.shape == (1, 2)


def test_saved_arrays_resume_as_the_run_does(quadratic):
    first = run("sagda-i", quadratic, rounds=7)
    from_run = run("sagda-i", quadratic, resume=first)
    from_arrays = run("sagda-i", quadratic, resume=first.arrays())
    same_bits(from_run, from_arrays)
    for column, values in from_run.history.columns.items():
        if column != "seconds":
            np.testing.assert_array_equal(from_arrays.history[column], values)


@pytest.mark.slow
def test_the_mean_of_memories_is_made_fresh_now_and_then(quadratic, monkeypatch):
    """Rounding errors in the mean of the memories disappear when it is recomputed."""
    from sagda.simulator import rounds

    monkeypatch.setattr(rounds, "REFRESH", 4)
    jax.clear_caches()
    out = run("sagda-i", quadratic, rounds=3, dropout=0.0)
    shift = lambda v: jax.tree.map(lambda a: a + 0.1, v)
    state = out.carry.state
    off = out._replace(carry=out.carry._replace(state=state._replace(v=shift(state.v))))
    fixed = run("sagda-i", quadratic, rounds=4, dropout=0.0, resume=off)
    mean = jax.tree.map(lambda a: a.mean(axis=1), fixed.carry.memory)
    mean = unpacked(mean, jax.tree.map(lambda a: a[0], fixed.z))
    np.testing.assert_allclose(flat(fixed.carry.state.v), flat(mean), atol=1e-6)
    jax.clear_caches()


def test_divergence_stops_the_run_and_keeps_its_history(quadratic):
    wild = sagda_i(local_lr=50.0, local_steps=5)
    with pytest.warns(sagda.DivergenceWarning) as caught:
        out = sagda.simulate(
            wild, *quadratic, rounds=1000, batch_size=2, eval_every=300, chunk=20
        )
    broke = out.diverged[0]
    assert 1 < broke < 40
    assert out.round < 50
    message = str(caught[0].message)
    assert f"seed 0 at round {broke}" in message
    assert "lower its rates (local_lr Rates(x=50.0, y=50.0)" in message
    np.testing.assert_array_equal(out.history.rounds, [0, out.round])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fine = sagda.simulate(
            wild, *quadratic, rounds=broke - 1, batch_size=2, chunk=20
        )
    assert np.isfinite(flat(fine.z)).all()


def test_one_seed_may_diverge_alone(quadratic):
    """The other seed continues to the last round."""
    problem, federation = quadratic
    out = sagda.simulate(
        sagda_i(local_lr=0.05),
        problem,
        federation,
        rounds=5,
        batch_size=2,
        seeds=(0, 1),
    )
    poison = jax.tree.map(np.copy, out.carry)
    poison.state.z.x[0] = np.nan
    with pytest.warns(sagda.DivergenceWarning, match="seed 0 at round 6"):
        out = sagda.simulate(
            sagda_i(local_lr=0.05),
            problem,
            federation,
            rounds=10,
            batch_size=2,
            seeds=(0, 1),
            resume=out._replace(carry=poison),
        )
    assert out.round == 10
    assert list(out.diverged) == [0]
    assert np.isfinite(out.z.x[1]).all()


def test_progress_is_told(quadratic):
    seen = []
    run("fsgda", quadratic, rounds=10, chunk=3, eval_every=4, progress=seen.append)
    assert [p.round for p in seen] == [3, 4, 7, 8, 10]
    assert all(p.rounds == 10 for p in seen)
    assert seen[2].latest["round"][0] == 4
    assert seen[-1].seconds > 0


def test_a_projected_problem_stays_feasible():
    """Both the clients and the server project."""

    @dataclasses.dataclass(frozen=True)
    class Boxed(sagda.Quadratic):
        def project(self, z):
            return jax.tree.map(lambda a: a.clip(-0.1, 0.1), z)

        def best_y(self, x, rows, weight):
            return None

    problem, federation = sagda.Quadratic.make(clients=4, x_dim=3, y_dim=2)
    names = [field.name for field in dataclasses.fields(problem)]
    boxed = Boxed(**{name: getattr(problem, name) for name in names})
    out = run64(sagda_i(local_lr=0.1), boxed, federation, rounds=50, eval_every=50)
    assert np.abs(flat(out.z)).max() <= 0.1
    assert out.history["inner_residual"][0, -1] < 1e-9
    assert out.history["gap"][0, -1] >= -1e-12
