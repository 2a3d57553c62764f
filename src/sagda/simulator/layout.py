"""What runs where: runs and clients, divided over devices and over time.

A run is one method with one seed. Devices share either the runs or the clients of each
round. A device takes its clients `batch` at a time: one after the other (`mapped`), all
at once (`batched`) or in between (`chunk-16`), which bounds memory. `resolve` chooses
by the workload of one client (`workload.py`). The work itself is in `exchange.py`.
"""

import re
from collections import Counter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

from sagda.algorithms.costs import size_of
from sagda.check import BadValue
from sagda.core import Algorithm, Point, PyTree
from sagda.methods import Method
from sagda.simulator.devices import kernels
from sagda.simulator.setup import Setup, placed
from sagda.simulator.workload import Workload, workload_of

# The numbers below were measured with benchmarks/layouts.py on processors.
# Bytes that the clients of a device may hold at a time: a core's cache.
ROOM = 2**22
# The same for clients with whole batches on one core of several. Each step reads all
# rows again, so they should stay in the part of the cache that no other core uses.
OWN_ROOM = 2**20
# Bytes from which on one client with whole batches keeps a core busy.
LARGE = 2**19
# Bytes of work between two meetings of devices that make sharing clients worthwhile:
# about 0.05 ms, as long as a meeting takes.
MEETING = 5 * 2**19
# Bytes of a row from which on avoiding its gather saves time.
LONG = 320


class Layout(NamedTuple):
    """A resolved layout."""

    batch: int  # clients at a time on a device
    runs: int  # devices that share the runs
    clients: int  # devices that share a round's clients
    kernel: bool  # loops over clients are compiled into one kernel each

    @property
    def devices(self) -> int:
        return self.runs * self.clients

    @property
    def mesh(self) -> Mesh:
        """The devices as a grid with the axes `runs` and `clients`."""
        chosen = np.array(devices_of_all(self.devices))
        shape = (self.runs, self.clients)
        return Mesh(chosen.reshape(shape), ("runs", "clients"), (AxisType.Auto,) * 2)

    def __str__(self) -> str:
        kind = "mapped" if self.batch == 1 else f"chunk-{self.batch}"
        shared = "clients" if self.clients > 1 else "runs"
        return f"{kind}/{self.devices}:{shared}" + ("+kernel" if self.kernel else "")


def devices_of_all(count: int) -> list[Any]:
    """`count` devices, as evenly as possible from all processes."""
    met, turn = Counter(), {}
    for device in jax.devices():
        met[device.process_index] += 1
        turn[device] = met[device.process_index]
    chosen = sorted(turn, key=turn.__getitem__)[:count]
    return [device for device in turn if device in chosen]


class RequestedLayout(NamedTuple):
    """A layout as a user writes it; the rule decides what is None."""

    batch: int | None = None
    everyone: bool = False  # all clients at once
    devices: int | None = None
    shared: str | None = None  # "runs" or "clients"
    kernel: bool = False


def parse(text: str) -> RequestedLayout:
    """`mapped`, `batched/2:clients`, `chunk-16`, or the text of a `Layout`."""
    match = re.fullmatch(
        r"(auto|mapped|batched|chunk-([1-9]\d*))(/([1-9]\d*)(:(runs|clients))?)?"
        r"(\+kernel)?",
        text,
    )
    if not match:
        raise BadValue(
            "`layout` must be auto, mapped, batched or chunk-N, then /N for devices, "
            f":runs or :clients, +kernel, got {text!r}."
        )
    kind, chunk, _, devices, _, shared, kernel = match.groups()
    return RequestedLayout(
        batch=1 if kind == "mapped" else int(chunk) if chunk else None,
        everyone=kind == "batched",
        devices=int(devices) if devices else None,
        shared=shared,
        kernel=kernel is not None,
    )


def resolve(
    text: str, setup: Setup, algorithm: Algorithm, z: Point, runs: int
) -> Layout:
    """The layout that `text` asks for. The rule decides what it leaves open."""
    request = parse(text)
    work = workload_of(setup, algorithm, z)
    whole = setup.clients.batch_size is None  # whole batches
    # Runs with whole batches of all clients multiply the same rows, and so read them
    # once if they run together.
    alike = whole and setup.cohort == setup.clients.count
    shared, devices = division(request, setup, work, runs, alike)
    # A kernel saves the gathers of drawn rows. Products of all rows with vectors are as
    # fast without it, and faster for several clients in the cache.
    kernel = work.kernel and kernels() and not whole
    clients = -(-setup.cohort // (devices if shared == "clients" else 1))  # per device
    batch = clients if request.everyone else request.batch
    if batch is None:
        together = -(-runs // devices) if shared == "runs" else runs
        # Gathers of short rows cost little. Scatters into y cost much.
        table = setup.clients.table
        row = size_of(table) // max(len(jax.tree.leaves(table)[0]), 1)
        saves = work.writes or row >= LONG
        # A single device splits the products of several clients over its threads. One
        # device of several is a core, and a second large client gains nothing there.
        large = whole and devices > 1 and together == 1 and work.memory >= LARGE
        room = OWN_ROOM if whole and devices > 1 else ROOM
        if (kernel and saves) or work.heavy or large:
            batch = 1
        else:
            batch = fitting(clients, work.memory, together, alike, room)
    kernel = kernel and batch == 1
    if request.kernel and not kernel:
        raise BadValue(
            f"`layout` must be without +kernel here, got {text!r}: kernels are for "
            "mapped clients with drawn batches, after sagda.use_cores(), and not for "
            "every program."
        )
    return Layout(
        batch=min(batch, clients),
        runs=devices if shared == "runs" else 1,
        clients=devices if shared == "clients" else 1,
        kernel=kernel,
    )


def division(
    request: RequestedLayout, setup: Setup, work: Workload, runs: int, alike: bool
) -> tuple[str, int]:
    """What devices share, "runs" or "clients", and the number of devices."""
    available = jax.device_count()
    devices = request.devices or available
    if devices > available:
        raise BadValue(
            f"`layout` must ask for at most the {available} devices that JAX has, got "
            f"{devices}; sagda.use_cores() makes one of each core."
        )
    shared = request.shared or what_to_share(setup, work, runs, devices, alike)
    if request.devices is not None and request.shared is None and runs < devices:
        shared = "clients"  # there are not enough runs for all devices
    most = runs if shared == "runs" else setup.cohort
    if request.devices is not None and devices > most:
        raise BadValue(
            f"`layout` must ask for at most {most} devices to share {most} {shared}, "
            f"got {devices}."
        )
    devices = min(devices, most)
    processes = jax.process_count()
    if devices < processes:
        if request.devices is not None and devices > 1:
            raise BadValue(
                f"`layout` must ask for at least one device of each of the {processes} "
                f"processes, got {devices}."
            )
        devices = 1  # every process computes everything
    return shared, devices


def what_to_share(
    setup: Setup, work: Workload, runs: int, devices: int, alike: bool
) -> str:
    """Either "runs", which never meet, or "clients", which meet in every phase."""
    balanced = runs % devices == 0 or runs >= 4 * devices
    worth = work.work * setup.cohort / devices > MEETING * work.meetings
    # Over a network, meetings cost more than reading the rows once saves.
    joined = alike and runs > 1 and not work.heavy and jax.process_count() == 1
    return "clients" if worth and (joined or not balanced) else "runs"


def fitting(clients: int, memory: int, runs: int, alike: bool, room: int) -> int:
    """The number of clients at a time that fit into `room` bytes, with little padding.

    Runs have rows of their own unless they are `alike`. Runs that are alike take at
    least two clients at a time: with one, the runs would be computed in turn.
    """
    least = min(2 if alike and runs > 1 else 1, clients)
    count = room // max(memory * (1 if alike else runs), 1)
    most = min(max(count, least), clients)
    # The last batch is padded; take the size near `most` that pads least.
    sizes = range(most, max((most - 1) // 3, least - 1), -1)
    return min(sizes, key=lambda size: -clients % size)


class StackedRuns(NamedTuple):
    """The arguments that differ between runs, stacked on axis 0, on their devices."""

    method: Method
    keys: Any
    starts: Point


def first_runs(tree: Any, count: int) -> Any:
    """The first `count` runs, without the copies that fill up the devices."""
    return jax.tree.map(lambda a: a[:count], tree)


def shared(tree: Any, layout: Layout, spec: PyTree) -> Any:
    """Arrays with runs on axis 0, on the devices of a layout.

    The last run is repeated until every device has as many runs. `spec` says which
    axes of a part of the tree lie over which devices.
    """

    def put(spec: Spec, part: Any) -> Any:
        def one(a: Any) -> Any:
            more = -len(a) % layout.runs
            if more:
                a = jnp.concatenate([a, *[a[-1:]] * more])
            if layout.devices == 1:
                # A copy, since the programs overwrite their arguments. It is committed
                # to the device, as their results are: otherwise JAX compiles twice.
                return jax.device_put(jnp.array(a), jax.local_devices()[0])
            return placed(a, NamedSharding(layout.mesh, spec))

        return jax.tree.map(one, part)

    return jax.tree.map(put, spec, tree, is_leaf=lambda s: isinstance(s, Spec))
