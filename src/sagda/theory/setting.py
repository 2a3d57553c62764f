"""The symbols of the theorems: problem constants, the setting of a run, step sizes.

These classes store and check numbers. They do not measure: `constants` estimates
`Constants` from data. Other modules name their arguments `c` (Constants), `s` (Setting)
and `e` (Steps). Read `conditions` and `bounds` next.
"""

from dataclasses import dataclass
from typing import NamedTuple

from sagda import check
from sagda.check import BadValue

# With constants above HUGE or below 1/HUGE, products overflow or underflow.
HUGE = 1e30


@dataclass(frozen=True)
class Constants:
    """The constants of Assumptions 1 to 4 in the paper.

    Args:
        smoothness: L_f, a smoothness constant that is valid for every f_i.
        mu: the PL (Polyak-Lojasiewicz) constant of f in y.
        sigma_x: standard deviation of a stochastic gradient in x.
        sigma_y: standard deviation of a stochastic gradient in y.
        spread_x: sigma_{x,G}, root mean square of grad_x f_i - grad_x f over clients.
        spread_y: sigma_{y,G}, root mean square of grad_y f_i - grad_y f over clients.
        gap: calL_0 - calL_*, the initial value minus the infimum of the potential
            calL = Phi - f/10.
    """

    smoothness: float
    mu: float
    sigma_x: float = 0.0
    sigma_y: float = 0.0
    spread_x: float = 0.0
    spread_y: float = 0.0
    gap: float = 1.0

    def __post_init__(self) -> None:
        for name in ("smoothness", "mu"):
            check.positive(name, getattr(self, name))
            check.real(name, getattr(self, name), low=1 / HUGE, high=HUGE)
        for name in ("sigma_x", "sigma_y", "spread_x", "spread_y", "gap"):
            check.real(name, getattr(self, name), low=0.0)
        if self.mu > self.smoothness:
            raise BadValue(
                f"`mu` must be at most `smoothness` ({self.smoothness:g}), got "
                f"{self.mu:g}: an L_f-smooth function has mu <= L_f."
            )

    @property
    def kappa(self) -> float:
        """kappa = L_f / mu, the condition number."""
        return self.smoothness / self.mu

    @property
    def phi_smoothness(self) -> float:
        """L = L_f + L_f^2/mu, the smoothness of Phi."""
        return self.smoothness + self.smoothness**2 / self.mu

    @property
    def potential_smoothness(self) -> float:
        """L + L_f/10, the smoothness of the potential calL = Phi - f/10."""
        return self.phi_smoothness + self.smoothness / 10


class Setting(NamedTuple):
    """The sizes of a run: clients, cohort, local steps and rounds."""

    clients: int  # M
    cohort: int  # m, clients per round
    local_steps: int  # K
    rounds: int  # T

    def check(self) -> "Setting":
        """Return this setting. Raise `BadValue` if its sizes contradict each other."""
        check.integer("clients", self.clients, low=1)
        check.integer("cohort", self.cohort, low=1, high=self.clients, what=" (M)")
        check.integer("local_steps", self.local_steps, low=1)
        check.integer("rounds", self.rounds, low=1)
        return self

    @property
    def full(self) -> bool:
        """True if every client takes part in every round (m = M)."""
        return self.cohort == self.clients

    @property
    def sampling(self) -> float:
        """1 - m/M, a factor of every term that client sampling causes."""
        return 1 - self.cohort / self.clients


class Steps(NamedTuple):
    """The four step sizes (rates) of a run.

    The effective step size of x or y is its local rate times its server rate.
    """

    x_local: float  # eta_xl
    y_local: float  # eta_yl
    x_server: float = 1.0
    y_server: float = 1.0

    def check(self) -> "Steps":
        """Return these steps. Raise `BadValue` if one is not a positive number."""
        for name, value in self._asdict().items():
            check.positive(name, value)
        return self

    @property
    def x(self) -> float:
        """eta_x, the effective step size of x."""
        return self.x_local * self.x_server

    @property
    def y(self) -> float:
        """eta_y, the effective step size of y."""
        return self.y_local * self.y_server

    @property
    def squares(self) -> float:
        """eta_x^2 + eta_y^2."""
        return self.x**2 + self.y**2

    @property
    def ratio(self) -> float:
        """r = eta_y / eta_x."""
        return self.y / self.x
