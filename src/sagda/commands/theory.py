"""Commands of the theory: advise, theory table and theory curves."""

import json as json_module
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App

from sagda.check import BadValue
from sagda.commands.app import AllFlags, File, Json, Name, Set, app, merged, said

Picture = Annotated[
    Path | None, said("Draw the least bound over T and K: .png, .pdf, .svg, .html.")
]
MaxServer = Annotated[
    float | None, said("The largest server rate to advise (default: sqrt(mK)).")
]


@app.command
def advise(
    *,
    config: File = None,
    algorithm: Name = None,
    flags: AllFlags = None,
    set: Set = None,
    epsilon: Annotated[
        float | None, said("Also: how many rounds until ||grad Phi|| <= epsilon.")
    ] = None,
    max_server_lr: MaxServer = None,
    theory_only: Annotated[bool, said("Do not try rates in short runs.")] = False,
    picture: Picture = None,
    json: Json = False,
) -> int:
    """Step sizes by the paper's theorems: which conditions hold, and which one binds.

    Measures the constants of the problem on its data, judges the given rates, solves
    for the rates that make the theorem's bound least, and tries others around their
    scale for what works.

    Example: `sagda advise --problem auc --data a9a --algorithm fsgda`
    """
    from sagda.commands import app as base
    from sagda.runs.config import parse_set
    from sagda.runs.experiment import prepare, resolve

    chosen = merged(config, flags, None if algorithm is None else [algorithm])
    if len(chosen.algorithms) != 1:
        raise BadValue(
            f"`advise` takes one algorithm, got {', '.join(chosen.algorithms)}."
        )
    check_picture(picture)
    base.start_jax()
    experiment = prepare(resolve(chosen, parse_set(set or [])))
    from sagda import theory

    values = experiment.config
    (method,) = experiment.methods.values()
    advice = theory.advise(
        method,
        experiment.problem,
        experiment.federation,
        rounds=values.rounds,
        cohort=values.cohort,
        batch_size=None if values.batch_size == "all" else values.batch_size,
        seed=values.seed,
        epsilon=epsilon,
        max_server_lr=max_server_lr,
        try_rates=not theory_only,
        waiting=waiting,
        **values.model_dump(include={"dropout", "float64", "layout", "stream"}),
    )
    if picture is not None:
        from sagda.report.theory_charts import curves, draw

        constants, setting = advice.constants, advice.setting
        with waiting("solving for the picture"):
            draw(
                curves(method.name, constants, setting, max_server_lr=max_server_lr),
                picture,
            )
    if json:
        from sagda.theory.advice import as_facts

        print(json_module.dumps(as_facts(advice)))
        return 0
    from sagda.report.terminal_theory import show

    show(advice)
    return 0


def waiting(what: str) -> AbstractContextManager[Any]:
    """A line on a terminal for as long as something takes."""
    from rich.console import Console

    console = Console(stderr=True, quiet=not sys.stderr.isatty())
    return console.status(f"{what} …")


def check_picture(path: Path | None) -> None:
    """Before the work, not after."""
    if path is not None:
        from sagda.report.charts import drawing, picture_kind

        picture_kind(path)
        drawing()


theory = App(name="theory", help="What the theorems compare.")
app.command(theory)


@theory.command
def table(
    *,
    cohort: Annotated[int, said("m, the clients of a round.")] = 10,
    local_steps: Annotated[int, said("K, the local steps of a round.")] = 10,
    epsilon: Annotated[float, said("The target: ||grad Phi|| <= epsilon.")] = 0.1,
    json: Json = False,
) -> int:
    """Table 1 of the paper: samples and rounds to a target, by order and in numbers.

    Unnamed constants are taken as one, so compare methods, not machines.

    Example: `sagda theory table --cohort 100 --epsilon 0.01`
    """
    from sagda.theory.table1 import counted

    rows = counted(cohort, epsilon, local_steps)
    if json:
        table_rows = [
            {
                "method": row.method,
                "bounded_dissimilarity": row.bounded_dissimilarity,
                "client_sampling": row.client_sampling,
                "samples_order": row.samples.formula,
                "rounds_order": row.rounds and row.rounds.formula,
                "samples": numbers.samples,
                "rounds": numbers.rounds,
                "best_local_steps": numbers.best_local_steps,
                "rounds_at_local_steps": numbers.rounds_at,
                "source": row.source,
            }
            for row, numbers in ((numbers.row, numbers) for numbers in rows)
        ]
        facts = {"cohort": cohort, "local_steps": local_steps, "epsilon": epsilon}
        print(json_module.dumps(facts | {"rows": table_rows}))
        return 0
    from sagda.report.terminal_theory import show_table

    show_table(rows, cohort, epsilon, local_steps)
    return 0


@theory.command
def curves(
    *,
    algorithm: Annotated[str, said("sagda-i, sagda-ii or fsgda.")] = "sagda-ii",
    smoothness: Annotated[float, said("L_f.")] = 1.0,
    mu: Annotated[float, said("The PL constant in y.")] = 1.0,
    sigma: Annotated[float, said("The noise of gradients, in x and in y.")] = 1.0,
    spread: Annotated[float, said("The spread of clients, in x and in y.")] = 1.0,
    gap: Annotated[float, said("L_0 - L_*.")] = 1.0,
    clients: Annotated[int, said("M.")] = 100,
    cohort: Annotated[int | None, said("m (default: all).")] = None,
    local_steps: Annotated[int, said("K.")] = 10,
    rounds: Annotated[int, said("T.")] = 10_000,
    max_server_lr: MaxServer = None,
    picture: Picture = None,
    json: Json = False,
) -> int:
    """The least bound that a theorem allows, term by term, over T and over K.

    `sagda advise --picture FILE` draws it for the constants of your data.

    Example: `sagda theory curves --smoothness 2 --mu 0.5 --picture bound.png`
    """
    from sagda import check
    from sagda.report.theory_charts import curves as curves_of
    from sagda.report.theory_charts import draw, terms
    from sagda.theory import CONDITIONS, Constants, Setting

    check.choice("algorithm", algorithm, CONDITIONS)
    check_picture(picture)
    constants = Constants(
        smoothness=smoothness,
        mu=mu,
        sigma_x=sigma,
        sigma_y=sigma,
        spread_x=spread,
        spread_y=spread,
        gap=gap,
    )
    members = clients if cohort is None else cohort
    setting = Setting(clients, members, local_steps, rounds).check()
    with waiting("solving for rates"):
        both = curves_of(algorithm, constants, setting, max_server_lr=max_server_lr)
    if picture is not None:
        draw(both, picture)
    if json:
        facts = {
            over: [
                {
                    over: getattr(point.setting, over),
                    "rates": point.steps._asdict(),
                    "bound": terms(point.bound),
                }
                for point in getattr(both, over)
            ]
            for over in both._fields
        }
        print(json_module.dumps(facts))
        return 0
    from sagda.report.terminal_theory import show_curves

    show_curves(algorithm, both, setting)
    return 0
