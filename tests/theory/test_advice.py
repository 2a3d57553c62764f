"""Advice on step sizes: the command, and short runs that find rates that work."""

import json
import math

import pytest

from sagda.algorithms import ALGORITHMS
from sagda.problems.quadratic import Quadratic
from sagda.theory import (
    Constants,
    Setting,
    Steps,
)
from sagda.theory.practice import practice
from support import command

SMALL = ["--problem", "quadratic", "--clients", "6", "--samples", "8"]

SMALL += ["--batch-size", "2", "--local-steps", "3", "--rounds", "50"]


def test_advice_as_json(capsys):
    code, out, _ = command(
        "advise",
        *SMALL,
        "--algorithm",
        "sagda-ii",
        "--epsilon",
        "100",
        "--json",
        capsys=capsys,
    )
    assert code == 0
    answer = json.loads(out)
    assert answer["setting"] == {
        "clients": 6, "cohort": 6, "local_steps": 3, "rounds": 50,
    }  # fmt: skip
    assert answer["constants"]["smoothness"]["value"] == pytest.approx(2.0, rel=0.01)
    assert answer["best"]["holds"]
    assert answer["provable"]
    assert not answer["given"]["proof"]["holds"]
    assert answer["rounds"] >= 1
    terms = answer["best"]["bound"]
    assert terms["total"] == pytest.approx(
        sum(v for k, v in terms.items() if k != "total")
    )


@pytest.mark.slow
def test_advice_on_a_terminal(capsys):
    code, out, _ = command(
        "advise", *SMALL, "--algorithm", "sagda-ii", "--cohort", "3", capsys=capsys
    )
    assert code == 0
    for words in (
        "L_f",
        "FAILS",
        "best rates by the theorem",
        "Nothing is proved",
        "total",
    ):
        assert words in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--algorithm cd-ma", "`algorithm` must be one of sagda-i, sagda-ii, fsgda"),
        ("--algorithm fsgda --epsilon 0", "`epsilon` must be above zero"),
        ("--algorithm fsgda --max-server-lr -1", "`max_server_lr` must be above zero"),
        ("--algorithm fsgda --cohort 9", "`cohort`"),
    ],
)
def test_invalid_arguments_get_one_sentence(arguments, message, capsys):
    code, _, error = command("advise", *SMALL, *arguments.split(), capsys=capsys)
    assert code == 2
    assert message in error


def tried_out(smoothness, **given):
    problem, federation = Quadratic.make(clients=4, samples=3, x_dim=3, y_dim=2)
    constants = Constants(smoothness, min(0.5, smoothness))
    method = ALGORITHMS["sagda-ii"](local_steps=3)
    steps = Steps(**{"x_local": 1e-4, "y_local": 1e-4} | given)
    return practice(
        method, problem, federation, constants, Setting(4, 4, 3, 60), steps,
        Steps(1e-9, 1e-6), batch_size=None, seeds=0,
    )  # fmt: skip


def test_a_short_sweep_finds_rates_that_work():
    found = tried_out(2.0)
    assert found.rounds == 60
    assert found.tried >= 27
    assert not found.edge
    assert found.best.error < 1e-3 * found.begin
    assert found.best.error < found.given.error < found.begin
    assert found.provable.error == pytest.approx(found.begin, rel=1e-3)
    # A scale that is a thousand times off only makes the sweep move.
    off = tried_out(2000.0)
    assert off.tried > found.tried
    assert off.best.error < 1e-3 * off.begin


def test_rates_that_diverge_are_named():
    found = tried_out(2.0, x_local=50.0, y_local=50.0)
    assert found.given.error == math.inf
    assert math.isfinite(found.best.error)
    from sagda.report.terminal_theory import practical
    from sagda.theory.advice import practice_facts

    assert "given rates diverged" in practical(found)
    assert practice_facts(found)["given"]["grad_phi_sq"] is None
