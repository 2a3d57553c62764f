"""The paper's claims, and the verdict that the evidence gives each of them.

A verdict is computed from comparisons between curves, never written by hand. `page`
shows the verdicts.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise, product
from typing import NamedTuple

from sagda.paper.evidence import Curve, Effect, Evidence, effect

PANELS = ("fig1a", "fig1b", "fig1c", "fig1d")
OPTIONS = ("sagda-i", "sagda-ii")
BASELINES = ("cd-ma", "cd-mage-plus", "parallel-sgda")
EvidenceOf = dict[str, Evidence]  # by figure


class ClaimRow(NamedTuple):
    """One comparison: how much smaller the first error is than the second."""

    figure: str
    setting: str
    first: str
    second: str
    effect: Effect


Compare = Callable[[EvidenceOf], Iterator[ClaimRow]]


class Claim(NamedTuple):
    """A sentence of the paper or of this project, and the comparisons it implies."""

    text: str
    where: str
    axis: str
    compare: Compare


class Verdict(NamedTuple):
    """A claim and the comparisons behind it in one setting."""

    claim: Claim
    setting: str
    rows: list[ClaimRow]

    @property
    def word(self) -> str:
        """Holds, if every effect is ahead; partly, if some are; else does not hold."""
        ahead = sum(row.effect.ahead for row in self.rows)
        if ahead == len(self.rows):
            return "holds"
        return "holds partly" if ahead else "does not hold"

    @property
    def why(self) -> str:
        """The counts of the comparisons in one sentence."""
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
    axis: str,
    metric: str | None = None,
) -> Compare:
    """Compares each of `firsts` with each of `seconds` in all settings of `figures`."""

    def compare(evidence: EvidenceOf) -> Iterator[ClaimRow]:
        for figure in figures:
            if figure not in evidence:
                continue
            for setting, curves in evidence[figure].curves.items():
                for first, second in product(firsts, seconds):
                    if first != second and {first, second} <= set(curves):
                        a, b = (by_metric(curves[n], metric) for n in (first, second))
                        yield ClaimRow(
                            figure=figure,
                            setting=setting,
                            first=first,
                            second=second,
                            effect=effect(a, b, axis),
                        )

    return compare


def by_metric(curve: Curve, metric: str | None) -> Curve:
    """The curve with `metric` as its main metric; None keeps its own."""
    return curve._replace(values={metric: curve.values[metric]}) if metric else curve


def larger_is_better(figure: str, axis: str) -> Compare:
    """Compares each value of a sweep with the next smaller one of the same method."""

    def compare(evidence: EvidenceOf) -> Iterator[ClaimRow]:
        if figure not in evidence:
            return
        for setting, curves in evidence[figure].curves.items():
            groups: dict[str, list[tuple[float, str, Curve]]] = {}
            for name, curve in curves.items():
                method, _, point = name.partition(" ")
                value = float(point.partition("=")[2])
                groups.setdefault(method, []).append((value, name, curve))
            for points in groups.values():
                points.sort(key=lambda p: p[0])
                for (_, small, a), (_, large, b) in pairwise(points):
                    yield ClaimRow(
                        figure=figure,
                        setting=setting,
                        first=large,
                        second=small,
                        effect=effect(b, a, axis),
                    )

    return compare


CLAIMS = (
    Claim(
        text="SAGDA converges faster than CD-MA, CD-MAGE+ and Parallel-SGDA in rounds.",
        where="section 4",
        axis="round",
        compare=against(PANELS, OPTIONS, BASELINES, "round"),
    ),
    Claim(
        text="SAGDA has a lower sample complexity than all other algorithms.",
        where="section 4",
        axis="samples",
        compare=against(PANELS, OPTIONS, ("fsgda", *BASELINES), "samples"),
    ),
    Claim(
        text="SAGDA is ahead of FSGDA at equal rounds.",
        where="section 3, which removes FSGDA's drift",
        axis="round",
        compare=against(PANELS, OPTIONS, ("fsgda",), "round"),
    ),
    Claim(
        text="SAGDA is ahead of all others at equal bytes.",
        where="not in the paper: SAGDA sends twice what FSGDA sends in a round",
        axis="bytes",
        compare=against(PANELS, OPTIONS, ("fsgda", *BASELINES), "bytes"),
    ),
    Claim(
        text="With 10 of 100 clients a round, SAGDA is ahead of all others at equal "
        "rounds.",
        where="abstract and section 3, without an experiment",
        axis="round",
        compare=against(("partial",), OPTIONS, ("fsgda", *BASELINES), "round"),
    ),
    Claim(
        text="The gradient norm decreases in rounds as K increases.",
        where="appendix A, Figure 4",
        axis="round",
        compare=larger_is_better("steps", "round"),
    ),
    Claim(
        text="It also decreases as K increases at equal samples.",
        where="not in the text; Figure 4 shows samples too",
        axis="samples",
        compare=larger_is_better("steps", "samples"),
    ),
    Claim(
        text="Larger local rates converge faster.",
        where="appendix A, Figures 5(a) and 6(a)",
        axis="round",
        compare=larger_is_better("local-rates", "round"),
    ),
    Claim(
        text="Larger server rates converge faster.",
        where="appendix A, Figures 5(b) and 6(b), and section 4",
        axis="round",
        compare=larger_is_better("server-rates", "round"),
    ),
    Claim(
        text="On GANs SAGDA and FSGDA converge better than the baselines (‖∇ₓf‖², "
        "rounds).",
        where="appendix A, Figure 3; a gradient may also vanish because y has won",
        axis="round",
        compare=against(("gan",), (*OPTIONS, "fsgda"), BASELINES, "round"),
    ),
    Claim(
        text="On GANs SAGDA and FSGDA generate rows nearer to the real ones (Fréchet).",
        where="not in the paper",
        axis="round",
        compare=against(("gan",), (*OPTIONS, "fsgda"), BASELINES, "round", "frechet"),
    ),
    Claim(
        text="On GANs SAGDA generates rows nearer to the real ones than FSGDA "
        "(Fréchet).",
        where="not in the paper",
        axis="round",
        compare=against(("gan",), ("sagda-i",), ("fsgda",), "round", "frechet"),
    ),
)


def verdicts(evidence: EvidenceOf) -> list[Verdict]:
    """A verdict for every claim and setting that has evidence."""
    out = []
    for claim in CLAIMS:
        rows = list(claim.compare(evidence))
        for setting in ("paper", "tuned"):
            if some := [row for row in rows if row.setting == setting]:
                out.append(Verdict(claim, setting, some))
    return out
