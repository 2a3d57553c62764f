"""A site as its folder describes it: settings, state, and the answer to any letter.

Each letter may be answered by a new process, so everything that must last is in files
of this folder. Rows are read in `site.rows`, the protocol's state is in `site.cache`,
and rounds are computed in `site.site`.
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
FEWEST = 10  # rows of a site that sends moments: fewer could be told from them


@dataclass(frozen=True)
class SiteFolder:
    """One site: its settings, and the folder with its state."""

    name: str
    data: str  # the file with its rows
    state: Path  # the folder
    label: str = "label"
    positive: str | None = None
    key: str | None = None  # the file of its private key; None: nothing is signed
    least: int = 2  # this site refuses rounds that need fewer answers
    model: str | None = None  # FILE.py:FUNCTION that the server may name

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "SiteFolder":
        """A site from the configuration of its node: `data`, and more where needed."""
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
        """The site whose folder this is."""
        try:
            values = json.loads((state / SITE).read_text(encoding="utf-8"))
            return cls.of(values | {"state": str(state)})
        except (OSError, ValueError, TypeError):
            raise BadValue(
                f"{state} is not a site's folder: no {SITE}; `sagda join` makes one."
            ) from None

    @property
    def settings(self) -> dict[str, Any]:
        """The values that `of` takes, as plain text and numbers."""
        values = asdict(self) | {"state": str(self.state)}
        return {key: value for key, value in values.items() if value is not None}

    @property
    def signer(self) -> Signer | None:
        """The site's private key, if it has one."""
        return None if self.key is None else Signer.read(Path(self.key))

    def rows(self, scaling: Scaling | None = None) -> Federation:
        """This site's rows, with scaled features if `scaling` is given."""
        return site_rows(self.state, self.data, self.label, self.positive, scaling)

    def answer(self, letter: Letter) -> Letter:
        """The answer to any letter of the server."""
        note = letter.note
        if isinstance(note, Introduce):
            return Letter(self.introduction(note.moments))
        terms = Terms.read(letter.terms)
        model = terms.config.model
        # A plan runs the model's code: only what this site's settings name may run.
        if is_own(model) and (self.model is None or allow(self.model) != model):
            raise Refused("site", f"the model {model} is not allowed: see --model.")
        plan, specs = agreed(letter.terms, note.run)
        if note.config != plan.config:
            raise Refused("site", "the terms must be those of the configuration.")
        if isinstance(note, Instruction) and note.min_clients < self.least:
            raise Refused("alone", f"fewer than {self.least} sites answer together.")
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
        return reply or Letter(Fault("ignored", "a newer letter was answered before."))

    def introduction(self, moments: bool = False) -> Introduction:
        """The site's name and counts, and the moments of its features if wanted.

        Also writes the settings into the folder, which is then complete.
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
            raise Refused("site", f"moments need at least {FEWEST} rows.")
        _, mean, squares = FeatureMoments.of(rows.features)
        return introduction._replace(
            mean=tuple(mean.tolist()), squares=tuple(squares.tolist())
        )

    def farewell(self, note: Bye, specs: Specs, terms: Terms) -> None:
        """Write the model, its recipe for scoring, and how the run ended."""
        from sagda.simulator.run import named

        z = specs.point.unpack(note.model)
        arrays = named(z.x, "x") | named(z.y, "y")
        durable.private(self.state)
        durable.write(self.state / MODEL, safetensors.numpy.save(arrays))
        positive, encoding = number(self.positive or "1"), encoding_of(self.state)
        recipe = terms.recipe(self.label, positive, note.calibration, encoding)
        durable.write(self.state / RECIPE, durable.as_json(recipe))
        ending = {"run": note.run, "round": note.round, "reason": note.reason}
        # Last: `sagda join` ends when this file appears.
        durable.write(self.state / FAREWELL, json.dumps(ending) + "\n")


@cache
def agreed(terms: str, run: str) -> tuple[Plan, Specs]:
    """Plan and specifications of a run, from the terms in its letters."""
    plan = Terms.read(terms).plan(run)
    return plan, Specs.of(plan)
