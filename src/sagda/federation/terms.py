"""What a federation runs: the server's file, and what it settles with its sites."""

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
from sagda.runs.experiment import method_of, resolve, treated
from sagda.runs.model_file import ModelEntry, recipe_of

TABLE = "federation"
# What a simulation decides and sites bring with them.
BROUGHT = (
    "data", "label", "client_column", "categorical", "positive", "per_class",
    "clients", "samples", "partition", "alpha", "split_seed", "dropout", "seeds",
    "layout", "stream", "grid", "trials",
)  # fmt: skip
WATCHED = ("track", "stop_early", "patience")
WIDEST = 1000  # features that are standardised: two numbers each in every letter
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Options(BaseModel):
    """How a federation goes about its rounds: the table `[federation]`."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True
    )

    sites: Count = 2
    """How many sites must be there before the first round."""
    min_clients: Count = 2
    """Answers that every exchange of a round needs; with fewer it is repeated."""
    timeout: Seconds = 120.0
    """Seconds that an exchange may take."""
    wait: Seconds = 600.0
    """Seconds to wait for sites before giving up; the state is kept."""
    max_absence: Count | None = None
    """Rounds asked in vain after which a site is removed with its variate (never)."""
    features: Count | None = None
    """The width of rows (default: the first site's)."""
    max_rows: Count = 1 << 24
    """Rows that a site may say it has; DRO's y has as many numbers as the largest."""
    bound: Annotated[float, Field(gt=0)] | None = None
    """The longest reply that is accepted, as a Euclidean norm (default: any)."""
    filter: str = "norm"
    """Which answers are believed: norm, multi-krum or none."""
    norm_factor: Annotated[float, Field(gt=1)] = 30.0
    """How many times longer than the middle one an answer may be."""
    faulty: Annotated[int, Field(ge=0)] = 0
    """How many sites of an exchange may lie, for multi-krum."""
    share_losses: bool = False
    """Let sites send the losses of single rows, which DRO needs to measure Phi."""
    test: str | None = None
    """A file with test rows for the server to score, or a9a."""
    label: str = "label"
    """The label column of that file."""
    positive: str | None = None
    """The label of the positive class in that file."""

    @field_validator("filter")
    @classmethod
    def known_filter(cls, value: str) -> str:
        if value in COORDINATES:
            raise ValueError(
                "must choose among whole answers: a median or mean taken coordinate by "
                "coordinate puts into V = sum of v_i what no site holds, and the "
                "correction would be wrong ever after; take norm or multi-krum"
            )
        if value not in FILTERS:
            raise ValueError(f"must be one of {', '.join(FILTERS)}")
        return value


def read_terms(path: Path) -> tuple[Config, Options]:
    """A server's file: keys as in any configuration, and a table `[federation]`."""
    values, text = configs.read_toml(path)
    table = values.pop(TABLE, {})
    model = values.get("model")
    if isinstance(model, str) and is_own(model) and model not in OWN:
        values["model"] = allow(model, path.parent)
    return checked(values, table, str(path), text)


def checked(
    values: dict[str, Any], table: Any, where: str = "", text: str = ""
) -> tuple[Config, Options]:
    for key in BROUGHT:
        if key in values:
            raise BadValue(
                f"{where}: `{key}` is for simulations; in a federation every site "
                "brings its own rows, and one seed is run."
            )
    for key in WATCHED:
        if key in values:
            raise BadValue(
                f"{where}: `{key}` is for simulations; a federation runs all its "
                "rounds and keeps history.csv."
            )
    config = configs.build(values, where, text)
    if len(config.algorithms) != 1:
        raise BadValue(
            f"{where}: a federation runs one algorithm, got "
            f"{', '.join(config.algorithms)}."
        )
    check.choice("problem", config.problem, PROBLEMS)
    kind = PROBLEMS[config.problem]
    if not kind.federates:
        able = [name for name, kind in PROBLEMS.items() if kind.federates]
        raise BadValue(
            f"{where}: `problem` must be one of {', '.join(able)} in a federation, got "
            f"{config.problem}."
        )
    config = resolve(config)
    method_of(config, config.algorithms[0])
    for parameter in config.set.get(config.problem, {}):
        check.choice(f"set {config.problem}", parameter, kind.options())
    if not isinstance(table, dict):
        raise BadValue(f"{where}: `{TABLE}` must be a table.")
    try:
        options = Options(**table)
    except ValidationError as error:
        raise BadValue(f"{where}: {configs.sentence(error, Options, TABLE)}") from None
    asked = config.cohort or options.sites
    need = max(least(options.filter, options.faulty), options.min_clients)
    if options.filter == "multi-krum":
        need = max(need, options.min_clients + options.faulty)
        if not options.faulty:
            raise BadValue(
                f"{where}: `{TABLE}.faulty` must say how many sites may lie where "
                f"`{TABLE}.filter` is multi-krum."
            )
    if asked < need:
        raise BadValue(
            f"{where}: `{'cohort' if config.cohort else TABLE + '.sites'}` must be at "
            f"least {need} for `{TABLE}.min_clients` and `{TABLE}.filter`, got {asked}."
        )
    return config, options


def write_terms(config: Config, options: Options) -> str:
    """Both as one TOML text; reading it gives them again."""
    values = config.model_dump(exclude_none=True, exclude=set(BROUGHT))
    given = options.model_dump(exclude_none=True)
    return configs.toml_text({"schema": configs.SCHEMA, **values, TABLE: given})


class Terms(BaseModel):
    """The configuration, and the constants that follow from all sites together."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    config: Config
    clients: Count  # sites when the run began
    features: Count
    samples: Count  # rows of the largest site
    tau: Annotated[float, Field(gt=0, lt=1)]  # the sites' mean share of positives
    mean: tuple[float, ...] | None = None  # of every feature over all sites
    scale: tuple[float, ...] | None = None  # both only where it is standardised

    @classmethod
    def settle(cls, config: Config, sites: list[Introduction]) -> "Terms":
        """From what the sites say of their rows."""
        widths = sorted({site.features for site in sites})
        if len(widths) > 1:
            raise BadValue(
                f"sites must have rows of one width, found {widths[0]} and "
                f"{widths[-1]} features."
            )
        shares = [site.positives / site.rows for site in sites]
        tau = sum(shares) / len(shares)
        if not 0 < tau < 1:
            raise BadValue(
                "sites must have rows of both classes among them, found only "
                f"{'positive' if tau else 'negative'} ones."
            )
        samples = max(site.rows for site in sites)
        found: dict[str, Any] = {
            "clients": len(sites),
            "features": widths[0],
            "samples": samples,
            "tau": tau,
        }
        if config.standardise:
            of = lambda s: FeatureMoments(s.rows, np.array(s.mean), np.array(s.squares))
            scaling = Scaling.from_clients(map(of, sites))
            # Nine digits tell single precision, and are short enough for every letter.
            for name, column in scaling._asdict().items():
                found[name] = tuple(float(f"{value:.9g}") for value in column)
        return cls(config=config, **found)

    @classmethod
    def read(cls, text: str) -> "Terms":
        try:
            return cls(**json.loads(text))
        except (ValidationError, ValueError, TypeError):
            raise BadValue("the server's terms cannot be read.") from None

    @property
    def text(self) -> str:
        return json.dumps(self.model_dump(mode="json", exclude_none=True))

    @property
    def scaling(self) -> Scaling | None:
        """What every site does to its features first."""
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
        """recipe.json: with it the model scores rows of files like the sites'.

        A site knows the names of its columns; the server only how many there are.
        """
        place = ModelEntry(self.config.algorithms[0], self.config.seed, "")
        model = place._asdict() | {"calibration": calibration}
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
        config = self.config
        options = config.set.get(config.problem, {})
        problem = problem_of(config.problem, self.facts, config.model, options)
        return treated(problem, config)

    def plan(self, run: str) -> Plan:
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
            cohort=config.cohort or 2**31 - 1,
            width=self.features,
            float64=config.float64,
        )

    def fits(self, site: Introduction) -> str | None:
        """Why a site cannot take part, if so."""
        if site.features != self.features:
            return f"has {site.features} features, the others {self.features}"
        most = self.problem.most_rows
        if most is not None and site.rows > most:
            return f"has {site.rows} rows, the run was settled for {most}"
        return None
