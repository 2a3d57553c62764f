"""The run folder: runs that survive any stop, and files that say everything.

config.toml        the whole configuration; running it again repeats the run
history.csv        one row per algorithm, seed and evaluated round
summary.json       final and tail values, the split, the environment
model.safetensors  the final x and y
recipe.json        what a model needs beside its numbers to score rows of a file
MODEL_CARD.md      data, training, measures and limits of the model
images.safetensors pictures that the first seed's x makes, if any
checkpoint/        the newest durable state
tensorboard/       event files, or
mlflow.db          MLflow's runs, where asked for
report.html        the page
"""

import csv
import io
import json
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import safetensors.numpy

import sagda
from sagda import durable
from sagda.check import BadKind, BadValue
from sagda.data.federation import Federation, Table
from sagda.methods import Method
from sagda.problems.base import Problem
from sagda.runs.callbacks import callbacks_of, stopped_early
from sagda.runs.card import write_card
from sagda.runs.checkpoint import Checkpoints, Stored, differences, environment
from sagda.runs.config import Config, build, read_toml, write_toml
from sagda.runs.experiment import Experiment, run_options
from sagda.runs.grid import Sweep
from sagda.runs.model_file import FinishedRun, keep_recipe, model_arrays
from sagda.runs.results import PICTURES
from sagda.simulator.processes import check_same, from_first, gathered, is_first
from sagda.simulator.run import Callback, Progress, Run
from sagda.simulator.simulate import advice, simulate_stacked, unsolved
from sagda.simulator.sweep import apart

SCHEMA = 1


class Stopped(Exception):
    """The user asked a run to stop; everything until then is kept."""

    def __init__(self, name: str, progress: Progress):
        super().__init__(f"{name} at round {progress.round} of {progress.rounds}")


def claim(config: Config, folder: Path) -> bool:
    """Make `folder` this configuration's, or refuse it; whether it was free."""
    text = write_toml(config)
    path = folder / "config.toml"
    folder.mkdir(parents=True, exist_ok=True)
    if path.exists():
        if path.read_text(encoding="utf-8") != text:
            raise BadValue(
                f"{folder} holds a run of another configuration; choose another folder "
                "with --out."
            )
    elif any(not ours(p) for p in folder.iterdir()):
        raise BadValue(f"{folder} holds other files; choose another folder with --out.")
    else:
        durable.write(path, text)
        return True
    return False


def give_back(folder: Path, kind: type[BaseException] | None, *_: object) -> None:
    """Leave no claim where a mistake ended the run before anything was kept."""
    path = folder / "config.toml"
    empty = all(ours(p) or p == path for p in folder.iterdir())
    if kind is not None and issubclass(kind, BadValue | BadKind) and empty:
        path.unlink()


def ours(path: Path) -> bool:
    """The lock, and what a killed writer left unfinished."""
    return path.name == ".lock" or path.suffix == durable.TEMPORARY


def read_folder(folder: Path) -> Config:
    """The configuration of a run folder."""
    if not (folder / "config.toml").is_file():
        raise BadValue(
            f"{folder} is not a run folder: no config.toml; `sagda run` makes one."
        )
    values, text = read_toml(folder / "config.toml")
    return build(values, str(folder / "config.toml"), text)


def folder_config(folder: Path) -> Config:
    """The configuration of a run folder that process 0 has."""
    pack = lambda config: config.model_dump_json().encode()
    unpack = lambda text: build(json.loads(text))
    return from_first(lambda: read_folder(folder), pack, unpack)


class Watch(NamedTuple):
    """Who looks on while runs go: their display, and whether they want them stopped."""

    started: Callable[[str, int], None]  # algorithm, round it starts from
    progress: Callable[[str, Progress], None]
    warn: Callable[[str], None]
    stop: Callable[[], bool]
    checkpoint_seconds: float = 5.0

    def muted(self) -> "Watch":
        nothing = lambda *_: None
        return self._replace(started=nothing, progress=nothing, warn=nothing)


def execute(experiment: Experiment, folder: Path, watch: Watch) -> dict[str, Run]:
    """Run every method into `folder`, going on from what is there.

    Of several processes only the first one reads, writes and shows.
    """
    text = write_toml(experiment.config)
    data = experiment.federation.content
    versions = f"{sagda.__version__} {jax.__version__}"
    check_same(configuration=text, data=data, version=versions)
    checkpoints = Checkpoints(folder, durable.digest(text.encode()), data)
    watch = watch if is_first() else watch.muted()
    with ExitStack() as held:

        def load() -> Stored | None:
            folder.mkdir(parents=True, exist_ok=True)
            held.enter_context(durable.lock(folder))
            if claim(experiment.config, folder):
                held.push(partial(give_back, folder))
            return checkpoints.load()

        stored = from_first(load, packed, unpacked)
        if stored and (changed := differences(stored.environment)):
            watch.warn(
                "resumed in another environment, bits may differ from an unbroken run: "
                + "; ".join(changed)
            )
        runs: dict[str, Run] = {}
        sweep = Sweep(experiment) if experiment.config.grid else None
        alone = ({name: method} for name, method in experiment.methods.items())
        done: dict[str, Method] = {}
        callbacks = callbacks_of(experiment.config, folder)
        for batch in sweep.batches(runs) if sweep else alone:
            methods = list(batch.values())
            name = batch_name(methods) if sweep else next(iter(batch))
            resume = stored.runs.get(name) if stored else None
            watch.started(name, int(resume["round"]) if resume else 0)
            run = run_batch(
                experiment, name, batch, resume, checkpoints, watch, callbacks
            )
            runs |= zip(batch, apart(run, methods), strict=True)
            done |= batch
        experiment = experiment._replace(methods=done)
        if is_first():
            points = sweep.points if sweep else {}
            write_results(experiment, runs, folder, points)
    return runs


def batch_name(methods: list[Method]) -> str:
    """By what is run: other methods never go on from this batch's checkpoint."""
    text = "\n".join(map(repr, methods))
    return f"sweep-{durable.digest(text.encode())[:12]}"


def packed(stored: Stored | None) -> bytes:
    """A checkpoint as it is sent to other processes."""
    if stored is None:
        return b""
    arrays = {f"{n}/{k}": a for n, run in stored.runs.items() for k, a in run.items()}
    head = json.dumps(stored.environment).encode() + b"\n"
    return head + safetensors.numpy.save(arrays)


def unpacked(content: bytes) -> Stored | None:
    if not content:
        return None
    head, _, arrays = content.partition(b"\n")
    runs: dict[str, dict[str, np.ndarray]] = {}
    for path, array in safetensors.numpy.load(arrays).items():
        name, _, key = path.partition("/")
        runs.setdefault(name, {})[key] = array
    return Stored(runs, json.loads(head))


def run_batch(
    experiment: Experiment,
    name: str,
    methods: dict[str, Method],
    resume: dict[str, np.ndarray] | None,
    checkpoints: Checkpoints,
    watch: Watch,
    callbacks: tuple[Callback, ...],
) -> Run:
    """Methods side by side, with checkpoints now and then and a clean stop."""
    last = time.monotonic()

    def save(run: Run) -> None:
        if is_first():
            checkpoints.save(name, run)

    def progress(now: Progress) -> None:
        nonlocal last
        watch.progress(name, now)
        due = time.monotonic() - last >= watch.checkpoint_seconds
        # Anyone can stop a run; when to save is up to the first process.
        wishes = gathered([watch.stop(), due])
        stop = bool(wishes[:, 0].any()) and now.round < now.rounds
        if stop or wishes[0, 1]:
            save(now.snapshot())
            last = time.monotonic()
        if stop:
            raise Stopped(name, now)

    run = simulate_stacked(
        list(methods.values()),
        experiment.problem,
        experiment.federation,
        replace(
            run_options(experiment), progress=(progress, *callbacks), resume=resume
        ),
    )
    if run.diverged and not experiment.config.grid:
        watch.warn(advice(methods[name], run.diverged))
    if ended := stopped_early(run, experiment.config.rounds):
        watch.warn(f"{name} stopped early at round {ended}.")
    if (message := unsolved(run.history)) and not experiment.config.grid:
        watch.warn(message)
    save(run)
    return run


def write_results(
    experiment: Experiment,
    runs: dict[str, Run],
    folder: Path,
    points: dict[str, dict[str, Any]],
) -> None:
    """history.csv, model.safetensors and summary.json; `points` are a sweep's."""
    durable.write(folder / "history.csv", history_csv(runs))
    model = safetensors.numpy.save(model_arrays(runs), {"schema": str(SCHEMA)})
    durable.write(folder / "model.safetensors", model)
    write_pictures(experiment.problem, runs, folder)
    keep_recipe(experiment, runs, folder)
    summary = summarise(experiment, runs)
    if points:
        summary["points"] = points
    durable.write(folder / "summary.json", durable.as_json(summary))
    if (folder / "recipe.json").is_file():
        write_card(folder)


def write_pictures(problem: Problem, runs: dict[str, Run], folder: Path) -> None:
    """Write the pictures that each run's first model makes, if the problem has any."""
    sheets = {}
    for name, run in runs.items():
        pictures = problem.pictures(jax.tree.map(lambda a: a[0], run.z.x))
        if pictures is not None:
            grey = np.nan_to_num(np.asarray(pictures))
            sheets[name] = np.clip(255 * grey + 0.5, 0, 255).astype(np.uint8)
    if sheets:
        durable.write(folder / PICTURES, safetensors.numpy.save(sheets))


def history_csv(runs: Mapping[str, FinishedRun]) -> str:
    columns = dict.fromkeys(c for run in runs.values() for c in run.history.columns)
    text = io.StringIO()
    writer = csv.DictWriter(text, ["algorithm", "seed", *columns], lineterminator="\n")
    writer.writeheader()
    for name, run in runs.items():
        writer.writerows({"algorithm": name, **row} for row in run.history.rows())
    return text.getvalue()


def summarise(experiment: Experiment, runs: dict[str, Run]) -> dict[str, Any]:
    federation = experiment.federation
    sizes = federation.size
    split = {
        "hash": federation.hash,
        "clients": federation.clients,
        "smallest": int(sizes.min()),
        "largest": int(sizes.max()),
        "labels": label_counts(federation),
    }
    rounds = experiment.config.rounds
    summary = summary_of(runs, rounds, split, experiment.methods)
    ended = {name: stopped_early(run, rounds) for name, run in runs.items()}
    if ended := {name: t for name, t in ended.items() if t is not None}:
        summary["stopped_early"] = ended
    return summary


def summary_of(
    runs: Mapping[str, FinishedRun],
    rounds: int,
    split: dict[str, Any],
    methods: Mapping[str, Method],
) -> dict[str, Any]:
    """Final and tail-averaged values, totals, and where they were obtained."""
    plain = lambda value: value.item() if np.isfinite(value) else None

    def of(run: FinishedRun) -> dict[str, Any]:
        history = run.history
        tail = {name: history.tail(name) for name in history.columns}
        return {
            str(seed): {
                "final": {k: plain(c[i, -1]) for k, c in history.columns.items()},
                "tail": {k: plain(c[i]) for k, c in tail.items()},
                "diverged": run.diverged.get(seed),
            }
            for i, seed in enumerate(history.seeds)
        }

    return {
        "schema": SCHEMA,
        "rounds": rounds,
        "split": split,
        "algorithms": {name: of(run) for name, run in runs.items()},
        "methods": {name: repr(method) for name, method in methods.items()},
        "layouts": {name: run.layout for name, run in runs.items()},
        "compile_seconds": {name: run.compile_seconds for name, run in runs.items()},
        "environment": environment(),
    }


def label_counts(federation: Federation) -> dict[str, list[int]]:
    """By class, how many of its rows each client holds."""
    if not isinstance(federation.data, Table):
        return {}
    data = federation.data
    classes, label = np.unique(
        data.label if data.origin is None else data.origin, return_inverse=True
    )
    counts = np.zeros((len(classes), federation.clients), int)
    np.add.at(counts, (label, federation.owner), 1)
    names = [f"{c:g}" if classes.dtype.kind == "f" else str(c) for c in classes]
    return dict(zip(names, counts.tolist(), strict=True))
