"""Callbacks for runs: TensorBoard, MLflow, and a stop when nothing improves.

A callback is any callable that takes a `Progress`. `simulate(..., progress=[...])`
calls it after each chunk of rounds, and stops the run if it returns True. A callback
that is also a context manager is entered before the first round and left after the
last.

`TRACKERS` names the trackers that `sagda run --track NAME` accepts. A new one is a file
in this folder with a subclass of `Tracker`, and a line here. `base.py` says what to
write.
"""

from sagda.trackers.base import Tracker
from sagda.trackers.early_stop import EarlyStop as EarlyStop
from sagda.trackers.mlflow import MLflow
from sagda.trackers.tensorboard import TensorBoard

TRACKERS: dict[str, type[Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
}
