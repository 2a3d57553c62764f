"""The paper's claims, each judged by the evidence: holds, holds partly, does not."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

from sagda.paper.evidence import Curve, Effect, Evidence, effect

PANELS = ("fig1a", "fig1b", "fig1c", "fig1d")
OPTIONS = ("sagda-i", "sagda-ii")
BASELINES = ("cd-ma", "cd-mage-plus", "parallel-sgda")
Found = dict[str, Evidence]


class ClaimRow(NamedTuple):
    """One comparison: how many times smaller the first error is than the second."""

    figure: str
    setting: str
    first: str
    second: str
    effect: Effect


class Claim(NamedTuple):
    """A sentence of the paper, or of ours, and the comparisons that it implies."""

    text: str
    where: str
    axis: str
    compare: Callable[[Found], Iterator[ClaimRow]]


class Verdict(NamedTuple):
    claim: Claim
    setting: str
    rows: list[ClaimRow]

    @property
    def word(self) -> str:
        ahead = sum(row.effect.ahead for row in self.rows)
        if ahead == len(self.rows):
            return "holds"
        return "holds partly" if ahead else "does not hold"

    @property
    def why(self) -> str:
        """One sentence, from the counts."""
        total = len(self.rows)
        ahead = sum(row.effect.ahead for row in self.rows)
        behind = [row for row in self.rows if row.effect.behind]
        level = total - ahead - len(behind)
        parts = [f"smaller error in {ahead} of {total} comparisons"]
        if level:
            parts.append(f"level in {level}")
        if behind:
            named = [f"{r.first} against {r.second} ({r.figure})" for r in behind]
            shown = ", ".join(named[:4]) + (", …" if len(named) > 4 else "")
            parts.append(f"larger in {len(behind)}: {shown}")
        return "; ".join(parts) + "."


def against(
    figures: tuple[str, ...],
    firsts: tuple[str, ...],
    seconds: tuple[str, ...],
    axis: str,
    metric: str | None = None,
) -> Callable[[Found], Iterator[ClaimRow]]:
    """Each of `firsts` against each of `seconds`, in all settings of some figures."""

    def compare(found: Found) -> Iterator[ClaimRow]:
        for figure in figures:
            if figure not in found:
                continue
            for setting, curves in found[figure].curves.items():
                for first in firsts:
                    for second in seconds:
                        if first in curves and second in curves and first != second:
                            one, other = curves[first], curves[second]
                            size = effect(by(one, metric), by(other, metric), axis)
                            yield ClaimRow(figure, setting, first, second, size)

    return compare


def by(curve: Curve, metric: str | None) -> Curve:
    """The curve with another measure as its main one."""
    return curve._replace(values={metric: curve.values[metric]}) if metric else curve


def larger_is_better(figure: str, axis: str) -> Callable[[Found], Iterator[ClaimRow]]:
    """Of a sweep's points, each against the next smaller one of the same method."""

    def compare(found: Found) -> Iterator[ClaimRow]:
        if figure not in found:
            return
        for setting, curves in found[figure].curves.items():
            groups: dict[str, list[tuple[float, str, Curve]]] = {}
            for name, curve in curves.items():
                method, _, point = name.partition(" ")
                value = float(point.partition("=")[2])
                groups.setdefault(method, []).append((value, name, curve))
            for points in groups.values():
                points.sort(key=lambda p: p[0])
                for (_, small, a), (_, large, b) in pairwise(points):
                    yield ClaimRow(figure, setting, large, small, effect(b, a, axis))

    return compare


ALL = (
    Claim(
        "SAGDA converges faster than CD-MA, CD-MAGE+ and Parallel-SGDA in rounds.",
        "section 4",
        "round",
        against(PANELS, OPTIONS, BASELINES, "round"),
    ),
    Claim(
        "SAGDA has a lower sample complexity than all other algorithms.",
        "section 4",
        "samples",
        against(PANELS, OPTIONS, ("fsgda", *BASELINES), "samples"),
    ),
    Claim(
        "SAGDA is ahead of FSGDA at equal rounds.",
        "section 3, which removes FSGDA's drift",
        "round",
        against(PANELS, OPTIONS, ("fsgda",), "round"),
    ),
    Claim(
        "SAGDA is ahead of all others at equal bytes.",
        "not in the paper: SAGDA sends twice what FSGDA sends in a round",
        "bytes",
        against(PANELS, OPTIONS, ("fsgda", *BASELINES), "bytes"),
    ),
    Claim(
        "With 10 of 100 clients a round, SAGDA is ahead of all others at equal rounds.",
        "abstract and section 3, without an experiment",
        "round",
        against(("partial",), OPTIONS, ("fsgda", *BASELINES), "round"),
    ),
    Claim(
        "The gradient norm decreases in rounds as K increases.",
        "appendix A, Figure 4",
        "round",
        larger_is_better("steps", "round"),
    ),
    Claim(
        "It also decreases as K increases at equal samples.",
        "not in the text; Figure 4 shows samples too",
        "samples",
        larger_is_better("steps", "samples"),
    ),
    Claim(
        "Larger local rates converge faster.",
        "appendix A, Figures 5(a) and 6(a)",
        "round",
        larger_is_better("local-rates", "round"),
    ),
    Claim(
        "Larger server rates converge faster.",
        "appendix A, Figures 5(b) and 6(b), and section 4",
        "round",
        larger_is_better("server-rates", "round"),
    ),
    Claim(
        "On GANs SAGDA and FSGDA converge better than the baselines (‖∇ₓf‖², rounds).",
        "appendix A, Figure 3; a gradient may also vanish because y has won",
        "round",
        against(("gan",), (*OPTIONS, "fsgda"), BASELINES, "round"),
    ),
    Claim(
        "On GANs SAGDA and FSGDA generate rows nearer to the real ones (Fréchet).",
        "not in the paper",
        "round",
        against(("gan",), (*OPTIONS, "fsgda"), BASELINES, "round", "frechet"),
    ),
    Claim(
        "On GANs SAGDA generates rows nearer to the real ones than FSGDA (Fréchet).",
        "not in the paper",
        "round",
        against(("gan",), ("sagda-i",), ("fsgda",), "round", "frechet"),
    ),
)


def verdicts(found: Found) -> list[Verdict]:
    """A verdict per claim and setting, where there is evidence."""
    out = []
    for claim in ALL:
        rows = list(claim.compare(found))
        for setting in ("paper", "tuned"):
            own = [row for row in rows if row.setting == setting]
            if own:
                out.append(Verdict(claim, setting, own))
    return out
