"""How clients and runs are laid out over time and over devices.

A run is a seed with its rates. Devices share either the runs or the clients of each
round; a device goes through its clients `batch` at a time: one after the other
(`mapped`), all at once (`batched`), or in between (`chunk-16`), which bounds memory.
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

FORM = (
    "auto, mapped, batched or chunk-N, then /N for devices, :runs or :clients, +kernel"
)
# What a device's clients may hold at once: arrays that fit in a core's cache.
ROOM = 2**22
# The same for whole clients where a device is one core of several: each step reads
# all rows again, and they should still be in the cache that no core shares.
OWN_ROOM = 2**20
# Bytes from which on a client with whole batches keeps a core busy by itself.
LARGE = 2**19
# Bytes that a device must have to make and read between two meetings of devices, for
# them to be worth it: 0.05 ms or so, as long as a meeting takes.
MEETING = 5 * 2**19
# Bytes of a row from which on it is worth not to gather it.
LONG = 320


class Layout(NamedTuple):
    """A resolved layout."""

    batch: int  # clients at a time on a device
    runs: int  # devices that share the runs
    clients: int  # devices that share a round's clients
    kernel: bool  # loops over clients compiled into one kernel each

    @property
    def devices(self) -> int:
        return self.runs * self.clients

    @property
    def mesh(self) -> Mesh:
        chosen = np.array(devices_of_all(self.devices))
        shape = (self.runs, self.clients)
        return Mesh(chosen.reshape(shape), ("runs", "clients"), (AxisType.Auto,) * 2)

    def __str__(self) -> str:
        kind = "mapped" if self.batch == 1 else f"chunk-{self.batch}"
        shared = "clients" if self.clients > 1 else "runs"
        return f"{kind}/{self.devices}:{shared}" + ("+kernel" if self.kernel else "")


def devices_of_all(count: int) -> list[Any]:
    """That many devices, the same number of every process or nearly."""
    devices, turn, met = jax.devices(), [], Counter()
    for device in devices:
        turn.append(met[device.process_index])
        met[device.process_index] += 1
    chosen = sorted(range(len(devices)), key=lambda i: turn[i])[:count]
    return [devices[i] for i in sorted(chosen)]


class RequestedLayout(NamedTuple):
    """A layout as a user writes it; None is left to the rule."""

    batch: int | None = None
    everyone: bool = False
    devices: int | None = None
    shared: str | None = None
    kernel: bool = False


def parse(text: str) -> RequestedLayout:
    """`mapped`, `batched/2:clients`, `chunk-16`, or what a `Layout` is written as."""
    found = re.fullmatch(
        r"(auto|mapped|batched|chunk-([1-9]\d*))(/([1-9]\d*)(:(runs|clients))?)?"
        r"(\+kernel)?",
        text,
    )
    if not found:
        raise BadValue(f"`layout` must be {FORM}, got {text!r}.")
    kind, chunk, _, devices, _, shared, kernel = found.groups()
    batch = 1 if kind == "mapped" else int(chunk) if chunk else None
    many = int(devices) if devices else None
    return RequestedLayout(batch, kind == "batched", many, shared, kernel is not None)


def resolve(
    text: str, setup: Setup, algorithm: Algorithm, z: Point, runs: int
) -> Layout:
    """The layout that `text` asks for, its open parts by the rule."""
    asked = parse(text)
    here = jax.device_count()
    if asked.devices is not None and asked.devices > here:
        raise BadValue(
            f"`layout` must ask for at most the {here} devices that JAX has, got "
            f"{asked.devices}; sagda.use_cores() makes one of each core."
        )
    looked = workload_of(setup, algorithm, z)
    many = asked.devices or here
    whole = setup.clients.batch_size is None
    # Whether runs side by side multiply the same rows, and so read them once.
    alike = whole and setup.cohort == setup.clients.count
    shared = asked.shared or what_to_share(setup, looked, runs, many, alike)
    if asked.devices is not None and asked.shared is None and runs < many:
        shared = "clients"  # so many devices have no other work
    most = runs if shared == "runs" else setup.cohort
    if asked.devices is not None and many > most:
        raise BadValue(
            f"`layout` must ask for at most {most} devices to share {most} {shared}, "
            f"got {many}."
        )
    many = min(many, most)
    processes = jax.process_count()
    if many < processes:
        if asked.devices is not None and many > 1:
            raise BadValue(
                f"`layout` must ask for at least one device of each of the {processes} "
                f"processes, got {many}."
            )
        many = 1  # every process does everything
    # A kernel saves the gathers of drawn rows; products of whole clients' rows with
    # vectors are as fast without, and faster for several clients in the cache.
    kernel = looked.kernel and kernels() and not whole
    own = -(-setup.cohort // (many if shared == "clients" else 1))
    batch = own if asked.everyone else asked.batch
    if batch is None:
        together = -(-runs // many) if shared == "runs" else runs
        # Gathers of short rows cost little; scatters into y do not.
        saves = looked.writes or row_size(setup) >= LONG
        # One device splits the products of several clients over its threads; a device
        # among others is a core, and gains nothing from a second large client.
        large = whole and many > 1 and together == 1 and looked.memory >= LARGE
        alone = (kernel and saves) or looked.heavy or large
        room = OWN_ROOM if whole and many > 1 else ROOM
        batch = 1 if alone else fitting(own, looked.memory, together, alike, room)
    split = (many, 1) if shared == "runs" else (1, many)
    kernel = kernel and batch == 1
    if asked.kernel and not kernel:
        raise BadValue(
            f"`layout` must be without +kernel here, got {text!r}: kernels are for "
            "mapped clients with drawn batches, after sagda.use_cores(), and not for "
            "every program."
        )
    return Layout(min(batch, own), *split, kernel)


def what_to_share(
    setup: Setup, looked: Workload, runs: int, many: int, alike: bool
) -> str:
    """Runs never meet; clients meet in every phase."""
    balanced = runs % many == 0 or runs >= 4 * many
    worth = looked.work * setup.cohort / many > MEETING * looked.meetings
    # Over a network meetings cost more than rows read once save.
    joined = alike and runs > 1 and not looked.heavy and jax.process_count() == 1
    return "clients" if worth and (joined or not balanced) else "runs"


def fitting(own: int, held: int, runs: int, alike: bool, room: int) -> int:
    """How many of `own` clients at a time fit in `room`, with little padding.

    Runs side by side hold rows of their own, unless they are `alike`; then at least
    two clients, since one at a time would also mean one run after the other.
    """
    least = min(2 if alike and runs > 1 else 1, own)
    count = room // max(held * (1 if alike else runs), 1)
    most = min(max(count, least), own)
    sizes = range(most, max((most - 1) // 3, least - 1), -1)
    return min(sizes, key=lambda size: -own % size)


def row_size(setup: Setup) -> int:
    """Bytes of a row of the clients' table."""
    table = setup.clients.table
    return size_of(table) // max(len(jax.tree.leaves(table)[0]), 1)


class StackedRuns(NamedTuple):
    """What the runs side by side differ in, each leaf with the runs as first axis."""

    method: Method
    keys: Any
    starts: Point

    @classmethod
    def of(
        cls, layout: Layout, method: Method, keys: Any, starts: Point
    ) -> "StackedRuns":
        return cls(*shared((method, keys, starts), layout, Spec("runs")))

    @staticmethod
    def first(tree: Any, count: int) -> Any:
        """Without the runs that fill up the devices."""

        def cut(a: Any) -> Any:
            if isinstance(a, jax.ShapeDtypeStruct):
                return jax.ShapeDtypeStruct((count, *a.shape[1:]), a.dtype)
            return a[:count]

        return jax.tree.map(cut, tree)


def shared(tree: Any, layout: Layout, spec: PyTree) -> Any:
    """Arrays with runs first on the layout's devices, the last run filling up."""

    def put(spec: Spec, part: Any) -> Any:
        def one(a: Any) -> Any:
            more = -len(a) % layout.runs
            if more:
                a = jnp.concatenate([a, *[a[-1:]] * more])
            if layout.devices == 1:
                # A copy: the programs write over what they are given. And committed to
                # the device, as what the programs return is, to compile once.
                return jax.device_put(jnp.array(a), jax.local_devices()[0])
            return placed(a, NamedSharding(layout.mesh, spec))

        return jax.tree.map(one, part)

    return jax.tree.map(put, spec, tree, is_leaf=lambda s: isinstance(s, Spec))
