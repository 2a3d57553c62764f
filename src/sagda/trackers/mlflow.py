"""`MLflow`: runs of an MLflow experiment, on a server or in a file."""

import logging
import os
import time
import warnings
from pathlib import Path
from typing import Any

from sagda import check
from sagda.durable import digest
from sagda.trackers.base import LoggedRow, Tracker, check_extra

AT_ONCE = 1000  # values that MLflow takes in one call
KEY = "sagda.key"


class MLflow(Tracker):
    """Write a run's evaluations into MLflow (extra `mlflow`), one MLflow run per seed.

    A run that ends by itself, or because a callback stops it, is FINISHED there; one
    that an exception ends is KILLED.

    Args:
        experiment: the MLflow experiment; it is made if there is none of that name.
        uri: a tracking server's address as MLflow takes it, or a `Path`, a database
            file; None is as MLflow has it (`MLFLOW_TRACKING_URI`).
        key: any text that names the run: with it a run that is resumed or repeated goes
            on in its MLflow runs; without it, it makes new ones with its whole history.
    """

    def __init__(
        self,
        experiment: str = "sagda",
        *,
        uri: str | Path | None = None,
        key: str | None = None,
    ):
        check_extra("mlflow")
        check.kind("experiment", experiment, str, "such as 'sagda'")
        super().__init__()
        self.experiment, self.uri, self.key = experiment, uri, key
        self.client: Any = None
        self.runs: dict[str, str] = {}  # MLflow's ids
        self.last: dict[str, int] = {}  # rounds that are there already

    def begin(self, name: str, parameters: dict[str, Any]) -> None:
        if self.client is None:
            self.client = connected(self.uri)
        from mlflow.entities import Param

        client, tags = self.client, {}
        found = client.get_experiment_by_name(self.experiment)
        place = found.experiment_id if found else self.new_experiment()
        again = []
        if self.key is not None:
            # A digest needs no quoting in a search.
            tags = {KEY: digest(f"{self.key} {name}".encode())}
            wanted = f"tags.`{KEY}` = '{tags[KEY]}'"
            again = client.search_runs([place], wanted, max_results=1)
        if again:
            run = again[0]
            client.update_run(run.info.run_id, status="RUNNING")
            self.last[name] = self.last_round(run)
        else:
            run = client.create_run(place, run_name=name, tags=tags)
            self.last[name] = -1
            params = [Param(key, str(value)) for key, value in parameters.items()]
            client.log_batch(run.info.run_id, params=params)
        self.runs[name] = run.info.run_id

    def new_experiment(self) -> str:
        where = None
        if isinstance(self.uri, Path):
            where = (self.uri.resolve().parent / "mlflow").as_uri()
        return self.client.create_experiment(self.experiment, artifact_location=where)

    def last_round(self, run: Any) -> int:
        columns = list(run.data.metrics)
        if not columns:
            return -1
        past = self.client.get_metric_history(run.info.run_id, columns[0])
        return max(metric.step for metric in past)

    def log(self, name: str, rows: list[LoggedRow]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        new = [row for row in rows if row.round > self.last[name]]
        # Whole rows go together: a crash leaves no half of one.
        step = AT_ONCE // max(1, len(rows[0].values)) if rows else 1
        for i in range(0, len(new), step):
            values = [
                Metric(key, value, now, row.round)
                for row in new[i : i + step]
                for key, value in row.values.items()
            ]
            self.client.log_batch(self.runs[name], metrics=values)

    def close(self, finished: bool) -> None:
        for run in self.runs.values():
            self.client.set_terminated(run, "FINISHED" if finished else "KILLED")
        self.runs, self.last = {}, {}


def connected(uri: str | Path | None) -> Any:
    """A client of MLflow's that sends nothing to anyone else."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    if isinstance(uri, Path):
        uri.parent.mkdir(parents=True, exist_ok=True)
        uri = f"sqlite:///{uri.resolve()}"
    with warnings.catch_warnings():
        # Its own use of its database's library is not the user's concern.
        warnings.simplefilter("ignore", DeprecationWarning)
        from mlflow import MlflowClient

        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)
        return MlflowClient(tracking_uri=uri)
