"""The commands about the theorems: advise, theory table and theory curves.

They only check flags and print results. `theory/` does the mathematics, and `report/`
makes the tables and pictures.
"""

import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App

from sagda.commands.app import Json, Name, Settings, flag, say, start_jax

Picture = Annotated[
    Path | None,
    flag(
        "Draw the smallest bound over T and over K to this file (.png, .pdf, .svg or "
        ".html)."
    ),
]
MaxServer = Annotated[
    float | None,
    flag("Largest server learning rate to recommend (default: sqrt(mK))."),
]


def advise(
    *,
    algorithm: Name = None,
    settings: Settings = Settings(),
    epsilon: Annotated[
        float | None,
        flag("Also compute the rounds that are needed for ||grad Phi|| <= epsilon."),
    ] = None,
    max_server_lr: MaxServer = None,
    theory_only: Annotated[
        bool,
        flag(
            "Give advice from the theorems only, and skip the short runs that try "
            "learning rates."
        ),
    ] = False,
    picture: Picture = None,
    json: Json = False,
) -> int:
    """Recommend step sizes: the provable ones, and the ones that work.

    Measures the constants of the problem on its data. Shows how close each condition of
    the theorem is to failing at the given rates. Computes the rates with the smallest
    bound. Then tries rates of similar size in short runs.

    Example: `sagda advise --problem auc --data a9a --algorithm fsgda`
    """
    from sagda.runs.experiment import prepare, resolve

    config = settings.of_one("advise", algorithm)
    check_picture(picture)
    start_jax()
    experiment = prepare(resolve(config, settings.assignments))
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
        **values.model_dump(include={"dropout", "float64", "layout"}),
    )
    if picture is not None:
        from sagda.report.charts import write_picture
        from sagda.report.theory_charts import chart, curves

        constants, setting = advice.estimates.constants, advice.setting
        with waiting("solving for the picture"):
            both = curves(method.name, constants, setting, max_server_lr=max_server_lr)
            write_picture(chart(both), picture)
    from sagda.report.terminal_theory import show
    from sagda.theory.advice import as_facts

    return say(json, as_facts(advice), lambda: show(advice))


def waiting(what: str) -> AbstractContextManager[Any]:
    """Show the text `what` on a terminal while the block runs."""
    from rich.console import Console

    console = Console(stderr=True, quiet=not sys.stderr.isatty())
    return console.status(f"{what} …")


def check_picture(path: Path | None) -> None:
    """Check that a picture can be drawn to `path`, before the work starts."""
    if path is not None:
        from sagda.report.charts import drawing, picture_kind

        picture_kind(path)
        drawing()


theory = App(name="theory", help="Tables and curves from the paper's theorems.")


@theory.command
def table(
    *,
    cohort: Annotated[int, flag("Number of clients per round (m).")] = 10,
    local_steps: Annotated[int, flag("Number of local steps per round (K).")] = 10,
    epsilon: Annotated[float, flag("Target accuracy: ||grad Phi|| <= epsilon.")] = 0.1,
    json: Json = False,
) -> int:
    """Print Table 1 of the paper: the samples and rounds that each method needs.

    The table has the order of growth and a number. The numbers count each constant that
    the order hides as 1. So they compare methods, but predict no run.

    Example: `sagda theory table --cohort 100 --epsilon 0.01`
    """
    from sagda.report.terminal_theory import show_table
    from sagda.theory.table1 import counted

    rows = counted(cohort, epsilon, local_steps)
    facts = {
        "cohort": cohort,
        "local_steps": local_steps,
        "epsilon": epsilon,
        "rows": [
            {
                "method": numbers.row.method,
                "bounded_dissimilarity": numbers.row.bounded_dissimilarity,
                "client_sampling": numbers.row.client_sampling,
                "samples_order": numbers.row.samples.formula,
                "rounds_order": numbers.row.rounds and numbers.row.rounds.formula,
                "samples": numbers.samples,
                "rounds": numbers.rounds,
                "best_local_steps": numbers.best_local_steps,
                "rounds_at_local_steps": numbers.rounds_at,
                "source": numbers.row.source,
            }
            for numbers in rows
        ],
    }
    return say(json, facts, lambda: show_table(rows, cohort, epsilon, local_steps))


@theory.command
def curves(
    *,
    algorithm: Annotated[
        str, flag("Algorithm: sagda-i, sagda-ii or fsgda.")
    ] = "sagda-ii",
    smoothness: Annotated[
        float, flag("Smoothness constant of the clients' objectives (L_f).")
    ] = 1.0,
    mu: Annotated[float, flag("Polyak-Lojasiewicz (PL) constant in y (mu).")] = 1.0,
    sigma: Annotated[
        float,
        flag("Standard deviation of stochastic gradients, in x and in y (sigma)."),
    ] = 1.0,
    spread: Annotated[
        float,
        flag(
            "Heterogeneity: how far clients' gradients are from their mean (sigma_G)."
        ),
    ] = 1.0,
    gap: Annotated[
        float, flag("Potential function at the start, minus its minimum (L_0 - L_*).")
    ] = 1.0,
    clients: Annotated[int, flag("Number of clients (M).")] = 100,
    cohort: Annotated[
        int | None, flag("Number of clients per round (m; default: all).")
    ] = None,
    local_steps: Annotated[int, flag("Number of local steps per round (K).")] = 10,
    rounds: Annotated[int, flag("Number of communication rounds (T).")] = 10_000,
    max_server_lr: MaxServer = None,
    picture: Picture = None,
    json: Json = False,
) -> int:
    """Print the smallest bound that a theorem allows, by term, over T and over K.

    `sagda advise --picture FILE` draws this bound for the constants of your data.

    Example: `sagda theory curves --smoothness 2 --mu 0.5 --picture bound.png`
    """
    from sagda import check
    from sagda.report.charts import write_picture
    from sagda.report.terminal_theory import show_curves
    from sagda.report.theory_charts import chart
    from sagda.report.theory_charts import curves as curves_of
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
        write_picture(chart(both), picture)
    show = lambda: show_curves(algorithm, both, setting)
    return say(json, curve_facts(both), show)


def curve_facts(both: Any) -> dict[str, list[dict[str, Any]]]:
    """Return the points of both curves, as values that can be written to JSON."""
    return {
        over: [
            {
                over: getattr(point.setting, over),
                "rates": point.steps._asdict(),
                "bound": point.bound.terms,
            }
            for point in getattr(both, over)
        ]
        for over in both._fields
    }
