"""The callbacks that a configuration asks for, and the runs that they stopped early."""

from pathlib import Path

from sagda import durable
from sagda.runs.config import PATIENCE, Config, write_toml
from sagda.simulator.run import Callback, Run
from sagda.trackers import TRACKERS, EarlyStop


def callbacks_of(config: Config, folder: Path) -> tuple[Callback, ...]:
    """The tracker and the early stop of a configuration, if it has them."""
    callbacks: list[Callback] = []
    if config.track is not None:
        digest = durable.digest(write_toml(config).encode())[:12]
        key = f"{folder.resolve()} {digest}"
        callbacks.append(TRACKERS[config.track].in_folder(folder, key))
    if config.stop_early is not None:
        patience = config.patience or PATIENCE
        callbacks.append(EarlyStop(config.stop_early, patience=patience))
    return tuple(callbacks)


def stopped_early(run: Run, rounds: int) -> int | None:
    """The round at which a callback stopped a run; None if it ran to its end."""
    # A run in which every seed diverged ends early without a callback.
    whole = run.round == rounds or bool((run.carry.broken >= 0).all())
    return None if whole else run.round
