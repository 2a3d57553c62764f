"""Callbacks: clean stops, early stops, and what TensorBoard and MLflow read back."""

import csv
import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

import sagda
from sagda import EarlyStop, History, MLflow, TensorBoard, sagda_i
from sagda.check import BadKind, BadValue
from sagda.federation.terms import read_settings
from sagda.runs.config import Config, write_toml
from sagda.simulator import loop
from sagda.simulator.checks import columns_of
from sagda.simulator.history import COUNTS
from sagda.trackers import TRACKERS, base
from sagda.trackers import mlflow as into_mlflow
from sagda.trackers.base import Tracker
from support import command, same_bits

METHOD = sagda_i(local_lr=(0.02, 0.05), local_steps=2)
QUICK = [
    *("--problem", "quadratic", "--clients", "4", "--samples", "4"),
    *("--batch-size", "2", "--seeds", "2"),
]


@pytest.fixture(autouse=True)
def quiet_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture
def no_page(monkeypatch):
    """Its charts take seconds, and other tests look at them."""
    monkeypatch.setattr("sagda.commands.app.page_of", lambda folder: "")


def run(quadratic, **options):
    common = {"rounds": 12, "cohort": 3, "batch_size": 2, "seeds": (3, 4)}
    return sagda.simulate(METHOD, *quadratic, **common | options)


def same_history(a, b):
    assert list(a.columns) == list(b.columns)
    for name in a.columns:
        if name != "seconds":
            np.testing.assert_array_equal(a[name], b[name])


# Callbacks


def test_a_stopped_run_is_evaluated_and_goes_on_bit_for_bit(quadratic):
    whole = run(quadratic, eval_every=5)
    stop = lambda now: np.bool_(now.round >= 6)
    half = run(quadratic, eval_every=5, chunk=1, progress=stop)
    assert half.round == 6
    np.testing.assert_array_equal(half.history.rounds, [0, 5, 6])
    # It stays stopped for whoever stopped it, and goes on for others.
    assert run(quadratic, eval_every=5, progress=stop, resume=half).round == 6
    for past in (half, half.arrays()):
        resumed = run(quadratic, eval_every=5, resume=past)
        same_bits(whole, resumed)
        np.testing.assert_array_equal(resumed.history.rounds, [0, 5, 6, 10, 12])


class Seen:
    """A callback that is a context manager, too."""

    def __init__(self):
        self.rounds, self.rows, self.ends = [], [], []

    def __call__(self, now):
        self.rounds.append(now.round)
        self.rows.append(now.history["round"][0].tolist())
        assert now.latest["f"].tolist() == now.history["f"][:, -1].tolist()
        assert [m.name for m in now.methods] == ["sagda-i"] * len(now.history.seeds)
        assert now.setting["cohort"] == "3"
        with pytest.raises(ValueError, match="read-only"):
            now.history["f"][0, 0] = 1.0
        return "anything but a truth value"

    def __enter__(self):
        self.ends.append("entered")

    def __exit__(self, kind, *_):
        self.ends.append(kind)


def test_every_callback_sees_every_evaluation(quadratic):
    seen, stop = Seen(), lambda now: now.round == 4
    run(quadratic, eval_every=3, chunk=1, progress=[stop, seen])
    assert seen.rounds == [1, 2, 3, 4, 4]
    assert seen.rows == [[0], [0], [0, 3], [0, 3], [0, 3, 4]]
    assert seen.ends == ["entered", None]


def test_an_exception_of_a_callback_leaves_the_others(quadratic):
    seen = Seen()

    def fail(now):
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        run(quadratic, progress=(seen, fail))
    assert seen.ends == ["entered", ArithmeticError]


def test_processes_agree_on_a_stop(quadratic, monkeypatch):
    """One of two asks for it, and both end there."""
    other = lambda mine: np.stack([np.asarray(mine), np.array([9.0, 1.0])])
    monkeypatch.setattr(loop, "gathered", other)
    assert run(quadratic, eval_every=4).round == 1


def test_what_is_no_callback_is_refused(quadratic):
    for wrong in (3, [print, "x"]):
        with pytest.raises(BadKind, match="`progress` must be a callable or"):
            run(quadratic, progress=wrong)


# Early stops


def history(values, every=1, name="grad_phi_sq"):
    values = np.atleast_2d(np.array(values, float))
    rounds = every * np.arange(values.shape[1]) * np.ones_like(values, int)
    return History(tuple(range(len(values))), {"round": rounds, name: values})


@pytest.mark.parametrize(
    ("values", "options", "enough"),
    [
        ([5, 4, 3], {"patience": 2}, False),
        ([5, 3, 4, 3], {"patience": 2}, True),  # as good is not better
        ([5, 3, 4, 4], {"patience": 3}, False),
        ([5, 3], {"patience": 2}, False),  # too early to say
        ([5, 4.5, 4.2], {"patience": 2, "least": 1.0}, True),
        ([5, 4.5, 3.9], {"patience": 2, "least": 1.0}, False),
        ([1, 2, 3], {"patience": 2}, True),
        ([1, 2, 3], {"patience": 2, "goal": "max"}, False),
        ([[5, 1, 1], [5, 9, 8]], {"patience": 1}, False),  # the mean decides
        ([[5, 1, 1], [5, 9, 9]], {"patience": 1}, True),
        ([5, np.nan, np.inf], {"patience": 2}, True),
        ([np.nan, np.nan, 5], {"patience": 1}, False),
    ],
)
def test_a_run_stops_when_the_best_improves_no_more(values, options, enough):
    assert EarlyStop(**options).enough(history(values)) is enough


def test_patience_counts_rounds_and_auc_grows():
    assert not EarlyStop(patience=11).enough(history([1, 2, 2], every=5))
    assert EarlyStop(patience=10).enough(history([1, 2, 2], every=5))
    grown = history([0.5, 0.7, 0.8], name="auc_test")
    assert not EarlyStop("auc_test", patience=2).enough(grown)
    assert EarlyStop("auc_test", patience=2, goal="min").enough(grown)


def test_early_stops_do_not_depend_on_how_a_run_is_cut(quadratic):
    stop = EarlyStop("worst_client_loss", patience=4)
    options = {"rounds": 200, "eval_every": 2}
    whole = run(quadratic, progress=stop, **options)
    assert 4 <= whole.round < 200
    assert stop.enough(whole.history)
    for first in (1, 3, whole.round - 2):
        part = run(quadratic, progress=lambda now, t=first: now.round >= t, **options)
        resumed = run(quadratic, progress=stop, resume=part, **options)
        again = run(quadratic, progress=stop, resume=resumed, **options)
        assert again.round == resumed.round == whole.round
        same_bits(whole, again)


def test_early_stop_says_what_is_wrong(quadratic):
    with pytest.raises(BadValue, match="`metric` must be one of grad_phi_sq, phi, f"):
        run(quadratic, progress=EarlyStop("samples", patience=3))
    with pytest.raises(BadValue, match="`goal` must be one of auto, min, max"):
        EarlyStop(patience=3, goal="least")
    with pytest.raises(BadValue, match="`patience` must be at least 1"):
        EarlyStop(patience=0)
    two = [sagda_i(local_lr=lr) for lr in (0.01, 0.02)]
    stop = EarlyStop(patience=3)
    with pytest.raises(BadValue, match="one method at a time"):
        sagda.sweep(two, *quadratic, rounds=2, batch_size=2, progress=stop)


# Trackers


def events(folder) -> dict[str, list[tuple[int, float]]]:
    """Read back by TensorBoard's own reader."""
    reader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="needs TensorBoard: pip install 'sagda[tensorboard]'",
    )
    found = reader.EventAccumulator(str(folder), size_guidance={reader.SCALARS: 0})
    found.Reload()
    assert "_hparams_/session_start_info" in found.summary_metadata
    tags = found.Tags()["scalars"]
    return {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in tags}


def same_events(found, history, i):
    assert set(found) == set(history.columns) - {"round"}
    for tag, values in found.items():
        assert [step for step, _ in values] == history.rounds.tolist()
        column = history[tag][i].astype(np.float32)
        np.testing.assert_array_equal([value for _, value in values], column)


@pytest.mark.parametrize("seconds", [0.0, 60.0])
def test_tensorboard_reads_what_was_measured(quadratic, monkeypatch, seconds):
    """Written with every evaluation, or all at the end."""
    pytest.importorskip("tensorboard", reason="needs sagda[tensorboard]")
    monkeypatch.setattr(base, "SECONDS", seconds)
    whole = run(quadratic, eval_every=5, progress=TensorBoard("logs"))
    for i, seed in enumerate((3, 4)):
        same_events(events(f"logs/sagda-i/seed-{seed}"), whole.history, i)


def test_tensorboard_shows_a_resumed_run_once(quadratic):
    pytest.importorskip("tensorboard", reason="needs sagda[tensorboard]")
    longer = run(quadratic, rounds=8, progress=TensorBoard("logs"))
    assert longer.round == 8
    half = run(quadratic, rounds=5)
    time.sleep(1.1 - time.time() % 1)  # readers go by the second in a file's name
    resumed = run(quadratic, progress=TensorBoard("logs"), resume=half)
    same_events(events("logs/sagda-i/seed-3"), resumed.history, 0)


def test_methods_of_one_name_have_places_of_their_own(quadratic):
    pytest.importorskip("tensorboard", reason="needs sagda[tensorboard]")
    methods = [sagda_i(local_lr=lr) for lr in (0.01, 0.02)]
    board = TensorBoard("logs")
    sagda.sweep(methods, *quadratic, rounds=2, batch_size=2, progress=board)
    assert {p.name for p in Path("logs").iterdir()} == {"sagda-i", "sagda-i-2"}


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    """A database with MLflow's tables, which take it seconds to make."""
    pytest.importorskip("mlflow", reason="needs sagda[mlflow]")
    path = tmp_path_factory.mktemp("mlflow") / "empty.db"
    into_mlflow.connected(path)
    return path


def mlflow_runs(path, experiment="sagda"):
    mlflow = pytest.importorskip("mlflow", reason="needs sagda[mlflow]")
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{Path(path).resolve()}")
    found = client.get_experiment_by_name(experiment)
    assert found is not None
    runs = {run.info.run_name: run for run in client.search_runs([found.experiment_id])}
    past = {
        name: {
            column: [
                (m.step, m.value)
                for m in client.get_metric_history(one.info.run_id, column)
            ]
            for column in one.data.metrics
        }
        for name, one in runs.items()
    }
    return runs, past


def same_metrics(found, history, i):
    assert set(found) == set(history.columns) - {"round"}
    for name, values in found.items():
        assert [step for step, _ in values] == history.rounds.tolist()
        np.testing.assert_array_equal([v for _, v in values], history[name][i])


def test_mlflow_reads_what_was_measured_and_goes_on(quadratic, empty):
    shutil.copy(empty, "runs.db")
    store = {"uri": Path("runs.db"), "key": "it's mine"}

    def fail(now):
        if now.round == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(quadratic, progress=[MLflow("test", **store), fail])
    runs, past = mlflow_runs("runs.db", "test")
    assert {one.info.status for one in runs.values()} == {"KILLED"}
    assert past["sagda-i/seed-3"]["f"][-1][0] == 7
    half = run(quadratic, rounds=5)
    whole = run(quadratic, progress=MLflow("test", **store), resume=half)
    runs, past = mlflow_runs("runs.db", "test")
    assert set(runs) == {"sagda-i/seed-3", "sagda-i/seed-4"}
    for i, (name, one) in enumerate(sorted(runs.items())):
        assert one.info.status == "FINISHED"
        assert one.data.params["local_lr.y"] == "0.05"
        assert one.data.params["seed"] == name[-1]
        found = past[name]
        found.pop("seconds")  # those of before the interrupt differ
        columns = {k: c for k, c in whole.history.columns.items() if k != "seconds"}
        same_metrics(found, History(whole.history.seeds, columns), i)


def test_an_absent_package_is_named(monkeypatch, capsys):
    monkeypatch.setattr(base, "find_spec", lambda name: None)
    for make in (lambda: TensorBoard("logs"), MLflow):
        with pytest.raises(BadValue, match=r"pip install 'sagda\["):
            make()
    code, _, err = command("run", *QUICK, "--track", "mlflow", capsys=capsys)
    assert code == 2
    assert "needs the extra `mlflow`: pip install 'sagda[mlflow]'." in err
    assert not Path("runs").exists()


# The command


def rows(folder):
    return list(csv.DictReader(Path(folder, "history.csv").read_text().splitlines()))


@pytest.mark.slow
def test_a_run_that_stopped_early_is_finished(capsys, monkeypatch):
    stop = ["--stop-early", "worst_client_loss", "--patience", 3]
    job = ["run", *QUICK, *stop, "--out", "r"]
    code, _, err = command(*job, capsys=capsys)
    assert code == 0, err
    assert "sagda-i stopped early at round " in err
    summary = json.loads(Path("r/summary.json").read_text())
    last = summary["stopped_early"]["sagda-i"]
    assert last == int(rows("r")[-1]["round"]) < 500
    assert (
        f"stopped early: sagda-i at round {last}" in Path("r/report.html").read_text()
    )
    assert Path("r/model.safetensors").is_file()
    before = Path("r/history.csv").read_bytes()
    monkeypatch.setattr("sagda.commands.app.page_of", lambda folder: "")
    for again in (job, ["resume", "r"]):
        assert command(*again, capsys=capsys)[0] == 0
        assert Path("r/history.csv").read_bytes() == before


@pytest.mark.usefixtures("no_page")
def test_a_tracked_comparison_in_tensorboard(capsys):
    pytest.importorskip("tensorboard", reason="needs sagda[tensorboard]")
    job = [
        "compare",
        *QUICK,
        "--rounds",
        6,
        "--algorithms",
        "fsgda,sagda-i",
        "--out",
        "r",
    ]
    code, _, err = command(*job, "--track", "tensorboard", capsys=capsys)
    assert code == 0, err
    for name in ("fsgda", "sagda-i"):
        for seed in ("0", "1"):
            found = events(f"r/tensorboard/{name}/seed-{seed}")
            own = [r for r in rows("r") if (r["algorithm"], r["seed"]) == (name, seed)]
            expected = [np.float32(r["phi"]) for r in own]
            assert [value for _, value in found["phi"]] == expected


@pytest.mark.usefixtures("no_page")
def test_a_tracked_run_in_mlflow(capsys, empty, monkeypatch):
    connected = into_mlflow.connected

    def quickly(uri):
        if not uri.exists():
            shutil.copy(empty, uri)
        return connected(uri)

    monkeypatch.setattr(into_mlflow, "connected", quickly)
    job = ["run", *QUICK, "--rounds", 6, "--out", "r", "--track", "mlflow"]
    for _ in range(2):
        code, _, err = command(*job, capsys=capsys)
        assert code == 0, err
    runs, past = mlflow_runs("r/mlflow.db")
    assert set(runs) == {"sagda-i/seed-0", "sagda-i/seed-1"}
    own = [float(r["phi"]) for r in rows("r") if r["seed"] == "1"]
    assert past["sagda-i/seed-1"]["phi"] == list(enumerate(own))
    assert not Path("mlruns").exists()
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"


class Toy(Tracker):
    """A tracker in one file, with one line in the registry."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    @classmethod
    def in_folder(cls, folder, key):
        assert str(folder) in key
        return cls(folder / "toy.txt")

    def add(self, text):
        with self.path.open("a") as file:
            file.write(f"{text}\n")

    def begin(self, name, parameters):
        self.add(f"begin {name} {parameters['local_lr.x']}")

    def log(self, name, rows):
        for row in rows:
            self.add(f"{name} {row.round} {row.values['phi']!r}")

    def close(self, finished):
        self.add(f"finished {finished}")


@pytest.mark.usefixtures("no_page")
def test_a_tracker_needs_a_class_and_a_line(capsys, monkeypatch):
    monkeypatch.setitem(TRACKERS, "toy", Toy)
    job = ["run", *QUICK, "--rounds", 4, "--out", "r", "--track", "toy"]
    code, _, err = command(*job, capsys=capsys)
    assert code == 0, err
    lines = Path("r/toy.txt").read_text().splitlines()
    assert lines[0] == "begin sagda-i/seed-0 0.01"
    assert lines[-1] == "finished True"
    phi = [f"sagda-i/seed-1 {r['round']} {r['phi']}" for r in rows("r")[5:]]
    assert [line for line in lines if line.startswith("sagda-i/seed-1")] == phi
    monkeypatch.setattr(Toy, "packages", ("no_such_package",))
    monkeypatch.setattr(Toy, "extra", "toy")
    code, _, err = command(*job[:-4], "--track", "toy", capsys=capsys)
    assert code == 2
    assert "tracking with toy needs the extra `toy`: pip install 'sagda[toy]'." in err
    code, out, _ = command("list", "--json", capsys=capsys)
    assert json.loads(out)["trackers"]["toy"]["what"] == (
        "A tracker in one file, with one line in the registry."
    )


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (
            ["run", "--stop-early", "grad_phi"],
            "`stop_early` must be one of grad_phi_sq, phi, f, gap, worst_client_loss, "
            "distance_sq, got 'grad_phi'; did you mean 'grad_phi_sq'?",
        ),
        (
            ["run", "--patience", "5"],
            "`patience` may be set only together with stop_early",
        ),
        (["run", "--track", "wandb"], "`track` must be one of tensorboard, mlflow"),
        (
            ["sweep", "--grid", "local_lr=0.1,0.2", "--stop-early", "phi"],
            "`stop_early` must not be set in a sweep",
        ),
    ],
)
def test_mistakes_are_one_sentence_and_leave_nothing(flags, sentence, capsys):
    code, out, err = command(*flags, *QUICK, capsys=capsys)
    assert (code, out) == (2, "")
    assert sentence in err
    assert len(err.strip().splitlines()) == 1
    assert not Path("runs").exists()


def test_a_federation_has_neither(tmp_path):
    file = tmp_path / "server.toml"
    file.write_text('track = "mlflow"\n')
    with pytest.raises(BadValue, match="`track` is for simulations"):
        read_settings(file)


def test_other_configurations_are_as_before():
    text = write_toml(Config())
    assert not any(key in text for key in ("track", "stop_early", "patience"))


def test_columns_are_known_before_a_run(quadratic):
    measured = [c for c in run(quadratic).history.columns if c not in COUNTS]
    assert columns_of(*quadratic, None) == measured
