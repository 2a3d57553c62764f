"""One run on several processes: connecting them, and exchanging values between them.

The user starts the processes, by `srun`, `mpirun`, Kubernetes or `--host0`, and JAX
connects them. This module neither starts nor watches a process. `gathered`,
`from_first` and `check_same` are collective: all processes must call them in the same
order. See `runs/folder.py` for an example: only process 0 reads and writes the run
folder.
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

SILENCE = 30  # a process counts as dead after this number of seconds without signals
PATIENCE = 120.0  # seconds that processes wait for each other at the start
GOODBYE = 5.0  # seconds that a process with an error waits for the others to end
ORTE = "OMPI_MCA_orte_hnp_uri"  # set by Open MPI before version 5
T = TypeVar("T")


def launched(environment: Mapping[str, str] = os.environ) -> int:
    """Return the number of processes that `srun` or `mpirun` started, or 1.

    Only environment variables are read, which takes no time. In a SLURM batch script,
    commands without `srun` count as one process.
    """
    slurm = "SLURM_NTASKS" if "SLURM_STEP_NODELIST" in environment else ""
    return int(environment.get(slurm) or environment.get("OMPI_COMM_WORLD_SIZE") or 1)


def connect(
    host0: str | None = None, processes: int | None = None, process: int | None = None
) -> None:
    """Connect this process with the other processes of the run, if there are any.

    Call it before JAX computes anything.

    Args:
        host0: HOST:PORT where process 0 listens. If None, JAX asks the cluster.
        processes: the number of processes of the run.
        process: the number of this process, counted from 0.
    """
    if processes is not None:
        check.integer("processes", processes, low=1)
    if host0 is not None or process is not None:
        if host0 is None or processes is None or process is None:
            raise BadValue(
                "--host0, --processes and --process must be given together; give "
                "--processes alone only if a launcher such as srun starts them."
            )
        network.address("--host0", host0)
        last = ", the number of the last process"
        check.integer("process", process, low=0, high=processes - 1, what=last)
    if processes == 1 or (processes is None and launched() == 1):
        return
    # JAX would otherwise replace the SIGTERM handler of the `sagda` command.
    jax.config.update("jax_enable_preemption_service", False)
    bind, method = None, None
    if host0 is not None:
        bind = os.environ.get("JAX_COORDINATOR_BIND_ADDRESS", host0)
        method = "deactivate"
        await_host0(host0, bind, process)
    elif "OMPI_COMM_WORLD_SIZE" in os.environ and ORTE not in os.environ:
        method = "mpi4py"  # Open MPI 5 gives JAX no address of process 0
    # gloo writes to standard output, which is only for the results of the command. So
    # file descriptor 1 becomes standard error, and `sys.stdout` keeps the old one.
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
            f"JAX cannot connect the processes of this run ({error}); give each one "
            "--host0, --processes and --process, or `--processes 1` for separate runs."
        ) from None


def await_host0(host0: str, bind: str, process: int | None) -> None:
    """Wait until process 0 listens. In process 0, check that it can.

    Without this check, JAX would abort the process instead of raising an error.
    """
    if process == 0:
        return network.check_port("--host0", *network.address("--host0", bind))
    deadline = time.monotonic() + PATIENCE
    while not network.listens(*network.address("--host0", host0)):
        if time.monotonic() > deadline:
            raise BadValue(
                f"process {process} could not reach process 0 at {host0} within "
                f"{PATIENCE:g} seconds; check the address, and start process 0."
            )
        time.sleep(0.2)
    return None


def leave(code: int) -> None:
    """End this process with exit code `code` after an error, if there are several.

    At a normal exit of Python, JAX would wait for the other processes for minutes. But
    they cannot finish without this process. So this process ends after a few seconds,
    and JAX then ends the others.
    """
    if not jax.distributed.is_initialized():
        return
    # If all processes have the same error, all of them shut down here in order.
    meeting = threading.Thread(target=jax.distributed.shutdown, daemon=True)
    meeting.start()
    meeting.join(GOODBYE)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def is_first() -> bool:
    """Return whether this is process 0. Only process 0 writes files and progress."""
    return jax.process_index() == 0


@cache
def first_devices() -> Mesh:
    """Return a mesh with the first device of each process."""
    # In reverse order, so that the first device of a process overwrites the others.
    devices = {d.process_index: d for d in reversed(jax.devices())}
    return Mesh([devices[i] for i in sorted(devices)], ("processes",))


def over_processes(content: bytes, combine: Callable) -> np.ndarray:
    """Stack `content` of all processes as rows of bytes, and apply `combine`.

    `content` must have the same length in every process.
    """
    mesh, row = first_devices(), np.frombuffer(content, np.uint8)[None]
    rows = jax.make_array_from_process_local_data(
        NamedSharding(mesh, Spec("processes")), row, (jax.process_count(), row.size)
    )
    whole = NamedSharding(mesh, Spec())
    return np.asarray(jax.jit(combine, out_shardings=whole)(rows))


def every_row(rows: jax.Array) -> jax.Array:
    """Return `rows` unchanged, for `over_processes`."""
    return rows


def sum_of_rows(rows: jax.Array) -> jax.Array:
    """Return the sum over processes, for `over_processes`."""
    return rows.sum(0, dtype=rows.dtype)


def gathered(values: Any) -> np.ndarray:
    """Return the `values` of all processes, stacked along axis 0."""
    values = np.asarray(values)
    if jax.process_count() == 1:
        return values[None]
    rows = over_processes(values.tobytes(), every_row)
    return np.frombuffer(rows.tobytes(), values.dtype).reshape(-1, *values.shape)


def from_first(
    make: Callable[[], T], pack: Callable[[T], bytes], unpack: Callable[[bytes], T]
) -> T:
    """Call `make` in process 0 only, and return its result in every process.

    If `make` raises `BadValue`, every process raises it. `pack` turns the result into
    bytes to send, and `unpack` reverses it.
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
    # The other processes contribute zeros, so the sum is the content of process 0.
    content = over_processes(content.ljust(size, b"\0"), sum_of_rows).tobytes()
    if content[:1] == b"-":
        raise BadValue(content[1:].decode())
    return unpack(content[1:])


def check_same(**parts: str) -> None:
    """Compare each string in `parts` across all processes.

    Raise `BadValue` if a string is not the same in every process.
    """
    if jax.process_count() == 1:
        return
    digests = [hashlib.sha256(text.encode()).digest() for text in parts.values()]
    rows = gathered(np.frombuffer(b"".join(digests), np.uint8))
    other = (rows != rows[0]).reshape(len(rows), len(parts), -1).any(axis=2)
    for name, differs in zip(parts, other.T, strict=True):
        if differs.any():
            raise BadValue(
                f"the {name} of process {differs.argmax()} differs from that of "
                "process 0. Start every process with the same command, version and "
                "data. For separate runs, add --processes 1."
            )
