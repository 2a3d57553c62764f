"""Several processes that act as one: what they share, and what the first one decides.

Everything here is collective: all processes call it, in the same order. With one
process nothing is sent.
"""

import hashlib
import os
import socket
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

from sagda.check import BadValue

# How long a machine may be silent before the others give it up.
SILENCE = 30
T = TypeVar("T")


def connect(coordinator: str, processes: int, process: int, seconds: int) -> None:
    """Meet the other processes; before anything else uses JAX."""
    # JAX's own handling of SIGTERM would take the place of the command's.
    jax.config.update("jax_enable_preemption_service", False)
    bind = os.environ.get("JAX_COORDINATOR_BIND_ADDRESS", coordinator)
    if process == 0:
        check_free(bind)
    jax.distributed.initialize(
        coordinator,
        processes,
        process,
        cluster_detection_method="deactivate",
        initialization_timeout=seconds,
        heartbeat_timeout_seconds=SILENCE,
        coordinator_bind_address=bind,
    )


def check_free(address: str) -> None:
    """Refuse an address at which JAX could not listen: it may crash there."""
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
        family, kind, *_, where = found[0]
        with socket.socket(family, kind) as line:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            line.bind(where)
    except OSError:
        raise BadValue(
            f"process 0 cannot listen at {address}: the port is taken, or the host is "
            "not this machine; choose another --coordinator."
        ) from None


def is_first() -> bool:
    """Whether this is the process that writes and shows."""
    return jax.process_count() == 1 or jax.process_index() == 0


class Meeting(NamedTuple):
    """One device of each process, and programs that bring their bytes together."""

    rows: NamedSharding
    mine: Any
    gather: Callable
    add: Callable


@cache
def meeting() -> Meeting:
    # Backwards, so that the first device of each process stays.
    devices = {d.process_index: d for d in reversed(jax.devices())}
    chosen = [devices[i] for i in sorted(devices)]
    mesh = Mesh(np.array(chosen), ("processes",))
    whole = NamedSharding(mesh, Spec())
    return Meeting(
        NamedSharding(mesh, Spec("processes")),
        devices[jax.process_index()],
        jax.jit(lambda a: a, out_shardings=whole),
        jax.jit(lambda a: a.sum(0, dtype=a.dtype), out_shardings=whole),
    )


def over_processes(content: bytes, add: bool) -> np.ndarray:
    """Everyone's bytes, of one length, as rows or as their sum."""
    met = meeting()
    row = jax.device_put(np.frombuffer(content, np.uint8)[None], met.mine)
    shape = (jax.process_count(), len(content))
    rows = jax.make_array_from_single_device_arrays(shape, met.rows, [row])
    return np.asarray((met.add if add else met.gather)(rows))


def gathered(values: Any) -> np.ndarray:
    """`values` of every process, processes first."""
    values = np.asarray(values)
    if jax.process_count() == 1:
        return values[None]
    rows = over_processes(values.tobytes(), add=False)
    return np.frombuffer(rows.tobytes(), values.dtype).reshape(-1, *values.shape)


def told(
    make: Callable[[], T], pack: Callable[[T], bytes], unpack: Callable[[bytes], T]
) -> T:
    """What process 0 makes, known to all; so are its mistakes."""
    if jax.process_count() == 1:
        return make()
    content = b""
    if is_first():
        try:
            content = b"+" + pack(make())
        except BadValue as mistake:
            content = b"-" + str(mistake).encode()
    size = int(gathered(np.int64(len(content)))[0])
    # The others send nothing but zeros.
    content = over_processes(content.ljust(size, b"\0"), add=True).tobytes()
    if content[:1] == b"-":
        raise BadValue(content[1:].decode())
    return unpack(content[1:])


def check_same(**parts: str) -> None:
    """Refuse to start where processes differ in what they were given or loaded."""
    if jax.process_count() == 1:
        return
    digests = [hashlib.sha256(text.encode()).digest() for text in parts.values()]
    rows = gathered(np.frombuffer(b"".join(digests), np.uint8))
    other = (rows != rows[0]).reshape(len(rows), len(parts), -1).any(axis=2)
    for name, differs in zip(parts, other.T, strict=True):
        if differs.any():
            raise BadValue(
                f"process {differs.argmax()} has another {name} than process 0; every "
                "machine needs the same command, version and data."
            )
