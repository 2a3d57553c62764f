"""Check that all layouts give the same run up to rounding, and which one is chosen."""

from functools import partial

import numpy as np
import pytest

import sagda
from sagda import ALGORITHMS
from sagda.check import BadValue
from sagda.simulator import layout as layouts
from sagda.simulator.layout import parse, resolve
from sagda.simulator.setup import Setup
from support import flat, uneven_table

LAYOUTS = [
    "mapped/1",
    "batched/1",
    "chunk-2/1",
    "mapped/2:clients",
    "batched/2:clients",
    "chunk-2/2:clients",
    "mapped/2:runs",
    "batched/2:runs",
]
FEW = ["mapped/1", "batched/1", "chunk-2/2:clients", "mapped/2:runs"]


def run(name, problem, clients, layout, **options):
    own = {} if name == "parallel-sgda" else {"local_steps": 2}
    common = {"rounds": 4, "batch_size": 2, "seeds": (3, 4, 5), "float64": True}
    common |= {"eval_every": 2, "metrics": ("drift",), "layout": layout}
    if name == "parallel-sgda":
        common["metrics"] = ()
    method = sagda.algorithm(name, local_lr=(0.05, 0.1), **own)
    return sagda.simulate(method, problem, clients, **common | options)


def agree(one, other):
    """Check that two runs have equal counts, and equal numbers up to rounding."""
    np.testing.assert_allclose(flat(one.carry), flat(other.carry), atol=1e-12)
    for column in one.history.columns:
        if column != "seconds":
            np.testing.assert_allclose(
                one.history[column], other.history[column], rtol=1e-9, atol=1e-12
            )


QUICK = ("sagda-i",)
NAMES = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
    for name in sorted(ALGORITHMS)
]


@pytest.mark.parametrize("name", NAMES)
def test_all_layouts_agree_with_dropouts_and_partial_participation(name):
    clients = uneven_table([3, 5, 2, 4, 3, 6, 2])
    problem = sagda.DRO.of(clients)
    base = run(name, problem, clients, FEW[0], cohort=5, dropout=0.3)
    for layout in FEW[1:]:
        other = run(name, problem, clients, layout, cohort=5, dropout=0.3)
        assert other.layout != base.layout
        agree(base, other)


@pytest.mark.parametrize(
    ("clients", "layouts"),
    [
        (8, FEW),
        (8, LAYOUTS),
        (7, FEW),
    ],
)
@pytest.mark.slow
def test_all_layouts_agree_with_everyone(clients, layouts):
    """Memories of eight clients can be split over two devices, those of seven not."""
    data = uneven_table([3, 5, 2, 4, 3, 6, 2, 4][:clients])
    problem = sagda.AUC.of(data)
    options = {"batch_size": None, "metrics": ("variate_lag",)}
    base = run("sagda-i", problem, data, layouts[0], **options)
    for layout in layouts[1:]:
        agree(base, run("sagda-i", problem, data, layout, **options))


@pytest.mark.slow
def test_a_warm_start_is_the_same_on_two_devices():
    data = uneven_table([3, 5, 2, 4])
    problem = sagda.AUC.of(data)
    method = sagda.sagda_i(start="warm", local_steps=2)
    options = {"rounds": 3, "batch_size": 2, "cohort": 3, "float64": True}
    one = sagda.simulate(method, problem, data, **options, layout="mapped/1")
    two = sagda.simulate(method, problem, data, **options, layout="mapped/2:clients")
    agree(one, two)


@pytest.mark.slow
def test_a_run_goes_on_in_another_layout_and_bit_for_bit_in_its_own():
    data = uneven_table([3, 5, 2, 4, 3])
    problem = sagda.AUC.of(data)
    whole = run("sagda-i", problem, data, "mapped/2:clients", cohort=3)
    half = run("sagda-i", problem, data, "mapped/2:clients", cohort=3, rounds=2)
    same = run("sagda-i", problem, data, "mapped/2:clients", cohort=3, resume=half)
    np.testing.assert_array_equal(flat(whole.carry), flat(same.carry))
    other = run("sagda-i", problem, data, "batched/1", cohort=3, resume=half)
    agree(whole, other)


def laid_out(
    clients, runs=1, layout="auto/1", cohort=100, problem=None, method=None, **options
):
    problem = problem or sagda.AUC.of(clients)
    setup = Setup.of(
        problem, clients, np.float32, cohort=cohort, **{"batch_size": None} | options
    )
    z = problem.init(sagda.keys.root_key(0))
    return resolve(layout, setup, (method or sagda.fsgda()).build(), z, runs)


def test_runs_side_by_side_share_the_room(a9a, monkeypatch):
    clients, _ = a9a
    monkeypatch.setattr(layouts, "kernels", lambda: False)
    monkeypatch.setattr(layouts, "ROOM", 2**20)
    batch = lambda runs: laid_out(clients, runs, batch_size=10).batch
    assert 1 < batch(4) < batch(1) < 100
    assert batch(4) <= batch(1) / 2


def test_whole_clients_work_in_groups_that_fit_in_the_cache(a9a, monkeypatch):
    clients, _ = a9a
    small = laid_out(clients)
    assert 1 < small.batch < 100
    assert 100 % small.batch == 0
    assert not small.kernel
    assert not laid_out(clients, layout="mapped/1").kernel
    monkeypatch.setattr(layouts, "ROOM", 2**30)
    assert laid_out(clients).batch == 100
    monkeypatch.setattr(layouts, "ROOM", 1)
    assert laid_out(clients).batch == 1


def test_large_whole_clients_go_alone_where_devices_are_cores():
    """They are batched if runs read the same rows, or if there is only one device."""
    large = uneven_table([300] * 20, features=120)
    auto = lambda runs, layout="auto", **options: laid_out(
        large, runs, layout, cohort=20, **options
    )
    assert str(auto(1)) == "mapped/2:clients"
    assert auto(1, "auto/1").batch > 1
    assert auto(4).batch > 1
    small = laid_out(uneven_table([100] * 20, features=120), 1, "auto", cohort=20)
    assert str(small) == "chunk-5/2:clients"


def test_runs_on_the_same_rows_stay_side_by_side(a9a, monkeypatch):
    """With whole batches of all clients, the runs read the same rows in one product."""
    clients, _ = a9a
    auto = lambda **options: laid_out(clients, 4, "auto", **options)
    assert str(auto()).endswith("/2:clients")
    assert auto().batch == laid_out(clients, 1, "auto").batch
    assert str(auto(cohort=50)).endswith("/2:runs")
    assert str(auto(batch_size=10)).endswith("/2:runs+kernel")
    monkeypatch.setattr(layouts, "ROOM", 1)
    monkeypatch.setattr(layouts, "OWN_ROOM", 1)
    assert auto().batch == 2
    assert auto(cohort=50).batch == 1
    monkeypatch.setattr(layouts.jax, "process_count", lambda: 2)
    assert str(auto()).endswith("/2:runs")


@pytest.mark.parametrize(
    ("own", "held", "runs", "alike", "batch"),
    [
        (50, 2**22 // 21, 1, True, 10),  # batches of 17 would need padding
        (47, 2**22 // 21, 1, False, 16),  # a prime number of clients
        (100, 2**10, 1, True, 100),
        (100, 2**23, 1, True, 1),
        (100, 2**23, 3, True, 2),
        (100, 2**20, 4, False, 1),
        (1, 2**23, 3, True, 1),
        (3, 0, 1, False, 3),
    ],
)
def test_what_fits(own, held, runs, alike, batch):
    assert layouts.fitting(own, held, runs, alike, 2**22) == batch


def test_the_rule_looks_at_shapes(a9a):
    clients, _ = a9a
    problem = sagda.DRO.of(clients)
    chosen = lambda **options: (
        sagda.simulate(sagda.fsgda(), problem, clients, rounds=1, **options).layout
    )
    assert chosen() == "mapped/2:clients+kernel"
    assert chosen(seeds=(0, 1)) == "mapped/2:runs+kernel"
    assert chosen(cohort=1) == "mapped/1:runs+kernel"
    assert chosen(batch_size=None) == "chunk-5/2:clients"
    assert chosen(batch_size=None, seeds=(0, 1)) == "chunk-5/2:clients"


def test_short_rows_are_gathered_and_long_ones_are_not(monkeypatch):
    """If a client writes to entries of y, a kernel avoids the scatters."""
    monkeypatch.setattr(layouts, "kernels", lambda: True)
    short, long = (uneven_table([20] * 100, features=d) for d in (40, 80))
    drawn = partial(laid_out, batch_size=10)
    assert str(drawn(short)) == "chunk-100/1:runs"
    assert str(drawn(long)) == "mapped/1:runs+kernel"
    assert drawn(short, layout="mapped/1").kernel
    dro = sagda.DRO.of(short)
    assert str(drawn(short, problem=dro)) == "mapped/1:runs+kernel"


def test_small_networks_go_together_and_large_ones_alone(monkeypatch):
    monkeypatch.setattr(layouts, "kernels", lambda: True)
    data = uneven_table([20] * 100, features=64)
    mlp = lambda width: sagda.AUC.of(data, sagda.MLP(64, width=width))
    small = laid_out(data, problem=mlp(16), batch_size=10)
    assert small.batch > 1
    large = laid_out(data, problem=mlp(256), batch_size=10)
    assert str(large) == "mapped/1:runs"


def test_devices_meet_where_a_round_is_worth_it():
    """Option II needs two exchanges for about the same work."""
    data = uneven_table([20] * 100, features=20)
    share = lambda method, **options: str(
        laid_out(data, 1, "auto", method=method, batch_size=10, **options)
    ).partition("/")[2]
    one, two = sagda.sagda_i(local_steps=15), sagda.sagda_ii(local_steps=15)
    assert share(one) == "2:clients"
    assert share(two) == "1:runs"
    assert share(sagda.sagda_ii(local_steps=40)) == "2:clients"
    assert share(one, cohort=10) == "1:runs"
    assert share(sagda.sagda_i(local_steps=1)) == "1:runs"


@pytest.mark.parametrize(
    "text", ["fast", "mapped/", "mapped/0", "chunk", "chunk-0", "mapped/2:rows", ""]
)
def test_a_layout_is_one_of_the_forms(text):
    with pytest.raises(BadValue, match="`layout` must be auto, mapped"):
        parse(text)


def test_a_layout_asks_for_no_more_devices_than_there_are(uneven):
    problem = sagda.AUC.of(uneven)
    call = lambda layout: sagda.simulate(
        sagda.fsgda(), problem, uneven, rounds=1, batch_size=1, layout=layout
    )
    with pytest.raises(BadValue, match="at most 2 devices, all that JAX has, got 3"):
        call("mapped/3")
    with pytest.raises(BadValue, match="at most 1 devices for 1 runs, got 2"):
        call("mapped/2:runs")
    assert call("mapped/2").layout.startswith("mapped/2:clients")


def test_a_layout_may_be_asked_for_as_it_is_written(a9a, monkeypatch):
    clients, _ = a9a
    drawn = partial(laid_out, clients, batch_size=10)
    monkeypatch.setattr(layouts, "kernels", lambda: True)
    for text in ("auto/1", "auto", "mapped/2:clients", "chunk-7/1:runs"):
        assert drawn(layout=str(drawn(layout=text))) == drawn(layout=text)
    assert drawn(layout="mapped/2:clients+kernel").kernel
    monkeypatch.setattr(layouts, "kernels", lambda: False)
    with pytest.raises(BadValue, match=r"must not have \+kernel here, got 'mapped/2"):
        drawn(layout="mapped/2:clients+kernel")
    with pytest.raises(BadValue, match=r"must not have \+kernel here"):
        drawn(layout="chunk-5/1+kernel")


@pytest.mark.slow
def test_a_network_is_mapped_without_a_kernel():
    """Large matrix products are computed by the library of XLA."""
    data = uneven_table([20, 20], features=64)
    problem = sagda.AUC.of(data, sagda.MLP(64, width=128))
    run = sagda.simulate(sagda.fsgda(local_steps=1), problem, data, rounds=1)
    assert run.layout.startswith("mapped/")
    assert "kernel" not in run.layout
