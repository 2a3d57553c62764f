"""The bounds of Theorems 1 and 2 on the mean squared gradient norm, term by term.

(1/T) sum of E ||grad Phi(x_t)||^2  <=  optimisation + statistical + local + sampling

A bound is valid only for step sizes that satisfy all conditions in `conditions`.
`rates` minimises a bound over the step sizes. `setting` explains the symbols.
"""

from collections.abc import Callable
from typing import NamedTuple

from sagda import check
from sagda.check import BadValue
from sagda.theory.conditions import Reading, a2_option_1, a3_fsgda, a4_fsgda
from sagda.theory.setting import Constants, Setting, Steps


class Bound(NamedTuple):
    """The four terms of a bound, with the names that the paper gives them."""

    optimisation: float
    statistical: float
    local: float
    sampling: float = 0.0

    @property
    def total(self) -> float:
        """The sum of the four terms: the bound on the mean of ||grad Phi||^2."""
        return sum(self)

    @property
    def terms(self) -> dict[str, float]:
        """The four terms and `total`, by name."""
        return self._asdict() | {"total": self.total}


def optimisation(c: Constants, s: Setting, e: Steps) -> float:
    """Return the optimisation term: 2 (calL_0 - calL_*) / (eta_x K T)."""
    return 2 * c.gap / (e.x * s.local_steps * s.rounds)


def local_noise(c: Constants, e: Steps) -> float:
    """Return eta_xl^2 sigma_x^2 + eta_yl^2 sigma_y^2, a factor of the local term."""
    return e.x_local**2 * c.sigma_x**2 + e.y_local**2 * c.sigma_y**2


def option_1(c: Constants, s: Setting, e: Steps, reading: Reading) -> Bound:
    """Return the bound of Theorem 1 for option I.

    The bound in the paper has 2 in place of 1 + M^2/m^2 - M/m in a_2. This is too small
    if M/m > 1.618. The reading "proof" uses a_2 as `a2_option_1` computes it.
    """
    K, lf = s.local_steps, c.smoothness
    a2 = c.potential_smoothness / 2 + 2
    if reading == "proof":
        a2 = a2_option_1(c, s, reading)
    noise = e.x**2 * c.sigma_x**2 + e.y**2 * c.sigma_y**2
    statistical = 2 * a2 * 9 / (s.cohort * e.x) * noise
    drift = lf**2 * (31 + e.ratio) / 20 + a2 * 4 * lf**2 * K * (e.x + e.y**2 / e.x)
    local = drift * 20 * K**2 * local_noise(c, e)
    return Bound(optimisation(c, s, e), statistical, local)


def option_2(c: Constants, s: Setting, e: Steps, reading: Reading) -> Bound:
    """Return the bound of Theorem 1 for option II.

    The bound in the paper has no term for client sampling. For m < M such a term is
    needed, because the control variates do not remove the variance of client sampling.
    The reading "proof" adds a lower bound on the missing term.
    """
    K, lf, m = s.local_steps, c.smoothness, s.cohort
    statistical = c.potential_smoothness * 9 * e.x / m * c.sigma_x**2
    statistical += 9 / 10 * lf * e.y**2 / (m * e.x) * c.sigma_y**2
    drift = (31 + e.ratio) * K / 20 + 2 * c.potential_smoothness * e.x * K**2
    drift = lf**2 * (drift + lf / 5 * e.y**2 / e.x * K**2)
    local = drift * 10 * (16 * K + 1) * local_noise(c, e)
    sampling = 0.0
    if reading == "proof" and not s.full:
        chance = s.sampling * s.clients / (s.clients - 1)
        sampling = 4 * c.potential_smoothness * e.x * K * chance / m * c.spread_x**2
        other = 2 / 5 * lf * K * e.y**2 / e.x * chance / m
        sampling += other * c.spread_y**2
    return Bound(
        optimisation=optimisation(c, s, e),
        statistical=statistical,
        local=local,
        sampling=sampling,
    )


def fsgda(c: Constants, s: Setting, e: Steps, reading: Reading) -> Bound:
    """Return the bound of Theorem 2 for FSGDA.

    The theorem in the paper differs from its proof in two factors. The proof is
    correct. The reading "proof" uses its factors, the reading "printed" the others.

    - statistical term: L + L_f/100 in the theorem, L + L_f/10 in the proof;
    - sampling term: 2/m in the theorem, 4/m in the proof.
    """
    K, lf, m = s.local_steps, c.smoothness, s.cohort
    hundredth = 10 if reading == "proof" else 100
    curvature = c.phi_smoothness + lf / hundredth
    statistical = 2 * e.x / m * curvature * c.sigma_x**2
    statistical += lf * e.y**2 / (5 * m * e.x) * c.sigma_y**2
    drift = 2 * lf**2 * (a3_fsgda(c, s, e) + a4_fsgda(c, s, e) * e.ratio)
    spread = e.x_local**2 * c.spread_x**2 + e.y_local**2 * c.spread_y**2
    local = drift * (40 * K**2 * spread + 5 * K * local_noise(c, e))
    times = 4 if reading == "proof" else 2
    in_x = 2 * c.potential_smoothness * e.x * K * c.spread_x**2
    in_y = lf / 5 * e.y * K * e.ratio * c.spread_y**2
    sampling = s.sampling * times / m * (in_x + in_y)
    return Bound(
        optimisation=optimisation(c, s, e),
        statistical=statistical,
        local=local,
        sampling=sampling,
    )


BOUNDS: dict[str, Callable[[Constants, Setting, Steps, Reading], Bound]] = {
    "sagda-i": option_1,
    "sagda-ii": option_2,
    "fsgda": fsgda,
}


def bound(
    method: str, c: Constants, s: Setting, e: Steps, reading: Reading = "proof"
) -> Bound:
    """Return the bound of the theorem about `method` at the step sizes `e`.

    The result is a number even if a condition fails; then it bounds nothing.
    """
    return BOUNDS[method](c, s, e, reading)


def caveats(method: str, s: Setting) -> list[str]:
    """Return the reasons why the bound is not valid in this setting at any steps."""
    if method == "sagda-ii" and not s.full:
        return [
            "Option II with m < M: the control variates cancel in the average, so the "
            "variance of client sampling remains. Measured errors exceed the paper's "
            "bound (docs/theory.md). Nothing is proved for this case."
        ]
    if method == "sagda-i" and not s.full:
        return [
            "Option I with m < M: the noise of stored control variates is not divided "
            "by K. The term 9 sigma^2/(mK) of the theorem is too small by the order of "
            "(1 - m/M) M/(M-1) sigma^2/m, unless the variates use all rows."
        ]
    return []


def samples(method: str, s: Setting) -> int:
    """Return how many stochastic gradients a client computes in T rounds."""
    # For a client in every round. The two SAGDA options need one more for the variate.
    each = s.local_steps + (method != "fsgda")
    return s.rounds * each


def rounds_to(
    method: str, c: Constants, s: Setting, e: Steps, epsilon: float
) -> int | None:
    """Return the rounds T at which the bound at the step sizes `e` is epsilon^2.

    The result is None if no number of rounds is enough.
    """
    epsilon = check.positive("epsilon", epsilon)
    # Only the optimisation term falls with T. The other terms are the floor.
    floor = sum(bound(method, c, s, e)[1:])
    if floor >= epsilon**2:
        return None
    rounds = 2 * c.gap / (e.x * s.local_steps * (epsilon**2 - floor))
    if rounds > 1e18:
        raise BadValue(
            f"`epsilon` must be reachable in 1e18 rounds, got {epsilon:g}; raise it."
        )
    return max(1, -int(-rounds // 1))
