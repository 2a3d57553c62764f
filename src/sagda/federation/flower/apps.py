"""The ServerApp and the ClientApp: the two functions of sagda that Flower calls.

Flower starts one process for the server of a run, and a new process for every message
to a site. So a site stores its state in its folder. The server identifies a site by its
configured name, because Flower's node id can change whenever a node starts.

This module makes no decisions about a run. `sagda.federation.server` leads the run,
`grid` carries its letters, and `sagda.federation.site.folder` answers them at a site.
"""

import logging
import os
import secrets
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from sagda.check import BadValue
from sagda.federation.events import Notify
from sagda.federation.flower.app_config import FOLDER, MODEL, REGISTER
from sagda.federation.flower.grid import GridSites
from sagda.federation.flower.guards import guard_grid
from sagda.federation.flower.messages import UnreadLetter, records_of
from sagda.federation.protocol.letters import Fault, Letter, mark_of
from sagda.federation.protocol.wire import Refused
from sagda.federation.server.process import run_federation
from sagda.federation.site.folder import SiteFolder
from sagda.federation.trust.site_keys import Register
from sagda.models.user_code import allow
from sagda.simulator.devices import keep_programs

log = logging.getLogger("flwr")

server = ServerApp()
client = ClientApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Lead the run whose folder the environment or the run configuration names."""
    folder = os.environ.get(FOLDER) or context.run_config.get("folder")
    if not isinstance(folder, str):
        raise BadValue(
            f"`folder` must be the path of the run folder, got {folder!r}; give it "
            "with --run-config."
        )
    config = context.run_config.get("config")
    if model := os.environ.get(MODEL):
        allow(model)
    keys = os.environ.get(REGISTER)
    register = None if keys is None else Register(Path(keys))

    def connect(timeout: float, notify: Notify) -> GridSites:
        sites = GridSites(grid, timeout, register, notify)
        guard_grid(lambda: sites.largest, lambda: sites.seconds)
        return sites

    run_federation(
        Path(folder),
        connect,
        name=secrets.token_hex(8),
        config=Path(str(config)) if config else None,
    )


@client.train()
@client.evaluate()
@client.query("hello")
@client.query("bye")
def handle(message: Message, context: Context) -> Message:
    """Return the site's answer to a letter, with a seal if the site has a key."""
    signer, question = None, b""
    try:
        site = SiteFolder.of(context.node_config)
        keep_programs(site.state / "programs")
        signer = site.signer
        unread = UnreadLetter.of(message.content)
        question = unread.mark
        letter = site.answer(unread.read())
    except Exception as error:
        # The text of an error can quote a row, and Flower would send it to the server.
        # So only the error's type leaves the site. Its text goes to the site's log.
        log.exception("sagda: this site could not answer a letter.")
        code = error.refusal.code if isinstance(error, Refused) else "site"
        letter = Letter(Fault(code, f"{type(error).__name__} at the site."))
    if signer is not None:
        # The seal covers the marks (digests) of the server's letter and of the answer,
        # so the answer is valid for this letter only.
        mark = mark_of(letter.text, letter.parcels, question)
        letter = letter._replace(seal=signer.seal(mark))
    return Message(records_of(letter), reply_to=message)
