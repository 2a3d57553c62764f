"""From a configuration to the objects it describes."""

import inspect
from typing import Any, NamedTuple

from sagda import check
from sagda.algorithms import ALGORITHMS
from sagda.check import BadValue
from sagda.data.datasets import DATASETS, Dataset, balanced, load
from sagda.data.federation import Federation, Table
from sagda.data.partition import PARTITIONS, partition
from sagda.data.recipe import Recipe, Scaling, scaled
from sagda.methods import Method
from sagda.models.user_code import check_model, model_of
from sagda.problems import PROBLEMS
from sagda.problems.base import Problem
from sagda.problems.quadratic import Quadratic
from sagda.problems.treated import Treated
from sagda.runs.config import PATIENCE, Config, build
from sagda.simulator.checks import check_run, columns_of
from sagda.trackers import TRACKERS
from sagda.trackers.early_stop import check_metric

MODELLED = ("auc", "adversarial", "agnostic", "fair")  # that train any scoring model
COMMON = ("local_lr", "server_lr", "local_steps")


class Experiment(NamedTuple):
    """A configuration with every default filled in, and what it describes."""

    config: Config
    federation: Federation
    problem: Problem
    methods: dict[str, Method]
    test: Table | None
    recipe: Recipe | None = None  # how features are made of a file's columns


def resolve(config: Config, assignments: dict[str, Any] | None = None) -> Config:
    """The configuration with its defaults and `--set` assignments in their places."""
    for name in config.algorithms:
        check.choice("algorithm", name, ALGORITHMS)
    check.choice("problem", config.problem, PROBLEMS)
    check_model(config.model)
    if config.model != "linear" and config.problem not in MODELLED:
        raise BadValue(
            f"`model` may be set only for problem {' or '.join(MODELLED)}, got "
            f"{config.model} for {config.problem}."
        )
    values: dict[str, Any] = {}
    if config.problem == "quadratic":
        values |= {"clients": config.clients or 20, "samples": config.samples or 10}
    else:
        check.choice("partition", config.partition, PARTITIONS)
        values["samples"] = config.samples or 100
        if config.partition == "by-column":
            values["samples"] = config.samples or "all"
        else:
            values["clients"] = config.clients or 100
        # A GAN has no classes of its own: rows keep their labels.
        gan = config.problem == "gan"
        if config.data in ("mnist", "digits") and not gan:
            values["positive"] = config.positive or "1"
        if config.data == "mnist":
            values["per_class"] = config.per_class or (1000 if gan else 5000)
    if config.stop_early is not None:
        values["patience"] = config.patience or PATIENCE
    elif config.patience is not None:
        raise BadValue(
            "`patience` may be set only with stop_early, as in --stop-early "
            f"grad_phi_sq, got {config.patience} alone."
        )
    tables = {name: dict(table) for name, table in config.set.items() if table}
    for key, value in (assignments or {}).items():
        owner, dot, parameter = key.rpartition(".")
        for name in [owner] if dot else owners(config, parameter):
            tables.setdefault(name, {})[parameter] = value
    for name in tables:
        check.choice("set", name, [*config.algorithms, config.problem])
    return build(config.model_dump() | values | {"set": tables})


def owners(config: Config, parameter: str) -> list[str]:
    """The chosen algorithms, and the problem, that have a parameter of that name."""
    known = {name: options_of(name) for name in (*config.algorithms, config.problem)}
    found = [name for name, options in known.items() if parameter in options]
    if not found:
        everything = sorted(
            {option for options in known.values() for option in options}
        )
        check.choice("set", parameter, everything)
    return found


def options_of(name: str) -> list[str]:
    """The parameters of an algorithm, or of a problem."""
    if name in ALGORITHMS:
        return list(inspect.signature(ALGORITHMS[name]).parameters)
    if name == "quadratic":
        fixed = ("clients", "samples", "seed")
        return [
            p for p in inspect.signature(Quadratic.make).parameters if p not in fixed
        ]
    own = {
        "adversarial": ["radius", "norm"],
        "agnostic": ["penalty"],
        "dro": ["lambda_1", "lambda_2", "alpha"],
        "fair": ["group", "criterion", "slack", "penalty", "bound", "threshold"],
        "gan": ["latent", "width", "noise", "l2"],
    }
    return own.get(name, [])


def prepare(config: Config) -> Experiment:
    """The objects of a resolved configuration; every mistake in it shows here."""
    experiment = assemble(config)
    if config.grid:
        from sagda.runs.grid import check_grid, grid_points, method_at

        check_grid(config)
        points = [method_at(config, point) for point in grid_points(config)]
        experiment = experiment._replace(methods=dict(enumerate(points)))
    if config.track is not None:
        TRACKERS[check.choice("track", config.track, TRACKERS)].check_installed()
    if config.stop_early is not None:
        columns = columns_of(experiment.problem, experiment.federation, experiment.test)
        check_metric("stop_early", config.stop_early, columns)
    for method in experiment.methods.values():
        options = {
            name: value
            for name, value in simulate_options(experiment).items()
            if name != "float64"
        }
        check_run(method, experiment.problem, experiment.federation, **options)
    return experiment


def assemble(config: Config) -> Experiment:
    own = config.set.get(config.problem, {})
    for parameter in own:
        check.choice(f"set {config.problem}", parameter, options_of(config.problem))
    methods = {name: method_of(config, name) for name in config.algorithms}
    if config.problem == "quadratic":
        problem, federation = Quadratic.make(
            clients=config.clients or 20,
            samples=config.samples if isinstance(config.samples, int) else 10,
            seed=config.split_seed,
            **own,
        )
        return Experiment(config, federation, treated(problem, config), methods, None)
    data = load(config.data, **load_options(config))
    table = data.train
    if config.per_class is not None:
        table = balanced(table, per_class=config.per_class, seed=config.split_seed)
    options: dict[str, Any] = {"seed": config.split_seed}
    if config.clients is not None:
        options["clients"] = config.clients
    if config.samples != "all":
        options["samples"] = config.samples
    if config.alpha is not None:
        if config.partition not in ("dirichlet", "quantity"):
            raise BadValue(
                "`alpha` may be set only for partition dirichlet or quantity, got "
                f"partition {config.partition}."
            )
        options["alpha"] = config.alpha
    federation = partition(table, config.partition, **options)
    scaling = Scaling.none(table.features.shape[1])
    test = data.test
    if config.standardise:
        scaling = Scaling.of(federation)
        federation = federation._replace(data=scaled(federation.data, scaling))
        test = None if test is None else scaled(test, scaling)
    if config.problem in MODELLED:
        own = own | {"model": model_of(config.model, table.features.shape[1])}
    if config.problem == "fair":
        own = own | groups(own, data, scaling)
    problem = PROBLEMS[config.problem].of(federation, **own)  # type: ignore[attr-defined] # all but the quadratic, which has `make`, have `of`
    problem = treated(problem, config)
    test = None if config.problem == "gan" else test
    recipe = Recipe(data.encoding, scaling)
    return Experiment(config, federation, problem, methods, test, recipe)


def groups(own: dict[str, Any], data: Dataset, scaling: Scaling) -> dict[str, Any]:
    """The feature that tells groups apart by its number, and where it does if scaled.

    A column of a file, or one value of a category as in `sex=female`, may be named.
    """
    width = data.train.features.shape[1]
    names = [] if data.encoding is None else data.encoding.names
    group = own.get("group")
    if group is None:
        raise BadValue(
            "`group` must name the feature that tells groups apart for problem fair, "
            "such as --set group=3, got none."
        )
    if isinstance(group, str) and names:
        group = names.index(check.choice("group", group, names))
    what = ", the features counted from 0"
    group = check.integer("group", group, low=0, high=width - 1, what=what)
    threshold = check.real("threshold", own.get("threshold", 0.5))
    at = (threshold - scaling.mean[group]) / scaling.scale[group]
    return {"group": group, "threshold": float(at)}


def treated(problem: Problem, config: Config) -> Problem:
    """With weight decay and clipping, where a configuration asks for them."""
    if config.weight_decay is None and config.clip is None:
        return problem
    return Treated(problem, config.weight_decay or 0.0, config.clip)


def load_options(config: Config) -> dict[str, Any]:
    if config.data == "a9a":
        return {}
    if config.data in DATASETS:
        return {"positive": config.positive}
    columns = {"label": config.label, "client": config.client_column}
    names = [] if config.categorical is None else config.categorical.split(",")
    columns |= {"categorical": [name.strip() for name in names]}
    return columns | {"positive": config.positive}


def method_of(config: Config, name: str) -> Method:
    """The algorithm with the common parameters it has and its own."""
    return ALGORITHMS[name](**arguments_of(config, name))


def arguments_of(config: Config, name: str) -> dict[str, Any]:
    known = inspect.signature(ALGORITHMS[name]).parameters
    numbers = config.model_dump()
    common = {key: numbers[key] for key in COMMON if key in known}
    return common | config.set.get(name, {})


def simulate_options(experiment: Experiment) -> dict[str, Any]:
    config = experiment.config
    return {
        "rounds": config.rounds,
        "cohort": config.cohort,
        "batch_size": None if config.batch_size == "all" else config.batch_size,
        "dropout": config.dropout,
        "seeds": config.run_seeds,
        "eval_every": config.eval_every,
        "float64": config.float64,
        "layout": config.layout,
        "stream": config.stream,
        "test": experiment.test,
    }
