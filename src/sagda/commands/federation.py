"""The commands of real federations: federation-demo, serve, join and verify.

They check flags and print results. `federation/flower/` starts the processes, and
`federation/__init__.py` says who sends what to whom. Keys are in `keys.py`.
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from sagda import check
from sagda.check import BadValue
from sagda.commands.app import (
    CommandFailed,
    Exit,
    Folder,
    Json,
    OwnModel,
    allow_model,
    flag,
    say,
    show_run,
)
from sagda.network import LOOPBACK, address, check_port

# A flag of both.
Plaintext = Annotated[
    bool, flag("Use neither TLS nor keys; for tests on 127.0.0.1 only.", "security")
]

# The flags of `sagda serve`.
TermsFile = Annotated[Path, flag("TOML file with the run's keys and [federation].")]
ServerOut = Annotated[
    Path | None,
    flag("Run folder (default: the name of the file, in runs/).", "output"),
]
Host = Annotated[str, flag("Address to listen on.", "connection")]
Port = Annotated[int, flag("Port to listen on.", "connection")]
ServerKeys = Annotated[
    Path, flag("The coordinator's keys, from `sagda keys init`.", "security")
]
Proxy = Annotated[
    bool,
    flag(
        "Put nginx in front even on 127.0.0.1 (always done for other addresses).",
        "security",
    ),
]
Reset = Annotated[
    bool,
    flag("Set all control variates to zero first: a new epoch of the run.", "state"),
]
# The flags of `sagda join`.
Server = Annotated[str, flag("The server, as HOST:PORT.", "connection")]
Rows = Annotated[
    Path, flag("This site's rows: .csv, .npz, LIBSVM or a folder.", "data")
]
SiteName = Annotated[
    str | None,
    flag("This site's name, always the same (default: the file's name).", "data"),
]
State = Annotated[
    Path | None, flag("This site's state folder (default: sagda-NAME).", "state")
]
Label = Annotated[str, flag("Label column of the file.", "data")]
Positive = Annotated[str | None, flag("Label of the positive class.", "data")]
Key = Annotated[
    Path | None,
    flag("This site's private key, from `sagda keys site`.", "security"),
]
Authority = Annotated[Path | None, flag("The coordinator's ca.crt.", "security")]
Least = Annotated[
    int,
    flag(
        "Answer only if at least this many sites are averaged. With 1, the server "
        "may see this site's answer alone.",
        "security",
    ),
]
ModelCode = Annotated[
    str | None,
    flag("FILE.py:FUNCTION, your code that the server may use as model.", "security"),
]
Leave = Annotated[
    bool,
    flag("Leave for good: the server removes this site's variate.", "state"),
]
Patience = Annotated[
    float,
    flag("Seconds after which to give up if no server answers.", "connection"),
]


def serve(
    config: TermsFile,
    *,
    out: ServerOut = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    keys: ServerKeys = Path("keys"),
    proxy: Proxy = False,
    plaintext: Plaintext = False,
    reset: Reset = False,
    json: Json = False,
) -> int:
    """Lead a federation: wait for sites, train with them, write the run folder.

    Repeating the command resumes the federation after a stop or a crash.

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
    from sagda.federation.flower import superlink
    from sagda.federation.flower.nginx import program
    from sagda.federation.server.display import FederationDisplay
    from sagda.federation.server.results import claim
    from sagda.federation.terms import read_terms
    from sagda.federation.trust.authority import Keys
    from sagda.runs.interrupt import Interrupt

    read_terms(config)
    proxied = proxy or host not in LOOPBACK
    if proxied:
        program()
    authority = None if plaintext else Keys(keys).check()
    folder = out or Path("runs") / config.stem
    check_port("--port", host, port)
    claim(folder, config)
    interrupt = Interrupt()
    with interrupt, FederationDisplay(quiet=json) as display:
        how = "plaintext" if plaintext else "nginx" if proxied else "TLS"
        logs = folder / "server"
        display.say(f"listening on {host}:{port} ({how}); logs are in {logs}")
        end = superlink.serve(
            folder,
            host,
            port,
            authority,
            proxied=proxied,
            reset=reset,
            show=display,
            stop=interrupt,
        )
    if end is None:
        print(f"stopped; repeat the command to resume ({folder})", file=sys.stderr)
        return 128 + interrupt.number
    if end.code:
        raise CommandFailed(end.sentence, end.code)
    return show_run(folder, json)


def join(
    *,
    server: Server,
    data: Rows,
    name: SiteName = None,
    state: State = None,
    label: Label = "label",
    positive: Positive = None,
    key: Key = None,
    ca: Authority = None,
    least: Least = 2,
    plaintext: Plaintext = False,
    model: ModelCode = None,
    leave: Leave = False,
    patience: Patience = 90.0,
    json: Json = False,
) -> int:
    """Take part in a federation with the rows of this site, which stay here.

    The site computes with its own installation of sagda, and refuses code from the
    server. It ends when the server ends the run. The trained model is then in the
    state folder.

    Example: `sagda join --server fl.example.org:8443 --data rows.csv --name hospital-a
    --key hospital-a.key --ca ca.crt`
    """
    from sagda.federation.flower.processes import need_flower

    need_flower()
    if not patience > 0:
        raise BadValue(f"`--patience` must be above zero, got {patience}.")
    check.integer("least", least, low=1)
    check_security(server, key, ca, plaintext)
    from sagda.federation.flower import supernode
    from sagda.federation.site.folder import MODEL
    from sagda.runs.interrupt import Interrupt

    settings: dict[str, Any] = {"data": str(data.resolve()), "label": label}
    settings |= {"name": name} if name else {}
    settings |= {"positive": positive} if positive is not None else {}
    settings |= {"key": str(key.absolute())} if key is not None else {}
    site = open_site(settings | {"least": least}, state, key, model)

    def note(text: str) -> None:
        if not json:
            print(f"sagda: {text}", file=sys.stderr)

    interrupt = Interrupt()
    try:
        with interrupt:
            farewell = supernode.join(
                site,
                server,
                ca,
                leave=leave,
                patience=patience,
                stop=interrupt,
                say=note,
            )
    except supernode.Gone as gone:
        sentence = f"{gone}; this site's state is in {site.state}."
        raise CommandFailed(sentence, Exit.UNREACHABLE) from None
    if farewell is None:
        note(f"stopped; repeat the command to resume ({site.state})")
        return 128 + interrupt.number
    file = str(site.state / MODEL)
    over = "has left" if farewell.reason == "left" else "is done"
    text = f"{site.name} {over} after {farewell.round} rounds: {file}"
    return say(json, farewell._asdict() | {"model": file}, text)


def check_security(
    server: str, key: Path | None, ca: Path | None, plaintext: bool
) -> None:
    """Check that a site has a key and the server's certificate, or needs none."""
    host, _ = address("--server", server)
    if plaintext and host not in LOOPBACK:
        raise BadValue(
            f"`--plaintext` is for this machine only, got --server {server}; give "
            "--key and --ca."
        )
    if plaintext and (key is not None or ca is not None):
        raise BadValue("`--plaintext` goes with neither --key nor --ca.")
    for flag_name, path in {"key": key, "ca": ca}.items():
        if not plaintext and path is None:
            raise BadValue(
                f"`--{flag_name}` is needed: `sagda keys site` makes a site's key, and "
                "the coordinator has ca.crt; for a test on 127.0.0.1, use --plaintext."
            )
        if path is not None and not path.is_file():
            raise BadValue(f"`--{flag_name}` must be a file, found none at {path}.")


def open_site(
    settings: dict[str, Any], state: Path | None, key: Path | None, model: str | None
) -> Any:
    """The site with these settings, its key and model checked."""
    from sagda.federation.site.folder import SiteFolder

    if model is not None:
        allow_model(model)
        file, _, function = model.rpartition(":")
        settings |= {"model": f"{Path(file).resolve()}:{function}"}
    site = SiteFolder.of(settings)
    if key is not None and site.signer is not None:
        check_key(key, site.name)
    return replace(site, state=(state or site.state).resolve())


def check_key(key: Path, name: str) -> None:
    """Check the name and the expiry date in the public key next to a private one."""
    from sagda.federation.trust.site_keys import PUBLIC, Entry

    public = key.with_suffix(PUBLIC)
    if not public.is_file():
        return
    entry = Entry.read(public)
    if entry.name != name:
        raise BadValue(f"`--key` {key} is the key of {entry.name}, not of {name}.")
    if entry.expired:
        raise BadValue(f"`--key` {key} expired on {entry.expires}; make a new one.")


def federation_demo(
    *,
    sites: Annotated[int, flag("Number of sites.", "data")] = 3,
    rounds: Annotated[int, flag("Number of communication rounds.", "run")] = 8,
    algorithm: Annotated[
        str, flag("Algorithm to run; `sagda list` shows all.", "method")
    ] = "sagda-i",
    out: Annotated[
        Path | None, flag("Run folder (default: runs/federation-demo).", "output")
    ] = None,
    json: Json = False,
) -> int:
    """Run a federation on this machine: one server and several sites, on a9a.

    Server and sites are real processes. The command trains, prints the table, writes
    the run folder, and ends all processes that it started.

    Example: `sagda federation-demo --sites 3 --rounds 8`
    """
    from sagda.federation.flower.processes import need_flower

    need_flower()
    check.integer("sites", sites, low=2, high=20)
    check.integer("rounds", rounds, low=1)
    from sagda.algorithms import ALGORITHMS

    check.choice("algorithm", algorithm, ALGORITHMS)
    from sagda.federation.flower import demo
    from sagda.federation.server.display import FederationDisplay
    from sagda.runs.interrupt import Interrupt

    folder = out or unused(Path("runs") / "federation-demo")
    if folder.exists() and any(folder.iterdir()):
        raise BadValue(f"{folder} holds other files; choose another folder with --out.")
    files = demo.prepare(folder, algorithm, sites, rounds)
    interrupt = Interrupt()
    with interrupt, FederationDisplay(quiet=json) as display:
        display.say(f"starting a server and {sites} sites; logs are in {folder}")
        end = demo.demo(folder.resolve(), files, display, interrupt)
    if interrupt():
        print(f"stopped; finished rounds are in {folder}", file=sys.stderr)
        return 128 + interrupt.number
    if end.code:
        raise CommandFailed(end.sentence.removeprefix("sagda: "), end.code)
    code = show_run(folder, json)
    return code if json else verify(folder)


def unused(folder: Path) -> Path:
    """The folder, or the first of folder-2, folder-3, ... that does not exist."""
    number, candidate = 1, folder
    while candidate.exists():
        number += 1
        candidate = folder.with_name(f"{folder.name}-{number}")
    return candidate


def verify(
    folder: Folder,
    *,
    replay: Annotated[
        bool,
        flag("Compute the run again from the recorded answers, and compare."),
    ] = False,
    sites: Annotated[
        list[Path] | None,
        flag(
            "State folders of sites (default: those in the run folder).",
            consume_multiple=True,
        ),
    ] = None,
    model: OwnModel = None,
    json: Json = False,
) -> int:
    """Check a federation's files: digests, V = sum of v_i, and every round once.

    Examples: `sagda verify runs/federation-demo`,
    `sagda verify runs/federation-demo --replay`
    """
    from sagda.federation import verify as verifying
    from sagda.federation.site.folder import SITE, SiteFolder

    if model is not None:
        allow_model(model)
    in_run = [path.parent for path in sorted(folder.glob(f"sites/*/{SITE}"))]
    opened = [SiteFolder.in_folder(path) for path in (sites or in_run)]
    saved = verifying.read_saved(folder)
    findings = verifying.verify(saved, {site.name: site.state for site in opened})
    if replay:
        state = verifying.replay(saved, {site.name: site for site in opened})
        findings.append(
            verifying.Finding(
                "the recorded answers lead to the same model, bit for bit",
                verifying.same_state(saved.state, state),
                f"{state.round} rounds computed anew",
            )
        )
    holds = all(finding.holds for finding in findings)
    lines = [
        f"{'holds' if finding.holds else 'FAILS'}: {finding.what} ({finding.seen})"
        for finding in findings
    ]
    lines.append("the invariant holds" if holds else "the invariant does NOT hold")
    facts = {"holds": holds, "findings": [f._asdict() for f in findings]}
    say(json, facts, "\n".join(lines))
    return Exit.DONE if holds else Exit.FAILED
