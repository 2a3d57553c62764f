"""`use_cores`: what JAX must be told before it starts, to use a whole machine."""

import os
from pathlib import Path

import jax

from sagda import check
from sagda.check import BadValue

COUNT = "jax_num_cpu_devices"
SMALL_LOOPS = "xla_cpu_small_while_loop_byte_threshold"
# Asked for kernels, XLA would make them of every loop; this spares a program.
SPARED = {"xla_disable_hlo_passes": "small-while-loop-hoisting"}


def use_cores(count: int | None = None) -> None:
    """Let JAX use every core of this machine, and compile small loops whole.

    Call it before anything else uses JAX; the `sagda` command does. JAX then has one
    device per core (or `count`), over which simulations share their clients or seeds,
    and XLA compiles loops with small bodies into one kernel: for small models two to
    four times as fast. The second is for the whole process: a loop of large matrix
    products in other programs of it may become slower.
    """
    cores = count or len(os.sched_getaffinity(0))
    check.integer("count", cores, low=1)
    flags = os.environ.get("XLA_FLAGS", "")
    if "device_count" in flags:
        return  # someone else has decided
    given = getattr(jax.config, COUNT)
    try:
        jax.config.update(COUNT, given if given > 0 else cores)
    except RuntimeError:
        if SMALL_LOOPS in flags:
            return  # called before
        raise BadValue(
            "`use_cores` must be called before anything else uses JAX."
        ) from None
    if SMALL_LOOPS not in flags:
        option = f"--xla_backend_extra_options={SMALL_LOOPS}={2**50}"
        os.environ["XLA_FLAGS"] = f"{flags} {option}".strip()


def keep_programs(folder: Path) -> None:
    """Keep compiled programs in `folder` from one process to the next."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def kernels() -> bool:
    """Whether loops can become kernels here."""
    return jax.default_backend() == "cpu" and SMALL_LOOPS in os.environ.get(
        "XLA_FLAGS", ""
    )
