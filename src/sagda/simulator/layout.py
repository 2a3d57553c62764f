"""`Layout`: how the runs and clients of a simulation are divided over devices.

A run is one method with one seed. The devices divide either the runs or the clients of
each round among them. A device computes its clients in batches, to limit memory: one by
one (`mapped`), all at once (`batched`) or, for example, 16 at a time (`chunk-16`).
`resolve` chooses a layout by the workload of one client, see `workload.py`. The clients
are computed in `exchange.py`.
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

# The numbers below were measured on CPUs with benchmarks/layouts.py. A "whole batch" is
# all rows of a client.

# The memory of the clients in one batch should fit in the cache of a core: this number
# of bytes.
ROOM = 2**22
# With whole batches and several cores, the limit is smaller. Each local step reads all
# rows again, so the rows should fit in the part of the cache that no other core uses.
OWN_ROOM = 2**20
# One client with whole batches and at least this number of bytes keeps a core busy.
LARGE = 2**19
# Dividing the clients over devices is worthwhile if each device does at least this
# number of bytes of work between two exchanges. This work takes about 0.05 ms, as long
# as an exchange.
MEETING = 5 * 2**19
# For rows of at least this number of bytes, avoiding a gather saves time.
LONG = 320


class Layout(NamedTuple):
    """A layout in which every choice has been made. Its string can be parsed again."""

    batch: int  # clients that a device computes at the same time
    runs: int  # the runs are divided over this number of devices
    clients: int  # the clients of a round are divided over this number of devices
    kernel: bool  # whether each loop over clients is compiled into one kernel

    @property
    def devices(self) -> int:
        return self.runs * self.clients

    @property
    def mesh(self) -> Mesh:
        """The devices as a mesh with the axes `runs` and `clients`."""
        chosen = np.array(devices_of_all(self.devices))
        shape = (self.runs, self.clients)
        return Mesh(chosen.reshape(shape), ("runs", "clients"), (AxisType.Auto,) * 2)

    def __str__(self) -> str:
        kind = "mapped" if self.batch == 1 else f"chunk-{self.batch}"
        shared = "clients" if self.clients > 1 else "runs"
        return f"{kind}/{self.devices}:{shared}" + ("+kernel" if self.kernel else "")


def devices_of_all(count: int) -> list[Any]:
    """Choose `count` devices, as evenly as possible from all processes."""
    # The first device of each process gets turn 1, the second one gets turn 2.
    met, turn = Counter(), {}
    for device in jax.devices():
        met[device.process_index] += 1
        turn[device] = met[device.process_index]
    chosen = sorted(turn, key=turn.__getitem__)[:count]
    return [device for device in turn if device in chosen]


class RequestedLayout(NamedTuple):
    """A layout as the user asks for it. `resolve` chooses the fields that are None."""

    batch: int | None = None
    everyone: bool = False  # one batch has all clients
    devices: int | None = None
    shared: str | None = None  # what devices divide: "runs" or "clients"
    kernel: bool = False


def parse(text: str) -> RequestedLayout:
    """Parse a layout such as `mapped`, `batched/2:clients` or `chunk-16`.

    The string of a `Layout` can be parsed as well.
    """
    match = re.fullmatch(
        r"(auto|mapped|batched|chunk-([1-9]\d*))(/([1-9]\d*)(:(runs|clients))?)?"
        r"(\+kernel)?",
        text,
    )
    if not match:
        raise BadValue(
            "`layout` must be auto, mapped, batched or chunk-N, and may end in "
            "/DEVICES, then :runs or :clients, then +kernel, as in chunk-8/2:clients, "
            f"got {text!r}."
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
    """Return the layout that `text` asks for, and choose what `text` leaves open.

    `z` is one iterate, and `runs` the number of runs.
    """
    request = parse(text)
    work = workload_of(setup, algorithm, z)
    whole = setup.clients.batch_size is None  # whole batches
    # With whole batches of all clients, all runs multiply the same rows. If they run
    # together, the rows are read only once.
    alike = whole and setup.cohort == setup.clients.count
    shared, devices = division(request, setup, work, runs, alike)
    # A kernel avoids the gathers of drawn rows. Whole batches have no gathers: their
    # products are as fast without a kernel, and faster with several clients at a time.
    kernel = work.kernel and kernels() and not whole
    clients = -(-setup.cohort // (devices if shared == "clients" else 1))  # per device
    batch = clients if request.everyone else request.batch
    if batch is None:
        together = -(-runs // devices) if shared == "runs" else runs
        # A kernel is worthwhile if it avoids scatters into y, or gathers of long rows.
        table = setup.clients.table
        row = size_of(table) // max(len(jax.tree.leaves(table)[0]), 1)
        saves = work.writes or row >= LONG
        # If there is one device, it divides the products of several clients over its
        # threads. If there are several, each is a core, and a second large client in
        # the batch gains nothing.
        large = whole and devices > 1 and together == 1 and work.memory >= LARGE
        room = OWN_ROOM if whole and devices > 1 else ROOM
        if (kernel and saves) or work.heavy or large:
            batch = 1
        else:
            batch = fitting(clients, work.memory, together, alike, room)
    kernel = kernel and batch == 1
    if request.kernel and not kernel:
        raise BadValue(
            f"`layout` must not have +kernel here, got {text!r}: kernels need "
            "`sagda.use_cores()`, a batch size and mapped clients, and do not support "
            "every algorithm and problem."
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
    """Choose what the devices divide, "runs" or "clients", and how many are used."""
    available = jax.device_count()
    devices = request.devices or available
    if devices > available:
        raise BadValue(
            f"`layout` must use at most {available} devices, all that JAX has, got "
            f"{devices}; call `sagda.use_cores()` to get one device per core."
        )
    shared = request.shared or what_to_share(setup, work, runs, devices, alike)
    if request.devices is not None and request.shared is None and runs < devices:
        shared = "clients"  # there are not enough runs for all devices
    most = runs if shared == "runs" else setup.cohort
    if request.devices is not None and devices > most:
        raise BadValue(
            f"`layout` must use at most {most} devices for {most} {shared}, got "
            f"{devices}."
        )
    devices = min(devices, most)
    processes = jax.process_count()
    if devices < processes:
        if request.devices is not None and devices > 1:
            raise BadValue(
                f"`layout` must use at least {processes} devices, one per process, "
                f"got {devices}."
            )
        devices = 1  # every process computes all runs and clients
    return shared, devices


def what_to_share(
    setup: Setup, work: Workload, runs: int, devices: int, alike: bool
) -> str:
    """Choose what the devices divide among them: "runs" or "clients".

    Runs are independent. Clients need an exchange between the devices in every phase.
    """
    balanced = runs % devices == 0 or runs >= 4 * devices
    worth = work.work * setup.cohort / devices > MEETING * work.meetings
    # Over a network, an exchange costs more than it saves to read the rows only once.
    joined = alike and runs > 1 and not work.heavy and jax.process_count() == 1
    return "clients" if worth and (joined or not balanced) else "runs"


def fitting(clients: int, memory: int, runs: int, alike: bool, room: int) -> int:
    """Choose how many clients a batch has, so that they need at most `room` bytes.

    One client needs `memory` bytes. `alike` means that all runs use the same rows;
    otherwise each run needs memory for its rows. Runs that are alike take at least two
    clients at a time. With one, the runs would be computed one after the other.
    """
    least = min(2 if alike and runs > 1 else 1, clients)
    count = room // max(memory * (1 if alike else runs), 1)
    most = min(max(count, least), clients)
    # The last batch is padded. So take the size near `most` that needs least padding.
    sizes = range(most, max((most - 1) // 3, least - 1), -1)
    return min(sizes, key=lambda size: -clients % size)


class StackedRuns(NamedTuple):
    """The arguments that differ between runs: method, key and start, on the devices.

    All arrays have the runs on axis 0.
    """

    method: Method
    keys: Any
    starts: Point


def first_runs(tree: Any, count: int) -> Any:
    """Return the first `count` runs, without the copies that `shared` has added."""
    return jax.tree.map(lambda a: a[:count], tree)


def shared(tree: Any, layout: Layout, spec: PyTree) -> Any:
    """Put arrays with runs on axis 0 on the devices of a layout.

    The last run is repeated until all devices have the same number of runs. `spec` says
    which axes of the arrays are divided over which devices.
    """

    def put(spec: Spec, part: Any) -> Any:
        def one(a: Any) -> Any:
            more = -len(a) % layout.runs
            if more:
                a = jnp.concatenate([a, *[a[-1:]] * more])
            if layout.devices == 1:
                # A copy, since the programs overwrite their arguments. `device_put`
                # commits the copy to the device. The results of the programs are
                # committed as well: if arguments were not, JAX would compile twice.
                return jax.device_put(jnp.array(a), jax.local_devices()[0])
            return placed(a, NamedSharding(layout.mesh, spec))

        return jax.tree.map(one, part)

    return jax.tree.map(put, spec, tree, is_leaf=lambda s: isinstance(s, Spec))
