"""The runs of the paper's figures in a folder, and the evidence that they leave.

`Reproduction` skips runs that are finished and evidence that is stored. It shows no
progress and writes no page: `reproduce` does both.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from sagda import durable
from sagda.paper.evidence import Evidence, compact, load, store, unreadable
from sagda.paper.figure import SETTINGS, Figure, quick, read
from sagda.paper.tuning import retuned
from sagda.runs.config import Config, write_toml
from sagda.runs.execution import RunMonitor, execute
from sagda.runs.experiment import prepare, resolve


class Job(NamedTuple):
    """One run of a figure: its configuration and its run folder."""

    title: str
    setting: str
    part: str
    config: Config
    folder: Path
    work: float  # expected seconds, approximately

    @property
    def finished(self) -> bool:
        """True if the folder has results of exactly this configuration."""
        config = self.folder / "config.toml"
        done = (self.folder / "summary.json").is_file() and config.is_file()
        return done and config.read_text(encoding="utf-8") == write_toml(self.config)


def read_figures(
    names: list[str], out: Path, *, retune: bool, say: Callable[[str], None]
) -> dict[str, Figure]:
    """Read figures, by name.

    With `retune`, tune the rates of each figure first, and write its new file to `out`.
    """
    figures = {name: read(name, out) for name in names}
    if retune:
        for name, figure in figures.items():
            if figure.tuning:
                figures[name] = retuned(figure, say)
                out.mkdir(parents=True, exist_ok=True)
                durable.write(out / f"{name}.toml", figures[name].text)
    return figures


class Reproduction:
    """The runs and the evidence of some figures in one folder."""

    def __init__(self, figures: dict[str, Figure], out: Path, *, quick: bool = False):
        self.figures = figures
        self.out = out
        self.quick = quick

    def jobs(self, figure: Figure) -> list[Job]:
        """List the runs of a figure, in the order of settings and parts."""
        jobs = []
        for setting in SETTINGS:
            for part, config in figure.parts[setting].items():
                # Resolve defaults, so that the digest covers every value of the run.
                config = resolve(quick(config) if self.quick else config)
                points = math.prod(len(values) for values in config.grid.values())
                runs = len(config.algorithms) * points * config.seeds
                jobs.append(
                    Job(
                        title=f"{figure.name} {setting} {part}".strip(),
                        setting=setting,
                        part=part,
                        config=config,
                        folder=self.out / figure.name / setting / part,
                        work=1e-3 * figure.cost * runs * config.rounds,
                    )
                )
        return jobs

    def work(self, name: str) -> float:
        """Return the expected seconds of all runs of a figure."""
        return sum(job.work for job in self.jobs(self.figures[name]))

    def path(self, name: str) -> Path:
        """Return the path of a figure's evidence file."""
        return self.out / "evidence" / f"{name}.json"

    def stored(self, name: str) -> Evidence | None:
        """Return the stored evidence of a figure.

        The result is None if there is none, or if its configurations differ.
        """
        path = self.path(name)
        if not path.is_file():
            return None
        try:
            evidence = load(path)
        except (ValueError, KeyError, TypeError):
            raise unreadable(path) from None
        return evidence if evidence.digests == self.digests(name) else None

    def digests(self, name: str) -> dict[str, str]:
        """Return a digest of a figure's resolved configurations, by setting."""
        texts: dict[str, str] = {}
        for job in self.jobs(self.figures[name]):
            texts[job.setting] = texts.get(job.setting, "") + write_toml(job.config)
        return {k: durable.digest(text.encode())[:16] for k, text in texts.items()}

    def run(self, name: str, watch: Callable[[Job], RunMonitor]) -> Evidence:
        """Make the missing runs of a figure and store its evidence."""
        curves: dict[str, dict] = {}
        for job in self.jobs(self.figures[name]):
            progress = watch(job)
            if not job.finished:
                execute(prepare(job.config), job.folder, progress)
            curves.setdefault(job.setting, {}).update(compact(job.folder, job.part))
        evidence = Evidence(
            figure=name, quick=self.quick, digests=self.digests(name), curves=curves
        )
        self.path(name).parent.mkdir(parents=True, exist_ok=True)
        store(self.path(name), evidence)
        return load(self.path(name))  # rounded, as a later call would read it
