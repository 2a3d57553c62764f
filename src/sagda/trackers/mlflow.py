"""`MLflow`: write evaluations to an MLflow experiment, on a server or in a file.

`base.py` decides when to write and which rows are new.
"""

import logging
import os
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple, Self

from sagda import check
from sagda.durable import digest
from sagda.trackers.base import LoggedRow, Tracker

AT_ONCE = 1000  # values that MLflow accepts in one call
KEY = "sagda.key"  # the tag by which a resumed training finds its MLflow runs


class OpenRun(NamedTuple):
    """A run in MLflow, and the last round that was logged when the run was opened."""

    id: str
    last: int  # -1 for a new run


class MLflow(Tracker):
    """Write all evaluations to MLflow (extra `mlflow`), one MLflow run per seed.

    An MLflow run is marked FINISHED if the training ends or a callback stops it, and
    KILLED if an exception ends it.

    Args:
        experiment: name of the MLflow experiment, created if it does not exist.
        uri: a `Path` to a database file, or the address of a tracking server. None is
            the default of MLflow (`MLFLOW_TRACKING_URI`).
        key: any text that identifies the training. With a key, a resumed or repeated
            training continues in its earlier MLflow runs. Without a key, each start
            creates new MLflow runs with the whole history.
    """

    extra = "mlflow"
    packages = ("mlflow", "sqlalchemy", "alembic")

    def __init__(
        self,
        experiment: str = "sagda",
        *,
        uri: str | Path | None = None,
        key: str | None = None,
    ):
        super().__init__()
        check.kind("experiment", experiment, str, "such as 'sagda'")
        self.experiment, self.uri, self.key = experiment, uri, key
        self.client: Any = None
        self.runs: dict[str, OpenRun] = {}

    @classmethod
    def in_folder(cls, folder: Path, key: str) -> Self:
        # A server in the user's environment has priority over the run folder.
        server = os.environ.get("MLFLOW_TRACKING_URI")
        return cls(uri=None if server else folder / "mlflow.db", key=key)

    def begin(self, name: str, parameters: dict[str, Any]) -> None:
        if self.client is None:
            self.client = connected(self.uri)
        experiment = self.client.get_experiment_by_name(self.experiment)
        place = experiment.experiment_id if experiment else self.new_experiment()
        tags = {}
        if self.key is not None:
            # A digest has only letters and digits, so the query needs no escapes.
            tags = {KEY: digest(f"{self.key} {name}".encode())}
            query = f"tags.`{KEY}` = '{tags[KEY]}'"
            for run in self.client.search_runs([place], query, max_results=1):
                self.client.update_run(run.info.run_id, status="RUNNING")
                self.runs[name] = OpenRun(run.info.run_id, self.last_round(run))
                return
        from mlflow.entities import Param

        run = self.client.create_run(place, run_name=name, tags=tags)
        params = [Param(key, str(value)) for key, value in parameters.items()]
        self.client.log_batch(run.info.run_id, params=params)
        self.runs[name] = OpenRun(run.info.run_id, -1)

    def new_experiment(self) -> str:
        """Create the experiment and return its id."""
        where = None
        if isinstance(self.uri, Path):
            where = (self.uri.resolve().parent / "mlflow").as_uri()
        return self.client.create_experiment(self.experiment, artifact_location=where)

    def last_round(self, run: Any) -> int:
        """Return the last round that an MLflow run has logged, or -1 without any."""
        past = self.client.get_metric_history
        columns = list(run.data.metrics)[:1]  # one is enough: rows have all columns
        rows = [row for column in columns for row in past(run.info.run_id, column)]
        return max((row.step for row in rows), default=-1)

    def log(self, name: str, rows: list[LoggedRow]) -> None:
        from mlflow.entities import Metric

        run, now = self.runs[name], int(1000 * time.time())
        new = [row for row in rows if row.round > run.last]
        # Each call sends whole rows, so a crash cannot leave half a row.
        step = AT_ONCE // max(1, len(rows[0].values)) if rows else 1
        for i in range(0, len(new), step):
            values = [
                Metric(key, value, now, row.round)
                for row in new[i : i + step]
                for key, value in row.values.items()
            ]
            self.client.log_batch(run.id, metrics=values)

    def close(self, finished: bool) -> None:
        for run in self.runs.values():
            self.client.set_terminated(run.id, "FINISHED" if finished else "KILLED")
        self.runs = {}


def connected(uri: str | Path | None) -> Any:
    """Return a client of MLflow for `uri`, which is as in `MLflow`.

    The telemetry of MLflow is switched off, unless the user's environment sets it.
    """
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    if isinstance(uri, Path):
        uri.parent.mkdir(parents=True, exist_ok=True)
        uri = f"sqlite:///{uri.resolve()}"
    with warnings.catch_warnings():
        # MLflow calls deprecated functions of SQLAlchemy.
        warnings.simplefilter("ignore", DeprecationWarning)
        from mlflow import MlflowClient

        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)
        return MlflowClient(tracking_uri=uri)
