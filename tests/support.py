"""Helpers for several test modules: small problems, short runs, and the command."""

import itertools
import json
import random
from pathlib import Path

import jax
import numpy as np

import sagda
from sagda.data.federation import Federation, Table
from sagda.federation.protocol.client import Cache
from sagda.federation.site.folder import SiteFolder
from sagda.federation.site.site import Site
from sagda.simulator.run import Run

ROOT = Path(__file__).parents[1]


def uneven_table(sizes, features=4, seed=0) -> Federation:
    """Return random rows of both classes, for clients of the given sizes."""
    rng = np.random.default_rng(seed)
    rows = sum(sizes)
    label = np.where(rng.random(rows) < 0.4, 1.0, -1.0)
    label[:2] = 1.0, -1.0
    table = Table(rng.normal(size=(rows, features)), label)
    return Federation.of(table, np.arange(rows), np.array(sizes))


def run64(method, problem, federation, **options) -> Run:
    """Simulate a short run in double precision."""
    options = {"rounds": 5, "float64": True, "batch_size": 2} | options
    return sagda.simulate(method, problem, federation, **options)


def flat(z) -> np.ndarray:
    """Return all numbers of a tree in one vector."""
    return np.concatenate([np.ravel(a) for a in jax.tree.leaves(z)])


def same_bits(a: Run, b: Run) -> None:
    """Check that the final states of two runs are bit-for-bit the same."""
    for one, other in zip(
        jax.tree.leaves(a.carry), jax.tree.leaves(b.carry), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def command(*arguments, capsys) -> tuple[int, str, str]:
    """Run `sagda` in this process. Returns exit code, standard output and error.

    A single argument is a whole command line, as in `command("list --json", ...)`.
    """
    from sagda.commands.main import main

    capsys.readouterr()
    line = arguments[0].split() if len(arguments) == 1 else map(str, arguments)
    code = main(list(line))
    out, err = capsys.readouterr()
    return code, out, err


# Federations with real messages of Flower, in this process.

SITES = 5


class InProcess:
    """A transport that delivers at once, in any order. `spoil` may change an answer.

    Client i of the federation is the site called site-i.
    """

    framing = 0

    def __init__(self, plan, federation, spoil=lambda name, letter: letter):
        names = [f"site-{i}" for i in range(len(federation.size))]
        self.disks = {name: Cache() for name in names}
        self.plan, self.federation, self.spoil = plan, federation, spoil
        self.nonces, self.rng = itertools.count(1), random.Random(0)
        self.sites = {name: self.site(i) for i, name in enumerate(names)}

    def site(self, i):
        """Return site i with the rows of client i, and the cache on its disk."""
        start, size = self.federation.start[i], int(self.federation.size[i])
        data = jax.tree.map(lambda a: a[start : start + size], self.federation.data)
        rows = Federation.of(data, np.arange(size), np.array([size]))
        name = f"site-{i}"
        save = lambda cache: self.disks.__setitem__(name, cache)
        return Site(self.plan, rows, self.disks[name], save, lambda: next(self.nonces))

    def exchange(self, letters, **limits):
        names = list(letters)
        self.rng.shuffle(names)
        for name in names:
            answer = self.spoil(name, self.sites[name].handle(letters[name]))
            if answer is not None:
                yield name, answer


class InProcessGrid:
    """A grid of Flower without a network: a message is handled when it is pushed.

    Node 100 + i runs sites[i]. `spoil` may change an answer or drop it.
    """

    def __init__(self, sites):
        from flwr.supercore.task_identity import TaskIdentity

        self.nodes = {100 + i: site for i, site in enumerate(sites)}
        self.ids, self.box = itertools.count(1), {}
        self.spoil = lambda node, message, reply: reply
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1

    def get_node_ids(self):
        return list(self.nodes)

    def push_messages(self, messages):
        from flwr.app import Context, RecordDict

        from sagda.federation.flower.apps import client

        pushed = []
        for message in messages:
            key = f"message-{next(self.ids)}"
            message.metadata.__dict__["_message_id"] = key
            node = message.metadata.dst_node_id
            config = self.nodes[node].settings
            context = Context(
                run_id=1, node_id=node, node_config=config, state=RecordDict(),
                run_config={},
            )  # fmt: skip
            reply = client(message, context)
            reply = self.spoil(node, message, reply)
            if reply is not None:
                self.box[key] = reply
            pushed.append(key)
        return pushed

    def pull_messages(self, keys):
        return [self.box.pop(key) for key in keys if key in self.box]


def sites_of(clients, folder) -> list[SiteFolder]:
    """Make one site for each client, with a file of its rows."""
    sites = []
    for i in range(clients.clients):
        rows = slice(clients.start[i], clients.start[i] + clients.size[i])
        file = folder / f"site-{i}.npz"
        data = clients.data
        np.savez(file, features=data.features[rows], label=data.label[rows])
        state = str(folder / f"state-{i}")
        sites.append(SiteFolder.of({"data": str(file), "state": state}))
    return sites


def config_of(folder, name="sagda-i", table="", **keys) -> Path:
    """Write a server configuration; `table` is added to its table `[federation]`."""
    values = {"algorithms": [name], "local_lr": 0.05, "batch_size": 2, "rounds": 3}
    values |= {"cohort": 3, "seed": 4, "float64": True, "local_steps": 3} | keys
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    path = folder / "federation.toml"
    path.write_text("\n".join([*lines, "[federation]", f"sites = {SITES}", table]))
    return path


def run_in(
    folder, sites, name="sagda-i", grid=None, table="", register=None, **keys
) -> Path:
    """Run a federation to its end. Returns the run folder."""
    config = config_of(folder, name, table, **keys)
    return lead(folder / "run", grid or InProcessGrid(sites), register, config)


def lead(folder, grid, register=None, config=None) -> Path:
    """Run the server in this process, in a new folder or to resume a run."""
    from sagda.federation.flower.grid import GridSites
    from sagda.federation.server.process import run_federation

    connect = lambda timeout, notify: GridSites(grid, timeout, register, notify)
    run_federation(folder, connect, name="run1", config=config)
    return folder


def simulated(clients, name, rounds) -> Run:
    """Return the simulation that a federated run of `config_of` must agree with."""
    from sagda.runs.config import Config
    from sagda.runs.parameters import method_of

    method = method_of(Config(local_lr=0.05, local_steps=3), name)
    return sagda.simulate(
        method, sagda.AUC.of(clients), clients, rounds=rounds, cohort=3, batch_size=2,
        seeds=4, float64=True, layout="batched/1",
    )  # fmt: skip


def read_audit(folder: Path) -> list[dict]:
    """Return the lines of the audit log in a server folder, oldest first."""
    path = folder / "audit.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def spoiling(grid, node, times, change):
    """Let `change(message, reply)` replace the first `times` replies of a node.

    Returns the grid.
    """
    left = [times]

    def spoil(at, message, reply):
        training = message.metadata.message_type.startswith("train")
        if at != node or not training or not left[0]:
            return reply
        left[0] -= 1
        return change(message, reply)

    grid.spoil = spoil
    return grid


def failed_reply(message, reply):
    """Return the message of Flower about an app that raised, for `spoiling`."""
    from flwr.app import Error, Message

    return Message(Error(2, "it raised"), reply_to=message)


def lost_reply(message, reply):
    """Drop the answer, for `spoiling`."""
    return None
