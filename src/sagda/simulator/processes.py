"""One run over several processes: how they meet, and what they share.

JAX connects the processes: `srun`, `mpirun` or Kubernetes starts them, or a person with
`--host0`. Nothing here starts or watches a process. `gathered`, `from_first` and
`check_same` are collective: all processes call them in the same order.
`runs/folder.py` uses it to let process 0 alone read and write the run folder.
"""

import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

from sagda import check, network
from sagda.check import BadValue

SILENCE = 30  # seconds without a sign of life after which a process counts as dead
PATIENCE = 120.0  # seconds that processes wait for each other at the start
GOODBYE = 5.0  # seconds that a process with an error waits for the others to end
ORTE = "OMPI_MCA_orte_hnp_uri"  # set by Open MPI before version 5
T = TypeVar("T")


def launched(environment: Mapping[str, str] = os.environ) -> int:
    """The number of processes that `srun` or `mpirun` started together with this one.

    Only their variables are read, so a process that was started alone pays nothing. A
    batch script of SLURM itself has no step: it counts as one process.
    """
    slurm = "SLURM_NTASKS" if "SLURM_STEP_NODELIST" in environment else ""
    return int(environment.get(slurm) or environment.get("OMPI_COMM_WORLD_SIZE") or 1)


def connect(
    host0: str | None = None, processes: int | None = None, process: int | None = None
) -> None:
    """Meet the other processes, if there are any. Call it before JAX computes.

    Args:
        host0: HOST:PORT where process 0 listens. None: JAX asks the cluster.
        processes: how many processes share the run.
        process: the number of this one, from 0.
    """
    if processes is not None:
        check.integer("processes", processes, low=1)
    if host0 is not None or process is not None:
        if host0 is None or processes is None or process is None:
            raise BadValue(
                "--host0, --processes and --process must be given together, or "
                "--processes alone where JAX finds the other processes itself."
            )
        network.address("--host0", host0)
        last = ", the last of them"
        check.integer("process", process, low=0, high=processes - 1, what=last)
    if processes == 1 or (processes is None and launched() == 1):
        return
    # JAX's own handling of SIGTERM would replace the command's.
    jax.config.update("jax_enable_preemption_service", False)
    bind, method = None, None
    if host0 is not None:
        bind = os.environ.get("JAX_COORDINATOR_BIND_ADDRESS", host0)
        method = "deactivate"
        await_host0(host0, bind, process)
    elif "OMPI_COMM_WORLD_SIZE" in os.environ and ORTE not in os.environ:
        method = "mpi4py"  # Open MPI 5, which tells JAX no address
    # gloo prints to standard output, which is for the command's results only.
    sys.stdout.flush()
    sys.stdout = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        jax.distributed.initialize(
            host0,
            processes,
            process,
            cluster_detection_method=method,
            initialization_timeout=int(PATIENCE),
            heartbeat_timeout_seconds=SILENCE,
            coordinator_bind_address=bind,
        )
    except (ValueError, RuntimeError) as error:
        raise BadValue(
            f"JAX cannot connect the processes of this run ({error}) Give each of them "
            "--host0, --processes and --process; `--processes 1` runs each one alone."
        ) from None


def await_host0(host0: str, bind: str, process: int | None) -> None:
    """Check that process 0 can listen, or wait until it does.

    JAX would crash or abort the process instead of raising an error.
    """
    if process == 0:
        return network.check_port("--host0", *network.address("--host0", bind))
    deadline = time.monotonic() + PATIENCE
    while not network.listens(*network.address("--host0", host0)):
        if time.monotonic() > deadline:
            raise BadValue(
                f"process {process} found no process 0 at {host0} within {PATIENCE:g} "
                "seconds; check the address, and that process 0 was started."
            )
        time.sleep(0.2)
    return None


def leave(code: int) -> None:
    """End this process after an error, if it is one of several.

    When Python ends normally, JAX waits for minutes until all processes do. They cannot
    finish without this one, so it leaves after a few seconds, and JAX ends the others.
    """
    if not jax.distributed.is_initialized():
        return
    # Where all processes have the same error, they meet here and none is aborted.
    meeting = threading.Thread(target=jax.distributed.shutdown, daemon=True)
    meeting.start()
    meeting.join(GOODBYE)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def is_first() -> bool:
    """Whether this is process 0, which alone writes files and shows progress."""
    return jax.process_index() == 0


@cache
def first_devices() -> Mesh:
    """The first device of each process."""
    # In reverse order, so that the first device of a process is the one that stays.
    devices = {d.process_index: d for d in reversed(jax.devices())}
    return Mesh([devices[i] for i in sorted(devices)], ("processes",))


def over_processes(content: bytes, combine: Callable) -> np.ndarray:
    """`combine` of an array with one row of bytes per process, all of equal length."""
    mesh, row = first_devices(), np.frombuffer(content, np.uint8)[None]
    rows = jax.make_array_from_process_local_data(
        NamedSharding(mesh, Spec("processes")), row, (jax.process_count(), row.size)
    )
    whole = NamedSharding(mesh, Spec())
    return np.asarray(jax.jit(combine, out_shardings=whole)(rows))


def every_row(rows: jax.Array) -> jax.Array:
    """The rows of all processes."""
    return rows


def sum_of_rows(rows: jax.Array) -> jax.Array:
    """The sum over processes."""
    return rows.sum(0, dtype=rows.dtype)


def gathered(values: Any) -> np.ndarray:
    """`values` of every process, stacked along axis 0."""
    values = np.asarray(values)
    if jax.process_count() == 1:
        return values[None]
    rows = over_processes(values.tobytes(), every_row)
    return np.frombuffer(rows.tobytes(), values.dtype).reshape(-1, *values.shape)


def from_first(
    make: Callable[[], T], pack: Callable[[T], bytes], unpack: Callable[[bytes], T]
) -> T:
    """Run `make` on process 0 and send its result to all.

    A `BadValue` raised there is raised on every process.
    """
    if jax.process_count() == 1:
        return make()
    content = b""
    if is_first():
        try:
            content = b"+" + pack(make())
        except BadValue as mistake:
            content = b"-" + str(mistake).encode()
    size = int(gathered(np.int64(len(content)))[0])
    # The others contribute zeros, so that the sum is what process 0 sent.
    content = over_processes(content.ljust(size, b"\0"), sum_of_rows).tobytes()
    if content[:1] == b"-":
        raise BadValue(content[1:].decode())
    return unpack(content[1:])


def check_same(**parts: str) -> None:
    """Raise `BadValue` if the processes differ in one of these texts."""
    if jax.process_count() == 1:
        return
    digests = [hashlib.sha256(text.encode()).digest() for text in parts.values()]
    rows = gathered(np.frombuffer(b"".join(digests), np.uint8))
    other = (rows != rows[0]).reshape(len(rows), len(parts), -1).any(axis=2)
    for name, differs in zip(parts, other.T, strict=True):
        if differs.any():
            raise BadValue(
                f"process {differs.argmax()} has another {name} than process 0; every "
                "process needs the same command, version and data. For separate runs "
                "under srun or mpirun, add --processes 1."
            )
