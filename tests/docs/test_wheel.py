"""A wheel that is installed in an empty environment loads a9a, trains and draws."""

import subprocess
import sys
import venv

import pytest

from support import ROOT

PROGRAM = """
import sagda
data = sagda.load("a9a")
clients = sagda.partition(data.train, clients=100, samples=100)
run = sagda.simulate(sagda.sagda_i(), sagda.AUC.of(clients), clients, rounds=20)
history = run.history["grad_phi_sq"][0]
assert history[-1] < history[0] / 3, history
print(sagda.__file__)
"""


@pytest.mark.slow
def test_a_wheel_in_an_empty_environment_trains(tmp_path):
    run = lambda *command: (
        subprocess.run(
            command, check=True, capture_output=True, text=True, cwd=tmp_path
        ).stdout
    )
    run(sys.executable, "-m", "build", "--wheel", "--outdir", str(tmp_path), str(ROOT))
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.stat().st_size < 1_000_000
    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    run(python, "-m", "pip", "install", "--quiet", str(wheel))
    assert str(tmp_path / "venv") in run(python, "-c", PROGRAM)
    command = str(tmp_path / "venv" / "bin" / "sagda")
    quick = ["run", "--problem", "quadratic", "--rounds", "3", "--out", "r"]
    assert "pip install 'sagda[report]'" in run(command, *quick)
    run(python, "-m", "pip", "install", "--quiet", f"{wheel}[report]")
    run(command, "report", "r", "--no-figures")
    assert (tmp_path / "r" / "report.html").stat().st_size > 500_000
