"""Commands of the theory: advise, and theory table."""

import json as json_module
from typing import Annotated, Any

from cyclopts import App

from sagda.check import BadValue
from sagda.commands.base import AllFlags, File, Json, Name, Set, app, merged, said


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
    max_server_lr: Annotated[
        float | None, said("The largest server rate to advise (default: sqrt(mK)).")
    ] = None,
    json: Json = False,
) -> int:
    """Step sizes by the paper's theorems: which conditions hold, and which one binds.

    Measures the constants of the problem on its data, judges the given rates, and
    solves for the rates that make the theorem's bound least.

    Example: `sagda advise --problem auc --data a9a --algorithm fsgda`
    """
    from sagda.commands import base
    from sagda.config import parse_set
    from sagda.experiment import prepare, resolve

    chosen = merged(config, flags, None if algorithm is None else [algorithm])
    if len(chosen.algorithms) != 1:
        raise BadValue(
            f"`advise` takes one algorithm, got {', '.join(chosen.algorithms)}."
        )
    base.start_jax()
    experiment = prepare(resolve(chosen, parse_set(set or [])))
    from sagda.theory.advice import advise as advised
    from sagda.theory.advice import as_facts
    from sagda.theory.conditions import CONDITIONS
    from sagda.theory.constants import estimate

    name = chosen.algorithms[0]
    if name not in CONDITIONS:
        raise BadValue(
            f"`algorithm` must be one of {', '.join(CONDITIONS)}, which the paper's "
            f"theorems are about, got {name}."
        )
    steps, setting = asked(experiment, name)
    size = experiment.config.batch_size
    found = estimate(
        experiment.problem,
        experiment.federation,
        batch_size=None if size == "all" else size,
        seed=experiment.config.seed,
    )
    advice = advised(name, found, setting, steps, epsilon=epsilon, server=max_server_lr)
    if json:
        print(json_module.dumps(as_facts(advice)))
        return 0
    from sagda.theory.show import show

    show(advice)
    return 0


def asked(experiment: Any, name: str) -> tuple[Any, Any]:
    """The rates and the setting of a configuration, as the theorems name them."""
    from sagda.theory.terms import Setting, Steps

    method, config = experiment.methods[name], experiment.config
    local, server = method.arguments["local_lr"], method.arguments["server_lr"]
    if any(callable(rate) for rate in (local.x, local.y, server.x, server.y)):
        raise BadValue("`local_lr` and `server_lr` must be numbers to be judged.")
    clients = experiment.federation.clients
    setting = Setting(
        clients,
        config.cohort or clients,
        int(method.arguments["local_steps"]),
        config.rounds,
    )
    steps = [float(rate) for rate in (local.x, local.y, server.x, server.y)]
    return Steps(*steps), setting


theory = App(name="theory", help="What the theorems compare.")
app.command(theory)


@theory.command
def table(
    *,
    cohort: Annotated[int, said("m, the clients of a round.")] = 10,
    epsilon: Annotated[float, said("The target: ||grad Phi|| <= epsilon.")] = 0.1,
    json: Json = False,
) -> int:
    """Table 1 of the paper: samples and rounds to a target, by order and in numbers.

    Unnamed constants are taken as one, so compare methods, not machines.

    Example: `sagda theory table --cohort 100 --epsilon 0.01`
    """
    from sagda.theory.table import counted

    found = counted(cohort, epsilon)
    if json:
        rows = [
            {
                "method": own.row.method,
                "bounded_dissimilarity": own.row.bounded_dissimilarity,
                "client_sampling": own.row.client_sampling,
                "samples_order": own.row.samples,
                "rounds_order": own.row.rounds,
                "samples": own.samples,
                "rounds": own.rounds,
                "local_steps": own.local_steps,
                "source": own.row.source,
            }
            for own in found
        ]
        print(json_module.dumps({"cohort": cohort, "epsilon": epsilon, "rows": rows}))
        return 0
    from sagda.theory.show import show_table

    show_table(found, cohort, epsilon)
    return 0
