"""`TensorBoard`: event files that `tensorboard --logdir` shows."""

import time
from pathlib import Path
from typing import Any

from sagda.trackers.base import LoggedRow, Tracker, check_extra


class TensorBoard(Tracker):
    """Write a run's evaluations as TensorBoard's event files (extra `tensorboard`).

    One folder per method and seed, one scalar per column, and the hyperparameters. A
    run that is resumed, or started again, into the same folder takes the place of what
    TensorBoard showed there.

    Args:
        folder: what `tensorboard --logdir` is given.
    """

    def __init__(self, folder: str | Path):
        check_extra("tensorboard")
        super().__init__()
        self.folder = Path(folder)
        self.writers: dict[str, Any] = {}

    def begin(self, name: str, parameters: dict[str, Any]) -> None:
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        writer = EventFileWriter(str(self.folder / name), flush_secs=5)
        self.writers[name] = writer
        # Readers forget what was logged from this step on: rows come but once.
        writer.add_event(event(0, session_log={"status": "START"}))
        writer.add_event(event(0, summary=hparams_pb(parameters, trial_id=name)))

    def log(self, name: str, rows: list[LoggedRow]) -> None:
        for row in rows:
            # One event for all columns: a crash leaves no half of them.
            values = [{"tag": k, "simple_value": v} for k, v in row.values.items()]
            self.writers[name].add_event(event(row.round, summary={"value": values}))

    def close(self, finished: bool) -> None:
        for writer in self.writers.values():
            writer.close()
        self.writers = {}


def event(step: int, **content: Any) -> Any:
    from tensorboard.compat.proto import event_pb2

    make = getattr(event_pb2, "Event")  # noqa: B009 # made at run time
    return make(wall_time=time.time(), step=step, **content)
