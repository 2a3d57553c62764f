"""`sagda join`: a SuperNode for one site, watched and restarted when it ends.

The SuperNode holds the connection to the server. It starts a process of `apps` for
every letter, so nothing of the site's rows is read here after the first check.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import tomli_w

from sagda import durable, network
from sagda.check import BadValue
from sagda.federation.flower.processes import UNGUARDED, Process
from sagda.federation.site.folder import FAREWELL, LEAVING, SiteFolder

PATIENCE = 90.0  # seconds without a server, after which a site gives up
PROBE = 5.0  # seconds between probes of the server while a node runs
# The SuperLink refuses a killed node's key for about a minute, until its heartbeats
# are missed. So a node is not restarted more often than this.
RESTART = 5.0  # seconds
LINGER = 5.0  # seconds for the node to send its last answer


class Gone(Exception):
    """The server could not be reached for longer than the site waits."""


class Farewell(NamedTuple):
    """The server's last word to a site."""

    run: str
    round: int
    reason: str  # "done", or "left" if the site wanted to leave


def join(
    site: SiteFolder,
    server: str,
    ca: Path | None = None,
    *,
    leave: bool = False,
    patience: float = PATIENCE,
    stop: Callable[[], bool] = lambda: False,
    say: Callable[[str], None] = lambda text: None,
) -> Farewell | None:
    """Take part until the server says farewell. None if `stop` said so before.

    Args:
        site: the site's name, rows and state folder.
        server: HOST:PORT.
        ca: the coordinator's certificate authority. None: no TLS.
        leave: ask the server to remove this site.
        patience: seconds without a server, after which `Gone` is raised.
        stop: asked twice a second whether to stop.
        say: called with a sentence for the user.
    """
    # An unreadable file of rows is reported before a server hears of this site.
    site.introduction()
    farewell, leaving = site.state / FAREWELL, site.state / LEAVING
    farewell.unlink(missing_ok=True)
    leaving.unlink(missing_ok=True)
    if leave:
        leaving.touch()
    host, port = network.address("--server", server)
    with durable.lock(site.state):
        node: Process | None = None
        reached = time.monotonic()  # when the server was reached last
        probed = started = 0.0
        try:
            while not stop():
                if farewell.exists():
                    time.sleep(LINGER)
                    return Farewell(**json.loads(farewell.read_text()))
                now = time.monotonic()
                if node is None or now - probed > PROBE:
                    probed = now
                    if network.listens(host, port):
                        reached = now
                if now - reached > patience:
                    raise Gone(f"no server at {server} for {patience:g} seconds")
                if node is not None and node.code is not None:
                    node.stop()
                    if node.code == UNGUARDED:  # and would be, however often restarted
                        raise BadValue(node.last_lines(1))
                    say(f"the node ended ({node.last_lines(1)}); restarting it")
                    node = None
                if node is None and now - started > RESTART and reached == now:
                    node, started = start_node(site, server, ca), now
                    say(f"{site.name} is connecting to {server}")
                time.sleep(0.5)
            return None
        finally:
            if node is not None:
                node.stop()


def start_node(site: SiteFolder, server: str, ca: Path | None) -> Process:
    """A SuperNode behind sagda's guards."""
    command = [sys.executable, "-m", "sagda.federation.flower.node"]
    command += ["--insecure"] if ca is None else ["--root-certificates", str(ca)]
    if site.key is not None:
        command += ["--auth-supernode-private-key", site.key]
    command += node_options(site, server)
    return Process(command, site.state / "flower", site.state / "site.log")


def node_options(site: SiteFolder, server: str) -> list[str]:
    """A SuperNode's options for a site: its server, settings, and a local address."""
    # A file, since Flower's own syntax for the command line knows no escaped quotes.
    settings = durable.private(site.state / "flower") / "node.toml"
    durable.write(settings, tomli_w.dumps(site.settings))
    # Flower's processes for single messages reach their node at the local address.
    local = ["--host", "127.0.0.1", "--port", str(network.free_port())]
    return ["--superlink", server, "--node-config", str(settings.resolve()), *local]
