"""`sagda join`: starts a SuperNode for one site, and restarts it when it ends.

The SuperNode is Flower's process that connects to the server. It starts a process of
`apps` for every letter. So this module reads the rows of the site only once, to report
an unreadable file early. The counterpart at the server is `superlink`.
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

PATIENCE = 90.0  # seconds without a server before a site gives up
PROBE = 5.0  # seconds between probes of the server while a node runs
# After a node was killed, the SuperLink refuses its key for about a minute, until it
# notices the missing heartbeats. So a node is not restarted more often than this.
RESTART = 5.0  # seconds
LINGER = 5.0  # seconds for the node to send its last answer


class Gone(Exception):
    """Raised when the server could not be reached for `patience` seconds."""


class Farewell(NamedTuple):
    """The server's last message to a site, with which the site's part in a run ends."""

    run: str  # the name of the run
    round: int  # the number of rounds that the server had committed
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
    """Take part until the server ends the run, and return the server's farewell.

    Return None if `stop` returned True first.

    Args:
        site: the site's name, rows and state folder.
        server: HOST:PORT.
        ca: the coordinator's certificate authority. None: no TLS.
        leave: ask the server to remove this site.
        patience: seconds without a server before `Gone` is raised.
        stop: called twice a second; the site stops when it returns True.
        say: called with a sentence for the user.
    """
    # Report an unreadable file of rows before the site connects to the server.
    site.introduction()
    farewell, leaving = site.state / FAREWELL, site.state / LEAVING
    farewell.unlink(missing_ok=True)
    leaving.unlink(missing_ok=True)
    if leave:
        leaving.touch()
    host, port = network.address("--server", server)
    with durable.lock(site.state):
        node: Process | None = None
        reached = time.monotonic()  # time of the last contact with the server
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
                    if node.code == UNGUARDED:  # a restart would not help
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
    """Start a SuperNode with sagda's guards. Return its process."""
    command = [sys.executable, "-m", "sagda.federation.flower.node"]
    command += ["--insecure"] if ca is None else ["--root-certificates", str(ca)]
    if site.key is not None:
        command += ["--auth-supernode-private-key", site.key]
    command += node_options(site, server)
    return Process(command, site.state / "flower", site.state / "site.log")


def node_options(site: SiteFolder, server: str) -> list[str]:
    """Return the options of a SuperNode: the server, site settings, a local address."""
    # The settings are in a file, because Flower's command line cannot escape quotes.
    settings = durable.private(site.state / "flower") / "node.toml"
    durable.write(settings, tomli_w.dumps(site.settings))
    # Flower's processes for single messages connect to the node at this address.
    local = ["--host", "127.0.0.1", "--port", str(network.free_port())]
    return ["--superlink", server, "--node-config", str(settings.resolve()), *local]
