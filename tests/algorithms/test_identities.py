"""Check identities between methods, such as CD-MA = FSGDA, in double precision."""

import jax
import numpy as np
import pytest

import sagda
from sagda import (
    Rates,
    Table,
    cd_ma,
    cd_mage,
    cd_mage_plus,
    fsgda,
    local_sgda,
    local_sgda_plus,
    method,
    momentum_local_sgda,
    parallel_sgda,
    sagda_i,
    sagda_ii,
)
from sagda.core import zeros_like
from support import flat, run64

LOCAL, SERVER = Rates(0.02, 0.05), Rates(1.5, 2.5)


def same(a, b):
    np.testing.assert_allclose(flat(a.z), flat(b.z), rtol=0, atol=1e-9)


@pytest.fixture(params=["auc", "dro"])
def case(request, uneven):
    """Return a problem and clients of unequal size, with labelled rows."""
    return sagda.PROBLEMS[request.param].of(uneven), uneven


# Identities hold for every problem. Each is checked once with all clients, and once
# with some of them.
@pytest.fixture(params=["auc, all", pytest.param("dro, two", marks=pytest.mark.slow)])
def setting(request, uneven):
    """Return a problem, its federation and the size of the cohort."""
    name, cohort = request.param.split(", ")
    cohort = {"cohort": 2 if cohort == "two" else None}
    return (sagda.PROBLEMS[name].of(uneven), uneven), cohort


def test_fsgda_with_one_step_is_parallel_sgda(setting):
    case, options = setting
    one = fsgda(local_lr=LOCAL, server_lr=SERVER, local_steps=1)
    other = parallel_sgda(local_lr=LOCAL, server_lr=SERVER, rate="product")
    same(run64(one, *case, **options), run64(other, *case, **options))


def test_parallel_sgda_by_default_steps_with_the_local_rates(quadratic):
    one = parallel_sgda(local_lr=LOCAL, server_lr=SERVER)
    other = fsgda(local_lr=LOCAL, server_lr=1, local_steps=1)
    same(run64(one, *quadratic), run64(other, *quadratic))


def test_option_ii_with_one_step_is_parallel_sgda(setting):
    case, options = setting
    one = sagda_ii(local_lr=LOCAL, server_lr=SERVER, local_steps=1)
    other = parallel_sgda(local_lr=LOCAL, server_lr=SERVER, rate="product")
    same(run64(one, *case, **options), run64(other, *case, **options))


def test_option_i_with_one_step_and_all_clients_is_parallel_sgda(case):
    one = sagda_i(local_lr=LOCAL, server_lr=SERVER, local_steps=1)
    other = parallel_sgda(local_lr=LOCAL, server_lr=SERVER, rate="product")
    same(run64(one, *case, batch_size=None), run64(other, *case, batch_size=None))


@method
def frozen_ii(*, local_lr: Rates, server_lr: Rates, local_steps: int):
    """Return Option II with control variates that are always zero."""
    algorithm = sagda_ii(
        local_lr=local_lr, server_lr=server_lr, local_steps=local_steps
    ).build()
    collect, local = algorithm.phases

    def nothing(f, z, memory, turn):
        return zeros_like(z), (z, zeros_like(z))

    return algorithm._replace(phases=(collect._replace(client=nothing), local))


@method
def frozen_i(*, local_lr: Rates, server_lr: Rates, local_steps: int):
    """Return Option I with control variates that never change."""
    algorithm = sagda_i(
        local_lr=local_lr, server_lr=server_lr, local_steps=local_steps
    ).build()
    (local,) = algorithm.phases

    def stay(f, state, v_i, turn):
        (delta, renewal), kept = local.client(f, state, v_i, turn)
        return (delta, zeros_like(renewal)), kept

    return algorithm._replace(phases=(local._replace(client=stay),))


@pytest.mark.parametrize(("frozen", "dropout"), [(frozen_i, 0.3), (frozen_ii, 0.0)])
def test_fsgda_is_sagda_with_zero_variates(setting, frozen, dropout):
    case, options = setting
    options |= {"dropout": dropout}
    rates = {"local_lr": LOCAL, "server_lr": SERVER, "local_steps": 3}
    same(
        run64(frozen(**rates), *case, **options),
        run64(fsgda(**rates), *case, **options),
    )


def test_the_first_round_of_option_i_from_zeros_is_fsgda(setting):
    case, options = setting
    options |= {"rounds": 1}
    rates = {"local_lr": LOCAL, "server_lr": SERVER, "local_steps": 3}
    same(
        run64(sagda_i(**rates), *case, **options),
        run64(fsgda(**rates), *case, **options),
    )


def test_option_ii_with_whole_batches_is_gradient_tracking(quadratic):
    """It is FedGDA-GT: the mean over clients of K steps along g_i(z) - g_i(z_t) + G."""
    problem, federation = quadratic
    run = run64(
        sagda_ii(local_lr=LOCAL, server_lr=1, local_steps=4),
        problem,
        federation,
        batch_size=None,
        start=sagda.Point(np.ones(3), np.ones(2)),
    )

    mean = lambda c: c.reshape(federation.clients, -1, *c.shape[1:]).mean(1)
    A, B, C, a, b = map(mean, federation.data)

    def gradients(x, y):  # one row per client
        g_x = np.einsum("ijk,ik->ij", A, x) + np.einsum("ijk,ik->ij", B, y) + a
        g_y = np.einsum("ijk,ij->ik", B, x) - np.einsum("ijk,ik->ij", C, y) + b
        return g_x, g_y

    x, y = np.ones((6, 3)), np.ones((6, 2))
    for _ in range(5):
        at_x, at_y = gradients(x, y)
        x_k, y_k = x, y
        for _ in range(4):
            g_x, g_y = gradients(x_k, y_k)
            x_k = x_k - LOCAL.x * (g_x - at_x + at_x.mean(0, keepdims=True))
            y_k = y_k + LOCAL.y * (g_y - at_y + at_y.mean(0, keepdims=True))
        x = np.repeat(x_k.mean(0, keepdims=True), 6, 0)
        y = np.repeat(y_k.mean(0, keepdims=True), 6, 0)
    np.testing.assert_allclose(run.z.x[0], x[0], atol=1e-9)
    np.testing.assert_allclose(run.z.y[0], y[0], atol=1e-9)


@pytest.mark.parametrize(
    ("start", "dropout", "cohort"),
    [("zeros", 0.4, 2), ("warm", 0.4, None), ("zeros", 0.0, 1), ("warm", 0.0, 3)],
)
def test_the_mean_variate_is_the_mean_of_all_variates(case, start, dropout, cohort):
    algorithm = sagda_i(local_lr=LOCAL, local_steps=2, start=start)
    run = None
    for rounds in range(1, 6):
        run = run64(
            algorithm,
            *case,
            rounds=rounds,
            cohort=cohort,
            dropout=dropout,
            resume=run,
        )
        mean = jax.tree.map(lambda v_i: v_i.mean(axis=1), run.carry.memory)
        np.testing.assert_allclose(flat(run.carry.state.v), flat(mean), atol=1e-12)
    assert np.abs(flat(run.carry.memory)).max() > 0


def test_a_schedule_of_equal_rates_changes_nothing(quadratic):
    constant = sagda_i(local_lr=LOCAL, server_lr=SERVER, local_steps=2)
    schedule = sagda_i(
        local_lr=Rates(lambda t: 0.02 + 0 * t, lambda t: 0.05 + 0 * t),
        server_lr=Rates(lambda t: 1.5 + 0 * t, 2.5),
        local_steps=2,
    )
    same(run64(constant, *quadratic), run64(schedule, *quadratic))


def test_a_schedule_is_followed_round_by_round(quadratic):
    falling = lambda t: 0.05 / (t + 1)
    whole = fsgda(local_lr=Rates(falling, falling), server_lr=1, local_steps=2)
    run = run64(whole, *quadratic, rounds=3)
    z = None
    for t in range(3):
        step = fsgda(local_lr=0.05 / (t + 1), server_lr=1, local_steps=2)
        z = run64(step, *quadratic, rounds=t + 1, resume=z)
        z = z._replace(setting=None)  # on purpose, the next round has other rates
    same(run, z)


def test_variates_from_all_rows_are_exact_gradients(uneven):
    problem = sagda.AUC.of(uneven)
    run = run64(
        sagda_i(start="warm", variate_batch="all"),
        problem,
        uneven,
        metrics=["variate_lag"],
        rounds=2,
    )
    lag = run.history["variate_lag"][0]
    assert lag[0] < 1e-20 < lag[1]  # exact at the start, one round old after that


def test_positions_number_rows_within_clients(uneven):
    assert isinstance(uneven.data, Table)
    expected = np.concatenate([np.arange(n) for n in (3, 5, 2, 4)])
    np.testing.assert_array_equal(uneven.data.position, expected)


def test_plain_averages_are_fsgda_with_server_rate_one(setting):
    case, options = setting
    one = run64(fsgda(local_lr=LOCAL, server_lr=1, local_steps=3), *case, **options)
    for plain in (cd_ma, local_sgda):
        same(one, run64(plain(local_lr=LOCAL, local_steps=3), *case, **options))


def test_cd_mage_with_whole_batches_is_option_ii(setting):
    case, options = setting
    options |= {"batch_size": None}
    one = sagda_ii(local_lr=LOCAL, server_lr=1, local_steps=4)
    other = cd_mage(local_lr=LOCAL, local_steps=4)
    same(run64(one, *case, **options), run64(other, *case, **options))


def test_cd_mage_plus_with_weight_one_is_cd_mage(setting):
    case, options = setting
    anchor_batch = "batch" if options["cohort"] else "all"
    shared = {"local_lr": LOCAL, "local_steps": 3, "anchor_batch": anchor_batch}
    one = cd_mage_plus(**shared, weight=1.0, decay=0.0)
    same(run64(one, *case, **options), run64(cd_mage(**shared), *case, **options))


def test_a_fresh_snapshot_and_one_step_are_local_sgda(setting):
    case, options = setting
    one = local_sgda_plus(local_lr=LOCAL, local_steps=1, snapshot_every=1)
    other = local_sgda(local_lr=LOCAL, local_steps=1)
    same(run64(one, *case, **options), run64(other, *case, **options))


def test_momentum_that_forgets_all_repeats_the_last_gradient(quadratic):
    """With momentum 1, K = 1 and no noise, each step goes along the last gradient."""
    options = {"batch_size": None}
    one = momentum_local_sgda(local_lr=LOCAL, local_steps=1, momentum=1.0)
    other = parallel_sgda(local_lr=LOCAL)
    same(run64(one, *quadratic, **options), run64(other, *quadratic, **options))


def test_one_client_is_centralised_sgda(quadratic):
    """If one client has all rows, a round with K = 1 is a step of centralised SGDA."""
    problem, federation = quadratic
    rows = len(federation.order)
    alone = sagda.Federation.of(federation.data, np.arange(rows), np.array([rows]))
    start = sagda.Point(np.ones(3), np.ones(2))
    run = run64(
        parallel_sgda(local_lr=LOCAL), problem, alone, start=start, batch_size=None
    )
    A, B, C, a, b = (column.mean(axis=0) for column in federation.data)
    x, y = np.ones(3), np.ones(2)
    for _ in range(run.round):
        g_x, g_y = A @ x + B @ y + a, B.T @ x - C @ y + b
        x, y = x - LOCAL.x * g_x, y + LOCAL.y * g_y
    np.testing.assert_allclose(run.z.x[0], x, atol=1e-9)
    np.testing.assert_allclose(run.z.y[0], y, atol=1e-9)
