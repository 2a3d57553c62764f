"""`reproduce`: run figures into a folder, going on from what is there."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from sagda import durable
from sagda.check import BadValue
from sagda.paper.evidence import Evidence, compact, load, store
from sagda.paper.figure import SETTINGS, Figure, quick, read
from sagda.paper.tuning import retuned
from sagda.runs.config import Config, write_toml
from sagda.runs.experiment import prepare, resolve
from sagda.runs.folder import Watch, execute


class Job(NamedTuple):
    """One run folder."""

    figure: str
    setting: str
    part: str
    config: Config
    folder: Path
    work: float  # in seconds, roughly

    @property
    def finished(self) -> bool:
        """Whether the folder holds the results of this very configuration."""
        config = self.folder / "config.toml"
        done = (self.folder / "summary.json").is_file() and config.is_file()
        return done and config.read_text(encoding="utf-8") == write_toml(self.config)

    @property
    def title(self) -> str:
        return " ".join(part for part in (self.figure, self.setting, self.part) if part)


class Reproduction(NamedTuple):
    """What a reproduction asks for."""

    out: Path
    figures: dict[str, Figure]
    quick: bool

    @classmethod
    def of(
        cls,
        names: list[str],
        out: Path,
        *,
        quick: bool = False,
        retune: bool = False,
        say: Callable[[str], None] = lambda _: None,
    ) -> "Reproduction":
        figures = {}
        for name in names:
            figure = read(name, out)
            if retune and figure.tuning:
                figure = retuned(figure, say)
                out.mkdir(parents=True, exist_ok=True)
                durable.write(out / f"{name}.toml", figure.text)
            figures[name] = figure
        return cls(out, figures, quick)

    def jobs(self, figure: Figure) -> list[Job]:
        """By setting and part; resolved, so that a digest says all."""
        out = []
        for setting in SETTINGS:
            for part, config in figure.parts[setting].items():
                config = resolve(quick(config) if self.quick else config)
                points = 1
                for values in config.grid.values():
                    points *= len(values)
                runs = len(config.algorithms) * points * config.seeds
                work = 1e-3 * figure.cost * runs * config.rounds
                folder = self.out / figure.name / setting / part
                out.append(Job(figure.name, setting, part, config, folder, work))
        return out

    def path(self, name: str) -> Path:
        return self.out / "evidence" / f"{name}.json"

    def kept(self, name: str) -> Evidence | None:
        """The stored evidence, if it is of these configurations."""
        path = self.path(name)
        if not path.is_file():
            return None
        try:
            evidence = load(path)
        except (ValueError, KeyError, TypeError):
            raise BadValue(
                f"{path} is not evidence; remove it to run it again."
            ) from None
        same = evidence.digests == self.digests(name)
        return evidence if same else None

    def digests(self, name: str) -> dict[str, str]:
        texts: dict[str, str] = {}
        for job in self.jobs(self.figures[name]):
            texts[job.setting] = texts.get(job.setting, "") + write_toml(job.config)
        return {k: durable.digest(text.encode())[:16] for k, text in texts.items()}

    def run(self, name: str, watch: Callable[[Job], Watch]) -> Evidence:
        """A figure's runs, and its evidence kept."""
        figure = self.figures[name]
        curves: dict[str, dict] = {}
        for job in self.jobs(figure):
            show = watch(job)
            if not job.finished:
                execute(prepare(job.config), job.folder, show)
            curves.setdefault(job.setting, {}).update(compact(job.folder, job.part))
        evidence = Evidence(name, self.quick, self.digests(name), curves)
        self.path(name).parent.mkdir(parents=True, exist_ok=True)
        store(self.path(name), evidence)
        return load(self.path(name))
