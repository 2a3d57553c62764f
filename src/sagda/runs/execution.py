"""`execute`: run all methods of a configuration into a run folder, or resume them.

It writes a checkpoint every few seconds, so a crash loses only a few seconds of work.
With several processes, only process 0 reads files, writes files and prints. The rounds
are computed in `sagda.simulator`. `output.py` writes the results.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import safetensors.numpy

import sagda
from sagda import durable
from sagda.methods import Method
from sagda.runs.checkpoint import Arrays, Checkpoints, differences
from sagda.runs.config import PATIENCE, Config, write_toml
from sagda.runs.experiment import Experiment, run_options
from sagda.runs.folder import claimed
from sagda.runs.grid import GridPoint, sweep_batches
from sagda.runs.output import stopped_early, write_results
from sagda.simulator.processes import check_same, from_first, gathered, is_first
from sagda.simulator.run import Callback, Progress, Run
from sagda.simulator.simulate import advice, simulate_stacked, unsolved
from sagda.simulator.sweep import apart
from sagda.trackers import TRACKERS
from sagda.trackers.early_stop import EarlyStop


class Stopped(Exception):
    """Raised when a run stops at the user's request, after writing a checkpoint."""

    def __init__(self, name: str, progress: Progress):
        super().__init__(f"{name} at round {progress.round} of {progress.rounds}")


class RunMonitor(NamedTuple):
    """Functions of the caller: `execute` sends its progress to them.

    `execute` also asks `stop` whether the run should stop.
    """

    started: Callable[[str, int], None]  # algorithm, and the round at which it starts
    progress: Callable[[str, Progress], None]
    warn: Callable[[str], None]
    stop: Callable[[], bool]
    checkpoint_seconds: float = 5.0

    def muted(self) -> "RunMonitor":
        """Return a copy that reports nothing, for all processes except the first."""
        nothing = lambda *_: None
        return self._replace(started=nothing, progress=nothing, warn=nothing)


class Batch(NamedTuple):
    """Methods that run together in one program, and the name of their checkpoint."""

    name: str
    methods: dict[str, Method]  # by the name of their results


def execute(
    experiment: Experiment, folder: Path, monitor: RunMonitor
) -> dict[str, Run]:
    """Run every method into `folder` and return the runs by the names of their results.

    A method that has a checkpoint resumes from its newest one.
    """
    text = write_toml(experiment.config)
    data = experiment.federation.content
    versions = f"{sagda.__version__} {jax.__version__}"
    check_same(configuration=text, data=data, version=versions)
    checkpoints = Checkpoints(folder, durable.digest(text.encode()), data)
    monitor = monitor if is_first() else monitor.muted()
    runs: dict[str, Run] = {}
    with ExitStack() as stack:

        def load() -> Arrays:
            stack.enter_context(claimed(experiment.config, folder))
            stored = checkpoints.load()
            if changed := differences(stored.environment):
                monitor.warn(
                    "resumed in another environment, so exact numbers may differ from "
                    f"those of an uninterrupted run: {'; '.join(changed)}"
                )
            return stored.runs

        stored = from_first(load, packed, unpacked)
        callbacks = callbacks_of(experiment.config, folder)
        points: dict[str, GridPoint] = {}
        methods: dict[str, Method] = {}
        for batch in batches(experiment, points, runs):
            resume = stored.get(batch.name)
            monitor.started(batch.name, int(resume["round"]) if resume else 0)
            run = run_batch(experiment, batch, resume, checkpoints, monitor, callbacks)
            parts = apart(run, list(batch.methods.values()))
            runs |= zip(batch.methods, parts, strict=True)
            methods |= batch.methods
        if is_first():
            write_results(experiment._replace(methods=methods), runs, folder, points)
    return runs


def batches(
    experiment: Experiment, points: dict[str, GridPoint], runs: dict[str, Run]
) -> Iterator[Batch]:
    """Yield the batches in the order in which they run.

    In a sweep, `points` is filled with the points of each batch. A search reads the
    finished `runs` before it yields its next batch.
    """
    if not experiment.config.grid:
        for name, method in experiment.methods.items():
            yield Batch(name, {name: method})
        return
    for methods in sweep_batches(experiment.config, points, runs):
        # The name is a digest of the methods. So a checkpoint is never used to resume
        # other points.
        text = "\n".join(map(repr, methods.values()))
        yield Batch(f"sweep-{durable.digest(text.encode())[:12]}", methods)


def callbacks_of(config: Config, folder: Path) -> tuple[Callback, ...]:
    """Return the tracker and the early stop that a configuration asks for, if any."""
    callbacks: list[Callback] = []
    if config.track is not None:
        digest = durable.digest(write_toml(config).encode())[:12]
        key = f"{folder.resolve()} {digest}"
        callbacks.append(TRACKERS[config.track].in_folder(folder, key))
    if config.stop_early is not None:
        patience = config.patience or PATIENCE
        callbacks.append(EarlyStop(config.stop_early, patience=patience))
    return tuple(callbacks)


def packed(runs: Arrays) -> bytes:
    """Return the runs of a checkpoint as bytes, to send them to the other processes."""
    arrays = {f"{n}/{k}": a for n, run in runs.items() for k, a in run.items()}
    return safetensors.numpy.save(arrays)


def unpacked(content: bytes) -> Arrays:
    """Return the runs of a checkpoint from the bytes that `packed` returned."""
    runs: Arrays = {}
    for path, array in safetensors.numpy.load(content).items():
        name, _, key = path.partition("/")
        runs.setdefault(name, {})[key] = array
    return runs


def run_batch(
    experiment: Experiment,
    batch: Batch,
    resume: dict[str, np.ndarray] | None,
    checkpoints: Checkpoints,
    monitor: RunMonitor,
    callbacks: tuple[Callback, ...],
) -> Run:
    """Run a batch to its end, and save checkpoints on the way.

    Raises `Stopped` if a process requests a stop.
    """
    last = time.monotonic()

    def save(run: Run) -> None:
        if is_first():
            checkpoints.save(batch.name, run)

    def progress(now: Progress) -> None:
        nonlocal last
        monitor.progress(batch.name, now)
        due = time.monotonic() - last >= monitor.checkpoint_seconds
        # Any process can stop the run. Only the first one decides when to save. All
        # processes take part in a snapshot, so all must come to the same decision.
        requests = gathered([monitor.stop(), due])
        stop = bool(requests[:, 0].any()) and now.round < now.rounds
        if stop or requests[0, 1]:
            save(now.snapshot())
            last = time.monotonic()
        if stop:
            raise Stopped(batch.name, now)

    options = replace(
        run_options(experiment), progress=(progress, *callbacks), resume=resume
    )
    methods = list(batch.methods.values())
    run = simulate_stacked(methods, experiment.problem, experiment.federation, options)
    if ended := stopped_early(run, experiment.config.rounds):
        monitor.warn(f"{batch.name} stopped early at round {ended}.")
    # In a sweep some points usually diverge. The table of the sweep shows them.
    if not experiment.config.grid:
        if run.diverged:
            monitor.warn(advice(batch.methods[batch.name], run.diverged))
        if message := unsolved(run.history):
            monitor.warn(message)
    save(run)
    return run
