"""Settings of JAX: use all cores, and store compiled programs on the disk.

Call these functions before JAX computes anything. `layout.py` decides what each device
computes. `processes.py` connects several processes.
"""

import os
from pathlib import Path

import jax

from sagda import check
from sagda.check import BadValue

COUNT = "jax_num_cpu_devices"
CACHE = "jax_compilation_cache_dir"
SMALL_LOOPS = "xla_cpu_small_while_loop_byte_threshold"
# `SMALL_LOOPS` turns every loop into a kernel. A program compiled with these options
# keeps its loops.
SPARED = {"xla_disable_hlo_passes": "small-while-loop-hoisting"}


def use_cores(count: int | None = None) -> None:
    """Let JAX use every core of this machine, and compile each loop into one kernel.

    Call it before anything else uses JAX. The `sagda` command calls it at its start.
    JAX then has one device per core, or `count` devices. Simulations distribute clients
    or seeds over these devices. One kernel per loop makes small models two to four
    times as fast. This setting applies to the whole process: loops with large matrix
    products in other code may become slower.
    """
    cores = count or len(os.sched_getaffinity(0))
    check.integer("count", cores, low=1)
    flags = os.environ.get("XLA_FLAGS", "")
    if "device_count" in flags:
        return  # the user has chosen the number of devices
    given = getattr(jax.config, COUNT)
    try:
        jax.config.update(COUNT, given if given > 0 else cores)
    except RuntimeError:
        if SMALL_LOOPS in flags:
            return  # `use_cores` was called before
        raise BadValue(
            "`use_cores` must be called before anything else uses JAX."
        ) from None
    if SMALL_LOOPS not in flags:
        option = f"--xla_backend_extra_options={SMALL_LOOPS}={2**50}"
        os.environ["XLA_FLAGS"] = f"{flags} {option}".strip()


def keep_programs(folder: Path) -> None:
    """Store compiled programs in `folder`, so that later processes start faster.

    If the user has set a cache folder of JAX, that folder is used.
    """
    if getattr(jax.config, CACHE) is not None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return
    jax.config.update(CACHE, str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def kernels() -> bool:
    """Return whether XLA compiles loops into kernels in this process."""
    return jax.default_backend() == "cpu" and SMALL_LOOPS in os.environ.get(
        "XLA_FLAGS", ""
    )
