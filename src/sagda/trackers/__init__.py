"""Callbacks for runs: TensorBoard, MLflow, and a stop when nothing improves.

A callback is any callable that takes a `Progress`; `simulate(..., progress=[...])`
calls it after each chunk of rounds, and stops the run if it returns True. One that is
a context manager, too, is entered before the first round and left after the last.
"""

from sagda.trackers.base import Tracker as Tracker
from sagda.trackers.early_stop import EarlyStop as EarlyStop
from sagda.trackers.mlflow import MLflow as MLflow
from sagda.trackers.tensorboard import TensorBoard as TensorBoard
