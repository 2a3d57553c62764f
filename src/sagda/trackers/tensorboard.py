"""`TensorBoard`: write evaluations as event files for `tensorboard --logdir`.

`base.py` decides when to write and which rows are new.
"""

import time
from pathlib import Path
from typing import Any, Self

from sagda.trackers.base import LoggedRow, Tracker


class TensorBoard(Tracker):
    """Write a run's evaluations as TensorBoard event files (extra `tensorboard`).

    There is one folder per method and seed. It has one scalar per column, and the
    hyperparameters. If a run is resumed or repeated in the same folder, TensorBoard
    shows the new run instead of the old one.

    Args:
        folder: the folder to write to. Pass the same to `tensorboard --logdir`.
    """

    extra = "tensorboard"
    packages = ("tensorboard",)

    def __init__(self, folder: str | Path):
        super().__init__()
        self.folder = Path(folder)
        self.writers: dict[str, Any] = {}  # by the name of the run in the store

    @classmethod
    def in_folder(cls, folder: Path, key: str) -> Self:
        return cls(folder / "tensorboard")

    def begin(self, name: str, parameters: dict[str, Any]) -> None:
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        writer = EventFileWriter(str(self.folder / name), flush_secs=5)
        self.writers[name] = writer
        # At a START event, readers drop all older events from the same step on. A
        # resumed run writes all rows again, and thanks to this they appear once.
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
    """Return an event of TensorBoard with the current time."""
    from tensorboard.compat.proto import event_pb2

    # protobuf creates the class at run time, so type checkers cannot see it.
    make = getattr(event_pb2, "Event")  # noqa: B009
    return make(wall_time=time.time(), step=step, **content)
