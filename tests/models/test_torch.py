"""PyTorch models: the same text on tensors, and what is refused."""

from typing import NamedTuple

import jax
import numpy as np
import pytest

import sagda
from sagda.algorithms import ALGORITHMS
from sagda.check import BadKind, BadValue
from sagda.simulator.exchange import unpacked
from sagda.simulator.history import COUNTS
from support import flat, uneven_table

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'sagda[torch]'")
nn = torch.nn

from sagda.models import torch as pytorch  # noqa: E402

FEATURES, WIDTH = 6, 8
TELLING = ("sagda-i",)  # the others go the same ways
EVERY = [
    pytest.param(name, marks=() if name in TELLING else pytest.mark.slow)
    for name in sorted(ALGORITHMS)
]
torch.set_num_threads(1)  # processes that share cores must not wait for each other


@pytest.fixture(scope="module")
def clients():
    return uneven_table([12, 7, 9, 12, 10], features=FEATURES)


def perceptron(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(FEATURES, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(),
        nn.Linear(WIDTH, 1),
    )  # fmt: skip


def the_same_start(module, problem):
    """The module's weights in an equinox perceptron of the same shape."""
    z = problem.init(sagda.keys.root_key(0))
    layers = [part for part in module if isinstance(part, nn.Linear)]
    weights = {}
    for i, layer in enumerate(layers):
        weights[i] = layer.weight.detach().numpy(), layer.bias.detach().numpy()

    def put(path, leaf):
        names = [str(getattr(key, "name", getattr(key, "idx", ""))) for key in path]
        if "layers" not in names:
            return np.float32(0.1 if names[-1] == "c_1" else -0.1)
        weight, bias = weights[int(names[names.index("layers") + 1])]
        return (weight if names[-1] == "weight" else bias).reshape(leaf.shape)

    return sagda.Point(jax.tree_util.tree_map_with_path(put, z.x), np.float32(0.0))


def torch_start(module):
    weights = {n: p.detach().numpy().copy() for n, p in module.named_parameters()}
    x = sagda.problems.auc.AUCPoint(weights, np.float32(0.1), np.float32(-0.1))
    return sagda.Point(x, np.float32(0.0))


@pytest.mark.parametrize("name", EVERY)
def test_equinox_and_pytorch_walk_together(name, clients):
    module = perceptron()
    method = sagda.algorithm(name, local_lr=0.05)
    options = {"rounds": 20, "batch_size": None, "eval_every": 5, "cohort": 3}
    ours = sagda.AUC.of(clients, sagda.MLP(FEATURES, WIDTH, 2))
    start = the_same_start(module, ours)
    one = sagda.simulate(method, ours, clients, start=start, **options)
    theirs = sagda.AUC.of(clients, sagda.Torch(module))
    two = sagda.simulate(method, theirs, clients, start=torch_start(module), **options)
    for column in one.history.columns:
        if column == "seconds":
            continue
        np.testing.assert_allclose(
            two.history[column], one.history[column], rtol=1e-4,
            atol=1e-6 if column == "gap" else 1e-9, err_msg=column,
        )  # fmt: skip
    ends = [np.concatenate([np.ravel(a) for a in weights(run)]) for run in (one, two)]
    assert np.linalg.norm(ends[0] - ends[1]) <= 1e-4 * np.linalg.norm(ends[0])
    begun = np.concatenate([np.ravel(a) for a in torch_start(module).x.model.values()])
    assert np.linalg.norm(ends[0] - begun) > 0.01 * np.linalg.norm(begun)


def weights(run):
    """Layer by layer, weight and bias."""
    model = run.z.x.model
    if isinstance(model, dict):
        return [model[f"{2 * i}.{n}"][0] for i in range(3) for n in ("weight", "bias")]
    return [getattr(layer, n)[0] for layer in model.layers for n in ("weight", "bias")]


def run_of(clients, module, **options):
    problem = sagda.AUC.of(clients, sagda.Torch(module))
    told = {"rounds": 4, "batch_size": 3, "cohort": 3, "seeds": [1, 2]} | options
    return sagda.simulate(sagda.sagda_i(local_lr=0.05), problem, clients, **told)


def test_a_resumed_run_is_the_unbroken_one_bit_for_bit(clients):
    options = {"dropout": 0.3, "metrics": ["drift", "variate_lag"]}
    whole = run_of(clients, perceptron(), **options)
    half = run_of(clients, perceptron(), **options, rounds=2)
    kept = half.arrays()
    again = run_of(clients, perceptron(), **options, resume=kept)
    assert np.array_equal(flat(again.carry), flat(whole.carry), equal_nan=True)
    for name in whole.history.columns:
        if name != "seconds":
            np.testing.assert_array_equal(again.history[name], whole.history[name])


def test_dropout_and_memories_agree_with_the_compiled_engine(clients):
    """A linear layer without bias is the linear model, to rounding."""
    layer = nn.Linear(FEATURES, 1, bias=False).double()
    x = sagda.problems.auc.AUCPoint
    method = sagda.sagda_i(local_lr=0.05, start="warm")
    options = {
        "rounds": 6, "batch_size": 3, "cohort": 3, "dropout": 0.4, "seeds": 3,
        "metrics": ["drift", "variate_lag", "potential"], "float64": True,
    }  # fmt: skip
    theirs = sagda.AUC.of(clients, sagda.Torch(layer))
    w = layer.weight.detach().numpy()
    start = sagda.Point(x({"weight": w}, 0.1, -0.1), 0.0)
    two = sagda.simulate(method, theirs, clients, start=start, **options)
    ours = sagda.AUC.of(clients)
    start = sagda.Point(x(w[0], 0.1, -0.1), 0.0)
    one = sagda.simulate(method, ours, clients, start=start, **options)
    for name in one.history.columns:
        if name != "seconds":
            np.testing.assert_allclose(
                two.history[name], one.history[name], rtol=1e-9, atol=1e-12
            )
    memory = unpacked(one.carry.memory, jax.tree.map(lambda a: a[0], one.z))
    np.testing.assert_allclose(
        flat(two.carry.memory), flat(memory), rtol=1e-9, atol=1e-12
    )


def test_weights_go_back_into_the_module_and_into_safetensors(clients, tmp_path):
    module = perceptron()
    before = {n: p.detach().clone() for n, p in module.named_parameters()}
    module[0].bias.requires_grad_(False)
    model = sagda.Torch(module)
    problem = sagda.AUC.of(clients, model)
    run = sagda.simulate(
        sagda.fsgda(local_lr=0.05), problem, clients, rounds=2, seeds=[0, 1]
    )
    assert "0.bias" not in run.z.x.model
    assert torch.equal(module[0].weight, before["0.weight"])
    assert model.load(run, seed=1) is module
    np.testing.assert_array_equal(
        module[0].weight.detach(), run.z.x.model["0.weight"][1]
    )
    assert torch.equal(module[0].bias, before["0.bias"])
    rows = torch.from_numpy(clients.data.features.astype(np.float32))
    scores = module(rows).detach().numpy()[:, 0]
    area = sagda.problems.metrics.auc(scores, clients.data.label)
    assert area == run.history["auc_train"][1, -1]
    model.save(tmp_path / "net.safetensors")
    from safetensors.torch import load_file

    other = perceptron(seed=5)
    other.load_state_dict(load_file(tmp_path / "net.safetensors"))
    assert torch.equal(other(rows), module(rows))


def test_every_seed_has_its_own_start_if_a_function_makes_the_module(clients):
    make = lambda: nn.Linear(FEATURES, 1)
    state = torch.random.get_rng_state()
    model = sagda.Torch(make)
    keys = [sagda.keys.root_key(seed) for seed in (0, 1)]
    one, two = (model.init(key) for key in keys)
    assert not np.array_equal(one["weight"], two["weight"])
    np.testing.assert_array_equal(model.init(keys[0])["weight"], one["weight"])
    assert torch.equal(torch.random.get_rng_state(), state)


def test_noise_in_a_module_comes_from_keys(clients):
    net = lambda: nn.Sequential(
        nn.Linear(FEATURES, 4), nn.Dropout(0.5), nn.Linear(4, 1)
    )
    torch.manual_seed(0)
    module = net()
    one = run_of(clients, module)
    torch.manual_seed(99)
    two = run_of(clients, module)
    assert np.array_equal(flat(one.carry.state), flat(two.carry.state))
    plain = nn.Sequential(module[0], nn.Identity(), module[2])
    assert not np.array_equal(flat(run_of(clients, plain).z), flat(one.z))


class Noisy(nn.Module):
    """Random in evaluations, too."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(FEATURES, 1)

    def forward(self, rows):
        return self.last(rows + torch.randn_like(rows))


def test_noise_in_an_evaluation_is_the_same_every_time(clients):
    module = Noisy()
    one = run_of(clients, module).history
    torch.manual_seed(99)
    two = run_of(clients, module).history
    np.testing.assert_array_equal(one["phi"], two["phi"])


RATES = sagda.Rates(0.1, 0.1)


@sagda.method
def swapping(*, local_lr: sagda.Rates = RATES) -> sagda.Algorithm:
    """Replies with the memory that it renews, and keeps the one before."""

    def client(f, z, memory, turn):
        g = f.grad(z, f.draw(turn.key("step")))
        return (g, memory[0]), memory

    def server(state, mean, share, t):
        g, old = mean
        return state._replace(
            z=sagda.descend_ascend(state.z, g + old, local_lr.at(t)),
        )

    renew = lambda memory, reply: (reply[0], memory[0])
    two = lambda z: (sagda.zeros_like(z), sagda.zeros_like(z))
    phase = sagda.Phase("step", client, server, lambda s: s.z, renew=renew)
    return sagda.Algorithm(Only, (phase,), memory=two)


class Only(NamedTuple):
    z: sagda.Point


def test_memories_in_replies_are_those_from_before(clients):
    layer = nn.Linear(FEATURES, 1, bias=False).double()
    w = layer.weight.detach().numpy()
    problem = sagda.AUC.of(clients)
    z = problem.init(sagda.keys.root_key(0))
    options = {"rounds": 4, "batch_size": 3, "cohort": 3, "float64": True}
    runs = []
    for model, own in ((None, w[0]), (sagda.Torch(layer), {"weight": w})):
        start = sagda.Point(z.x._replace(model=own), z.y)
        problem = sagda.AUC.of(clients, model)
        runs.append(
            sagda.simulate(swapping(), problem, clients, start=start, **options)
        )
    np.testing.assert_allclose(flat(runs[1].z), flat(runs[0].z), rtol=1e-9)


class Narrow(nn.Linear):
    def forward(self, rows):
        return super().forward(rows.float())


class Far(nn.Linear):
    def forward(self, rows):
        return super().forward(rows) + rows[:, 99:100].sum() + rows[:, 99]


@pytest.mark.slow
def test_stops_know_the_columns_of_a_pytorch_model(clients):
    from sagda.simulator.checks import columns_of

    for kind in ("agnostic", "fair", "adversarial", "treated"):
        problem = made(kind, clients, sagda.Torch(nn.Linear(FEATURES, 1)))
        run = sagda.simulate(
            sagda.fsgda(local_lr=0.01), problem, clients, rounds=1, batch_size=2
        )
        measured = set(columns_of(problem, clients, None))
        counted = {name for name in run.history.columns if name not in measured}
        assert counted == set(COUNTS) & counted
        assert measured <= set(run.history.columns)


def test_whole_numbers_are_features(clients):
    data = clients.data
    whole = np.round(3 * data.features).astype(int)
    counts = clients._replace(data=data._replace(features=whole))
    plain = clients._replace(data=data._replace(features=whole.astype(np.float32)))
    layer = nn.Linear(FEATURES, 1)
    one, two = run_of(counts, layer), run_of(plain, layer)
    np.testing.assert_array_equal(flat(one.z), flat(two.z))


def wrong(*parts):
    return lambda: nn.Sequential(nn.Linear(FEATURES, 4), *parts)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (wrong(), r"one score per row, that is shape \(2,\) or \(2, 1\).*got \(2, 4\)"),
        (
            wrong(nn.BatchNorm1d(4), nn.Linear(4, 1)),
            "BatchNorm1d '1' changes 'running_mean'.*Use GroupNorm or LayerNorm",
        ),
        (lambda: nn.Linear(3, 1), "does not fit rows of 6 features"),
        (
            lambda: nn.Linear(FEATURES, 1, device="meta"),
            "on the CPU, like the data, got 'weight' on meta",
        ),
        (lambda: nn.Linear(FEATURES, 1).half(), "got 'weight' in torch.float16"),
        (lambda: nn.ReLU(), "must have parameters that require a gradient"),
        (
            lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(FEATURES, 1)),
            "must not change its input",
        ),
        (lambda: Narrow(FEATURES, 1), "in double precision, as for predictions: "),
        (lambda: Far(FEATURES, 1), "does not fit rows of 6 features: "),
        (lambda: 3, "got an object of type int"),
        (3, "must be a torch.nn.Module"),
    ],
)  # fmt: skip
def test_a_module_that_cannot_do_gets_one_sentence(make, said, clients):
    with pytest.raises((BadValue, BadKind), match=said):
        run_of(clients, make)


def test_batch_norm_that_is_frozen_may_stay(clients):
    module = wrong(nn.BatchNorm1d(4), nn.Linear(4, 1))()
    module[1].eval()
    run = run_of(clients, module)
    assert np.isfinite(run.history["phi"]).all()
    assert module[0].training
    assert not module[1].training
    assert module[1].running_mean.abs().sum() == 0


def made(kind, clients, model):
    return {
        "agnostic": lambda: sagda.Agnostic.of(clients, model),
        "fair": lambda: sagda.Fair.of(clients, model, group=2, threshold=0.0),
        "adversarial": lambda: sagda.Adversarial.of(clients, model, radius=0.3),
        "treated": lambda: sagda.Treated(sagda.AUC.of(clients, model), 0.1, 0.2),
    }[kind]()


@pytest.mark.parametrize(
    "kind",
    [
        "agnostic",
        *(
            pytest.param(kind, marks=pytest.mark.slow)
            for kind in ("fair", "adversarial", "treated")
        ),
    ],
)
def test_other_problems_agree_with_the_compiled_engine(kind, clients):
    """A layer without bias is a linear model; sets and closed forms are the same."""
    layer = nn.Linear(FEATURES, 1, bias=False).double()
    linear = sagda.Linear(FEATURES)
    ours = made(kind, clients, (linear.init, linear.apply))  # solved where need be
    theirs = made(kind, clients, sagda.Torch(layer))
    w = layer.weight.detach().numpy()
    z = ours.init(sagda.keys.root_key(0))
    x = lambda own: z.x._replace(model=own) if kind == "treated" else own
    options = {"rounds": 5, "batch_size": 3, "cohort": 3, "seeds": 3, "float64": True}
    method = sagda.sagda_i(local_lr=0.1)
    start = sagda.Point(x(w[0]), z.y)
    one = sagda.simulate(method, ours, clients, start=start, **options)
    start = sagda.Point(x({"weight": w}), z.y)
    two = sagda.simulate(method, theirs, clients, start=start, **options)
    np.testing.assert_allclose(flat(two.z), flat(one.z), rtol=1e-8, atol=1e-10)
    for name in set(one.history.columns) & set(two.history.columns) - {"seconds"}:
        np.testing.assert_allclose(
            two.history[name], one.history[name], rtol=1e-7, atol=1e-9, err_msg=name
        )
    solved = "phi" if kind != "adversarial" else "grad_x_sq"
    assert solved in two.history.columns


def test_a_zero_that_is_no_tensor_acts_as_one():
    a = torch.arange(3.0)
    zero = sagda.zeros_like(sagda.Point({"w": a}, a[0]))
    z = sagda.Point({"w": a}, a[0] + 2)
    assert (z - zero + zero).x["w"] is a
    total = sagda.loop(lambda sum, k: sum + z, zero, np.arange(3))
    np.testing.assert_array_equal(total.x["w"], 3 * a)
    for same in (zero + z, zero - (zero - z), z + 3.0 * zero):
        np.testing.assert_array_equal(
            flat(pytorch.arrays(same)), flat(pytorch.arrays(z))
        )
    np.testing.assert_array_equal(pytorch.arrays(zero).x["w"], np.zeros(3))
    assert float(torch.dot(a, zero.x["w"])) == 0.0


def test_treated_gradients_do_not_copy_the_model(clients):
    """Weight decay and clipping leave x free: projecting hands back its tensors."""
    from sagda.models.torch import tensors
    from sagda.simulator.torch.objective import projected

    problem = sagda.AUC.of(clients, model=sagda.Torch(perceptron()))
    z = tensors(problem.init(sagda.keys.root_key(0)))
    treated = sagda.Treated(problem, weight_decay=0.1, clip=1.0)
    for before, after in zip(
        jax.tree.leaves(z), jax.tree.leaves(projected(treated, z)), strict=True
    ):
        assert after is before
