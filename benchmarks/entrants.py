"""The section *rivals*: all programs that run the four jobs, and their times.

The rivals are the scripts in `rivals/`. They have the same protocol as `ours.py`.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import job
import numpy as np
from children import HERE, Failed
from contest import Contestant, hold

RIVAL_PYTHON = HERE.parent / ".venv-bench" / "bin" / "python"
JOBS = [(problem, batch) for problem in ("auc", "dro") for batch in ("10", "all")]
OURS = "sagda"
FLOWER, C, C_FAST = "Flower", "C", "C, -ffast-math"
FAST_MATH = ("-ffast-math", "-mprefer-vector-width=512")


def ours(name: str, *arguments: str) -> Contestant:
    """Return sagda as a contestant."""
    return Contestant(name, [sys.executable, str(HERE / "ours.py"), *arguments])


def rivals(file: Path, problem: str, batch: str, quick: bool) -> list[Contestant]:
    """Return all contestants that can run this job, sagda first."""

    def rival(script, name, variant="", flags=(), rounds=None, **extra) -> Contestant:
        path = str(HERE / "rivals" / script)
        command = [str(RIVAL_PYTHON), path, str(file), problem, batch, *flags]
        return Contestant(name, command, extra, variant, rounds)

    contestants = [ours(OURS, problem, batch)]
    if problem == "dro":
        contestants += [
            rival("c_program.py", C),
            rival("c_program.py", C_FAST, flags=FAST_MATH),
        ]
    for name, how in ("torch.compile", {}), ("eager", {"TORCHDYNAMO_DISABLE": "1"}):
        for threads, policy in waits():
            variant = f"{threads} {policy}".strip()
            extra = how | {"OMP_NUM_THREADS": str(threads)}
            if policy:
                extra["OMP_WAIT_POLICY"] = policy
            name_of = f"PyTorch by hand, {name}"
            contestants.append(rival("torch_batched.py", name_of, variant, **extra))
    rounds = 1 if quick else 3
    return [
        *contestants,
        rival("numpy_loop.py", "NumPy loop", OMP_NUM_THREADS="1"),
        rival("pfl_sim.py", "pfl", rounds=rounds),
        rival("flower_sim.py", FLOWER, rounds=rounds),
    ]


def waits() -> list[tuple[int, str]]:
    """Return the variants of PyTorch: the number of threads, and their wait policy."""
    cores = len(os.sched_getaffinity(0))
    return [(1, "")] + [(cores, ""), (cores, "passive")] * (cores > 1)


def difference(of: Contestant, reference: Contestant, y: int) -> float | None:
    """Return the relative difference of two iterates after the check rounds.

    The difference in x is relative to the largest entry of x, and in the same way for
    y. The larger of both is returned. The last `y` entries of an iterate belong to y.
    """
    if of.ready.get("z") is None:
        return None
    a, b = np.array(of.ready["z"]), np.array(reference.ready["z"])
    parts = (a[:-y], b[:-y]), (a[-y:], b[-y:])
    return float(max(np.abs(u - v).max() / np.abs(v).max() for u, v in parts))


def measure_rivals(quick: bool, say: Callable) -> dict:
    """Measure all contestants on the four jobs."""
    rows, left_out, versions = [], {}, {}
    if not RIVAL_PYTHON.exists():
        left_out["all rivals"] = "there is no .venv-bench; `make bench` creates it"
    if not shutil.which("gcc"):
        left_out["C"] = "there is no gcc"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "job.npz"
        job.write(file)
        for problem, batch in JOBS:
            if RIVAL_PYTHON.exists():
                all_of_them = rivals(file, problem, batch, quick)
            else:
                all_of_them = [ours(OURS, problem, batch)]
            if not shutil.which("gcc"):
                # torch.compile also needs a compiler, but reports this error itself.
                all_of_them = [c for c in all_of_them if c.name not in (C, C_FAST)]
            say(f"{problem}, batch {batch}: {len(all_of_them)} contestants")
            # The engine of Flower uses the processor while it waits, so it runs alone.
            hold([c for c in all_of_them if c.name != FLOWER], 3 if quick else 7)
            hold([c for c in all_of_them if c.name == FLOWER], 3 if quick else 7)
            reference = all_of_them[0]
            if reference.failure:
                raise Failed(f"sagda itself: {reference.failure}")
            for one in all_of_them:
                if one.failure:
                    left_out[f"{one.title}, {problem}, batch {batch}"] = one.failure
                    continue
                versions |= one.ready["versions"]
                y = 1 if problem == "auc" else job.ROWS
                result = one.result() | {"problem": problem, "batch": batch}
                result["difference"] = difference(one, reference, y)
                rows.append(result)
                say(f"  {one.title:44}{result['ms']:10.3f} ms")
    return {"rows": rows, "left_out": left_out, "versions": versions}
