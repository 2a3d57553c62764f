"""`sagda join`: a SuperNode for one site, watched and started again as needed."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sagda import durable, network
from sagda.federation.flower import processes
from sagda.federation.site.folder import FAREWELL, LEAVING, SiteFolder

PATIENCE = 90.0  # seconds: Flower refuses a killed node for about a minute

SELDOM = 5.0  # seconds between looks for a server, while a node is there

LINGER = 5.0  # seconds for the node to send its last answer


class Gone(Exception):
    """No server could be reached for too long."""


def join(
    desk: SiteFolder,
    server: str,
    ca: Path | None = None,
    *,
    leave: bool = False,
    patience: float = PATIENCE,
    stop: Callable[[], bool] = lambda: False,
    tell: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Until the server says farewell (its words) or someone wants to stop (none)."""
    desk.census()  # rows are read and kept before anyone is told of them
    word = desk.state / FAREWELL
    word.unlink(missing_ok=True)
    mark = desk.state / LEAVING
    mark.unlink(missing_ok=True)
    if leave:
        mark.touch()
    host, port = network.address("--server", server)
    log = desk.state / "site.log"
    with durable.lock(desk.state):
        node, reached, probed = None, time.monotonic(), 0.0
        started = 0.0
        try:
            while not stop():
                if word.exists():
                    time.sleep(LINGER)
                    return json.loads(word.read_text())
                now = time.monotonic()
                if node is None or now - probed > SELDOM:
                    probed = now
                    if network.listens(host, port):
                        reached = now
                if now - reached > patience:
                    raise Gone(f"no server at {server} for {patience:g} seconds")
                if node is not None and node.code is not None:
                    node.stop()
                    tell(f"the node ended ({node.last_words(1)}); starting it again")
                    node = None
                # A node that was killed is refused for a while: not too often.
                if node is None and now - started > 5 and reached == now:
                    node, started = start(desk, server, ca, log), now
                    tell(f"{desk.name} is at {server}")
                time.sleep(0.5)
            return {}
        finally:
            if node is not None:
                node.stop()


def start(
    desk: SiteFolder, server: str, ca: Path | None, log: Path
) -> processes.Process:
    # Quoted for TOML, which is how Flower reads a node's configuration.
    settings = " ".join(f"{k}={json.dumps(v)}" for k, v in desk.settings.items())
    command = [
        sys.executable,
        "-m",
        "sagda.federation.flower.node",
        "--superlink",
        server,
    ]
    secure = ["--insecure"] if ca is None else ["--root-certificates", str(ca)]
    if desk.key is not None:
        secure += ["--auth-supernode-private-key", desk.key]
    command += [*secure, "--node-config", settings]
    command += ["--host", "127.0.0.1", "--port", str(network.free_port())]
    return processes.Process(command, desk.state / "flower", log)
