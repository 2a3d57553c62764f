"""`sagda serve`: starts Flower's SuperLink and a run on it, and restarts them.

Three processes serve a run: the SuperLink, nginx in front of it, and the ServerApp. The
SuperLink starts the ServerApp, which `apps` defines. All their state is in the run
folder, so each of them can be killed and restarted at any time.

What a run computes is in `sagda.federation.server`. Which requests nginx forwards is in
`nginx`. The counterpart at a site is `supernode`.
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
from sagda.federation.server.process import RESET, SERVER
from sagda.federation.server.status import FILE, FederationStatus, read_status
from sagda.federation.trust.authority import Keys
from sagda.federation.trust.site_keys import PUBLIC, Register
from sagda.models import user_code

ENROLLED = "enrolled.json"  # fingerprints of the keys that the SuperLink has
CONNECTION = "here"  # the name of this SuperLink in the configuration of Flower
UPKEEP = 1.0  # seconds between updates of keys and of the audit log
TROUBLE = 10.0  # seconds to wait in addition after an update that failed
START = 60.0  # seconds for a process of Flower to start
MAX_STARTS = 5  # starts of the ServerApp without a new round before the run fails


class SuperLinkProcess:
    """A running SuperLink with its database in the run folder, and commands for it.

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
        """Start the SuperLink. Return its process once it accepts connections."""
        network.check_port("--port", self.host, self.port)
        command = [program("flower-superlink")]
        command += ["--host", self.host, "--port", str(self.port)]
        # The database preserves the registered nodes when the SuperLink is restarted.
        command += ["--database", str(self.home / "superlink.db")]
        # Resolving the dependencies of the app would fail without internet access.
        command += ["--disable-runtime-dependency-installation"]
        environment = {FOLDER: str(self.folder.resolve())}
        # If this process may run a user's model, the ServerApp may run it too.
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
        """Stop the processes that are left, and start the SuperLink again."""
        self.process.stop()  # its helpers may still run
        self.process = self.started()

    def flwr(self, *arguments: str) -> Process:
        """Run a `flwr` command until it ends. Return its process, with the output."""
        log = self.folder / SERVER / "flwr.log"
        log.unlink(missing_ok=True)  # the log must only have this command's output
        process = Process([program("flwr"), *arguments], self.home, log)
        process.finish(START)
        return process

    def enrol(self) -> None:
        """Register the keys of newly admitted sites with the SuperLink.

        The keys of removed sites stay registered. A removed site may be admitted again,
        but the SuperLink never accepts a key again that was unregistered. nginx and the
        server's register refuse the removed sites.
        """
        if self.keys is None:
            return
        # Each command starts a process, so only new keys are registered.
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
        """Submit sagda's app, which starts or resumes the run in the folder.

        Returns the time of the start, by the monotonic clock.
        """
        # Delete the old status, which `check` would take for the new process's.
        (self.folder / SERVER / FILE).unlink(missing_ok=True)
        started = time.monotonic()
        app = durable.private(self.home / "app")
        durable.write(app / "pyproject.toml", tomli_w.dumps(APP))
        command = self.flwr("run", str(app), CONNECTION)
        if command.code:
            raise BadValue(f"Flower did not accept the run: {command.last_lines()}")
        return started


def write_connection(home: Path, address: str, ca: Path | None) -> None:
    """Write a configuration for `flwr`, in which `CONNECTION` names the SuperLink.

    Args:
        home: the folder FLWR_HOME.
        address: HOST:PORT of the SuperLink.
        ca: the certificate authority. None: no TLS.
    """
    security = {"root-certificates": str(ca.resolve())} if ca else {"insecure": True}
    superlink = {"default": CONNECTION, CONNECTION: {"address": address} | security}
    durable.write(home / "config.toml", tomli_w.dumps({"superlink": superlink}))


def check_enrolled(command: Process) -> None:
    """Raise `BadValue` unless the SuperLink has registered the key, now or earlier."""
    text = command.output()
    try:
        # Flower can print other lines before and after its answer.
        answer = json.loads(text[text.index("{") : text.rindex("}") + 1])
        reason = "" if answer["success"] else str(answer["error-message"])
    except (ValueError, KeyError, TypeError):
        reason = text[-200:]
    if reason and "already in use" not in reason:
        raise BadValue(f"Flower did not accept the key of a site: {reason.strip()}")


# A function that is called with the newest status, or None before the first one.
Show = Callable[[FederationStatus | None], None]


class RunEnd(NamedTuple):
    """How a run ended: an exit code, and a sentence for the user."""

    code: int | None  # the exit code of `sagda serve`. None: the user stopped the run
    sentence: str = ""  # the reason, unless the code is 0


class ServerSupervisor:
    """Keeps the SuperLink, nginx and the ServerApp of a run alive.

    The constructor starts the ServerApp. The caller starts and stops the SuperLink and
    nginx.

    Args:
        link: the SuperLink, which is running.
        proxy: nginx in front of the SuperLink, or None.
    """

    def __init__(self, link: SuperLinkProcess, proxy: Proxy | None):
        self.link, self.proxy = link, proxy
        self.folder = link.folder / SERVER
        self.audit = Audit(self.folder)
        self.updated = 0.0  # time of the last update of the keys and the audit log
        self.started = link.run_app()  # time of the ServerApp's last start
        self.starts = 1  # starts of the ServerApp since the last new round

    def check(self) -> FederationStatus | None:
        """Restart the processes that have ended. Return the run's status."""
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
            # A ServerApp without its SuperLink cannot reach any site. It must end
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
                # The update is repeated later. A run must not end because Flower
                # refused a key, or because nginx was unavailable for a moment.
                self.audit.write("trouble", text=str(trouble))
                self.updated += TROUBLE
        return status

    def watch(self, show: Show, stop: Callable[[], bool]) -> RunEnd:
        """Call `check` four times a second until the run ends or `stop()` is true.

        Returns how the run ended. `show` is called with each status.
        """
        last = -1
        while not stop():
            status = self.check()
            show(status)
            if status is not None:
                if status.code is not None:
                    return RunEnd(status.code, status.sentence)
                # A committed round shows that the last start was successful.
                if status.round > last:
                    last, self.starts = status.round, 1
            if self.starts > MAX_STARTS:
                log = self.folder / "superlink.log"
                return RunEnd(
                    1,
                    f"the server's process ended {MAX_STARTS} times without a new "
                    f"round; see {log}.",
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
    """Serve the run in `folder` until it ends or `stop()` is true. Return how it ended.

    Args:
        folder: the run folder, with its configuration.
        host: the address to listen on.
        port: the port to listen on.
        keys: the coordinator's keys. None: neither TLS nor signatures.
        proxied: put nginx in front of the SuperLink, which then listens on a free port
            of the loopback interface. Needs keys.
        reset: set all control variates back to zero first.
        show: called with the run's status four times a second.
        stop: called equally often; the server stops when it returns True.
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
            # The ServerApp can outlive its SuperLink, and would still lock the folder.
            status = read_status(home)
            if status is not None and lives(status.pid, "flwr-serverapp"):
                os.kill(status.pid, signal.SIGKILL)
