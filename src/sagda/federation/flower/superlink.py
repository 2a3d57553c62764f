"""`sagda serve`: Flower's SuperLink and the run on it, watched and restarted.

Three processes serve a run: the SuperLink, nginx in front of it, and the ServerApp's
process, which the SuperLink starts and `apps` defines. All their state is in the run
folder, so any of them can be killed and started again at any time.

What the run computes is not known here: see `sagda.federation.server`. What nginx lets
in is in `nginx`.
"""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import tomli_w

from sagda import durable, network
from sagda.check import BadValue
from sagda.federation.flower.app_config import APP, FOLDER, MODEL, REGISTER
from sagda.federation.flower.nginx import Proxy
from sagda.federation.flower.processes import Process, lives, program
from sagda.federation.server.audit import Audit
from sagda.federation.server.results import RESET, SERVER
from sagda.federation.server.status import FILE, FederationStatus, read_status
from sagda.federation.trust.authority import Keys
from sagda.federation.trust.site_keys import PUBLIC, Register
from sagda.models import user_code

ENROLLED = "enrolled.json"  # fingerprints of the keys that the SuperLink has
CONNECTION = "here"  # Flower's name for our SuperLink, in its own configuration
UPKEEP = 1.0  # seconds between updates of keys and of the audit log
TROUBLE = 10.0  # seconds more after an update that failed
START = 60.0  # seconds for a process of Flower to start
MAX_STARTS = 5  # of the ServerApp without a new round, after which the run fails


class SuperLinkProcess:
    """A running SuperLink with its database in the run folder, and commands to it.

    Args:
        folder: the run folder.
        host: the address to listen on.
        port: the port to listen on.
        keys: the coordinator's keys. None: neither TLS nor node authentication.
    """

    def __init__(self, folder: Path, host: str, port: int, keys: Keys | None):
        self.folder, self.host, self.port, self.keys = folder, host, port, keys
        self.home = durable.private(folder / SERVER / "flower")
        write_connection(self.home, f"{host}:{port}", keys and keys.ca)
        self.process = self.started()

    def started(self) -> Process:
        """The SuperLink's process, once it accepts connections."""
        network.check_port("--port", self.host, self.port)
        command = [program("flower-superlink")]
        command += ["--host", self.host, "--port", str(self.port)]
        # Nodes stay registered when the SuperLink is restarted with its database.
        command += ["--database", str(self.home / "superlink.db")]
        # Otherwise it resolves the app's dependencies, which fails without internet.
        command += ["--disable-runtime-dependency-installation"]
        environment = {FOLDER: str(self.folder.resolve())}
        # The model that this process was allowed to run is also allowed there.
        for name, path in user_code.OWN.items():
            environment[MODEL] = f"{path}:{name.rpartition(':')[2]}"
        if self.keys is None:
            command += ["--insecure"]
        else:
            command += ["--ssl-ca-certfile", str(self.keys.ca.resolve())]
            command += ["--ssl-certfile", str(self.keys.certificate.resolve())]
            command += ["--ssl-keyfile", str(self.keys.key.resolve())]
            command += ["--enable-supernode-auth"]
            environment[REGISTER] = str(self.keys.sites.resolve())
        log = self.folder / SERVER / "superlink.log"
        process = Process(command, self.home, log, **environment)
        process.wait_for_port("Flower's SuperLink", self.host, self.port, START)
        return process

    def restart(self) -> None:
        self.process.stop()  # its helpers may still run
        self.process = self.started()

    def flwr(self, *arguments: str) -> Process:
        """Run a `flwr` command to its end. Its output is the answer."""
        log = self.folder / SERVER / "flwr.log"
        log.unlink(missing_ok=True)  # the log then holds this answer only
        process = Process([program("flwr"), *arguments], self.home, log)
        process.finish(START)
        return process

    def enrol(self) -> None:
        """Register the keys of newly admitted sites with the SuperLink.

        Keys of removed sites stay there: the SuperLink never takes a key again that it
        was told to forget, and a removed site may be admitted again. nginx and the
        server's register keep removed sites out.
        """
        if self.keys is None:
            return
        # Each question starts a process of Flower's, so only new keys are sent.
        path = self.home / ENROLLED
        enrolled: list[str] = json.loads(path.read_text()) if path.exists() else []
        for entry in Register(self.keys.sites).now().values():
            if entry.fingerprint not in enrolled:
                file = str((self.keys.sites / f"{entry.name}{PUBLIC}").resolve())
                options = (CONNECTION, "--format", "json")
                check_enrolled(self.flwr("supernode", "register", file, *options))
                enrolled.append(entry.fingerprint)
                durable.write(path, json.dumps(enrolled))

    def run_app(self) -> float:
        """Hand in sagda's app, which resumes the run in the folder. Returns when."""
        # The old status must not be taken for the new process's.
        (self.folder / SERVER / FILE).unlink(missing_ok=True)
        started = time.monotonic()
        app = durable.private(self.home / "app")
        durable.write(app / "pyproject.toml", tomli_w.dumps(APP))
        command = self.flwr("run", str(app), CONNECTION)
        if command.code:
            raise BadValue(f"Flower did not take the run: {command.last_lines()}")
        return started


def write_connection(home: Path, address: str, ca: Path | None) -> None:
    """Tell Flower's commands in `home` about a SuperLink, as `CONNECTION`."""
    security = {"root-certificates": str(ca.resolve())} if ca else {"insecure": True}
    superlink = {"default": CONNECTION, CONNECTION: {"address": address} | security}
    durable.write(home / "config.toml", tomli_w.dumps({"superlink": superlink}))


def check_enrolled(command: Process) -> None:
    """Raise `BadValue` unless the SuperLink has the key, now or from before."""
    text = command.output()
    try:
        # Flower can write other lines before and after its answer.
        answer = json.loads(text[text.index("{") : text.rindex("}") + 1])
        reason = "" if answer["success"] else str(answer["error-message"])
    except (ValueError, KeyError, TypeError):
        reason = text[-200:]
    if reason and "already in use" not in reason:
        raise BadValue(f"Flower did not take a site's key: {reason.strip()}")


# Called with the newest status, or None before there is one.
Show = Callable[[FederationStatus | None], None]


class RunEnd(NamedTuple):
    """How a run ended."""

    code: int | None  # an exit code of `sagda serve`. None: the user stopped the run
    sentence: str = ""  # why, unless the code is 0


class ServerSupervisor:
    """Keeps the SuperLink, nginx and the ServerApp of a run alive.

    Its constructor starts the ServerApp. Whoever started the other two stops them.

    Args:
        link: the SuperLink.
        proxy: nginx in front of it, if there is one.
    """

    def __init__(self, link: SuperLinkProcess, proxy: Proxy | None):
        self.link, self.proxy = link, proxy
        self.folder = link.folder / SERVER
        self.audit = Audit(self.folder)
        self.updated = 0.0  # when keys and audit log were updated last
        self.started = link.run_app()  # when the ServerApp was, by the monotonic clock
        self.starts = 1  # of the ServerApp since the last new round

    def check(self) -> FederationStatus | None:
        """The run's status, after a restart of what has died."""
        status = read_status(self.folder)
        if status is None:
            # The ServerApp's process has not written its status yet.
            app_lives = time.monotonic() - self.started < START
        elif status.code is not None:
            return status
        else:
            app_lives = lives(status.pid)
        link_died = self.link.process.code is not None
        if link_died or not app_lives:
            # A ServerApp without its SuperLink cannot reach anyone. It must be gone
            # before the next one starts, because it locks the folder.
            if status is not None and app_lives:
                os.kill(status.pid, signal.SIGKILL)
            if link_died:
                self.link.restart()
                self.link.enrol()
            self.started = self.link.run_app()
            self.starts += 1
        if time.monotonic() - self.updated > UPKEEP:
            self.updated = time.monotonic()
            try:
                self.link.enrol()
                if self.proxy is not None:
                    self.proxy.update()
                    for refusal in self.proxy.refusals():
                        self.audit.write("refused", **refusal._asdict(), at="proxy")
            except BadValue as trouble:
                # It is tried again later: a run must not end for a key that Flower
                # did not take, or for a moment without nginx.
                self.audit.write("trouble", text=str(trouble))
                self.updated += TROUBLE
        return status

    def watch(self, show: Show, stop: Callable[[], bool]) -> RunEnd:
        """Check four times a second until the run ends, or until `stop` is true.

        `show` is called with each status.
        """
        last = -1
        while not stop():
            status = self.check()
            show(status)
            if status is not None:
                if status.code is not None:
                    return RunEnd(status.code, status.sentence)
                # A committed round shows that the start was a good one.
                if status.round > last:
                    last, self.starts = status.round, 1
            if self.starts > MAX_STARTS:
                log = self.folder / "superlink.log"
                return RunEnd(
                    1, f"the server's process ended {MAX_STARTS} times; see {log}."
                )
            time.sleep(0.25)
        return RunEnd(None)


def serve(
    folder: Path,
    host: str,
    port: int,
    keys: Keys | None,
    *,
    proxied: bool,
    reset: bool,
    show: Show,
    stop: Callable[[], bool],
) -> RunEnd:
    """Serve the run in `folder` to its end, or until `stop` is true.

    Args:
        folder: the run folder, with its configuration.
        host: the address to listen on.
        port: the port to listen on.
        keys: the coordinator's keys. None: neither TLS nor signatures.
        proxied: put nginx in front of the SuperLink, which then listens on a free port
            of the loopback interface. Needs keys.
        reset: set all control variates back to zero first.
        show: called with the run's status four times a second.
        stop: asked as often whether to stop.
    """
    home = durable.private(folder / SERVER)
    with durable.lock(folder):
        if reset:
            (home / RESET).touch()
        inside = ("127.0.0.1", network.free_port()) if proxied else (host, port)
        link = SuperLinkProcess(folder, *inside, keys)
        proxy = None
        try:
            link.enrol()
            if proxied and keys is not None:
                proxy = Proxy(home / "proxy", host, port, keys, link.port)
            return ServerSupervisor(link, proxy).watch(show, stop)
        finally:
            if proxy is not None:
                proxy.process.stop()
            link.process.stop()
            # The ServerApp's process outlives its SuperLink, and locks the folder.
            status = read_status(home)
            if status is not None and lives(status.pid, "flwr-serverapp"):
                os.kill(status.pid, signal.SIGKILL)
