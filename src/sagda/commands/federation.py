"""The commands of real federations: federation-demo, serve, join and verify.

They check flags and print results. `federation/flower/` starts the processes, and
`federation/__init__.py` describes the messages. The commands for keys are in `keys.py`.
"""

import itertools
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

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
from sagda.federation.flower.processes import need_flower
from sagda.network import LOOPBACK, address, check_port
from sagda.runs.interrupt import Interrupt

# A flag of `serve` and `join`.
Plaintext = Annotated[
    bool, flag("Use neither TLS nor keys. Only for tests on 127.0.0.1.", "security")
]


@Parameter(name="*")
@dataclass(frozen=True)
class JoinFlags:
    """The flags of `sagda join`."""

    server: Annotated[str, flag("The server, as HOST:PORT.", "connection")]
    data: Annotated[
        Path, flag("This site's rows: .csv, .npz, LIBSVM or a folder.", "data")
    ]
    name: Annotated[
        str | None,
        flag("Name of this site; never change it (default: the file's name).", "data"),
    ] = None
    state: Annotated[
        Path | None, flag("This site's state folder (default: sagda-NAME).", "state")
    ] = None
    label: Annotated[str, flag("Label column of the data file.", "data")] = "label"
    positive: Annotated[str | None, flag("Label of the positive class.", "data")] = None
    key: Annotated[
        Path | None,
        flag("This site's private key, from `sagda keys site`.", "security"),
    ] = None
    ca: Annotated[
        Path | None, flag("The file ca.crt from the coordinator.", "security")
    ] = None
    least: Annotated[
        int,
        flag(
            "Send a reply only if the server averages at least this number of sites. "
            "With 1, the server may see the reply of this site alone.",
            "security",
        ),
    ] = 2
    plaintext: Plaintext = False
    model: Annotated[
        str | None,
        flag(
            "FILE.py:FUNCTION, your own code that the server may choose as the model.",
            "security",
        ),
    ] = None
    leave: Annotated[
        bool,
        flag(
            "Leave for good. The server removes the control variate of this site.",
            "state",
        ),
    ] = False
    patience: Annotated[
        float,
        flag("Give up if no server answers for this number of seconds.", "connection"),
    ] = 90.0

    def check(self) -> None:
        """Check the server's address, and that a key and a certificate are given.

        With `--plaintext` neither is needed, and neither is allowed.
        """
        if not self.patience > 0:
            raise BadValue(f"`--patience` must be above zero, got {self.patience}.")
        host, _ = address("--server", self.server)
        if self.plaintext and host not in LOOPBACK:
            raise BadValue(
                "`--plaintext` is only for a server on this machine, got --server "
                f"{self.server}; remove --plaintext and give --key and --ca."
            )
        if self.plaintext and (self.key is not None or self.ca is not None):
            raise BadValue(
                "`--plaintext` must be used without --key and --ca; remove either "
                "--plaintext, or --key and --ca."
            )
        for name, path in {"key": self.key, "ca": self.ca}.items():
            if not self.plaintext and path is None:
                raise BadValue(
                    f"`--{name}` must be given, got none; use the key from `sagda keys "
                    "site` and the coordinator's ca.crt, or --plaintext for a test on "
                    "127.0.0.1."
                )
            if path is not None and not path.is_file():
                raise BadValue(f"`--{name}` must be a file, but {path} is not a file.")

    def site(self) -> Any:
        """Check the key and the model, and return the `SiteFolder` of these flags."""
        from sagda.federation.site.folder import SiteFolder

        values = {name: getattr(self, name) for name in ("name", "label", "positive")}
        values |= {"least": self.least, "state": self.state}
        values |= {"data": str(self.data.resolve())}
        values |= {"key": None if self.key is None else self.key.absolute()}
        if self.model is not None:
            allow_model(self.model)
            file, _, function = self.model.rpartition(":")
            values["model"] = f"{Path(file).resolve()}:{function}"
        site = SiteFolder.of(values)
        if self.key is not None and site.signer is not None:
            check_key(self.key, site.name)
        return replace(site, state=site.state.resolve())


BehindProxy = Annotated[
    bool,
    flag(
        "Put nginx in front of the server even on 127.0.0.1. For other addresses this "
        "is always done.",
        "security",
    ),
]


def serve(
    config: Annotated[
        Path, flag("TOML file with the settings and a table [federation].")
    ],
    *,
    out: Annotated[
        Path | None,
        flag("Run folder (default: runs/NAME, for a file NAME.toml).", "output"),
    ] = None,
    host: Annotated[str, flag("Address to listen on.", "connection")] = "127.0.0.1",
    port: Annotated[int, flag("Port to listen on.", "connection")] = 8000,
    keys: Annotated[
        Path, flag("Folder with the keys from `sagda keys init`.", "security")
    ] = Path("keys"),
    proxy: BehindProxy = False,
    plaintext: Plaintext = False,
    reset: Annotated[
        bool,
        flag("First set all control variates to zero (a new epoch).", "state"),
    ] = False,
    json: Json = False,
) -> int:
    """Lead a federation: wait for sites, train with them, write the run folder.

    Repeating the command resumes the federation after a stop or a crash.

    Example: `sagda serve federation.toml --port 8000`
    """
    need_flower()
    check.integer("port", port, low=1, high=65535)
    if plaintext and (host not in LOOPBACK or proxy):
        raise BadValue(
            "`--plaintext` is only for a server on this machine without --proxy, got "
            f"--host {host}{' and --proxy' if proxy else ''}; remove --plaintext and "
            "give --keys."
        )
    from sagda.federation.flower import superlink
    from sagda.federation.flower.nginx import program
    from sagda.federation.server.display import FederationDisplay
    from sagda.federation.server.process import claim
    from sagda.federation.terms import read_settings
    from sagda.federation.trust.authority import Keys

    read_settings(config)
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
        display.say(f"listening on {host}:{port} ({how}); logs are in {folder}/server")
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
    return finished(end, interrupt, folder, "repeat the command to resume", json)


def finished(
    end: Any, interrupt: Interrupt, folder: Path, advice: str, json: bool
) -> int:
    """Print how a federation ended and its results, and return the exit code.

    `end` is the result of the server's process. `advice` is what to do after a stop.
    """
    if end.code is None:
        print(f"stopped; {advice} ({folder})", file=sys.stderr)
        return 128 + interrupt.number
    if end.code:
        raise CommandFailed(end.sentence.removeprefix("sagda: "), end.code)
    return show_run(folder, json)


def join(*, flags: JoinFlags, json: Json = False) -> int:
    """Take part in a federation with the rows of this site. The rows stay here.

    The site computes with its own installation of sagda and refuses code from the
    server. The command ends when the server ends the run. The trained model is then in
    the state folder.

    Example: `sagda join --server fl.example.org:8443 --data rows.csv --name hospital-a
    --key hospital-a.key --ca ca.crt`
    """
    need_flower()
    flags.check()
    from sagda.federation.flower import supernode
    from sagda.federation.site.folder import MODEL

    site = flags.site()

    def note(text: str) -> None:
        if not json:
            print(f"sagda: {text}", file=sys.stderr)

    interrupt = Interrupt()
    try:
        with interrupt:
            farewell = supernode.join(
                site,
                flags.server,
                flags.ca,
                leave=flags.leave,
                patience=flags.patience,
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


def check_key(key: Path, name: str) -> None:
    """Check the name and the expiry date of the private key `key`.

    Both are in the file of the public key, which is in the same folder.
    """
    from sagda.federation.trust.site_keys import PUBLIC, Entry

    public = key.with_suffix(PUBLIC)
    if not public.is_file():
        return
    entry = Entry.read(public)
    if entry.name != name:
        raise BadValue(
            f"`--key` must be the key of {name}, but {key} is the key of {entry.name}."
        )
    if entry.expired:
        raise BadValue(
            f"`--key` {key} expired on {entry.expires}; make a new one with "
            "`sagda keys site`."
        )


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
    """Run a federation on this machine, with one server and several sites.

    Its rows are those of the data set a9a. The server and the sites are real processes.
    The command trains, prints a table,
    writes the run folder, and ends all processes that it started.

    Example: `sagda federation-demo --sites 3 --rounds 8`
    """
    need_flower()
    check.integer("sites", sites, low=2, high=20)
    check.integer("rounds", rounds, low=1)
    from sagda.algorithms import ALGORITHMS

    check.choice("algorithm", algorithm, ALGORITHMS)
    from sagda.federation.flower import demo
    from sagda.federation.server.display import FederationDisplay

    folder = out or unused(Path("runs") / "federation-demo")
    if folder.exists() and any(folder.iterdir()):
        raise BadValue(f"{folder} holds other files; choose another folder with --out.")
    files = demo.prepare(folder, algorithm, sites, rounds)
    interrupt = Interrupt()
    with interrupt, FederationDisplay(quiet=json) as display:
        display.say(f"starting a server and {sites} sites; logs are in {folder}")
        end = demo.demo(folder.resolve(), files, display, interrupt)
    code = finished(end, interrupt, folder, "finished rounds are in its folder", json)
    return code if code or json else verify(folder)


def unused(folder: Path) -> Path:
    """Return the first of `folder`, folder-2, folder-3, ... that does not exist."""
    others = (folder.with_name(f"{folder.name}-{i}") for i in itertools.count(2))
    return next(path for path in itertools.chain([folder], others) if not path.exists())


def verify(
    folder: Folder,
    *,
    replay: Annotated[
        bool,
        flag("Also compute the run again from the recorded replies, and compare."),
    ] = False,
    sites: Annotated[
        list[Path] | None,
        flag(
            "State folders of the sites (default: those inside the run folder).",
            consume_multiple=True,
        ),
    ] = None,
    model: OwnModel = None,
    json: Json = False,
) -> int:
    """Check the files of a federation: digests, control variates and rounds.

    Checks that V is the sum of the sites' control variates v_i, and that every round
    was counted once.

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
                "the recorded replies lead to the same model, bit for bit",
                verifying.same_state(saved.state, state),
                f"{state.round} rounds computed again",
            )
        )
    holds = all(finding.holds for finding in findings)
    lines = [
        f"{'holds' if finding.holds else 'FAILS'}: {finding.what} ({finding.seen})"
        for finding in findings
    ]
    lines.append("all checks hold" if holds else "NOT all checks hold")
    facts = {"holds": holds, "findings": [f._asdict() for f in findings]}
    say(json, facts, "\n".join(lines))
    return Exit.DONE if holds else Exit.FAILED
