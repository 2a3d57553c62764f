"""`sagda serve`: a SuperLink and a run on it, watched and started again as needed."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tomli_w

from sagda import durable, network
from sagda.check import BadValue
from sagda.federation.flower import processes
from sagda.federation.flower.app_config import APP, FOLDER, MODEL, REGISTER
from sagda.federation.flower.nginx import Proxy
from sagda.federation.server.audit import Audit
from sagda.federation.server.results import RESET, SERVER
from sagda.federation.server.status import FILE, read_status
from sagda.federation.trust.authority import Keys
from sagda.federation.trust.site_keys import PUBLIC, Register
from sagda.models import user_code

ENROLLED = "enrolled.json"  # the fingerprints that the SuperLink has
LATER = 10.0  # seconds until what went wrong there is tried again
OFTEN = 1.0  # seconds between looks at keys and at the door
BEGIN = 60.0  # seconds for the server's process to say that it is there
AGAIN = 5  # starts without progress after which it is given up


class SuperLinkProcess:
    """The processes of a server, in a run's folder.

    Args:
        folder: the run's.
        host: the address to listen on.
        port: and the port.
        keys: the coordinator's; None: neither TLS nor signatures, on loopback only.
        reset: set all variates back first.
        proxied: put nginx before the SuperLink, which then has a port of its own.
    """

    def __init__(
        self,
        folder: Path,
        host: str,
        port: int,
        keys: Keys | None,
        *,
        reset: bool = False,
        proxied: bool = False,
    ):
        self.folder, self.home = folder, folder / SERVER / "flower"
        self.keys, self.reset = keys, reset
        self.host = "127.0.0.1" if proxied else host
        self.port = network.free_port() if proxied else port
        self.audit = Audit(folder / SERVER)
        self.proxy: Proxy | None = None
        if proxied and keys is not None:
            place = durable.private(folder / SERVER) / "proxy"
            self.proxy = Proxy(place, host, port, keys, self.port)
        self.register = None if keys is None else Register(keys.sites)
        self.link: processes.Process | None = None
        self.starts = 0  # without a round committed in between
        self.since = 0.0  # when the run was handed in
        self.pid: int | None = None  # of the server's process, once it has said so
        self.looked = 0.0

    def start_link(self) -> None:
        """The SuperLink; its database is in the folder."""
        network.check_port("--port", self.host, self.port)
        command = [processes.program("flower-superlink")]
        environment = {FOLDER: str(self.folder.resolve())}
        for name, path in user_code.OWN.items():
            environment[MODEL] = f"{path}:{name.rpartition(':')[2]}"
        secure = "insecure = true"
        if self.keys is None:
            command.append("--insecure")
        else:
            ca, certificate, key = (
                str(path.resolve())
                for path in (self.keys.ca, self.keys.certificate, self.keys.key)
            )
            command += ["--ssl-ca-certfile", ca, "--ssl-certfile", certificate]
            command += ["--ssl-keyfile", key, "--enable-supernode-auth"]
            environment[REGISTER] = str(self.keys.sites.resolve())
            secure = f'root-certificates = "{ca}"'
        command += ["--host", self.host, "--port", str(self.port)]
        command += ["--database", str(self.home / "superlink.db")]
        command += ["--disable-runtime-dependency-installation"]
        durable.private(self.home)
        durable.write(
            self.home / "config.toml",
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = '
            f'"{self.host}:{self.port}"\n{secure}\n',
        )
        log = self.folder / SERVER / "superlink.log"
        self.link = processes.Process(command, self.home, log, **environment)
        deadline = time.monotonic() + BEGIN
        while not network.listens(self.host, self.port):
            if self.link.code is not None or time.monotonic() > deadline:
                words = self.link.last_words()
                self.stop()
                raise BadValue(f"Flower's SuperLink did not start: {words}")
            time.sleep(0.1)

    def flower(self, *arguments: str) -> processes.Process:
        """One of Flower's commands to the SuperLink, done; its log holds the answer."""
        log = self.folder / SERVER / "flwr.log"
        log.unlink(missing_ok=True)
        run = processes.Process([processes.program("flwr"), *arguments], self.home, log)
        try:
            run.process.wait(BEGIN)
        except subprocess.TimeoutExpired:
            run.stop()
        return run

    def enrol(self) -> None:
        """Tell the SuperLink of new keys.

        It never takes a key again that it was told to forget, so it keeps those of
        removed sites; nginx and the register are what keeps them out.
        """
        if self.register is None:
            return
        assert self.keys is not None
        path = self.home / ENROLLED
        known: list[str] = json.loads(path.read_text()) if path.exists() else []
        for entry in self.register.now().values():
            if entry.fingerprint not in known:
                file = str((self.keys.sites / f"{entry.name}{PUBLIC}").resolve())
                form = ("here", "--format", "json")
                check_taken(self.flower("supernode", "register", file, *form).words())
                known.append(entry.fingerprint)
                durable.write(path, json.dumps(known))

    def hand_in(self) -> None:
        """Start the run; what the folder holds goes on."""
        app = self.home / "app"
        durable.write(durable.private(app) / "pyproject.toml", tomli_w.dumps(APP))
        if self.pid is not None and processes.lives(self.pid):
            os.kill(self.pid, signal.SIGKILL)  # cut off from its SuperLink
        (self.folder / SERVER / FILE).unlink(missing_ok=True)
        self.pid, self.since = None, time.monotonic()
        self.starts += 1
        done = self.flower("run", str(app), "here")
        if done.code:
            raise BadValue(f"Flower did not take the run: {done.last_words()}")

    def start(self) -> None:
        self.start_link()
        self.enrol()
        if self.proxy is not None:
            self.proxy.look()
        self.hand_in()

    def look(self) -> dict[str, Any]:
        """The server's status; starts again what has died."""
        status = read_status(self.folder / SERVER)
        if status.get("state") in ("done", "failed"):
            return status
        if status:
            self.pid = status["pid"]
        if self.link is None or self.link.code is not None:
            self.stop()
            self.start()
        elif not self.process_lives():
            self.hand_in()
        if time.monotonic() - self.looked > OFTEN:
            self.looked = time.monotonic()
            try:
                self.enrol()
                self.watch()
            except BadValue as trouble:  # tried again; the run need not end for it
                self.audit.write("trouble", text=str(trouble))
                self.looked += LATER
        return status

    def watch(self) -> None:
        """The door: whom it turned away goes into the audit log."""
        if self.proxy is not None:
            self.proxy.look()
            for peer, code, text in self.proxy.refusals():
                self.audit.write("refused", name=peer, code=code, text=text, at="proxy")

    def process_lives(self) -> bool:
        """The server's own process; it has a while to say that it is there."""
        if self.pid is None:
            return time.monotonic() - self.since < BEGIN
        return processes.lives(self.pid)

    def stop(self) -> None:
        if self.proxy is not None:
            self.proxy.stop()
        if self.link is not None:
            self.link.stop()
        # The server's own process outlives its SuperLink, and would keep the folder.
        pid = read_status(self.folder / SERVER).get("pid")
        if pid is not None and processes.named(pid, "flwr-serverapp"):
            os.kill(pid, signal.SIGKILL)


def check_taken(words: str) -> None:
    """A sentence unless Flower has a key, from now on or already."""
    try:
        told = json.loads(words[words.index("{") : words.rindex("}") + 1])
        reason = "" if told["success"] else str(told["error-message"])
    except (ValueError, KeyError, TypeError):
        reason = words[-200:]
    if reason and "already in use" not in reason:
        raise BadValue(f"Flower did not take a site's key: {reason.strip()}")


def serve(
    server: SuperLinkProcess,
    show: Callable[[dict[str, Any]], None],
    stop: Callable[[], bool],
) -> dict[str, Any]:
    """Until the run is over or someone wants to stop; the last status."""
    durable.private(server.folder / SERVER)
    with durable.lock(server.folder):
        if server.reset:
            (server.folder / SERVER / RESET).touch()
        try:
            server.start()
            last = -1
            while not stop():
                status = server.look()
                show(status)
                if status.get("state") in ("done", "failed"):
                    return status
                if status.get("round", -1) > last:
                    last, server.starts = status["round"], 1
                if server.starts > AGAIN:
                    return {
                        "state": "failed",
                        "code": 1,
                        "sentence": f"the server's process ended {AGAIN} times; see "
                        f"{server.folder / SERVER / 'superlink.log'}.",
                    }
                time.sleep(0.25)
            return {"state": "stopped"}
        finally:
            server.stop()
