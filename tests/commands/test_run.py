"""The command line in process: results, files, and one sentence for every mistake."""

import csv
import dataclasses
import functools
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sagda import ALGORITHMS
from sagda.check import BadKind, BadValue
from sagda.data import datasets
from sagda.runs import execution
from sagda.runs.config import Config, build, read_toml, write_toml
from sagda.runs.experiment import prepare, resolve
from support import command as sagda

QUICK = [
    *("--problem", "quadratic", "--clients", "4", "--samples", "4"),
    *("--rounds", "6", "--batch-size", "2"),
]


@pytest.fixture(autouse=True)
def quiet_place(tmp_path, monkeypatch):
    """Commands run in an empty folder."""
    monkeypatch.chdir(tmp_path)


def history(folder) -> list[dict[str, str]]:
    text = Path(folder, "history.csv").read_text()
    return list(csv.DictReader(text.splitlines()))


def test_run_leaves_a_folder_that_says_everything(tmp_path, capsys):
    code, out, err = sagda("run", *QUICK, "--seeds", 2, "--out", "r", capsys=capsys)
    assert code == 0, err
    assert "run folder: r" in out
    assert "page: r/report.html" in out
    files = {p.name for p in Path("r").iterdir()}
    assert files == {
        ".lock",
        "checkpoint",
        "config.toml",
        "history.csv",
        "model.safetensors",
        "report.html",
        "summary.json",
    }
    rows = history("r")
    assert len(rows) == 2 * 7
    first = ["algorithm", "seed", "round", "gradients", "samples"]
    first += ["bytes_down", "bytes_up", "eval_bytes"]
    assert list(rows[0])[: len(first)] == first
    assert rows[-1]["round"] == "6"
    summary = json.loads(Path("r/summary.json").read_text())
    assert summary["schema"] == 1
    assert set(summary["algorithms"]["sagda-i"]) == {"0", "1"}
    assert {"jax", "python", "processor"} <= set(summary["environment"])
    model = safetensors.numpy.load_file("r/model.safetensors")
    assert set(model) == {f"seed-{s}/{half}" for s in (0, 1) for half in "xy"}


def test_a_saved_configuration_repeats_the_run(capsys):
    sagda("run", *QUICK, "--set", "start=warm", "--out", "a", capsys=capsys)
    code, _, err = sagda(
        "run", "--config", "a/config.toml", "--out", "b", capsys=capsys
    )
    assert code == 0, err
    same = lambda name: Path("a", name).read_bytes() == Path("b", name).read_bytes()
    assert same("model.safetensors")
    assert same("config.toml")
    strip = lambda f: [
        {k: v for k, v in row.items() if k != "seconds"} for row in history(f)
    ]
    assert strip("a") == strip("b")


def test_flags_come_before_the_file(capsys):
    Path("c.toml").write_text('problem = "quadratic"\nclients = 4\nrounds = 3\n')
    code, out, err = sagda(
        "run",
        "--config",
        "c.toml",
        "--rounds",
        2,
        "--out",
        "r",
        "--json",
        capsys=capsys,
    )
    assert code == 0, err
    assert json.loads(out)["summary"]["rounds"] == 2


def test_compare_shares_start_and_samples(capsys):
    code, out, err = sagda(
        "compare", *QUICK, "--algorithms", "fsgda,sagda-i", "--out", "r", capsys=capsys
    )
    assert code == 0, err
    assert "fsgda" in out
    rows = history("r")
    start = {r["grad_phi_sq"] for r in rows if r["round"] == "0"}
    after = {r["grad_phi_sq"] for r in rows if r["round"] == "1"}
    assert len(start) == 1
    assert len(after) == 1  # from zero variates, the first round is the same
    assert len({r["grad_phi_sq"] for r in rows if r["round"] == "6"}) == 2


def test_set_reaches_those_who_have_the_parameter(capsys):
    code, out, _ = sagda(
        "compare",
        *QUICK,
        *("--algorithms", "fsgda,sagda-i", "--out", "r", "--json"),
        *("--set", "start=warm", "--set", "fsgda.local_lr=0.5,0.25", "--set", "mu=0.1"),
        capsys=capsys,
    )
    assert code == 0
    methods = json.loads(out)["summary"]["methods"]
    assert "start='warm'" in methods["sagda-i"]
    assert "local_lr=Rates(x=0.5, y=0.25)" in methods["fsgda"]
    config = build(*read_toml(Path("r/config.toml"))[:1])
    assert config.set["quadratic"] == {"mu": 0.1}


def test_a_file_that_changed_is_not_gone_on_with(capsys):
    rows = [f"{i % 7},{i % 5},{i % 2}" for i in range(40)]
    write = lambda: Path("d.csv").write_text("a,b,label\n" + "\n".join(rows))
    job = ["run", "--data", "d.csv", "--clients", 4, "--samples", 5, "--rounds", 2]
    job += ["--batch-size", 2, "--out", "r"]
    write()
    assert sagda(*job, capsys=capsys)[0] == 0
    rows[3] = "9,9,1"
    rows[0] = "9,9,0"
    rows[1:3] = ["8,8,1", "8,8,0"]
    rows[4:] = [row.replace("1,", "2,") for row in rows[4:]]
    write()
    code, _, err = sagda(*job, capsys=capsys)
    assert code == 2
    assert "was written for other data" in err


def test_what_a_killed_writer_left_is_no_obstacle(capsys):
    Path("r").mkdir()
    Path("r/config.toml.part").write_text("sche")
    assert sagda("run", *QUICK, "--out", "r", capsys=capsys)[0] == 0


def test_the_same_command_again_is_done(capsys):
    sagda("run", *QUICK, capsys=capsys)
    (made,) = Path("runs").iterdir()
    before = (made / "model.safetensors").read_bytes()
    code, out, _ = sagda("run", *QUICK, capsys=capsys)
    assert code == 0
    assert str(made) in out
    assert (made / "model.safetensors").read_bytes() == before


def test_report_writes_page_and_figures(capsys):
    sagda(
        "compare", *QUICK, "--algorithms", "fsgda,sagda-i", "--out", "r", capsys=capsys
    )
    code, out, err = sagda("report", "r", "--json", capsys=capsys)
    assert code == 0, err
    files = [Path(f) for f in json.loads(out)["files"]]
    assert files[0] == Path("r/report.html")
    heads = {".png": b"\x89PNG", ".pdf": b"%PDF"}
    assert {f.suffix for f in files[1:]} == set(heads)
    for file in files[1:]:
        assert file.read_bytes().startswith(heads[file.suffix])
    assert Path("r/figures/grad_phi_sq-by-megabytes.png") in files
    page = files[0].read_text()
    assert "https://cdn" not in page
    assert "<script src" not in page
    assert "Where these rates stand in the theory</h2>" in page
    standing = json.loads(Path("r/theory.json").read_text())
    assert list(standing) == ["fsgda", "sagda-i"]
    assert standing["fsgda"]["given"]["proof"]["conditions"][0]["name"] == "local rates"
    # Without it, from the files alone.
    Path("r/theory.json").unlink()
    flags = ("--no-figures", "--no-theory")
    assert sagda("report", "r", *flags, capsys=capsys)[0] == 0
    page = Path("r/report.html").read_text()
    assert "`sagda report FOLDER` measures the constants" in page
    # A server's folder has no data to measure.
    with Path("r/config.toml").open("a") as file:
        file.write("\n[federation]\nsites = 3\n")
    assert sagda("report", "r", "--no-figures", capsys=capsys)[0] == 0
    assert "sagda report FOLDER" not in Path("r/report.html").read_text()


def test_without_the_extra_a_run_still_finishes(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "altair", None)
    code, out, _ = sagda("run", *QUICK, "--out", "r", capsys=capsys)
    assert code == 0
    assert "pip install 'sagda[report]'" in out
    assert Path("r/history.csv").exists()
    code, _, err = sagda("report", "r", capsys=capsys)
    assert code == 2
    assert "pip install 'sagda[report]'" in err


def test_partition_shows_labels_and_hash(capsys):
    options = ["partition", "--data", "digits", "--clients", "10", "--samples", "20"]
    code, out, _ = sagda(*options, "--picture", "p.png", capsys=capsys)
    assert code == 0
    assert "split: " in out
    assert Path("p.png").read_bytes().startswith(b"\x89PNG")
    code, out, _ = sagda(*options, "--json", capsys=capsys)
    shown = json.loads(out)
    assert sum(map(sum, shown["labels"].values())) == 200
    assert shown["sizes"] == [20] * 10


def test_data_and_list_describe(capsys):
    code, out, _ = sagda("data", "a9a", capsys=capsys)
    assert code == 0
    assert "train: 32561 rows, 123 features; -1: 24720 (75.9%), 1: 7841 (24.1%)" in out
    Path("d.csv").write_text("a,site,label\n1,x,1\n2,y,0\n3,y,0\n")
    code, out, _ = sagda("data", "d.csv", "--client-column", "site", capsys=capsys)
    assert "2 clients of 1 to 2 rows, 2 of them with one class only" in out
    code, out, _ = sagda("list", "--json", capsys=capsys)
    parts = json.loads(out)
    assert list(parts) == [
        "algorithms", "problems", "data", "partitions", "metrics", "trackers"
    ]  # fmt: skip
    assert "start" in parts["algorithms"]["sagda-i"]["parameters"]
    assert sagda("list", capsys=capsys)[0] == 0


def test_help_does_not_import_jax():
    program = (
        "import sys\nfrom sagda.commands.main import main\n"
        "assert main(['--help']) == 0\nassert main(['run', '--help']) == 0\n"
        "assert main(['--version']) == 0\n"
        "sys.exit(any(m in sys.modules for m in ('jax', 'numpy', 'sklearn')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "compare" in done.stdout


def test_a_diverged_run_says_so_and_keeps_its_history(capsys):
    more = ["--local-steps", 100]
    code, out, err = sagda(
        "run", *QUICK, "--local-lr", 1e6, "--out", "r", *more, capsys=capsys
    )
    assert code == 0
    assert "diverged (NaN or infinity: seed 0 at round" in err
    assert "diverged" in out
    summary = json.loads(Path("r/summary.json").read_text())
    assert summary["algorithms"]["sagda-i"]["0"]["diverged"] >= 1


CSV = "a,label\n1,1\nx,0\n"
MISTAKES = {  # command: what the sentence says
    "": None,
    "rnu": 'Did you mean "run"?',
    "run --algorithm sagda-1": "did you mean 'sagda-i'?",
    "run --algoritm fsgda": "Did you mean --algorithm?",
    "run fsgda": "Unused Tokens",
    "run --algorithm": "--algorithm",
    "run --problem acu": "did you mean 'auc'?",
    "run --data a9": "did you mean 'a9a'?",
    "run --data gone.csv": "data file gone.csv does not exist",
    "run --data bad.csv": "bad.csv, line 3: column 'a' must be a number, found 'x'",
    "run --data notes.docx": "must end in .csv, .parquet, .npz or .libsvm",
    "run --partition by-lable": "did you mean 'by-label'?",
    "run --partition by-column": "`table` must have a client column",
    "run --cohort 101": "`cohort` must be between 1 and 100",
    "run --cohort 0": "`cohort` must be at least 1, got '0'",
    "run --rounds 0": "`rounds` must be at least 1, got '0'",
    "run --rounds -5": "`rounds` must be at least 1",
    "run --rounds 2.5": "`rounds` must be a whole number",
    "run --rounds nan": "`rounds` must be a whole number",
    "run --rounds many": "`rounds` must be a whole number, got 'many'",
    "run --local-steps 0": "`local_steps` must be at least 1",
    "run --local-lr 0": "`local_lr` must be above zero and finite, got '0'",
    "run --local-lr -1": "`local_lr` must be above zero",
    "run --local-lr nan": "`local_lr` must be above zero and finite, got 'nan'",
    "run --local-lr inf,1": "`local_lr` must be above zero and finite",
    "run --local-lr 1,2,3": "`local_lr` must be one rate, or two",
    "run --local-lr fast": "`local_lr` must be one rate, or two",
    "run --server-lr 1,": "`server_lr` must be one rate, or two",
    "run --clients 0": "`clients` must be at least 1",
    "run --clients 40000": "`clients` must be between 1 and 32561",
    "run --samples 1000": "lower one of them",
    "run --samples 0": "`samples` must be a whole number of at least 1, or 'all'",
    "run --batch-size 101": "`batch_size` must be between 1 and 100, the rows of the",
    "run --batch-size 0": "`batch_size` must be a whole number of at least 1, or 'all'",
    "run --dropout 1": "`dropout` must be less than 1, got '1'",
    "run --dropout -0.1": "`dropout` must be at least 0",
    "run --dropout nan": "`dropout` must be finite",
    "run --alpha 0.5": "`alpha` may be set only for partition dirichlet or quantity",
    "run --partition dirichlet --alpha 0": "`alpha` must be greater than 0",
    "run --seed -1": "`seed` must be at least 0",
    "run --seed 4294967296": "`seed` must be less than or equal to 4294967295",
    "run --seeds 0": "`seeds` must be at least 1",
    "run --eval-every 0": "`eval_every` must be at least 1",
    "run --set start": "`--set` must have the form start=warm, got 'start'",
    "run --set strat=warm": "did you mean 'start'?",
    "run --set start=hot": "`start` must be one of zeros, warm, got 'hot'",
    "run --set fsgda.local_lr=1": "`set` must be one of sagda-i, auc, got 'fsgda'",
    "run --set sagda-i.step=1": "`parameter of sagda_i` must be one of",
    "run --checkpoint-seconds -1": "`checkpoint_seconds` must be zero or more",
    "run --config gone.toml": "configuration gone.toml does not exist",
    "run --config .": "configuration . is a folder",
    "run --config broken.toml": "configuration broken.toml is not TOML",
    "run --config unknown.toml": "unknown.toml, line 2: `key` must be one of",
    "run --config wrong.toml": "wrong.toml, line 3: `rounds` must be a whole number",
    "run --config future.toml": "`schema` must be 1 for this version, got 7",
    "run --config two.toml": "`run` takes one algorithm, got fsgda, sagda-i",
    "run --out taken": "taken holds other files; choose another folder with --out",
    "run --out other": "other holds a run of another configuration",
    "compare --algorithms fsgda,fsgda": "algorithms must name each algorithm once",
    "compare --algorithms fsgda,sgd": "`algorithm` must be one of",
    "compare --set nothing=1": "`set` must be one of",
    "resume": "resume",
    "resume gone": "gone is not a run folder",
    "resume taken": "taken is not a run folder",
    "report gone": "gone is not a run folder",
    "report other": "other has no summary.json, so its run is not finished",
    "partition --picture p.gif": "`picture` must end in .png, .pdf, .svg or .html",
    "data a9": "did you mean 'a9a'?",
    "data bad.csv": "bad.csv, line 3",
}


@pytest.mark.parametrize("command", MISTAKES)
def test_mistakes_are_answered_in_one_sentence(command, capsys):
    Path("bad.csv").write_text(CSV)
    Path("notes.docx").write_text("")
    Path("broken.toml").write_text("rounds = \n")
    Path("unknown.toml").write_text('data = "a9a"\nround = 5\n')
    Path("wrong.toml").write_text('data = "a9a"\n\nrounds = "x"\n')
    Path("future.toml").write_text("schema = 7\n")
    Path("two.toml").write_text('algorithms = ["fsgda", "sagda-i"]\n')
    for name in ("taken", "other"):
        Path(name).mkdir()
    Path("taken/notes.txt").write_text("mine")
    Path("other/config.toml").write_text(write_toml(Config(rounds=3)))
    before = sorted(p for p in Path().rglob("*"))
    code, out, err = sagda(*command.split(), capsys=capsys)
    expected = MISTAKES[command]
    if expected is None:
        assert code == 0
        return
    assert code == 2
    assert out == ""
    assert err.startswith("sagda: ")
    assert len(err.splitlines()) == 1
    assert expected in err
    assert "Traceback" not in err
    written = [p for p in Path().rglob("*") if p not in before and p.name != ".lock"]
    assert written == []


def test_a_mistake_found_late_leaves_the_folder_free(capsys):
    """How many devices there are is known only once the data are loaded."""
    run = ("run", "--problem", "quadratic", "--rounds", 2, "--out", "late", "--layout")
    code, _, err = sagda(*run, "mapped/99", capsys=capsys)
    assert (code, len(err.splitlines())) == (2, 1)
    assert "`layout` must use at most" in err
    assert sagda(*run, "mapped", capsys=capsys)[0] == 0
    kept = Path("late/config.toml").read_text()
    assert sagda(*run, "mapped/99", capsys=capsys)[0] == 2
    assert Path("late/config.toml").read_text() == kept


def test_mistakes_as_json_are_one_object(capsys):
    code, out, err = sagda("run", "--rounds", 0, "--json", capsys=capsys)
    assert code == 2
    assert json.loads(out) == {"error": err[7:].strip(), "exit_code": 2}


WILD = st.one_of(
    st.integers(-3, 200),
    st.integers(),
    st.floats(allow_nan=True, allow_infinity=True),
    st.booleans(),
    st.lists(st.floats(), max_size=3),
    st.sampled_from(["all", "", "x", "1,2", "0.1,0.2,0.3", "true", "by-label", "🙂"]),
    st.text(max_size=4),
)
GOOD = {
    "problem": st.sampled_from(["auc", "dro", "quadratic"]),
    "clients": st.integers(2, 30),
    "samples": st.integers(1, 40),
    "partition": st.sampled_from(["by-label", "iid", "dirichlet", "quantity"]),
    "cohort": st.integers(1, 30),
    "batch_size": st.integers(1, 40),
    "dropout": st.floats(0, 0.99),
    "local_lr": st.floats(1e-6, 10),
    "alpha": st.floats(0.01, 10),
    "algorithms": st.lists(st.sampled_from([*ALGORITHMS, "sgd"]), max_size=3),
    "set": st.dictionaries(
        st.sampled_from(["sagda-i", "fsgda", "quadratic", "dro"]),
        st.dictionaries(
            st.sampled_from(["start", "local_lr", "local_steps", "mu", "alpha"]), WILD
        ),
        max_size=1,
    ),
}


@st.composite
def configurations(draw):
    """Mostly sensible keys, some wild ones."""
    values = {name: draw(value) for name, value in GOOD.items() if draw(st.booleans())}
    for name in draw(
        st.lists(st.sampled_from([*Config.model_fields, "x"]), max_size=2)
    ):
        values[name] = draw(WILD)
    return {"data": "digits"} | values


@pytest.fixture(scope="module")
def small_data():
    """Data sets read once."""
    patch = pytest.MonkeyPatch()
    for name in ("digits", "a9a"):
        source = datasets.DATASETS[name]
        cached = dataclasses.replace(source, load=functools.cache(source.load))
        patch.setitem(datasets.DATASETS, name, cached)
    yield
    patch.undo()


FUZZ = {
    "deadline": None,
    "suppress_health_check": [
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
    ],
}


@settings(max_examples=2000, **FUZZ)
@given(values=configurations())
def test_random_configurations_are_taken_or_refused_in_a_sentence(values, small_data):
    """All the way to the objects that a run starts from."""
    try:
        config = resolve(build(values))
        prepare(config)
    except (BadValue, BadKind) as mistake:
        message = str(mistake)
        assert "\n" not in message.strip()
        return
    again = read_back(write_toml(config))
    assert again == config


def read_back(text: str) -> Config:
    values = tomllib.loads(text)
    values.pop("schema")
    return build(values)


@settings(max_examples=150, **FUZZ)
@given(values=configurations())
def test_random_flags_never_end_in_a_traceback(values, small_data, capsys, monkeypatch):
    """Through the command line, up to the first round."""
    monkeypatch.setattr(execution, "execute", lambda *a: {})
    monkeypatch.setattr("sagda.commands.run.show_run", lambda *a: 0)
    values = {k: v for k, v in values.items() if k not in ("algorithms", "set")}
    flags = [f"--{k.replace('_', '-')}={v}" for k, v in values.items()]
    code, out, err = sagda("run", *flags, capsys=capsys)
    assert code in (0, 2), f"{flags}: {err}"
    if code == 2:
        assert err.startswith("sagda: ")
        assert len(err.splitlines()) == 1
    assert out == ""


def test_help_groups_commands_and_flags(capsys):
    code, out, _ = sagda("--help", capsys=capsys)
    assert code == 0
    groups = ["Start here", "Use a trained model", "Theory", "Real federations"]
    places = [out.index(title) for title in groups]
    assert places == sorted(places)
    assert out.index("│ run ") < out.index("│ compare ") < out.index("│ resume ")
    _, out, _ = sagda("run --help", capsys=capsys)
    groups = [f"─ {name} ─" for name in ("Data", "Method", "Run", "Output")]
    places = [out.index(title) for title in groups]
    assert places == sorted(places)
    assert places[2] < out.index("│ --rounds") < places[3]
    _, out, _ = sagda("evaluate --help", capsys=capsys)
    assert "FOLDER" in out.partition("Arguments")[2]


def test_a_missing_folder_is_the_same_error_for_every_command(capsys):
    for line in ("resume nowhere", "report nowhere"):
        code, out, err = sagda(f"{line} --json", capsys=capsys)
        error = json.loads(out)
        assert code == error["exit_code"] == 2
        assert err == f"sagda: {error['error']}\n"
        assert "nowhere is not a run folder" in err
