"""`sagda serve`: a SuperLink and a run on it, watched and started again as needed."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from sagda import durable
from sagda.check import BadValue
from sagda.federated import processes
from sagda.federated.lead import FOLDER, RESET, SERVER
from sagda.federated.status import FILE, read_status

APP = """[project]
name = "sagda-federation"
version = "0.1.0"
description = "A federation led by sagda."
license = "MIT"
dependencies = []

[tool.flwr.app]
publisher = "sagda"

[tool.flwr.app.components]
serverapp = "sagda.engines.flower:server"
clientapp = "sagda.engines.flower:client"

[tool.flwr.app.config]
"""
BEGIN = 60.0  # seconds for the server's process to say that it is there
AGAIN = 5  # starts without progress after which it is given up


class Tls(NamedTuple):
    """Files of a server with TLS."""

    ca: Path
    certificate: Path
    key: Path


class Server:
    """The processes of a server, in a run's folder."""

    def __init__(
        self, folder: Path, host: str, port: int, tls: Tls | None, reset: bool
    ):
        self.folder, self.home = folder, folder / SERVER / "flower"
        self.host, self.port, self.tls, self.reset = host, port, tls, reset
        self.link: processes.Process | None = None
        self.starts = 0  # without a round committed in between
        self.since = 0.0  # when the run was handed in
        self.pid: int | None = None  # of the server's process, once it has said so

    @property
    def near(self) -> str:
        """The address by which this machine reaches it."""
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host
        return f"{host}:{self.port}"

    def start_link(self) -> None:
        """The SuperLink; its database is in the folder."""
        processes.check_port(self.host, self.port)
        command = [processes.program("flower-superlink")]
        if self.tls is None:
            command.append("--insecure")
        else:
            command += ["--ssl-ca-certfile", str(self.tls.ca)]
            command += ["--ssl-certfile", str(self.tls.certificate)]
            command += ["--ssl-keyfile", str(self.tls.key)]
        command += ["--host", self.host, "--port", str(self.port)]
        command += ["--database", str(self.home / "superlink.db")]
        command += ["--disable-runtime-dependency-installation"]
        environment = {FOLDER: str(self.folder.resolve())}
        log = self.folder / SERVER / "superlink.log"
        self.link = processes.Process(command, self.home, log, **environment)
        host, port = processes.address(self.near)
        deadline = time.monotonic() + BEGIN
        while not processes.listens(host, port):
            if self.link.code is not None or time.monotonic() > deadline:
                words = self.link.last_words()
                self.stop()
                raise BadValue(f"Flower's SuperLink did not start: {words}")
            time.sleep(0.1)

    def hand_in(self) -> None:
        """Start the run; what the folder holds goes on."""
        app = self.home / "app"
        app.mkdir(parents=True, exist_ok=True)
        (app / "pyproject.toml").write_text(APP)
        secure = f'root-certificates = "{self.tls.ca.resolve()}"' if self.tls else ""
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = '
            f'"{self.near}"\n{secure or "insecure = true"}\n'
        )
        if self.pid is not None and processes.lives(self.pid):
            os.kill(self.pid, signal.SIGKILL)  # cut off from its SuperLink
        (self.folder / SERVER / FILE).unlink(missing_ok=True)
        self.pid, self.since = None, time.monotonic()
        self.starts += 1
        command = [processes.program("flwr"), "run", str(app), "here"]
        log = self.folder / SERVER / "flwr-run.log"
        run = processes.Process(command, self.home, log)
        try:
            run.process.wait(BEGIN)
        except subprocess.TimeoutExpired:
            run.stop()
        if run.code:
            raise BadValue(f"Flower did not take the run: {run.last_words()}")

    def look(self) -> dict[str, Any]:
        """The server's status; starts again what has died."""
        status = read_status(self.folder / SERVER)
        if status.get("state") in ("done", "failed"):
            return status
        if status:
            self.pid = status["pid"]
        if self.link is None or self.link.code is not None:
            self.stop()
            self.start_link()
            self.hand_in()
        elif not self.process_lives():
            self.hand_in()
        return status

    def process_lives(self) -> bool:
        """The server's own process; it has a while to say that it is there."""
        if self.pid is None:
            return time.monotonic() - self.since < BEGIN
        return processes.lives(self.pid)

    def stop(self) -> None:
        if self.link is not None:
            self.link.stop()


def serve(
    server: Server,
    show: Callable[[dict[str, Any]], None],
    stop: Callable[[], bool],
) -> dict[str, Any]:
    """Until the run is over or someone wants to stop; the last status."""
    (server.folder / SERVER).mkdir(parents=True, exist_ok=True, mode=0o700)
    with durable.lock(server.folder):
        if server.reset:
            (server.folder / SERVER / RESET).touch()
        try:
            server.start_link()
            server.hand_in()
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
