"""Commands for real federations: serve, join, federation-demo, verify."""

import json as json_module
import sys
from pathlib import Path
from typing import Annotated, Any

from sagda import check
from sagda.check import BadValue
from sagda.commands import app as base
from sagda.commands.app import Folder, Json, OwnModel, app, said
from sagda.commands.run import page_of
from sagda.network import LOOPBACK, address, check_port

NOBODY = 4  # the exit code where no server or too few clients can be reached


@app.command
def serve(
    config: Annotated[Path, said("A TOML file: the run's keys and [federation].")],
    *,
    out: Annotated[
        Path | None, said("The run folder (default: under runs/, after the file).")
    ] = None,
    host: Annotated[str, said("The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, said("The port to listen on.")] = 8000,
    keys: Annotated[
        Path, said("The coordinator's keys, from `sagda keys init`.")
    ] = Path("keys"),
    proxy: Annotated[
        bool, said("nginx before it even on 127.0.0.1; elsewhere it always is.")
    ] = False,
    plaintext: Annotated[
        bool, said("Neither TLS nor keys, for trying out on 127.0.0.1 only.")
    ] = False,
    reset: Annotated[
        bool, said("Set all variates back first: a new epoch of the same run.")
    ] = False,
    json: Json = False,
) -> int:
    """Lead a federation: wait for sites, train with them, write the run folder.

    The same command again goes on where it was stopped, or killed.

    Example: `sagda serve federation.toml --port 8000`
    """
    from sagda.federation.flower.processes import need_flower

    need_flower()
    check.integer("port", port, low=1, high=65535)
    if plaintext and (host not in LOOPBACK or proxy):
        raise BadValue(
            f"`--plaintext` is for this machine only, got --host {host}"
            f"{' and --proxy' if proxy else ''}; leave it out, and give --keys."
        )
    from sagda.federation.flower.nginx import program
    from sagda.federation.terms import read_terms
    from sagda.federation.trust.authority import Keys

    read_terms(config)
    proxied = proxy or host not in LOOPBACK
    if proxied:
        program()
    held = None if plaintext else Keys(keys).check()
    from sagda.federation.flower import superlink as serving
    from sagda.federation.server.display import FederationDisplay
    from sagda.federation.server.results import claim
    from sagda.report.terminal import Interrupt, results

    folder = out or Path("runs") / config.stem
    check_port("--port", host, port)
    claim(folder, config)
    interrupt = Interrupt()
    with interrupt, FederationDisplay(quiet=json) as board:
        how = "plaintext" if held is None else "nginx" if proxied else "TLS"
        logs = folder / "server"
        board.say(f"listening on {host}:{port} ({how}); logs are in {logs}")
        end = serving.serve(
            folder,
            host,
            port,
            held,
            proxied=proxied,
            reset=reset,
            show=board,
            stop=interrupt,
        )
    if end is None:
        print(f"stopped; go on with the same command ({folder})", file=sys.stderr)
        return 128 + interrupt.number
    if end.code:
        return failed(end.code, end.sentence, json)
    results(folder, page_of(folder), json)
    return 0


def failed(code: int, sentence: str, json: bool) -> int:
    if json:
        print(json_module.dumps({"error": sentence, "exit_code": code}))
    print(f"sagda: {sentence}", file=sys.stderr)
    return code


@app.command
def join(
    *,
    server: Annotated[str, said("The server, as HOST:PORT.")],
    data: Annotated[Path, said("This site's rows: .csv, .npz, LIBSVM or a folder.")],
    name: Annotated[
        str | None, said("Who this is, the same every time (default: the file's name).")
    ] = None,
    state: Annotated[
        Path | None, said("Where this site keeps its state (default: sagda-NAME).")
    ] = None,
    label: Annotated[str, said("The label column of the file.")] = "label",
    positive: Annotated[str | None, said("The label of the positive class.")] = None,
    key: Annotated[
        Path | None, said("This site's private key, from `sagda keys site`.")
    ] = None,
    ca: Annotated[Path | None, said("The coordinator's ca.crt.")] = None,
    least: Annotated[
        int, said("Answer only where so many sites are averaged; 1: even alone.")
    ] = 2,
    plaintext: Annotated[
        bool, said("Neither TLS nor keys, for trying out on 127.0.0.1 only.")
    ] = False,
    model: Annotated[
        str | None,
        said("FILE.py:FUNCTION, the code that the server may name as the model."),
    ] = None,
    leave: Annotated[
        bool, said("Leave the federation: the server removes this site's variate.")
    ] = False,
    patience: Annotated[
        float, said("Seconds to try for while no server can be reached.")
    ] = 90.0,
    json: Json = False,
) -> int:
    """Take part in a federation; the rows stay here.

    This site computes what its server asks for, with sagda's own code: an app that
    brings code of its own is refused. It ends when the server says that it is over,
    with the model in the state folder.

    Example: `sagda join --server fl.example.org:8443 --data rows.csv --name hospital-a
    --key hospital-a.key --ca ca.crt`
    """
    from sagda.federation.flower.processes import need_flower

    need_flower()
    host, _ = address("--server", server)
    if not patience > 0:
        raise BadValue(f"`--patience` must be above zero, got {patience}.")
    check.integer("least", least, low=1)
    if plaintext and host not in LOOPBACK:
        raise BadValue(
            f"`--plaintext` is for this machine only, got --server {server}; give "
            "--key and --ca."
        )
    if plaintext and (key is not None or ca is not None):
        raise BadValue("`--plaintext` goes with neither --key nor --ca.")
    for flag, path in {"key": key, "ca": ca}.items():
        if not plaintext and path is None:
            raise BadValue(
                f"`--{flag}` is needed: `sagda keys site` makes a site's key, and the "
                "coordinator has ca.crt; to try out on 127.0.0.1, --plaintext."
            )
        if path is not None and not path.is_file():
            raise BadValue(f"`--{flag}` must be a file, found none at {path}.")
    from sagda.federation.flower import supernode as joining
    from sagda.federation.site.folder import MODEL, SiteFolder
    from sagda.report.terminal import Interrupt

    told: dict[str, Any] = {"data": str(data.resolve()), "label": label}
    told |= {"name": name} if name else {}
    told |= {"positive": positive} if positive is not None else {}
    told |= {"key": str(key.absolute())} if key is not None else {}
    if model is not None:
        base.allowed(model)
        file, _, function = model.rpartition(":")
        told["model"] = f"{Path(file).resolve()}:{function}"
    desk = SiteFolder.of(told | {"least": least})
    if desk.signer is not None:
        entry = key_beside(key, desk.name)
        if entry is not None and entry.expired:
            raise BadValue(f"`--key` {key} expired on {entry.expires}; make a new one.")
    desk = desk._replace(state=(state or desk.state).resolve())
    tell = lambda text: None if json else print(f"sagda: {text}", file=sys.stderr)
    interrupt = Interrupt()
    try:
        with interrupt:
            farewell = joining.join(
                desk,
                server,
                ca,
                leave=leave,
                patience=patience,
                stop=interrupt,
                say=tell,
            )
    except joining.Gone as gone:
        return failed(NOBODY, f"{gone}; what this site keeps is in {desk.state}.", json)
    if farewell is None:
        tell(f"stopped; the same command goes on ({desk.state})")
        return 128 + interrupt.number
    model_file = str(desk.state / MODEL)
    if json:
        print(json_module.dumps(farewell._asdict() | {"model": model_file}))
    else:
        over = "has left" if farewell.reason == "left" else "is done"
        print(f"{desk.name} {over} after {farewell.round} rounds: {model_file}")
    return 0


def key_beside(key: Path | None, name: str) -> Any:
    """The public half of a private key, where it lies beside it."""
    from sagda.federation.trust.site_keys import PUBLIC, Entry

    beside = None if key is None else key.with_suffix(PUBLIC)
    if beside is None or not beside.is_file():
        return None
    entry = Entry.read(beside)
    if entry.name != name:
        raise BadValue(f"`--key` {key} is the key of {entry.name}, not of {name}.")
    return entry


@app.command
def federation_demo(
    *,
    sites: Annotated[int, said("How many sites.")] = 3,
    rounds: Annotated[int, said("How many rounds.")] = 8,
    algorithm: Annotated[str, said("What to run: see `sagda list`.")] = "sagda-i",
    out: Annotated[
        Path | None, said("The run folder (default: runs/federation-demo).")
    ] = None,
    json: Json = False,
) -> int:
    """A federation on this machine: a server and sites as real processes, on a9a.

    Trains, prints the table, writes the run folder, and ends all that it started.

    Example: `sagda federation-demo --sites 3 --rounds 8`
    """
    from sagda.federation.flower.processes import need_flower

    need_flower()
    check.integer("sites", sites, low=2, high=20)
    check.integer("rounds", rounds, low=1)
    from sagda.algorithms import ALGORITHMS

    check.choice("algorithm", algorithm, ALGORITHMS)
    from sagda.federation.flower import demo as demos
    from sagda.federation.server.display import FederationDisplay
    from sagda.report.terminal import Interrupt, results

    folder = out or unused(Path("runs") / "federation-demo")
    if folder.exists() and any(folder.iterdir()):
        raise BadValue(f"{folder} holds other files; choose another folder with --out.")
    files = demos.prepare(folder, algorithm, sites, rounds)
    interrupt = Interrupt()
    with interrupt, FederationDisplay(quiet=json) as board:
        board.say(f"starting a server and {sites} sites; logs are in {folder}")
        end = demos.demo(folder.resolve(), files, board, interrupt)
    if interrupt():
        print(f"stopped; what was done is in {folder}", file=sys.stderr)
        return 128 + interrupt.number
    if end.code:
        return failed(end.code, end.sentence.removeprefix("sagda: "), json)
    results(folder, page_of(folder), json)
    if not json:
        return verify(folder)
    return 0


def unused(folder: Path) -> Path:
    """The folder, or the first one after it that is not there yet."""
    number, found = 1, folder
    while found.exists():
        number += 1
        found = folder.with_name(f"{folder.name}-{number}")
    return found


@app.command
def verify(
    folder: Folder,
    *,
    replay: Annotated[
        bool, said("Compute the run anew from the recorded answers, and compare.")
    ] = False,
    sites: Annotated[
        list[Path] | None,
        said(
            "State folders of sites (default: those in the run folder).",
            consume_multiple=True,
        ),
    ] = None,
    model: OwnModel = None,
    json: Json = False,
) -> int:
    """Check a federation's files: digests, V = sum of v_i, every round once.

    Examples: `sagda verify runs/federation-demo`,
    `sagda verify runs/federation-demo --replay`
    """
    from sagda.federation.server import verify as replays
    from sagda.federation.site.folder import SITE, SiteFolder

    if model is not None:
        base.allowed(model)
    own = [path.parent for path in sorted(folder.glob(f"sites/*/{SITE}"))]
    desks = [SiteFolder.in_folder(place) for place in (own if sites is None else sites)]
    kept = replays.read_kept(folder)
    findings = replays.verify(kept, {desk.name: desk.state for desk in desks})
    if replay:
        book = replays.replay(kept, {desk.name: desk for desk in desks})
        findings.append(
            replays.Finding(
                "the recorded answers lead to the same model, bit for bit",
                replays.same_state(kept.book, book),
                f"{book.round} rounds computed anew",
            )
        )
    holds = all(finding.holds for finding in findings)
    if json:
        out = {"holds": holds, "findings": [f._asdict() for f in findings]}
        print(json_module.dumps(out))
    else:
        for finding in findings:
            mark = "holds" if finding.holds else "FAILS"
            print(f"{mark}: {finding.what} ({finding.seen})")
        print("the invariant holds" if holds else "the invariant does NOT hold")
    return 0 if holds else 1
