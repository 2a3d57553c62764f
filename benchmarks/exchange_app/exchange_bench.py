"""The app of the exchange benchmark: rounds of sagda and empty exchanges, in turns.

An empty exchange sends the same number of bytes in both directions, with the function
`send_and_receive` of Flower. Its client imports neither JAX nor sagda.
`benchmarks/exchange.py` starts this app and reads the times that it writes.
"""

import json
import os
import time
from pathlib import Path

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

PHASE = "local"
server = ServerApp()
client = ClientApp()


@client.query("echo")
def echo(message: Message, context: Context) -> Message:
    """Return the content that was received: the client of an empty exchange."""
    return Message(message.content, reply_to=message)


def ours(message: Message, context: Context) -> Message:
    """Return the answer of the site, as `sagda join` computes it."""
    from sagda.federation.flower.apps import handle

    return handle(message, context)


client.train()(ours)
client.query("hello")(ours)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Alternate the two kinds of exchange, and write their times after each turn."""
    from sagda import durable
    from sagda.federation.events import nobody
    from sagda.federation.flower.grid import GridSites
    from sagda.federation.server.rounds import FederatedRounds, first_state
    from sagda.federation.server.store import ServerStore
    from sagda.federation.terms import Options, Terms
    from sagda.runs.config import Config

    folder = Path(os.environ["BENCH_FOLDER"])
    wanted = int(os.environ["BENCH_EXCHANGES"])
    sites, census = GridSites(grid, 120.0, None, nobody), {}
    while len(census) < 2:
        census |= {site.name: site for site in sites.arrivals()}
        time.sleep(0.25)
    rates = {"local_lr": 0.1, "server_lr": 1.0, "local_steps": 10, "batch_size": 20}
    terms = Terms.settle(Config(**rates), list(census.values()))
    plan = terms.plan("bench")
    home = durable.private(folder / "server")
    store = ServerStore(home, plan, terms.text)
    state = first_state(plan, census)
    options = Options(min_clients=2, filter="none")
    leader = FederatedRounds(
        plan, state, sites, store.save, terms=terms.text, options=options
    )
    size = leader.specs.down[PHASE].bytes
    times: dict[str, list[float]] = {"ours": [], "empty": []}
    for turn in range(wanted + 1):
        began = time.perf_counter()
        done = leader.attempt()
        middle = time.perf_counter()
        payload = ArrayRecord({"x": Array("<f4", (size // 4,), "raw", bytes(size))})
        replies = grid.send_and_receive(
            [
                Message(RecordDict({"x": payload}), node, "query.echo")
                for node in sites.node_of.values()
            ],
            timeout=120,
        )
        whole = all(reply.has_content() for reply in replies)
        if turn and done and whole:  # the first one compiles
            times["ours"].append(middle - began)
            times["empty"].append(time.perf_counter() - middle)
        (folder / "times.json").write_text(json.dumps(times | {"bytes": size}))
    (folder / "done").touch()
