"""After training: prediction, evaluation, the model card."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas
import pytest
from sklearn.metrics import brier_score_loss, roc_auc_score

from sagda.check import BadValue
from sagda.commands.main import main
from sagda.scoring.evaluation import bootstrap, evaluate
from sagda.scoring.scorer import Scorer
from support import command

TRAIN = [
    *("--problem", "auc", "--data", "train.csv", "--label", "outcome"),
    *("--positive", "ill", "--client-column", "site", "--partition", "by-column"),
    *("--standardise", "--batch-size", "5", "--rounds", "40", "--local-lr", "0.1"),
]


def write_rows(path, seed, count=90):
    rng = np.random.default_rng(seed)
    age, ward = rng.normal(50, 15, count), rng.choice(["a", "b", "c"], count)
    ill = age / 15 + (ward == "c") + rng.normal(size=count) > 4.5
    site = np.where(
        rng.random(count) < 0.7, np.where(ill, "clinic", "practice"), "both"
    )
    frame = pandas.DataFrame({"age": age.round(2), "ward": ward})
    frame["outcome"], frame["site"] = np.where(ill, "ill", "well"), site
    frame.to_csv(path, index=False)
    return frame


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A run of two methods and two seeds on a file, and rows that were held out."""
    path = tmp_path_factory.mktemp("scorer")
    write_rows(path / "train.csv", 0)
    write_rows(path / "test.csv", 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        told = [*TRAIN, "--out", "r", "--seeds", "2"]
        assert main(["compare", *told, "--algorithms", "fsgda,sagda-i"]) == 0
    return path


@pytest.fixture
def here(home, monkeypatch):
    monkeypatch.chdir(home)


def test_a_model_predicts_the_same_everywhere(here, capsys):
    chosen = ["--algorithm", "sagda-i", "--seed", "1"]
    code, out, _ = command("predict", "r", "test.csv", *chosen, "--json", capsys=capsys)
    assert code == 0
    told = json.loads(out)
    model = Scorer.load("r", "sagda-i", 1)
    ours = model.predict("test.csv")
    assert ours.tolist() == told["scores"]
    assert told["model"] == "sagda-i, seed 1"
    assert told["positive"] == "ill"
    # A frame without label and client, one row at a time.
    frame = pandas.read_csv("test.csv")[["ward", "age"]]
    single = [model.predict(frame.iloc[i : i + 1])[0] for i in range(3)]
    np.testing.assert_allclose(single, ours[:3], rtol=1e-12)
    # A file.
    code, out, _ = command(
        "predict", "r", "test.csv", *chosen, "--out", "scores.csv", capsys=capsys
    )
    assert (code, "90 rows scored" in out) == (0, True)
    with Path("scores.csv").open() as file:
        kept = list(csv.DictReader(file))
    assert [float(row["score"]) for row in kept] == told["scores"]
    assert [float(row["probability"]) for row in kept] == told["probabilities"]
    # By hand from the numbers of the files, in a process without sagda.
    program = """
import csv, json, sys
import numpy as np
from safetensors.numpy import load_file
facts = json.load(open("r/recipe.json"))
w = load_file("r/model.safetensors")["sagda-i/seed-1/x/model"].astype(float)
for row in csv.DictReader(open("test.csv")):
    cells = []
    for column in facts["columns"]:
        value, known = row[column["name"]], column["values"]
        cells += [float(value)] if known is None else [float(value == v) for v in known]
    seen = (np.array(cells, np.float32) - np.array(facts["mean"])) / facts["scale"]
    print(repr(float(seen.astype(np.float32) @ w)))
assert "sagda" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    by_hand = [float(line) for line in done.stdout.split()]
    np.testing.assert_allclose(by_hand, ours, rtol=1e-9, atol=1e-12)


def test_evaluation_says_what_scikit_learn_says(here, capsys):
    flags = ["--algorithm", "fsgda", "--client-column", "site"]
    code, out, err = command(
        "evaluate", "r", "test.csv", *flags, "--json", capsys=capsys
    )
    assert code == 0, err
    told = json.loads(out)
    frame = pandas.read_csv("test.csv")
    ill = frame.outcome == "ill"
    model = Scorer.load("r", "fsgda")
    scores = model.predict("test.csv")
    assert told["auc"]["value"] == pytest.approx(roc_auc_score(ill, scores))
    assert told["auc"]["low"] < told["auc"]["value"] < told["auc"]["high"]
    assert told["auc"]["value"] > 0.8
    chance = model.probabilities(scores)
    assert told["brier"] == pytest.approx(brier_score_loss(ill, chance))
    assert told["calibration_error"] < 0.2
    found = {own["name"]: own for own in told["clients"]}
    assert set(found) == {"both", "clinic", "practice"}
    assert found["clinic"]["auc"] is None
    assert found["practice"]["auc"] is None
    own = frame.site == "both"
    assert found["both"]["auc"] == pytest.approx(roc_auc_score(ill[own], scores[own]))
    assert told["worst_client"]["name"] == "both"
    # Of two clients that have an AUC, the lesser.
    frame = frame.assign(site=np.where(np.arange(len(frame)) % 2, "odd", "even"))
    frame.to_csv("halves.csv", index=False)
    _, out, _ = command("evaluate", "r", "halves.csv", *flags, "--json", capsys=capsys)
    halves = json.loads(out)
    each = {own["name"]: own["auc"] for own in halves["clients"]}
    assert each["odd"] != each["even"]
    assert halves["worst_client"]["auc"] == min(each.values())
    # On a terminal, as a page, and in the card.
    code, out, _ = command("evaluate", "r", "test.csv", *flags, capsys=capsys)
    assert code == 0
    for words in ("AUC of all rows", "2 of them with one class only", "worst client"):
        assert words in out
    page = Path("r/evaluation.html").read_text()
    assert "true positive rate" in page
    assert "<script src" not in page
    card = Path("r/MODEL_CARD.md").read_text()
    assert f"{told['auc']['value']:.4f} [" in card
    assert "test.csv" in card
    # Judged on one file, models stand beside each other.
    code, _, _ = command(
        "evaluate", "r", "test.csv", "--algorithm", "sagda-i", capsys=capsys
    )
    assert code == 0
    card = Path("r/MODEL_CARD.md").read_text()
    assert "| test.csv | fsgda, seed 0 |" in card
    assert "| test.csv | sagda-i, seed 0 |" in card
    assert "| algorithm fsgda | `fsgda(local_lr=" in card
    assert "Means and standard deviations over 2 seeds" in card


def test_a_prediction_needs_no_label(here, capsys):
    rng = np.random.default_rng(0)
    rows = {"features": rng.normal(size=(40, 3)), "outcome": np.arange(40) % 2}
    np.savez("rows.npz", **rows)
    np.savez("new.npz", features=rows["features"])
    told = ["--problem", "auc", "--data", "rows.npz", "--label", "outcome"]
    told += ["--partition", "iid", "--clients", "4", "--samples", "10", "--rounds", "2"]
    code, _, err = command(
        "run", *told, "--batch-size", "2", "--out", "n", capsys=capsys
    )
    assert code == 0, err
    seen = [
        json.loads(command("predict", "n", name, "--json", capsys=capsys)[1])["scores"]
        for name in ("rows.npz", "new.npz")
    ]
    assert seen[0] == seen[1]
    code, out, _ = command(
        "predict", "n", "new.npz", "--json", "--out", "s.csv", capsys=capsys
    )
    assert (code, json.loads(out)["rows"]) == (0, 40)
    assert len(Path("s.csv").read_text().splitlines()) == 41


def test_calibration_looks_at_rows_of_all_clients_and_places(monkeypatch):
    """Clients' rows are often sorted by class: the first ones are no fair sample."""
    import sagda
    from sagda.runs import model_file as model_files
    from sagda.runs.config import Config
    from sagda.runs.experiment import Experiment

    rng = np.random.default_rng(0)
    label = np.tile(np.where(np.arange(10) == 9, 1.0, -1.0), 300)
    table = sagda.Table(rng.normal(size=(3000, 2)).astype(np.float32), label)
    held = sagda.Federation.of(table, np.arange(3000), np.full(300, 10))
    problem = sagda.AUC.of(held)
    run = sagda.simulate(sagda.fsgda(), problem, held, rounds=1, batch_size=2)
    monkeypatch.setattr(model_files, "CALIBRATED", 500)
    parts = []
    keep = lambda some: parts.extend(some) or (1.0, 0.0)
    monkeypatch.setattr(model_files, "calibrated", keep)
    whole = Experiment(Config(), held, problem, {}, None)
    model_files.calibrated_models(whole, {"fsgda": run})
    seen = np.concatenate([own for _, own in parts])
    assert len(parts) == 300
    assert len(seen) == 500
    assert 0.06 < seen.mean() < 0.14


def test_the_card_is_there_after_a_run(home):
    card = (home / "r" / "MODEL_CARD.md").read_text()
    summary = json.loads((home / "r" / "summary.json").read_text())
    for words in (
        summary["split"]["hash"], "train.csv", "outcome, positive: ill", "sagda_i(",
        "| rounds | 40 |", "training AUC", "bytes", "## Limits", "from clients' sums",
    ):  # fmt: skip
        assert words in card


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("predict r test.csv", "must name one of the models fsgda (seed 0), fsgda"),
        ("predict r test.csv --algorithm cd-ma", "must name one of the models"),
        ("predict r test.csv --algorithm fsgda --seed 9", "got fsgda and 9."),
        ("predict r nix.csv --algorithm fsgda", "data file nix.csv does not exist"),
        (
            "predict . test.csv",
            "must hold a model that scores rows, found no recipe.json",
        ),
        ("evaluate r wrong.csv --algorithm fsgda", "ward' must have one of the values"),
        (
            "evaluate r alone.csv --algorithm fsgda",
            "must have at least two classes",
        ),
        ("evaluate r test.csv --algorithm fsgda --label no", "must have a column 'no'"),
        ("predict r narrow.npz --algorithm fsgda", "must be a CSV or Parquet file"),
    ],
)
def test_bad_input_gets_a_sentence(here, capsys, arguments, said):
    frame = pandas.read_csv("test.csv")
    frame.assign(ward="z").to_csv("wrong.csv", index=False)
    frame[frame.outcome == "ill"].to_csv("alone.csv", index=False)
    np.savez("narrow.npz", features=np.zeros((3, 1)), label=np.ones(3))
    code, _, err = command(arguments, capsys=capsys)
    assert code == 2
    assert said in err


@pytest.mark.parametrize(
    "problem", ["dro", pytest.param("auc --model mlp", marks=pytest.mark.slow)]
)
def test_features_without_names_must_be_as_many(tmp_path, monkeypatch, capsys, problem):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 3)), np.resize([0.0, 1.0], 40)
    np.savez("d.npz", features=X + y[:, None], label=y)
    flags = "--data d.npz --clients 2 --samples 20 --rounds 5 --batch-size 2 --out r"
    assert main(f"run --problem {problem} {flags}".split()) == 0
    assert len(Scorer.load("r").predict("d.npz")) == 40
    np.savez("e.npz", features=X[:, :2], label=y)
    code, _, err = command("predict", "r", "e.npz", capsys=capsys)
    assert code == 2
    assert "e.npz must have 3 features, as the training data, found 2" in err


def test_a_model_that_diverged_does_not_score(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_rows("train.csv", 0)
    assert main(["run", *TRAIN[:-2], "--local-lr", "1e9", "--out", "r"]) == 0
    with pytest.raises(BadValue, match="no model that scores: it diverged"):
        Scorer.load("r")


@pytest.mark.slow
def test_the_bootstrap_covers_the_true_auc():
    """About 95 of 100 intervals hold the AUC of the distribution."""
    from scipy import stats

    true, hits = float(stats.norm.cdf(1 / np.sqrt(2))), 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        label = np.resize([1.0, -1.0, -1.0], 200)
        scores = rng.normal(size=200) + (label > 0)
        found = bootstrap(scores, label, seed)
        hits += found.low <= true <= found.high
    assert 88 <= hits <= 100


def test_ties_count_a_half_also_in_the_bootstrap():
    label = np.resize([1.0, -1.0], 50)
    found = bootstrap(np.zeros(50), label, 0)
    assert found == (0.5, 0.5, 0.5)
    with pytest.raises(BadValue, match="both classes, got 3 positive rows of 3"):
        evaluate(np.zeros(3), np.zeros(3), np.ones(3))
