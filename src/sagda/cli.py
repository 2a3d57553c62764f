"""The `sagda` command. Nothing here imports JAX before a command needs it."""

import errno
import json as json_module
import os
import signal
import sys
import traceback
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any

import cyclopts
from cyclopts import App, Parameter
from pydantic import Field, ValidationError

import sagda
from sagda import check
from sagda import config as configs
from sagda import launch as launches
from sagda.check import BadKind, BadValue
from sagda.config import Config
from sagda.launch import Ended
from sagda.link import LOST, Link, Machines, is_loss

USER, DISK, FAILED = 2, 3, 1
# The command line, for the processes that a command starts, and who watches this one.
LINE: ContextVar[tuple[str, ...]] = ContextVar("LINE", default=())
LINK: ContextVar[Link | None] = ContextVar("LINK", default=None)

app = App(
    name="sagda",
    version=sagda.__version__,
    help="Federated min-max learning: run, compare and inspect.",
    help_epilogue="Every command takes --json (one object on stdout) and --debug.",
    result_action="return_value",
)
app.register_install_completion_command()


class Flags(Config):
    """The configuration as flags; what names algorithms has flags of its own."""

    algorithms: Annotated[list[str], Parameter(parse=False)] = Field(["sagda-i"])
    grid: Annotated[dict[str, Any], Parameter(parse=False)] = Field({})
    trials: Annotated[int | None, Parameter(parse=False)] = Field(None)
    set: Annotated[dict[str, dict[str, Any]], Parameter(parse=False)] = Field({})


def said(text: str, **options: Any) -> Parameter:
    return Parameter(help=text, negative="", **options)


AllFlags = Annotated[Flags | None, Parameter(name="*")]
File = Annotated[
    Path | None, said("A TOML file with the same keys as the flags; flags come first.")
]
Name = Annotated[str | None, said("What to run: see `sagda list`.")]
FOUR = ["sagda-i", "sagda-ii", "fsgda", "parallel-sgda"]
Names = Annotated[
    str | None,
    said(f"What to compare, with commas, or `all` (default: {','.join(FOUR)})."),
]
Set = Annotated[
    list[str] | None,
    said(
        "A parameter of every chosen algorithm, or the problem, that has it, as in "
        "start=warm, or of one, as in fsgda.local_lr=0.1; may be repeated.",
        consume_multiple=False,
    ),
]
Out = Annotated[
    Path | None, said("The run folder (default: under runs/, after the configuration).")
]
Seconds = Annotated[float, said("Seconds between checkpoints.")]
Json = Annotated[bool, said("Print one JSON object.")]
Folder = Annotated[Path, said("The run folder.")]
ManyFlags = Annotated[Machines | None, Parameter(name="*")]


def merged(
    file: Path | None, flags: Flags | None, algorithms: list[str] | None
) -> Config:
    """Defaults, under the file's keys, under the flags that were given."""
    values, text = configs.read_toml(file) if file else ({}, "")
    if flags is not None:
        values |= {name: getattr(flags, name) for name in flags.model_fields_set}
    if algorithms is not None:
        values["algorithms"] = algorithms
    return configs.build(values, str(file), text)


@app.command
def run(
    *,
    config: File = None,
    algorithm: Name = None,
    flags: AllFlags = None,
    set: Set = None,
    out: Out = None,
    checkpoint_seconds: Seconds = 5.0,
    machines: ManyFlags = None,
    json: Json = False,
) -> int:
    """Run one algorithm into a folder; the same command again goes on or is done.

    Examples: `sagda run --algorithm sagda-ii --rounds 200 --seeds 3`,
    `sagda run --config runs/mine/config.toml --out runs/again`
    """
    chosen = merged(config, flags, None if algorithm is None else [algorithm])
    if len(chosen.algorithms) != 1:
        raise BadValue(
            f"`run` takes one algorithm, got {', '.join(chosen.algorithms)}; use "
            "`sagda compare` for several."
        )
    return go(chosen, set, out, checkpoint_seconds, machines, json)


@app.command
def compare(
    *,
    config: File = None,
    algorithms: Names = None,
    flags: AllFlags = None,
    set: Set = None,
    out: Out = None,
    checkpoint_seconds: Seconds = 5.0,
    machines: ManyFlags = None,
    json: Json = False,
) -> int:
    """Run several algorithms and seeds: same start, same samples, one table and page.

    Example: `sagda compare --algorithms sagda-i,fsgda --seeds 3 --set start=warm`
    """
    names = [n.strip() for n in algorithms.split(",")] if algorithms else None
    if names is None and config is None:
        names = FOUR
    elif names == ["all"]:
        from sagda.algorithms import ALGORITHMS

        names = list(ALGORITHMS)
    chosen = merged(config, flags, names)
    return go(chosen, set, out, checkpoint_seconds, machines, json)


@app.command
def sweep(
    *,
    grid: Annotated[
        list[str] | None,
        said(
            "Values of a parameter of the algorithm, as in local_lr=0.001,0.01,0.1 or "
            "local_lr.y=0.1,1, or a range for a search, as in local_lr=0.001:0.1; may "
            "be repeated.",
            consume_multiple=False,
        ),
    ] = None,
    trials: Annotated[
        int | None,
        said("Try that many points by Optuna's search, not all combinations."),
    ] = None,
    config: File = None,
    algorithm: Name = None,
    flags: AllFlags = None,
    set: Set = None,
    out: Out = None,
    checkpoint_seconds: Seconds = 5.0,
    machines: ManyFlags = None,
    json: Json = False,
) -> int:
    """Run an algorithm over a grid of its parameters, all rates and seeds side by side.

    Examples: `sagda sweep --grid local_lr=0.001,0.01,0.1 --grid server_lr=1,2,5`,
    `sagda sweep --grid local_lr=0.0001:0.1 --trials 24 --seeds 3`
    """
    from sagda.grid import check_grid, parse_grid

    chosen = merged(config, flags, None if algorithm is None else [algorithm])
    values = chosen.model_dump()
    if grid:
        values["grid"] = parse_grid(grid)
    if trials is not None:
        values["trials"] = trials
    chosen = configs.build(values)
    check_grid(chosen)
    return go(chosen, set, out, checkpoint_seconds, machines, json)


@app.command
def resume(
    folder: Folder,
    /,
    *,
    checkpoint_seconds: Seconds = 5.0,
    machines: ManyFlags = None,
    json: Json = False,
) -> int:
    """Go on with the run in FOLDER from its newest checkpoint.

    Example: `sagda resume runs/mine`
    """
    from sagda.folder import read_folder

    # Of several machines only the first needs to have the folder.
    config = None if machines and machines.place else read_folder(folder)
    return go(config, None, folder, checkpoint_seconds, machines, json)


@app.command
def launch(
    *command: Annotated[
        str,
        said(
            "run, compare, sweep or resume, with its flags.", allow_leading_hyphen=True
        ),
    ],
    processes: Annotated[int, said("How many processes share the run.")] = 2,
) -> int:
    """Run on this machine in several processes, which share clients or seeds.

    When one dies the others are ended, and the newest checkpoint is named.

    Example: `sagda launch --processes 2 -- run --algorithm sagda-ii --seeds 2`
    """
    check.integer("processes", processes, low=1)
    known = ("run", "compare", "sweep", "resume")
    check.choice("command", command[0] if command else "", known)
    return launches.launch(list(command), processes, "--debug" in LINE.get())


def begin(machines: Machines | None) -> int | None:
    """Start JAX, as one of several processes if asked; or only watch one, to its code.

    The process that computes is never the one that a user starts: see `launch.py`.
    """
    place, link = machines.place if machines else None, LINK.get()
    if place is not None and link is None:
        return launches.watch_one(list(LINE.get()), place)
    start_jax()
    if place is not None and link is not None:
        from sagda.machines import connect

        connect(*place)
        link.tell("connected")
    return None


def go(
    config: Config | None,
    assignments: list[str] | None,
    out: Path | None,
    checkpoint_seconds: float,
    machines: Machines | None,
    json: bool,
) -> int:
    """Run a configuration, or a folder's, into its folder and show what came out."""
    if not checkpoint_seconds >= 0:
        raise BadValue(
            f"`checkpoint_seconds` must be zero or more, got {checkpoint_seconds}."
        )
    if (code := begin(machines)) is not None:
        return code
    from sagda.durable import digest
    from sagda.experiment import prepare, resolve
    from sagda.folder import Stopped, execute, folder_config
    from sagda.machines import is_first
    from sagda.terminal import Display, Interrupt, results

    config = config or folder_config(out or Path())
    config = resolve(config, configs.parse_set(assignments or []))
    short = digest(configs.write_toml(config).encode())[:8]
    name = config.algorithms[0] if len(config.algorithms) == 1 else "compare"
    name = f"sweep-{name}" if config.grid else name
    data = "" if config.problem == "quadratic" else f"-{Path(config.data).stem}"
    folder = out or Path("runs") / f"{config.problem}{data}-{name}-{short}"
    if link := LINK.get():
        link.tell("folder", str(folder))
    experiment = prepare(config)
    first = is_first()
    interrupt = Interrupt()
    try:
        with interrupt, Display(config, quiet=json or not first) as display:
            execute(experiment, folder, display.watch(interrupt, checkpoint_seconds))
    except Stopped as stopped:
        again = (link.again if link else "sagda resume {}").format(folder)
        if first:
            print(f"stopped {stopped}; go on with: {again}", file=sys.stderr)
        # Another process may have been the one that was asked.
        return 128 + (interrupt.number or signal.SIGTERM)
    if not first:
        return 0
    made = page_of(folder)
    results(folder, made, json)
    return 0


def page_of(folder: Path) -> str:
    """Write the page; a sentence says where it is or what it needs."""
    from sagda.report import MissingExtra, write_page

    try:
        return f"page: {write_page(folder)}"
    except MissingExtra as missing:
        return str(missing)


@app.command
def reproduce(
    *figures: Annotated[
        str,
        said("fig1a to fig2d, partial, steps, local-rates, server-rates, gan, all."),
    ],
    quick: Annotated[
        bool, said("A tenth of the rounds and two seeds, marked as such.")
    ] = False,
    out: Annotated[
        Path | None, said("Where (default: reproduction, or reproduction-quick).")
    ] = None,
    smooth: Annotated[
        int, said("Smooth curves over that many values; the paper has 5.")
    ] = 1,
    retune: Annotated[
        bool, said("Choose the tuned rates anew, and write them to the folder.")
    ] = False,
    again: Annotated[bool, said("Run finished figures again.")] = False,
    docs: Annotated[
        Path | None, said("Also write the page as Markdown, with its pictures.")
    ] = None,
    json: Json = False,
) -> int:
    """Run the paper's figures with error bars, and judge its claims by them.

    Stopped, it goes on where it was; finished figures are not run again.

    Examples: `sagda reproduce fig1c`, `sagda reproduce all --quick`
    """
    from sagda.reproduction.figures import chosen

    names = chosen(list(figures))
    check.integer("smooth", smooth, low=1)
    start_jax()
    from sagda.folder import Stopped
    from sagda.report import drawing
    from sagda.reproduction import command
    from sagda.reproduction.run import Plan

    drawing()  # before hours of work, not after
    out = out or Path("reproduction-quick" if quick else "reproduction")
    say = lambda line: print(line, file=sys.stderr)
    plan = Plan.of(names, out, quick=quick, retune=retune, say=say)
    try:
        result = command.reproduce(
            plan, again=again, window=smooth, docs=docs, quiet=json
        )
    except Stopped as stopped:
        print(f"stopped in {stopped}; the same command goes on.", file=sys.stderr)
        return 128 + signal.SIGINT
    if json:
        print(json_module.dumps(result))
    else:
        command.show(result)
    return 0


@app.command
def report(
    folder: Folder,
    /,
    *,
    figures: Annotated[bool, Parameter(help="Write figures/*.png and *.pdf.")] = True,
    json: Json = False,
) -> int:
    """Write the page of a finished run again, and its figures as PNG and PDF.

    Example: `sagda report runs/mine`
    """
    from sagda.folder import read_folder
    from sagda.report import write_figures, write_page

    read_folder(folder)
    made = [write_page(folder), *(write_figures(folder) if figures else [])]
    show_files(made, json)
    return 0


def show_files(paths: list[Path], json: bool) -> None:
    if json:
        print(json_module.dumps({"files": [str(path) for path in paths]}))
    else:
        for path in paths:
            print(path)


@app.command
def partition(
    *,
    config: File = None,
    flags: AllFlags = None,
    picture: Annotated[
        Path | None, said("Draw it, as .png, .pdf, .svg or .html.")
    ] = None,
    json: Json = False,
) -> int:
    """Show how data are split over clients: labels per client, and the split's hash.

    Example: `sagda partition --partition dirichlet --alpha 0.1 --clients 20`
    """
    from sagda.experiment import prepare, resolve
    from sagda.folder import label_counts
    from sagda.terminal import show_split

    experiment = prepare(resolve(merged(config, flags, None)))
    counts = label_counts(experiment.federation)
    if picture is not None:
        from sagda.report import draw_partition

        draw_partition(counts, experiment.federation.size.tolist(), picture)
    show_split(experiment.federation, counts, picture, json)
    return 0


@app.command
def data(
    name: Annotated[str, said("a9a, mnist, digits, or a file.")],
    /,
    *,
    label: Annotated[str, said("The label column of a file.")] = "label",
    client_column: Annotated[
        str | None, said("The column of a file that says who holds a row.")
    ] = None,
    positive: Annotated[str | None, said("The label of the positive class.")] = None,
    json: Json = False,
) -> int:
    """Describe a data set or a file: rows, features, classes, clients.

    Examples: `sagda data a9a`, `sagda data hospital.csv --label outcome`
    """
    from sagda.experiment import load_options
    from sagda.terminal import show_data

    values = {"data": name, "label": label, "client_column": client_column}
    chosen = configs.build(values | {"positive": positive})
    show_data(name, load_options(chosen), json)
    return 0


@app.command(name="list")
def list_(*, json: Json = False) -> int:
    """Name the algorithms with their parameters, the problems, data and partitions."""
    from sagda.terminal import catalogue, show_catalogue

    parts = catalogue()
    if json:
        print(json_module.dumps(parts))
        return 0
    show_catalogue(parts)
    return 0


def start_jax() -> None:
    """Every core, and compiled programs kept from one command to the next."""
    import jax
    import pooch

    from sagda.devices import use_cores

    with suppress(BadValue):  # a caller of `main` has used JAX before
        use_cores()
    folder = Path(pooch.os_cache("sagda")) / "programs"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def cause_of(error: cyclopts.CycloptsError) -> str:
    """A sentence for a mistake in the flags."""
    if isinstance(error.__cause__, ValidationError):
        return configs.sentence(error.__cause__)
    text = " ".join(str(error).split())
    return text if text.endswith((".", "?")) else f"{text}."


def main(arguments: list[str] | None = None) -> int:
    """Run a command line; 0 success, 2 a user's mistake, 3 disk, 130/143 stopped."""
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    link = Link.inherited()
    LINE.set(tuple(tokens))
    LINK.set(link)
    if link is None:
        return answer(tokens)
    if "--debug" not in tokens:
        link.quieten()
    code = FAILED
    try:
        code = answer(tokens)
    except Exception:
        traceback.print_exc()
    link.leave(code)
    return code


def answer(tokens: list[str]) -> int:
    """Run a command; every mistake ends in a sentence and a code."""
    debug, json = "--debug" in tokens, "--json" in tokens
    tokens = [token for token in tokens if token != "--debug"]

    def fail(code: int, message: str) -> int:
        if json:
            print(json_module.dumps({"error": message, "exit_code": code}))
        print(f"sagda: {message}", file=sys.stderr)
        if link := LINK.get():
            link.sentence = message
        return code

    try:
        code = app(tokens, exit_on_error=False, print_error=False)
        return code if isinstance(code, int) else 0
    except cyclopts.CycloptsError as error:
        return fail(USER, cause_of(error))
    except (BadValue, BadKind) as error:
        if debug:
            raise
        return fail(USER, str(error))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:
        if debug:
            raise
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        what = "the disk is full" if full else (error.strerror or str(error))
        where = f" at {error.filename}" if error.filename else ""
        return fail(DISK, f"{what}{where}; what was kept before is whole.")
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Ended as ended:
        return fail(ended.code, str(ended))
    except Exception as error:
        if debug:
            raise
        if LINK.get() and is_loss(error):
            return LOST  # the watcher says so
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        return fail(FAILED, f"unexpected {type(error).__name__}: {said} (see --debug)")


if __name__ == "__main__":
    sys.exit(main())
