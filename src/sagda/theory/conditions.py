"""Every step-size condition of Theorems 1 and 2, one function each, in paper order.

A condition is an inequality `right <= left`, and its function returns both sides. The
first line of its docstring is the formula that users see. In these formulas
r = eta_y/eta_x; a_1, a_2, D, b_1, a_3 and a_4 are functions below.

Theorem and proof differ in places (docs/theory.md). The reading "printed" is the
theorem as published, the reading "proof" is what the proof supports. `bounds` has the
bounds that are valid under these conditions; `setting` explains the other symbols.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

from sagda.theory.setting import Constants, Setting, Steps

Reading = Literal["printed", "proof"]
READINGS: tuple[Reading, ...] = ("printed", "proof")


class Slack(NamedTuple):
    """The values of both sides of a condition `right <= left`."""

    left: float
    right: float

    @property
    def holds(self) -> bool:
        """True if right <= left."""
        return self.right <= self.left

    @property
    def margin(self) -> float:
        """1 - right/left: 1 if right is 0, 0 if both are equal, below 0 if it fails."""
        if self.left > 0:
            return 1 - self.right / self.left
        return 0.0 if self.right == self.left else -float("inf")


class Condition(NamedTuple):
    """One condition of a theorem: a name, a formula, and a function for both sides."""

    name: str
    formula: str
    slack: Callable[[Constants, Setting, Steps, Reading], Slack]


# The condition of both theorems.


def local_rates(c: Constants, s: Setting, e: Steps, reading: Reading) -> Slack:
    """8 K (K-1) (2K-1) L_f^2 max(eta_xl^2, eta_yl^2) <= 1."""
    K = s.local_steps
    largest = max(e.x_local, e.y_local) ** 2
    return Slack(1.0, 8 * K * (K - 1) * (2 * K - 1) * c.smoothness**2 * largest)


def y_left(c: Constants, s: Setting, e: Steps) -> float:
    """Return eta_y K (1/20 - kappa^2/r), the left side of both y conditions."""
    return s.local_steps * (e.y / 20 - e.x * c.kappa**2)


# Theorem 1, option I.


def a1_option_1(c: Constants, s: Setting, e: Steps) -> float:
    """Return a_1 = K L_f^2 (31 eta_x + eta_y) / 20."""
    return s.local_steps * c.smoothness**2 * (31 * e.x + e.y) / 20


def a2_option_1(c: Constants, s: Setting, reading: Reading) -> float:
    """Return a_2 = (L + L_f/10)/2 + (M/m) W.

    W bounds how far the points w_i move, at which the control variates were computed.
    The paper has W = M/m - 1 + m/M in the theorem. Its lemma on variates proves
    W = 2M/m - 2 + m/M.

    a_2 adds a pure number to a curvature, so the conditions depend on the units of f.
    """
    share = s.clients / s.cohort
    moved = 1 / share + share - 1
    if reading == "proof":
        moved = 1 / share + 2 * share - 2
    return c.potential_smoothness / 2 + share * moved


def drift_1(c: Constants, s: Setting, e: Steps, reading: Reading) -> float:
    """Return D = a_1 + 4 a_2 L_f^2 K^2 (eta_x^2 + eta_y^2), the factor of the drift."""
    a2 = a2_option_1(c, s, reading)
    moved = 4 * a2 * c.smoothness**2 * s.local_steps**2 * e.squares
    return a1_option_1(c, s, e) + moved


def variates_1(c: Constants, s: Setting, e: Steps, reading: Reading) -> Slack:
    """4 a_2 L_f^2 K^2 (eta_x^2+eta_y^2) + 160 D K^2 L_f^2 (eta_xl^2+eta_yl^2) <= 1/2.

    The proof needs 8 in place of the first 4, because the variates v_i and also their
    mean were computed in earlier rounds.
    """
    K, lf = s.local_steps, c.smoothness
    lags = 8 if reading == "proof" else 4
    step = lags * a2_option_1(c, s, reading) * lf**2 * K**2 * e.squares
    local = 160 * K**2 * (e.x_local**2 + e.y_local**2) * lf**2
    return Slack(0.5, step + drift_1(c, s, e, reading) * local)


def x_progress_1(c: Constants, s: Setting, e: Steps, reading: Reading) -> Slack:
    """4 a_2 K^2 eta_x^2 + 40 D K^2 eta_xl^2 <= eta_x K / 10."""
    K = s.local_steps
    step = 4 * a2_option_1(c, s, reading) * K**2 * e.x**2
    local = drift_1(c, s, e, reading) * 40 * K**2 * e.x_local**2
    return Slack(e.x * K / 10, step + local)


def y_progress_1(c: Constants, s: Setting, e: Steps, reading: Reading) -> Slack:
    """4 a_2 K^2 eta_y^2 + 40 D K^2 eta_yl^2 <= eta_y K (1/20 - kappa^2/r)."""
    K = s.local_steps
    step = 4 * a2_option_1(c, s, reading) * K**2 * e.y**2
    local = drift_1(c, s, e, reading) * 40 * K**2 * e.y_local**2
    return Slack(y_left(c, s, e), step + local)


# Theorem 1, option II.


def b1_option_2(c: Constants, s: Setting, e: Steps) -> float:
    """Return b_1, a factor of the squared local rates in the conditions of option II.

    b_1 = L_f^2 ((31 eta_x + eta_y) K/20 + 2 (L + L_f/10) eta_x^2 K^2 + L_f eta_y^2
    K^2/5).
    """
    K, lf = s.local_steps, c.smoothness
    first = (31 * e.x + e.y) * K / 20
    second = 2 * c.potential_smoothness * e.x**2 * K**2 + lf * e.y**2 * K**2 / 5
    return lf**2 * (first + second)


def x_progress_2(c: Constants, s: Setting, e: Steps, reading: Reading) -> Slack:
    """2 (L + L_f/10) eta_x^2 K^2 + 40 K^2 eta_xl^2 b_1 <= eta_x K / 10."""
    K = s.local_steps
    step = 2 * c.potential_smoothness * e.x**2 * K**2
    return Slack(e.x * K / 10, step + 40 * K**2 * e.x_local**2 * b1_option_2(c, s, e))


def y_progress_2(c: Constants, s: Setting, e: Steps, reading: Reading) -> Slack:
    """L_f eta_y^2 K^2 / 5 + 40 K^2 eta_yl^2 b_1 <= eta_y K (1/20 - kappa^2/r)."""
    K = s.local_steps
    step = c.smoothness * e.y**2 * K**2 / 5
    local = 40 * K**2 * e.y_local**2 * b1_option_2(c, s, e)
    return Slack(y_left(c, s, e), step + local)


# Theorem 2, FSGDA.


def a3_fsgda(c: Constants, s: Setting, e: Steps) -> float:
    """Return a_3 = 31/20 + 2 (L + L_f/10) eta_x K."""
    return 31 / 20 + 2 * c.potential_smoothness * e.x * s.local_steps


def a4_fsgda(c: Constants, s: Setting, e: Steps) -> float:
    """Return a_4 = 1/20 + L_f eta_y K / 5."""
    return 1 / 20 + c.smoothness * e.y * s.local_steps / 5


def x_progress_f(c: Constants, s: Setting, e: Steps, reading: Reading) -> Slack:
    """2 (2L + L_f/5) eta_x K + 40 (a_3 + r a_4) L_f^2 K^2 eta_xl^2 <= 1/10."""
    K = s.local_steps
    step = 4 * c.potential_smoothness * e.x * K
    both = a3_fsgda(c, s, e) + e.ratio * a4_fsgda(c, s, e)
    return Slack(0.1, step + both * 40 * c.smoothness**2 * K**2 * e.x_local**2)


def y_progress_f(c: Constants, s: Setting, e: Steps, reading: Reading) -> Slack:
    """(2/5) L_f eta_y K + 40 (a_3/r + a_4) L_f^2 K^2 eta_yl^2 <= 1/20 - kappa^2/r."""
    K = s.local_steps
    step = 2 * c.smoothness * e.y * K / 5
    both = a3_fsgda(c, s, e) / e.ratio + a4_fsgda(c, s, e)
    left = 1 / 20 - c.kappa**2 / e.ratio
    return Slack(left, step + both * 40 * c.smoothness**2 * K**2 * e.y_local**2)


def named(name: str, function: Callable) -> Condition:
    """Return a condition. Its formula is the first docstring line of `function`."""
    formula = (function.__doc__ or "").strip().splitlines()[0].rstrip(".")
    return Condition(name, formula, function)


LOCAL = named("local rates", local_rates)
CONDITIONS: dict[str, tuple[Condition, ...]] = {
    "sagda-i": (
        LOCAL,
        named("variates", variates_1),
        named("x", x_progress_1),
        named("y", y_progress_1),
    ),
    "sagda-ii": (LOCAL, named("x", x_progress_2), named("y", y_progress_2)),
    "fsgda": (LOCAL, named("x", x_progress_f), named("y", y_progress_f)),
}


class ConditionCheck(NamedTuple):
    """A condition, and the values of its two sides at given step sizes."""

    condition: Condition
    slack: Slack


def check_conditions(
    method: str, c: Constants, s: Setting, e: Steps, reading: Reading = "proof"
) -> list[ConditionCheck]:
    """Check every condition of `method` at the step sizes `e`, in the paper's order."""
    return [
        ConditionCheck(condition, condition.slack(c, s, e, reading))
        for condition in CONDITIONS[method]
    ]


def binding(checks: list[ConditionCheck]) -> ConditionCheck:
    """Return the condition with the smallest margin: the one closest to failing."""
    return min(checks, key=lambda check: check.slack.margin)
