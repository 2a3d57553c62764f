"""The terms of a run: the server's file, and the constants settled with its sites.

The server's file is a configuration of a simulation (`runs.config`) with a table
`[federation]`, which is read as `Options`. Every letter of a run contains `Terms`. The
server and the sites derive the same plan from them (`federation.plan`).
"""

import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from sagda import check, durable
from sagda.check import BadValue
from sagda.data.encoding import Encoding
from sagda.data.federation import Facts
from sagda.data.recipe import FeatureMoments, Recipe, Scaling
from sagda.federation.filters import COORDINATES, FILTERS, least
from sagda.federation.plan import Plan
from sagda.federation.protocol.letters import Introduction
from sagda.models.user_code import OWN, allow, is_own
from sagda.problems import PROBLEMS, problem_of
from sagda.problems.base import Problem
from sagda.runs import config as configs
from sagda.runs.config import Config, Count
from sagda.runs.experiment import resolve, treated
from sagda.runs.model_file import ModelEntry, recipe_of
from sagda.runs.parameters import method_of

TABLE = "federation"
# Keys of simulations only. In a federation, each site brings its own rows.
BROUGHT = (
    "data", "label", "client_column", "categorical", "positive", "per_class",
    "clients", "samples", "partition", "alpha", "split_seed", "dropout", "seeds",
    "layout", "grid", "trials",
)  # fmt: skip
WATCHED = ("track", "stop_early", "patience")  # keys of trackers and early stops
# The limit of features that can be standardised: each adds two numbers to each letter.
WIDEST = 1000
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Options(BaseModel):
    """The options of a federated run: the table `[federation]` of the server's file."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True
    )

    sites: Count = 2
    """Number of sites that must be connected before the first round."""
    min_clients: Count = 2
    """Least number of answers in each exchange. With fewer, a round is repeated."""
    timeout: Seconds = 120.0
    """Time limit of an exchange in seconds."""
    wait: Seconds = 600.0
    """Seconds that the server waits for sites before it ends. It can be resumed."""
    max_absence: Count | None = None
    """Rounds in a row without an answer that remove a site (default: never)."""
    features: Count | None = None
    """Number of features (default: that of the first site)."""
    max_rows: Count = 1 << 24
    """Largest number of rows of a site. DRO's y has an entry for each of them."""
    bound: Annotated[float, Field(gt=0)] | None = None
    """Largest Euclidean norm of a reply (default: no bound)."""
    filter: str = "norm"
    """Filter against false answers: norm, multi-krum or none."""
    norm_factor: Annotated[float, Field(gt=1)] = 30.0
    """Largest norm of a reply, as a multiple of the median norm."""
    faulty: Annotated[int, Field(ge=0)] = 0
    """Number of sites in an exchange that may send false answers, for multi-krum."""
    share_losses: bool = False
    """Let sites send the losses of single rows, which DRO needs to evaluate Phi."""
    test: str | None = None
    """File with test rows, or a9a. The server scores these rows at each evaluation."""
    label: str = "label"
    """Label column of the file `test`."""
    positive: str | None = None
    """Label of the positive class in the file `test`."""

    @field_validator("filter")
    @classmethod
    def known_filter(cls, value: str) -> str:
        """Return the name of a known filter; raise for filters that make V wrong."""
        if value in COORDINATES:
            raise ValueError(
                "must be norm, multi-krum or none: a median or mean of single "
                "coordinates puts numbers into V = sum of v_i that no site has"
            )
        if value not in FILTERS:
            raise ValueError(f"must be one of {', '.join(FILTERS)}")
        return value


def read_settings(path: Path) -> tuple[Config, Options]:
    """Read the server's file: return its configuration and its table `[federation]`."""
    values, text = configs.read_toml(path)
    table = values.pop(TABLE, {})
    model = values.get("model")
    if isinstance(model, str) and is_own(model) and model not in OWN:
        values["model"] = allow(model, path.parent)
    try:
        check_keys(values)
        config = check_config(configs.build(values, str(path), text))
        if not isinstance(table, dict):
            raise BadValue(
                f"`{TABLE}` must be a TOML table that begins with the line [{TABLE}], "
                f"got {table!r}."
            )
        try:
            options = Options(**table)
        except ValidationError as error:
            raise BadValue(configs.sentence(error, Options, TABLE)) from None
        check_numbers(config, options)
    except BadValue as error:
        begin = "" if str(error).startswith(str(path)) else f"{path}: "
        raise BadValue(f"{begin}{error}") from None
    return config, options


def check_keys(values: dict[str, Any]) -> None:
    """Raise `BadValue` for keys that are for simulations only."""
    brought = "a federation runs one seed, on the rows that the sites bring; remove it"
    watched = "a federation runs all rounds and writes history.csv; remove it"
    reasons = dict.fromkeys(BROUGHT, brought) | dict.fromkeys(WATCHED, watched)
    for key in values:
        if key in reasons:
            raise BadValue(f"`{key}` is for simulations; {reasons[key]}.")


def check_config(config: Config) -> Config:
    """Return the resolved configuration; raise if a federation cannot run it."""
    if len(config.algorithms) != 1:
        names = ", ".join(config.algorithms)
        raise BadValue(
            f"`algorithms` must have one name in a federation, got {names}; keep one."
        )
    able = [name for name, kind in PROBLEMS.items() if kind.federates]
    check.choice("problem", config.problem, able)
    kind = PROBLEMS[config.problem]
    config = resolve(config)
    method_of(config, config.algorithms[0])
    for parameter in config.set.get(config.problem, {}):
        check.choice(f"set {config.problem}", parameter, kind.options())
    return config


def check_numbers(config: Config, options: Options) -> None:
    """Raise `BadValue` if a round asks fewer sites than the options need."""
    need = max(least(options.filter, options.faulty), options.min_clients)
    if options.filter == "multi-krum":
        # The filter removes `faulty` answers, and at least `min_clients` must remain.
        need = max(need, options.min_clients + options.faulty)
        if not options.faulty:
            raise BadValue(
                f"`{TABLE}.faulty` must be at least 1 if `{TABLE}.filter` is "
                "multi-krum, got 0; give the number of sites that may send false "
                "answers."
            )
    asked = config.cohort or options.sites
    if asked < need:
        key = "cohort" if config.cohort else f"{TABLE}.sites"
        raise BadValue(
            f"`{key}` must be at least {need} for `{TABLE}.min_clients` and "
            f"`{TABLE}.filter`, got {asked}."
        )


def write_settings(config: Config, options: Options) -> str:
    """Return configuration and options as TOML, which `read_settings` can read."""
    values = config.model_dump(exclude_none=True, exclude=set(BROUGHT))
    given = options.model_dump(exclude_none=True)
    return configs.toml_text({"schema": configs.SCHEMA, **values, TABLE: given})


class Terms(BaseModel):
    """The configuration of a run, with constants that follow from all sites' rows."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    config: Config
    clients: Count  # the number of sites at the start of the run
    features: Count  # the number of features
    samples: Count  # the number of rows of the largest site
    # tau: the share of positive rows of a site, averaged over the sites.
    tau: Annotated[float, Field(gt=0, lt=1)]
    # Mean and scale of each feature over all sites. None: no standardisation.
    mean: tuple[float, ...] | None = None
    scale: tuple[float, ...] | None = None

    @classmethod
    def settle(cls, config: Config, sites: list[Introduction]) -> "Terms":
        """Return the terms that follow from the introductions of the first sites."""
        widths = sorted({site.features for site in sites})
        if len(widths) > 1:
            raise BadValue(
                f"all sites must have the same number of features, got {widths[0]} and "
                f"{widths[-1]}; check their files and label columns."
            )
        # The mean of the shares, because every site has the same weight in f.
        shares = [site.positives / site.rows for site in sites]
        tau = sum(shares) / len(shares)
        if not 0 < tau < 1:
            raise BadValue(
                "the sites together must have rows of both classes, got only "
                f"{'positive' if tau else 'negative'} ones; check --positive."
            )
        terms = cls(
            config=config,
            clients=len(sites),
            features=widths[0],
            samples=max(site.rows for site in sites),
            tau=tau,
        )
        if not config.standardise:
            return terms
        of = lambda s: FeatureMoments(s.rows, np.array(s.mean), np.array(s.squares))
        scaling = Scaling.from_clients(map(of, sites))
        # Nine digits determine a single-precision number. More would lengthen letters.
        short = lambda column: tuple(float(f"{value:.9g}") for value in column)
        columns = {name: short(c) for name, c in scaling._asdict().items()}
        return terms.model_copy(update=columns)

    @classmethod
    def read(cls, text: str) -> "Terms":
        """Return the terms from their JSON text; raise `BadValue` if it is invalid."""
        try:
            return cls(**json.loads(text))
        except (ValidationError, ValueError, TypeError):
            raise BadValue(
                "the terms in a letter or manifest must be those of this version of "
                "sagda; install the same version on the server and at every site."
            ) from None

    @property
    def text(self) -> str:
        """Return the terms as JSON. Its digest is the field `config` of messages."""
        return json.dumps(self.model_dump(mode="json", exclude_none=True))

    @property
    def scaling(self) -> Scaling | None:
        """Return the scaling that every site applies to its features, or None."""
        if self.mean is None or self.scale is None:
            return None
        return Scaling(np.array(self.mean), np.array(self.scale))

    def recipe(
        self,
        label: str,
        positive: Any,
        calibration: list[float] | None,
        encoding: Encoding | None = None,
    ) -> dict[str, Any]:
        """Return the content of recipe.json, which `sagda score` needs.

        Args:
            label: the name of the label column.
            positive: the label of the positive class.
            calibration: slope and offset of the calibrated scores, if known.
            encoding: how columns become features. Only a site knows the names of its
                columns, so the server passes None.
        """
        name, seed = self.config.algorithms[0], self.config.seed
        model = ModelEntry(name, seed, calibration=calibration)
        recipe = Recipe(encoding, self.scaling or Scaling.none(self.features))
        return recipe_of(
            self.config,
            self.facts,
            label=label,
            positive=positive,
            models=[model],
            recipe=recipe,
        )

    @property
    def facts(self) -> Facts:
        """Return the facts about the rows of all sites that problems need."""
        return Facts(self.clients, self.features, self.samples, self.tau)

    @property
    def problem(self) -> Problem:
        """Return the problem, built from the configuration and from `facts`."""
        config = self.config
        options = config.set.get(config.problem, {})
        problem = problem_of(config.problem, self.facts, config.model, options)
        return treated(problem, config)

    def plan(self, run: str) -> Plan:
        """Return the plan of the run called `run`."""
        config, problem = self.config, self.problem
        if problem.uses_torch:
            from sagda.models.torch import check_models

            check_models(problem, self.features)
        return Plan(
            method=method_of(config, config.algorithms[0]),
            problem=problem,
            run=run,
            config=durable.digest(self.text.encode()),
            seed=config.seed,
            batch_size=None if config.batch_size == "all" else config.batch_size,
            # The default is above any number of members, so that all take part.
            cohort=config.cohort or 2**31 - 1,
            width=self.features,
            float64=config.float64,
        )
