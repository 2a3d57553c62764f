"""Check that each invalid input raises one clear sentence, before compilation."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pytest

import sagda
from sagda import Point, Rates, fsgda, sagda_i
from support import uneven_table

FEDERATION = uneven_table([3, 5, 2, 4])
PROBLEM = sagda.AUC.of(FEDERATION)


@dataclass(frozen=True)
class Summed(sagda.Problem):
    """A problem whose loss returns a sum, not one value per row."""

    def init(self, key):
        return Point(jnp.zeros(4), jnp.zeros(()))

    def loss(self, z, batch, key):
        return jnp.sum(batch.features @ z.x) + z.y


@dataclass(frozen=True)
class Plain(Summed):
    """A problem with a valid loss."""

    def loss(self, z, batch, key):
        return batch.features @ z.x + z.y


@dataclass(frozen=True)
class Tupled(Plain):
    def init(self, key):
        return jnp.zeros(4), jnp.zeros(())


class Constructed(Plain):
    def __init__(self, width):
        object.__setattr__(self, "width", width)


@sagda.method
def doubled():
    algorithm = fsgda().build()
    return algorithm._replace(phases=algorithm.phases * 2)


def simulate(**options):
    given = {"method": fsgda(), "problem": PROBLEM, "federation": FEDERATION}
    return sagda.simulate(**given | {"batch_size": 2} | options)


NAN, INF = float("nan"), float("inf")
CASES = {
    "unknown algorithm": (
        lambda: sagda.algorithm("sagda-1"),
        f"`algorithm` must be one of {', '.join(sagda.ALGORITHMS)}, got 'sagda-1'; did "
        "you mean 'sagda-i'?",
    ),
    "unknown parameter": (
        lambda: fsgda(local_step=3),
        "`parameter of fsgda` must be one of local_lr, server_lr, local_steps, got "
        "'local_step'; did you mean 'local_steps'?",
    ),
    "unknown option": (
        lambda: sagda_i(start="hot"),
        "`start` must be one of zeros, warm, got 'hot'.",
    ),
    "no local steps": (
        lambda: fsgda(local_steps=0),
        "`local_steps` must be at least 1, got 0.",
    ),
    "half a local step": (
        lambda: fsgda(local_steps=2.5),
        "`local_steps` must be a whole number, got 2.5 of type float.",
    ),
    "zero rate": (
        lambda: fsgda(local_lr=0),
        "`local_lr (x)` must be above zero, got 0.",
    ),
    "negative rate": (
        lambda: fsgda(server_lr=(1, -2)),
        "`server_lr (y)` must be above zero, got -2.",
    ),
    "NaN rate": (
        lambda: fsgda(local_lr=Rates(NAN, 1)),
        "`local_lr (x)` must be finite, got nan.",
    ),
    "infinite rate": (
        lambda: fsgda(local_lr=(1, INF)),
        "`local_lr (y)` must be finite, got inf.",
    ),
    "three rates": (
        lambda: fsgda(local_lr=(1, 2, 3)),
        "`local_lr` must be one rate or a pair (x, y), got 3 values.",
    ),
    "a rate that is a word": (
        lambda: fsgda(local_lr="fast"),
        "`local_lr (x)` must be a number, got 'fast' of type str.",
    ),
    "cohort above the clients": (
        lambda: simulate(cohort=5),
        "`cohort` must be between 1 and 4, the number of clients, got 5.",
    ),
    "empty cohort": (
        lambda: simulate(cohort=0),
        "`cohort` must be between 1 and 4, the number of clients, got 0.",
    ),
    "no rounds": (
        lambda: simulate(rounds=0),
        "`rounds` must be at least 1, got 0.",
    ),
    "negative rounds": (
        lambda: simulate(rounds=-3),
        "`rounds` must be at least 1, got -3.",
    ),
    "rounds that are a flag": (
        lambda: simulate(rounds=True),
        "`rounds` must be a whole number, got True of type bool.",
    ),
    "batch above the local rows": (
        lambda: simulate(batch_size=99),
        "`batch_size` must be between 1 and 5, the rows of the largest client, or "
        "None for all rows, got 99.",
    ),
    "certain drop-out": (
        lambda: simulate(dropout=1.0),
        "`dropout` must be in [0, 1), got 1.",
    ),
    "negative drop-out": (
        lambda: simulate(dropout=-0.1),
        "`dropout` must be in [0, 1), got -0.1.",
    ),
    "NaN drop-out": (
        lambda: simulate(dropout=NAN),
        "`dropout` must be finite, got nan.",
    ),
    "no seeds": (
        lambda: simulate(seeds=[]),
        "`seeds` must contain at least one seed, got none.",
    ),
    "a negative seed": (
        lambda: simulate(seeds=[-1]),
        "`seeds` must be between 0 and 4294967295, got -1.",
    ),
    "evaluation never": (
        lambda: simulate(eval_every=0),
        "`eval_every` must be at least 1, got 0.",
    ),
    "empty chunks": (
        lambda: simulate(chunk=0),
        "`chunk` must be at least 1, got 0.",
    ),
    "unknown metric": (
        lambda: simulate(metrics=["drfit"]),
        "`metrics` must be one of drift, variate_lag, potential, got 'drfit'; did you "
        "mean 'drift'?",
    ),
    "drift that nobody tells": (
        lambda: simulate(method=sagda.parallel_sgda(), metrics="drift"),
        "`metrics` can contain drift only if clients report how far they moved; remove "
        "it for parallel-sgda on AUC.",
    ),
    "variates where there are none": (
        lambda: simulate(metrics=["variate_lag"]),
        "`metrics` can contain variate_lag only if clients keep control variates; "
        "remove it for fsgda on AUC.",
    ),
    "a metric that is a number": (
        lambda: simulate(metrics={"x_norm": 3.0}),
        "`metrics` must be names, or functions (problem, z, rows, weight), got 3.0 "
        "of type float.",
    ),
    "a metric without a name": (
        lambda: simulate(metrics=lambda problem, z, rows, weight: 0.0),
        "`metrics` must give each function a name, got '<lambda>'; write "
        'metrics={"x_norm": function}.',
    ),
    "a metric with the name of a column": (
        lambda: simulate(metrics={"phi": lambda problem, z, rows, weight: 0.0}),
        "`metrics` must not define 'phi', because histories already have a column of "
        "this name; choose another name.",
    ),
    "a metric of several numbers": (
        lambda: simulate(metrics={"x": lambda problem, z, rows, weight: weight}),
        "metric 'x' must be one number, got shape (14,).",
    ),
    "an option that does not exist": (
        lambda: simulate(round=3),
        "`option of simulate` must be one of method, problem, federation, rounds, "
        "cohort, batch_size, dropout, seeds, eval_every, chunk, metrics, test, start, "
        "float64, layout, progress, resume, got 'round'; did you mean "
        "'rounds'?",
    ),
    "a name for a method": (
        lambda: simulate(method="fsgda"),
        "`method` must be a Method, such as sagda.algorithm('sagda-i'), got 'fsgda' of "
        "type str.",
    ),
    "a class for a problem": (
        lambda: simulate(problem=sagda.AUC),
        "`problem` must be a Problem, such as sagda.AUC.of(federation), got <class "
        "'sagda.problems.auc.AUC'> of type ABCMeta.",
    ),
    "a table for a federation": (
        lambda: simulate(federation=None),
        "`federation` must be a Federation, such as sagda.partition(table), got None "
        "of type NoneType.",
    ),
    "a test set of other width": (
        lambda: simulate(test=sagda.load("digits", positive=1).test),
        "`test` must have 4 features and labels -1 and +1, like the training rows, got "
        "64 features and labels from -1.0 to 1.0.",
    ),
    "a data set for a test set": (
        lambda: simulate(test=1),
        "`test` must be a Table, such as load(name).test, got 1 of type int.",
    ),
    "half a seed": (
        lambda: simulate(seeds=1.5),
        "`seeds` must be a whole number, got 1.5 of type float.",
    ),
    "a falling schedule that starts at nothing": (
        lambda: fsgda(local_lr=Rates(lambda t: 0.1 * t, 0.1)),
        "`local_lr (x) in round 0` must be above zero, got 0.",
    ),
    "a data set for a table": (
        lambda: sagda.partition(sagda.load("digits"), clients=2),
        "`table` must be a Table, such as load(name).train, got ",
    ),
    "a table for labelled clients": (
        lambda: sagda.AUC.of(FEDERATION.data),
        "`federation` must be a Federation, such as sagda.partition(table), got ",
    ),
    "a quadratic for labelled clients": (
        lambda: sagda.AUC.of(sagda.Quadratic.make(clients=2)[1]),
        "`federation` must have a Table of labelled rows for this problem, got "
        "Coefficients; use sagda.partition(table).",
    ),
    "a method that is not built": (
        lambda: sagda.cost(fsgda(), Point(np.zeros(2), np.zeros(1))),
        "`algorithm` must be a Algorithm, such as sagda_i().build(), got ",
    ),
    "a module for a model": (
        lambda: sagda.AUC.of(FEDERATION, lambda x: x),
        "`model` must have `init` and `apply`, such as sagda.Equinox(make), "
        "sagda.Torch(module) or a pair (init, apply), got an object "
        "of type function.",
    ),
    "a pull of nothing": (
        lambda: sagda.DRO.of(FEDERATION, lambda_1=0.0),
        "`lambda_1` must be above zero, got 0.",
    ),
    "an option of another data set": (
        lambda: sagda.load("digits", postive=1),
        "`option of data digits` must be one of positive, got 'postive'; did you mean "
        "'positive'?",
    ),
    "an option where there is none": (
        lambda: sagda.load("a9a", positive=1),
        "data a9a takes no options, got 'positive'.",
    ),
    "an option of another partition": (
        lambda: sagda.partition(FEDERATION.data, "iid", client=3),
        "`option of partition iid` must be one of table, clients, samples, seed, got "
        "'client'; did you mean 'clients'?",
    ),
    "features in one row": (
        lambda: sagda.partition(
            sagda.Table(np.zeros(3), np.zeros(3)), "iid", clients=1
        ),
        "`features` must be numbers of shape (rows, d), found float64 of shape (3,).",
    ),
    "columns of unequal length": (
        lambda: sagda.Federation.of(
            sagda.Table(np.zeros((3, 1)), np.zeros(2)), [0], [1]
        ),
        "`label` must have shape (3,), one entry per row of `features`, found (2,).",
    ),
    "features that are not numbers": (
        lambda: sagda.Federation.of(
            sagda.Table(np.full((2, 1), np.nan), np.zeros(2)), [0], [1]
        ),
        "`features` must be finite in float64, but row 0 is not.",
    ),
    "a start that is not finite": (
        lambda: simulate(
            problem=Plain(), start=Point(np.full(4, np.nan), np.zeros(()))
        ),
        "`start` must be finite, got NaN or infinity.",
    ),
    "a start of other structure": (
        lambda: simulate(start=Point((np.zeros(4), 0.0, 0.0), 0.0)),
        "`start` must have the shapes ",
    ),
    "an init without a point": (
        lambda: simulate(problem=Tupled()),
        "Tupled.init must return `Point(x, y)` with arrays in x and y, got a value of "
        "type tuple.",
    ),
    "a problem with a constructor": (
        lambda: Constructed(3),
        "Constructed must be a dataclass: write @dataclass(frozen=True) above the "
        "class, and fields instead of __init__.",
    ),
    "two phases of one name": (
        lambda: simulate(method=doubled()),
        "the phases of doubled must have different names, got 'local' twice.",
    ),
    "a loss without rows": (
        lambda: simulate(problem=Summed()),
        "the loss of Summed must return one value per row, got shape () for 14 rows; "
        "do not take the mean, since sagda does that.",
    ),
    "a model of other width": (
        lambda: simulate(problem=sagda.AUC(sagda.Linear(3), 0.5)),
        "the loss of AUC does not fit the data: ",
    ),
    "a start of other shape": (
        lambda: simulate(problem=Summed(), start=Point(np.zeros(3), np.zeros(()))),
        "`start` must have the shapes Point(x=(4,), y=()), as the problem draws it, "
        "got Point(x=(3,), y=()).",
    ),
    "too few weights": (
        lambda: simulate(problem=sagda.DRO(features=4, samples=3)),
        "`samples` must be at least 5, the number of rows of the largest client, got "
        "3; use `DRO.of(federation)`.",
    ),
    "impossible share": (
        lambda: sagda.AUC(sagda.Linear(3), 1.5),
        "`tau` must be in [0, 1), got 1.5.",
    ),
    "one class only": (
        lambda: sagda.AUC.of(
            FEDERATION._replace(data=FEDERATION.data._replace(label=np.ones(14)))
        ),
        "labels must have both classes, found only +1; check the label column or the "
        "partition.",
    ),
    "ten classes": (
        lambda: sagda.AUC.of(
            sagda.partition(sagda.load("digits").train, clients=10, samples=50)
        ),
        "labels must be -1 and +1, found 10 classes from 0.0 to 9.0; "
        "use sagda.binary(table, positive=...).",
    ),
    "smoothness below mu": (
        lambda: sagda.Quadratic.make(smoothness=1.0, mu=1.0),
        "`smoothness` must be above `mu` = 1, got 1.",
    ),
    "noise of a single row": (
        lambda: sagda.Quadratic.make(samples=1, noise=1.0),
        "`samples` must be at least 2, got 1.",
    ),
    "a row for two clients": (
        lambda: sagda.Federation.of(FEDERATION.data, [0, 0], [1, 1]),
        "each row must belong to at most one client.",
    ),
    "a client without rows": (
        lambda: sagda.Federation.of(FEDERATION.data, [0], [1, 0]),
        "every client must have at least one row.",
    ),
    "sizes that do not add up": (
        lambda: sagda.Federation.of(FEDERATION.data, [0, 1], [1, 2]),
        "client sizes must add up to the number of rows, 2, got 3.",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_mistakes(name):
    call, message = CASES[name]
    with pytest.raises((ValueError, TypeError)) as caught:
        call()
    found = str(caught.value)
    assert found.startswith(message) if message.endswith(" ") else found == message


@pytest.mark.parametrize(
    ("field", "other"),
    [
        ("seeds", {"seeds": 1}),
        ("method", {"method": sagda_i()}),
        ("method", {"method": fsgda(local_lr=0.5)}),
        ("float64", {"float64": True}),
        ("cohort", {"cohort": 2}),
        ("batch_size", {"batch_size": 1}),
        ("dropout", {"dropout": 0.5}),
        ("split", {"federation": uneven_table([3, 5, 4, 2])}),
        ("metrics", {"metrics": ["drift"]}),
        ("test", {"test": FEDERATION.data}),
    ],
)
def test_a_run_of_another_configuration_is_not_resumed(field, other):
    run = simulate(rounds=2)
    with pytest.raises(ValueError, match=f"same configuration, but its {field} was"):
        simulate(rounds=3, resume=run, **other)


def test_resuming_needs_a_run_and_rounds_to_go():
    run = simulate(rounds=2)
    with pytest.raises(ValueError, match="`rounds` must be at least 2, those already"):
        simulate(rounds=1, resume=run)
    with pytest.raises(TypeError, match="`resume` must be a Run"):
        simulate(rounds=3, resume=run.carry)
    with pytest.raises(ValueError, match="an array 'carry/state/v/x/model'"):
        simulate(rounds=3, method=sagda_i(), resume=run.arrays())


def test_unknown_public_names_are_refused():
    with pytest.raises(AttributeError, match="No sagda attribute Sagda"):
        _ = sagda.Sagda  # pyright: ignore[reportAttributeAccessIssue]
    for name in sagda.__all__:
        assert getattr(sagda, name) is not None
