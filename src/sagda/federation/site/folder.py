"""`SiteFolder`: where a site answers letters. Its state is one folder."""

import json
import secrets
import shutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy

from sagda import check, durable
from sagda.check import BadValue
from sagda.data.array_files import read_folder
from sagda.data.datasets import number
from sagda.data.encoding import Encoding
from sagda.data.federation import Federation, Table
from sagda.data.readers import read_encoded
from sagda.data.recipe import FeatureMoments, Scaling, scaled
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
from sagda.federation.site.site import Site
from sagda.federation.terms import Terms
from sagda.federation.trust.site_keys import Signer, check_name
from sagda.models.user_code import allow, is_own
from sagda.scoring.scorer import RECIPE

FAREWELL, LEAVING, MODEL = "farewell.json", "leaving", "model.safetensors"
SITE = "site.json"
NAMES = "columns.json"  # of the features, where a site's file names them
FEWEST = 10  # rows of a site that tells its moments


class SiteFolder(NamedTuple):
    """One site: its name, its file, and the folder in which it keeps what it must."""

    name: str
    data: str
    state: Path
    label: str = "label"
    positive: str | None = None
    key: str | None = None  # the file of its private key; without one nothing is signed
    least: int = 2  # sites that must answer together before this one does
    model: str | None = None  # FILE.py:FUNCTION that this site lets the server name

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> "SiteFolder":
        """From the configuration of a node: name, data, and more where needed."""
        data = told.get("data")
        if not isinstance(data, str):
            raise BadValue("a site needs `data`, the file with its rows.")
        name = str(told.get("name") or Path(data).stem)
        check_name(name)
        state = Path(str(told.get("state") or f"sagda-{name}"))
        text = lambda key: None if told.get(key) is None else str(told[key])
        return cls(
            name,
            data,
            state,
            str(told.get("label", "label")),
            text("positive"),
            text("key"),
            check.integer("least", int(told.get("least", 2)), low=1),
            text("model"),
        )

    @classmethod
    def in_folder(cls, state: Path) -> "SiteFolder":
        """A site as its own folder describes it."""
        try:
            told = json.loads((state / SITE).read_text(encoding="utf-8"))
            return cls.of(told | {"state": str(state)})
        except (OSError, ValueError, TypeError):
            raise BadValue(
                f"{state} is not a site's folder: no {SITE}; `sagda join` makes one."
            ) from None

    @property
    def settings(self) -> dict[str, Any]:
        """What `of` takes."""
        found = self._asdict() | {"state": str(self.state)}
        return {key: value for key, value in found.items() if value is not None}

    @property
    def signer(self) -> Signer | None:
        return None if self.key is None else Signer.read(Path(self.key))

    def answer(self, letter: Letter) -> Letter:
        """The answer to any letter; a failure stays here, but for its kind."""
        note = letter.note
        if isinstance(note, Introduce):
            return Letter(self.census(note.moments))
        self.allow(letter.terms)
        plan, specs, scaling = agreed(letter.terms, note.run)
        if note.config != plan.config:
            raise Refused("site", "terms that are not the configuration's.")
        if isinstance(note, Instruction) and note.together < self.least:
            raise Refused("alone", f"fewer than {self.least} sites answer together.")
        if isinstance(note, Bye):
            self.farewell(note, specs, Terms.read(letter.terms))
            return Letter(Thanks(note.run, note.config))
        shelf = SiteCacheFile(self.state, note.run, specs)
        draw = lambda: secrets.randbits(128)
        site = Site(plan, self.rows(scaling), shelf.load(), shelf.save, draw, specs)
        answer = site.handle(letter)
        return answer or Letter(Fault("ignored", "a letter that was overtaken."))

    def allow(self, terms: str) -> None:
        """A model that is code runs here only if this site's own people named it."""
        wanted = Terms.read(terms).config.model
        if is_own(wanted) and (self.model is None or allow(self.model) != wanted):
            raise Refused("site", f"the model {wanted} is not allowed: see --model.")

    def census(self, moments: bool = False) -> Introduction:
        """Who this is; the moments of its features only if they hide single rows."""
        rows = self.rows().data
        durable.private(self.state)
        durable.write(self.state / SITE, json.dumps(self.settings) + "\n")
        positives = int((rows.label > 0).sum())
        leaving = (self.state / LEAVING).exists()
        count, width = rows.features.shape
        found = Introduction(self.name, count, positives, width, leaving)
        if not moments or leaving:
            return found
        if count < FEWEST:
            raise Refused("site", f"moments need {FEWEST} rows at least.")
        _, mean, squares = FeatureMoments.of(rows.features)
        return found._replace(
            mean=tuple(mean.tolist()), squares=tuple(squares.tolist())
        )

    def farewell(self, note: Bye, specs: Specs, terms: Terms) -> None:
        """Keep the model, what scoring needs, and the word that it is over."""
        z = specs.point.unpack(note.model)
        from sagda.simulator.run import named

        arrays = named(z.x, "x") | named(z.y, "y")
        durable.private(self.state)
        durable.write(self.state / MODEL, safetensors.numpy.save(arrays))
        positive = number(self.positive or "1")
        encoding = None
        for path in self.state.glob(f"rows-*/{NAMES}"):
            encoding = Encoding.from_json(json.loads(path.read_text("utf-8")))
        recipe = terms.recipe(self.label, positive, note.calibration, encoding)
        durable.write(self.state / RECIPE, durable.as_json(recipe))
        said = {"run": note.run, "round": note.round, "reason": note.reason}
        durable.write(self.state / FAREWELL, json.dumps(said) + "\n")

    def rows(self, scaling: Scaling | None = None) -> Federation:
        """This site's rows, read once and kept as columns that can be mapped."""
        folder = self.columns()
        if scaling is not None:
            name = durable.digest(np.stack(scaling).tobytes())[:16]
            other = folder.with_name(f"{folder.name}-{name}")
            if not other.exists():
                for old in self.state.glob(f"{folder.name}-*"):
                    shutil.rmtree(old)
                table = read_folder(folder, "label", None)
                write_columns(other, scaled(table, scaling))
            folder = other
        table = read_folder(folder, "label", None)
        count = len(table.label)
        return Federation.of(table, np.arange(count), np.array([count]))

    def columns(self) -> Path:
        """The folder with the columns of the file as it is now."""
        path = Path(self.data)
        try:
            found = path.stat()
            mark = [str(path.resolve()), found.st_mtime_ns, found.st_size]
        except FileNotFoundError:
            mark = [self.data]
        mark += [self.label, self.positive]
        name = durable.digest(json.dumps(mark).encode())[:16]
        folder = durable.private(self.state) / f"rows-{name}"
        if not folder.exists():
            table, encoding = read_encoded(path, self.label, None, numeric=True)
            for old in self.state.glob("rows-*"):
                shutil.rmtree(old)
            write_columns(folder, signed(table, self.positive), encoding)
        return folder


@cache
def agreed(terms: str, run: str) -> tuple[Plan, Specs, Scaling | None]:
    found = Terms.read(terms)
    plan = found.plan(run)
    return plan, Specs.of(plan), found.scaling


def signed(table: Table, positive: str | None) -> Table:
    """Labels as -1 and +1; a site may well hold rows of one class only."""
    label = np.asarray(table.label)
    if positive is not None:
        wanted = number(positive) if label.dtype.kind in "fiub" else positive
        return table._replace(label=np.where(label == wanted, 1.0, -1.0))
    found = np.unique(label)
    if label.dtype.kind not in "fiub" or not np.isin(found, (-1, 0, 1)).all():
        raise BadValue(
            f"labels must be -1 and +1, or 0 and 1, found {len(found)} others such as "
            f"{found[0]}; name the positive class with --positive."
        )
    return table._replace(label=np.where(label > 0, 1.0, -1.0))


def write_columns(folder: Path, table: Table, encoding: Encoding | None = None) -> None:
    """Whole, or not there."""
    part = folder.with_name(folder.name + durable.TEMPORARY)
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(mode=0o700)
    np.save(part / "features.npy", np.asarray(table.features))
    np.save(part / "label.npy", np.asarray(table.label, np.float32))
    if encoding is not None:
        (part / NAMES).write_text(json.dumps(encoding.as_json()), "utf-8")
    part.rename(folder)
