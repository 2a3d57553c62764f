"""`TensorBoard`: writes event files that `tensorboard --logdir` shows."""

import time
from pathlib import Path
from typing import Any, Self

from sagda.trackers.base import LoggedRow, Tracker


class TensorBoard(Tracker):
    """Write a run's evaluations as TensorBoard event files (extra `tensorboard`).

    There is one folder per method and seed, with one scalar per column and the
    hyperparameters. A run that is resumed or repeated in the same folder replaces what
    TensorBoard showed before.

    Args:
        folder: the folder to pass to `tensorboard --logdir`.
    """

    extra = "tensorboard"
    packages = ("tensorboard",)

    def __init__(self, folder: str | Path):
        super().__init__()
        self.folder = Path(folder)
        self.writers: dict[str, Any] = {}  # by the run's name

    @classmethod
    def in_folder(cls, folder: Path, key: str) -> Self:
        return cls(folder / "tensorboard")

    def begin(self, name: str, parameters: dict[str, Any]) -> None:
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        writer = EventFileWriter(str(self.folder / name), flush_secs=5)
        self.writers[name] = writer
        # A START event makes readers drop older events from its step on. So the rows of
        # a resumed run, which are all written again, appear once.
        writer.add_event(event(0, session_log={"status": "START"}))
        writer.add_event(event(0, summary=hparams_pb(parameters, trial_id=name)))

    def log(self, name: str, rows: list[LoggedRow]) -> None:
        for row in rows:
            # One event has all columns, so a crash cannot leave half a row.
            values = [{"tag": k, "simple_value": v} for k, v in row.values.items()]
            self.writers[name].add_event(event(row.round, summary={"value": values}))

    def close(self, finished: bool) -> None:
        for writer in self.writers.values():
            writer.close()
        self.writers = {}


def event(step: int, **content: Any) -> Any:
    """A TensorBoard event at this moment."""
    from tensorboard.compat.proto import event_pb2

    # protobuf creates the class at run time, so type checkers cannot see it.
    make = getattr(event_pb2, "Event")  # noqa: B009
    return make(wall_time=time.time(), step=step, **content)
