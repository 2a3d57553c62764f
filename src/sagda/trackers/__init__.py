"""Callbacks for runs: TensorBoard, MLflow, and a stop when a metric stops improving.

A callback is any callable that takes a `Progress`. `simulate(..., progress=[...])`
calls the callback after each chunk of rounds. If the callback returns True, the run
stops. A callback may also be a context manager. Then the run enters the callback before
the first round and exits from it after the last.

`TRACKERS` lists the trackers that `sagda run --track NAME` accepts. To add a tracker,
write a subclass of `Tracker` in a new file here, and add a line to `TRACKERS`. Read
`base.py` next: it lists the methods to write.
"""

from sagda.registry import Registry
from sagda.trackers.base import Tracker

TRACKERS: Registry[type[Tracker]] = Registry(
    "sagda.trackers",
    {"tensorboard": "tensorboard:TensorBoard", "mlflow": "mlflow:MLflow"},
)
