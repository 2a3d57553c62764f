"""`SiteFolder`: a site's settings and state in a folder, and its answer to any letter.

A new process may answer each letter, so all state is in files of this folder. `rows`
reads the data, `cache` stores the state of the protocol, and `site` computes rounds.
"""

import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import safetensors.numpy

from sagda import check, durable
from sagda.check import BadValue
from sagda.data.datasets import number
from sagda.data.federation import Federation
from sagda.data.recipe import FeatureMoments, Scaling
from sagda.federation.plan import Plan, Specs
from sagda.federation.protocol.letters import (
    Bye,
    Fault,
    Introduce,
    Introduction,
    Letter,
    Thanks,
)
from sagda.federation.protocol.messages import Instruction
from sagda.federation.protocol.wire import Refused
from sagda.federation.site.cache import SiteCacheFile
from sagda.federation.site.rows import encoding_of, site_rows
from sagda.federation.site.site import Site
from sagda.federation.terms import Terms
from sagda.federation.trust.site_keys import Signer, check_name
from sagda.models.user_code import allow, is_own
from sagda.scoring.scorer import RECIPE

FAREWELL, LEAVING, MODEL = "farewell.json", "leaving", "model.safetensors"
SITE = "site.json"  # the settings
# A site with fewer rows sends no moments, because they could reveal single rows.
FEWEST = 10


@dataclass(frozen=True)
class SiteFolder:
    """One site: its settings, and the folder that holds its state."""

    name: str
    data: str  # the file with the site's rows
    state: Path  # the folder
    label: str = "label"  # the column with the labels
    positive: str | None = None  # the label of the positive class
    key: str | None = None  # the file of the private key. None: answers are not signed
    least: int = 2  # the site refuses a round whose `min_clients` is smaller
    model: str | None = None  # FILE.py:FUNCTION, the only custom model it may run

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "SiteFolder":
        """Make a site from the configuration of its node. Only `data` is required."""
        data = values.get("data")
        if not isinstance(data, str):
            raise BadValue(
                f"`data` must be the file with the site's rows, got {data!r}; give it "
                "with --data."
            )
        name = check_name(str(values.get("name") or Path(data).stem))
        texts = ("label", "positive", "key", "model")
        return cls(
            name=name,
            data=data,
            state=Path(str(values.get("state") or f"sagda-{name}")),
            least=check.integer("least", int(values.get("least", 2)), low=1),
            **{key: str(values[key]) for key in texts if values.get(key) is not None},
        )

    @classmethod
    def in_folder(cls, state: Path) -> "SiteFolder":
        """Read the settings of the site whose folder is `state`."""
        try:
            values = json.loads((state / SITE).read_text(encoding="utf-8"))
            return cls.of(values | {"state": str(state)})
        except (OSError, ValueError, TypeError):
            raise BadValue(
                f"{state} is not a site's folder: it must contain a valid {SITE}; "
                "`sagda join` makes one."
            ) from None

    @property
    def settings(self) -> dict[str, Any]:
        """The settings as text and numbers, in the form that `of` reads."""
        values = asdict(self) | {"state": str(self.state)}
        return {key: value for key, value in values.items() if value is not None}

    @property
    def signer(self) -> Signer | None:
        """The site's private key, or None if it has no key."""
        return None if self.key is None else Signer.read(Path(self.key))

    def rows(self, scaling: Scaling | None = None) -> Federation:
        """Return the site's rows, with scaled features if `scaling` is given."""
        return site_rows(self.state, self.data, self.label, self.positive, scaling)

    def answer(self, letter: Letter) -> Letter:
        """Return the site's answer to a letter of any kind.

        Raises `Refused` if the settings of the site forbid an answer.
        """
        note = letter.note
        if isinstance(note, Introduce):
            return Letter(self.introduction(note.moments))
        terms = Terms.read(letter.terms)
        model = terms.config.model
        # Making a plan runs the code of the model, so the settings must allow it.
        if is_own(model) and (self.model is None or allow(self.model) != model):
            raise Refused("site", f"the model {model} must be allowed with --model.")
        plan, specs = agreed(letter.terms, note.run)
        if note.config != plan.config:
            raise Refused("site", "the terms must match the letter's configuration.")
        if isinstance(note, Instruction) and note.min_clients < self.least:
            raise Refused("alone", f"`min_clients` must be at least {self.least}.")
        if isinstance(note, Bye):
            self.farewell(note, specs, terms)
            return Letter(Thanks(note.run, note.config))
        file = SiteCacheFile(self.state, note.run, specs)
        site = Site(
            plan,
            self.rows(terms.scaling),
            file.load(),
            file.save,
            nonce=lambda: secrets.randbits(128),
            specs=specs,
        )
        reply = site.handle(letter)
        return reply or Letter(Fault("ignored", "this site answered a newer letter."))

    def introduction(self, moments: bool = False) -> Introduction:
        """Return the site's name and counts of rows.

        The result includes the moments of the features if `moments` is true. The method
        also writes the settings into the folder, so that `in_folder` can read them.
        """
        rows = self.rows().data
        durable.private(self.state)
        durable.write(self.state / SITE, json.dumps(self.settings) + "\n")
        count, width = rows.features.shape
        introduction = Introduction(
            name=self.name,
            rows=count,
            positives=int((rows.label > 0).sum()),
            features=width,
            leaving=(self.state / LEAVING).exists(),
        )
        if not moments or introduction.leaving:
            return introduction
        if count < FEWEST:
            raise Refused("site", f"moments need a site with at least {FEWEST} rows.")
        _, mean, squares = FeatureMoments.of(rows.features)
        return introduction._replace(
            mean=tuple(mean.tolist()), squares=tuple(squares.tolist())
        )

    def farewell(self, note: Bye, specs: Specs, terms: Terms) -> None:
        """Store the model, the recipe for scoring with it, and how the run ended."""
        from sagda.simulator.run import named

        z = specs.point.unpack(note.model)
        arrays = named(z.x, "x") | named(z.y, "y")
        durable.private(self.state)
        durable.write(self.state / MODEL, safetensors.numpy.save(arrays))
        positive, encoding = number(self.positive or "1"), encoding_of(self.state)
        recipe = terms.recipe(self.label, positive, note.calibration, encoding)
        durable.write(self.state / RECIPE, durable.as_json(recipe))
        ending = {"run": note.run, "round": note.round, "reason": note.reason}
        # This file is the last one, because `sagda join` ends when it appears.
        durable.write(self.state / FAREWELL, json.dumps(ending) + "\n")


@cache
def agreed(terms: str, run: str) -> tuple[Plan, Specs]:
    """Return the plan and the specifications of a run, from the terms in a letter."""
    plan = Terms.read(terms).plan(run)
    return plan, Specs.of(plan)
