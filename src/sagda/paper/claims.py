"""The claims of the paper, and the verdict on each claim that the evidence supports.

A verdict is computed from comparisons between curves. No verdict is written by hand.
`evidence` computes the comparisons and `page` shows the verdicts.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise, product
from typing import NamedTuple

from sagda.paper.evidence import Curve, Effect, Evidence, effect
from sagda.paper.figure import PANELS, SETTINGS

OPTIONS = ("sagda-i", "sagda-ii")
BASELINES = ("cd-ma", "cd-mage-plus", "parallel-sgda")
EvidenceOf = dict[str, Evidence]  # by name of the figure


class ClaimRow(NamedTuple):
    """One comparison between the errors of two curves of a figure.

    `effect` is the factor by which the error of `first` is smaller than that of
    `second`.
    """

    figure: str
    first: str
    second: str
    effect: Effect


class Comparisons(NamedTuple):
    """The comparisons that a claim implies."""

    figures: tuple[str, ...]
    # From the names of a figure's curves to the pairs (first, second) to compare.
    pairs: Callable[[Iterable[str]], Iterator[tuple[str, str]]]
    metric: str | None = None  # None: the main metric of the curves


class Claim(NamedTuple):
    """A claim of the paper or of this project, and the comparisons that it implies."""

    text: str
    where: str  # the section or figure of the paper
    axis: str  # the budget at which errors are compared
    comparisons: Comparisons


class Verdict(NamedTuple):
    """A claim in one setting, and the comparisons that decide whether it holds."""

    claim: Claim
    setting: str
    rows: list[ClaimRow]

    @property
    def word(self) -> str:
        """The verdict in words: "holds", "holds partly" or "does not hold".

        A claim holds if the first error is smaller in every comparison. It holds partly
        if the first error is smaller in some.
        """
        ahead = sum(row.effect.ahead for row in self.rows)
        if ahead == len(self.rows):
            return "holds"
        return "holds partly" if ahead else "does not hold"

    @property
    def why(self) -> str:
        """A count of the comparisons with smaller, equal and larger error, as text."""
        total = len(self.rows)
        ahead = sum(row.effect.ahead for row in self.rows)
        behind = [row for row in self.rows if row.effect.behind]
        level = total - ahead - len(behind)
        parts = [f"smaller error in {ahead} of {total} comparisons"]
        if level:
            parts.append(f"level in {level}")
        if behind:
            names = [f"{r.first} against {r.second} ({r.figure})" for r in behind]
            shown = ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
            parts.append(f"larger in {len(behind)}: {shown}")
        return "; ".join(parts) + "."


def against(
    figures: tuple[str, ...],
    firsts: tuple[str, ...],
    seconds: tuple[str, ...],
    metric: str | None = None,
) -> Comparisons:
    """Compare each of `firsts` with each of `seconds` in all settings of `figures`."""

    def pairs(names: Iterable[str]) -> Iterator[tuple[str, str]]:
        return (pair for pair in product(firsts, seconds) if set(pair) <= set(names))

    return Comparisons(figures, pairs, metric)


def larger_is_better(figure: str) -> Comparisons:
    """Compare each value of a sweep with the next smaller value of the same method."""

    def pairs(names: Iterable[str]) -> Iterator[tuple[str, str]]:
        # A name is "method parameter=value".
        groups: dict[str, list[str]] = {}
        for name in names:
            groups.setdefault(name.partition(" ")[0], []).append(name)
        for points in groups.values():
            points.sort(key=lambda name: float(name.partition("=")[2]))
            for smaller, larger in pairwise(points):
                yield larger, smaller

    return Comparisons((figure,), pairs)


CLAIMS = (
    Claim(
        text="SAGDA converges faster than CD-MA, CD-MAGE+ and Parallel-SGDA in rounds.",
        where="section 4",
        axis="round",
        comparisons=against(PANELS, OPTIONS, BASELINES),
    ),
    Claim(
        text="SAGDA has a lower sample complexity than all other algorithms.",
        where="section 4",
        axis="samples",
        comparisons=against(PANELS, OPTIONS, ("fsgda", *BASELINES)),
    ),
    Claim(
        text="SAGDA is ahead of FSGDA at equal rounds.",
        where="section 3, which removes FSGDA's drift",
        axis="round",
        comparisons=against(PANELS, OPTIONS, ("fsgda",)),
    ),
    Claim(
        text="SAGDA is ahead of all others at equal bytes.",
        where="not in the paper: SAGDA sends twice what FSGDA sends in a round",
        axis="bytes",
        comparisons=against(PANELS, OPTIONS, ("fsgda", *BASELINES)),
    ),
    Claim(
        text="With 10 of 100 clients a round, SAGDA is ahead of all others at equal "
        "rounds.",
        where="abstract and section 3, without an experiment",
        axis="round",
        comparisons=against(("partial",), OPTIONS, ("fsgda", *BASELINES)),
    ),
    Claim(
        text="The gradient norm decreases in rounds as K increases.",
        where="appendix A, Figure 4",
        axis="round",
        comparisons=larger_is_better("steps"),
    ),
    Claim(
        text="It also decreases as K increases at equal samples.",
        where="not in the text; Figure 4 shows samples too",
        axis="samples",
        comparisons=larger_is_better("steps"),
    ),
    Claim(
        text="Larger local rates converge faster.",
        where="appendix A, Figures 5(a) and 6(a)",
        axis="round",
        comparisons=larger_is_better("local-rates"),
    ),
    Claim(
        text="Larger server rates converge faster.",
        where="appendix A, Figures 5(b) and 6(b), and section 4",
        axis="round",
        comparisons=larger_is_better("server-rates"),
    ),
    Claim(
        text="On GANs SAGDA and FSGDA converge better than the baselines (‖∇ₓf‖², "
        "rounds).",
        where="appendix A, Figure 3; a gradient may also vanish because y is too "
        "strong",
        axis="round",
        comparisons=against(("gan",), (*OPTIONS, "fsgda"), BASELINES),
    ),
    Claim(
        text="On GANs SAGDA and FSGDA generate rows nearer to the real ones (Fréchet).",
        where="not in the paper",
        axis="round",
        comparisons=against(("gan",), (*OPTIONS, "fsgda"), BASELINES, "frechet"),
    ),
    Claim(
        text="On GANs SAGDA generates rows nearer to the real ones than FSGDA "
        "(Fréchet).",
        where="not in the paper",
        axis="round",
        comparisons=against(("gan",), ("sagda-i",), ("fsgda",), "frechet"),
    ),
)


def verdicts(evidence: EvidenceOf) -> list[Verdict]:
    """Return a verdict for every claim and setting that has evidence."""
    every = (
        Verdict(claim, setting, list(compared(claim, setting, evidence)))
        for claim, setting in product(CLAIMS, SETTINGS)
    )
    return [verdict for verdict in every if verdict.rows]


def compared(claim: Claim, setting: str, evidence: EvidenceOf) -> Iterator[ClaimRow]:
    """Make all comparisons of a claim in one setting."""
    figures, pairs, metric = claim.comparisons
    for figure in (name for name in figures if name in evidence):
        curves = evidence[figure].curves.get(setting, {})
        for first, second in pairs(curves):
            a, b = (by_metric(curves[name], metric) for name in (first, second))
            yield ClaimRow(
                figure=figure,
                first=first,
                second=second,
                effect=effect(a, b, claim.axis),
            )


def by_metric(curve: Curve, metric: str | None) -> Curve:
    """Return `curve` with `metric` as its main metric, or unchanged for None."""
    return curve._replace(values={metric: curve.values[metric]}) if metric else curve
