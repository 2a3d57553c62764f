"""Build the objects that a configuration describes: data, problem and methods.

`resolve` fills in defaults, and `prepare` builds and checks the objects. This file
names no problem, data set or model. Each class or registry entry declares its own
parameters. `execution.py` runs the objects. `folder.py` manages the run folder.
"""

import inspect
from typing import Any, NamedTuple

from sagda import check
from sagda.algorithms import ALGORITHMS
from sagda.check import BadValue
from sagda.data.datasets import DATASETS, balanced, load, load_file
from sagda.data.federation import Federation, Table
from sagda.data.partition import PARTITIONS, partition
from sagda.data.recipe import Recipe, Scaling, scaled
from sagda.methods import Method
from sagda.models.user_code import check_model
from sagda.problems import PROBLEMS, problem_of
from sagda.problems.base import Problem
from sagda.problems.treated import Treated
from sagda.runs.config import PATIENCE, Config, build
from sagda.runs.grid import check_grid, grid_points
from sagda.runs.parameters import method_of, options_of
from sagda.simulator.checks import check_run, columns_of
from sagda.simulator.options import RunOptions
from sagda.trackers import TRACKERS
from sagda.trackers.early_stop import check_metric


class Experiment(NamedTuple):
    """A resolved configuration and the objects that it describes."""

    config: Config
    federation: Federation
    problem: Problem
    methods: dict[str, Method]
    test: Table | None
    recipe: Recipe | None = None  # how the features were made from columns


def resolve(config: Config, assignments: dict[str, Any] | None = None) -> Config:
    """Return the configuration with all defaults and the `--set` assignments filled in.

    `assignments` are the values of `--set`, by `PARAMETER` or `NAME.PARAMETER`.
    """
    for name in config.algorithms:
        check.choice("algorithm", name, ALGORITHMS)
    check.choice("problem", config.problem, PROBLEMS)
    check_model(config.model)
    kind = PROBLEMS[config.problem]
    if config.model != "linear" and not kind.takes_model():
        takers = [name for name, kind in PROBLEMS.items() if kind.takes_model()]
        raise BadValue(
            f"`model` may be set only for problem {' or '.join(takers)}, got model "
            f"{config.model} for problem {config.problem}."
        )
    # The assignments of the command line override the configuration. Defaults apply to
    # fields that the configuration leaves unset.
    values = data_defaults(config, kind)
    if config.stop_early is not None:
        values["patience"] = config.patience or PATIENCE
    elif config.patience is not None:
        raise BadValue(
            "`patience` may be set only together with stop_early, got patience "
            f"{config.patience} alone; add --stop-early grad_phi_sq."
        )
    tables = {name: dict(table) for name, table in config.set.items() if table}
    for key, value in (assignments or {}).items():
        # NAME.PARAMETER=VALUE sets one owner, PARAMETER=VALUE all owners. An owner is
        # an algorithm or the problem.
        owner, dot, parameter = key.rpartition(".")
        for name in [owner] if dot else owners(config, parameter):
            tables.setdefault(name, {})[parameter] = value
    for name in tables:
        check.choice("set", name, [*config.algorithms, config.problem])
    return build(config.model_dump() | values | {"set": tables})


def data_defaults(config: Config, kind: type[Problem]) -> dict[str, Any]:
    """Return the fields of the data, with defaults for those that are not set.

    The defaults come from the problem or from the data set.
    """
    if kind.defines("make"):
        # Such a problem draws its own data. Its `make` has the default sizes.
        known = inspect.signature(kind.make).parameters
        return {
            name: getattr(config, name) or known[name].default
            for name in ("clients", "samples")
        }
    check.choice("partition", config.partition, PARTITIONS)
    values: dict[str, Any] = {"samples": config.samples or "all"}
    if config.partition != "by-column":
        values = {"samples": config.samples or 100, "clients": config.clients or 100}
    if (source := DATASETS.get(config.data)) is not None:
        if source.positive is not None and kind.labelled:
            values["positive"] = config.positive or source.positive
        if source.rows is not None:
            # Divide the rows equally over the classes that the problem distinguishes.
            classes = 2 if kind.labelled else source.classes
            values["per_class"] = config.per_class or source.rows // classes
    return values


def owners(config: Config, parameter: str) -> list[str]:
    """Return the names of the chosen algorithms and problem that have `parameter`."""
    known = {name: options_of(name) for name in (*config.algorithms, config.problem)}
    names = [name for name, options in known.items() if parameter in options]
    if not names:
        check.choice("set", parameter, sorted(set().union(*known.values())))
    return names


def prepare(config: Config) -> Experiment:
    """Build and check the objects of a resolved configuration.

    Raises `BadValue` if a value is invalid, before any round runs.
    """
    experiment = assemble(config)
    if config.grid:
        check_grid(config)
        points = [point.method(config) for point in grid_points(config)]
        experiment = experiment._replace(methods=dict(enumerate(points)))
    if config.track is not None:
        TRACKERS[check.choice("track", config.track, TRACKERS)].check_installed()
    if config.stop_early is not None:
        columns = columns_of(experiment.problem, experiment.federation, experiment.test)
        check_metric("stop_early", config.stop_early, columns)
    methods = list(experiment.methods.values())
    options = run_options(experiment)
    check_run(methods, experiment.problem, experiment.federation, options)
    return experiment


def assemble(config: Config) -> Experiment:
    """Build the data, the problem and the methods. `prepare` checks them together."""
    kind = PROBLEMS[config.problem]
    options = config.set.get(config.problem, {})
    for parameter in options:
        check.choice(f"set {config.problem}", parameter, kind.options())
    methods = {name: method_of(config, name) for name in config.algorithms}
    if kind.defines("make"):
        counts = {"clients": config.clients, "samples": config.samples}
        given = {k: v for k, v in counts.items() if isinstance(v, int)}
        problem, federation = kind.make(**given, seed=config.split_seed, **options)
        return Experiment(config, federation, treated(problem, config), methods, None)
    data = load(config.data, **load_options(config))
    table = data.train
    # Rows are drawn before the split and scaled after it, because the scaling uses one
    # sum per client. Test rows get the scaling of the training rows.
    if config.per_class is not None:
        table = balanced(table, per_class=config.per_class, seed=config.split_seed)
    federation = partition(table, config.partition, **partition_options(config))
    scaling = Scaling.none(federation.width)
    test = data.test
    if config.standardise:
        scaling = Scaling.of(federation)
        federation = federation._replace(data=scaled(federation.data, scaling))
        test = None if test is None else scaled(test, scaling)
    recipe = Recipe(data.encoding, scaling)
    options = kind.resolved(options, recipe)
    problem = problem_of(config.problem, federation, config.model, options)
    return Experiment(
        config=config,
        federation=federation,
        problem=treated(problem, config),
        methods=methods,
        test=test if kind.defines("score") else None,
        recipe=recipe,
    )


def partition_options(config: Config) -> dict[str, Any]:
    """Return the arguments of `partition` that a configuration sets."""
    takers = [
        name
        for name, split in PARTITIONS.items()
        if "alpha" in inspect.signature(split).parameters
    ]
    if config.alpha is not None and config.partition not in takers:
        raise BadValue(
            f"`alpha` may be set only for partition {' or '.join(takers)}, got "
            f"partition {config.partition}."
        )
    options = {
        "clients": config.clients,
        "samples": None if config.samples == "all" else config.samples,
        "alpha": config.alpha,
        "seed": config.split_seed,
    }
    return {name: value for name, value in options.items() if value is not None}


def treated(problem: Problem, config: Config) -> Problem:
    """Return the problem with the configuration's weight decay and clipping added."""
    if config.weight_decay is None and config.clip is None:
        return problem
    return Treated(problem, config.weight_decay or 0.0, config.clip)


def load_options(config: Config) -> dict[str, Any]:
    """Return the arguments of `load` that a configuration sets."""
    names = [] if config.categorical is None else config.categorical.split(",")
    options = {
        "label": config.label,
        "client": config.client_column,
        "categorical": [name.strip() for name in names],
        "positive": config.positive,
    }
    source = DATASETS.get(config.data)
    known = inspect.signature(source.load if source else load_file).parameters
    return {name: value for name, value in options.items() if name in known}


def run_options(experiment: Experiment) -> RunOptions:
    """Return the options of `simulate` that a configuration sets."""
    config = experiment.config
    return RunOptions(
        rounds=config.rounds,
        cohort=config.cohort,
        batch_size=None if config.batch_size == "all" else config.batch_size,
        dropout=config.dropout,
        seeds=config.run_seeds,
        eval_every=config.eval_every,
        float64=config.float64,
        layout=config.layout,
        test=experiment.test,
    )
