"""The callbacks that a configuration asks for, and what they did to its runs."""

import os
from pathlib import Path

from sagda import durable
from sagda.runs.config import PATIENCE, Config, write_toml
from sagda.simulator.run import Callback, Run
from sagda.trackers.early_stop import EarlyStop
from sagda.trackers.mlflow import MLflow
from sagda.trackers.tensorboard import TensorBoard


def callbacks_of(config: Config, folder: Path) -> tuple[Callback, ...]:
    """Who logs evaluations, into the run folder, and who ends a run early."""
    out: list[Callback] = []
    if config.track == "tensorboard":
        out.append(TensorBoard(folder / "tensorboard"))
    elif config.track == "mlflow":
        # A server that the user's environment names goes before the folder.
        own = None if os.environ.get("MLFLOW_TRACKING_URI") else folder / "mlflow.db"
        digest = durable.digest(write_toml(config).encode())[:12]
        out.append(MLflow(uri=own, key=f"{folder.resolve()} {digest}"))
    if config.stop_early is not None:
        patience = config.patience or PATIENCE
        out.append(EarlyStop(config.stop_early, patience=patience))
    return tuple(out)


def stopped_early(run: Run, rounds: int) -> int | None:
    """The round at which a callback ended a run, if one did."""
    whole = run.round == rounds or bool((run.carry.broken >= 0).all())
    return None if whole else run.round
