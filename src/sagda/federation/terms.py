"""The terms of a run: the server's file, and the constants settled with its sites.

`Options` is the table `[federation]` of the server's file; everything else in it is a
configuration as simulations have it (`runs.config`). `Terms` travel in every letter,
and both sides derive the same `plan` from them.
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
# Keys of simulations: in a federation the sites bring rows and partition.
BROUGHT = (
    "data", "label", "client_column", "categorical", "positive", "per_class",
    "clients", "samples", "partition", "alpha", "split_seed", "dropout", "seeds",
    "layout", "grid", "trials",
)  # fmt: skip
WATCHED = ("track", "stop_early", "patience")
WIDEST = 1000  # features that can be standardised: two numbers each in each letter
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Options(BaseModel):
    """How a federation runs its rounds: the table `[federation]`."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True
    )

    sites: Count = 2
    """Sites that must be connected before the first round."""
    min_clients: Count = 2
    """Answers that every exchange of a round needs. With fewer it is repeated."""
    timeout: Seconds = 120.0
    """Seconds that an exchange may take."""
    wait: Seconds = 600.0
    """Seconds to wait for sites before the server ends. Its state stays on disk."""
    max_absence: Count | None = None
    """Rounds without an answer after which a site is removed (default: never)."""
    features: Count | None = None
    """Number of features (default: the first site's)."""
    max_rows: Count = 1 << 24
    """Rows that a site may have. DRO's y has one number for each row of the largest."""
    bound: Annotated[float, Field(gt=0)] | None = None
    """Largest Euclidean norm of a reply (default: no bound)."""
    filter: str = "norm"
    """Filter against false answers: norm, multi-krum or none."""
    norm_factor: Annotated[float, Field(gt=1)] = 30.0
    """How many times longer than the median an answer may be."""
    faulty: Annotated[int, Field(ge=0)] = 0
    """Sites of an exchange that may lie, for multi-krum."""
    share_losses: bool = False
    """Let sites send the losses of single rows, which DRO needs to evaluate Phi."""
    test: str | None = None
    """File with test rows that the server scores, or a9a."""
    label: str = "label"
    """Label column of that file."""
    positive: str | None = None
    """Label of the positive class in that file."""

    @field_validator("filter")
    @classmethod
    def known_filter(cls, value: str) -> str:
        """A filter that keeps V exact, or an error that says why not."""
        if value in COORDINATES:
            raise ValueError(
                "must choose among whole answers: a median or mean of single "
                "coordinates puts numbers into V = sum of v_i that no site has, and "
                "every later correction would be wrong; use norm or multi-krum"
            )
        if value not in FILTERS:
            raise ValueError(f"must be one of {', '.join(FILTERS)}")
        return value


def read_terms(path: Path) -> tuple[Config, Options]:
    """Read a server's file: a configuration with a table `[federation]`."""
    values, text = configs.read_toml(path)
    table = values.pop(TABLE, {})
    model = values.get("model")
    if isinstance(model, str) and is_own(model) and model not in OWN:
        values["model"] = allow(model, path.parent)
    try:
        check_keys(values)
        config = check_config(configs.build(values, str(path), text))
        if not isinstance(table, dict):
            raise BadValue(f"`{TABLE}` must be a table, got {table!r}.")
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
    """Raise for keys that only simulations take."""
    brought = "in a federation every site brings its own rows, and one seed is run"
    watched = "a federation runs all its rounds and keeps history.csv"
    reasons = dict.fromkeys(BROUGHT, brought) | dict.fromkeys(WATCHED, watched)
    for key in values:
        if key in reasons:
            raise BadValue(f"`{key}` is for simulations; {reasons[key]}.")


def check_config(config: Config) -> Config:
    """The resolved configuration, if a federation can run it."""
    if len(config.algorithms) != 1:
        names = ", ".join(config.algorithms)
        raise BadValue(f"a federation runs one algorithm, got {names}.")
    able = [name for name, kind in PROBLEMS.items() if kind.federates]
    check.choice("problem", config.problem, able)
    kind = PROBLEMS[config.problem]
    config = resolve(config)
    method_of(config, config.algorithms[0])
    for parameter in config.set.get(config.problem, {}):
        check.choice(f"set {config.problem}", parameter, kind.options())
    return config


def check_numbers(config: Config, options: Options) -> None:
    """Raise if a round asks fewer sites than the options need."""
    need = max(least(options.filter, options.faulty), options.min_clients)
    if options.filter == "multi-krum":
        # The filter takes `faulty` answers away, and `min_clients` must be left.
        need = max(need, options.min_clients + options.faulty)
        if not options.faulty:
            raise BadValue(
                f"`{TABLE}.faulty` must say how many sites may lie if "
                f"`{TABLE}.filter` is multi-krum, got 0."
            )
    asked = config.cohort or options.sites
    if asked < need:
        key = "cohort" if config.cohort else f"{TABLE}.sites"
        raise BadValue(
            f"`{key}` must be at least {need} for `{TABLE}.min_clients` and "
            f"`{TABLE}.filter`, got {asked}."
        )


def write_terms(config: Config, options: Options) -> str:
    """Configuration and options as one TOML text, which `read_terms` reads back."""
    values = config.model_dump(exclude_none=True, exclude=set(BROUGHT))
    given = options.model_dump(exclude_none=True)
    return configs.toml_text({"schema": configs.SCHEMA, **values, TABLE: given})


class Terms(BaseModel):
    """A configuration with the constants that follow from all sites together."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    config: Config
    clients: Count  # sites when the run began
    features: Count
    samples: Count  # rows of the largest site
    tau: Annotated[float, Field(gt=0, lt=1)]  # the sites' mean share of positives
    mean: tuple[float, ...] | None = None  # of every feature over all sites
    scale: tuple[float, ...] | None = None  # both None unless features are standardised

    @classmethod
    def settle(cls, config: Config, sites: list[Introduction]) -> "Terms":
        """The terms that follow from what the first sites said of their rows."""
        widths = sorted({site.features for site in sites})
        if len(widths) > 1:
            raise BadValue(
                f"all sites must have one number of features, got {widths[0]} and "
                f"{widths[-1]}; check their files and label columns."
            )
        # The mean of shares, not the share of all rows: each site counts alike in f.
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
        # Nine digits determine a single-precision number and keep letters short.
        short = lambda column: tuple(float(f"{value:.9g}") for value in column)
        columns = {name: short(c) for name, c in scaling._asdict().items()}
        return terms.model_copy(update=columns)

    @classmethod
    def read(cls, text: str) -> "Terms":
        """The terms from their JSON text."""
        try:
            return cls(**json.loads(text))
        except (ValidationError, ValueError, TypeError):
            raise BadValue(
                "the terms must be those of this version of sagda; install the same "
                "version on the server and at every site."
            ) from None

    @property
    def text(self) -> str:
        """The terms as JSON; its digest names the configuration in every message."""
        return json.dumps(self.model_dump(mode="json", exclude_none=True))

    @property
    def scaling(self) -> Scaling | None:
        """The scaling that every site applies to its features, if any."""
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
        """The content of recipe.json, with which the model scores rows of a file.

        A site passes `encoding`, because it knows the names of its columns. The server
        knows only their number.
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
        """What problems need to know about the sites' rows."""
        return Facts(self.clients, self.features, self.samples, self.tau)

    @property
    def problem(self) -> Problem:
        """The problem, built from the configuration and the sites' facts."""
        config = self.config
        options = config.set.get(config.problem, {})
        problem = problem_of(config.problem, self.facts, config.model, options)
        return treated(problem, config)

    def plan(self, run: str) -> Plan:
        """The plan of the run of that name."""
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
            # Without a cohort every member takes part, however many join later.
            cohort=config.cohort or 2**31 - 1,
            width=self.features,
            float64=config.float64,
        )
