"""Compiles `dro.c` for the shapes of a job and replaces this process with it.

python benchmarks/rivals/c_program.py JOB.npz dro BATCH [FLAG ...]
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from common import Job, K

FLAGS = ["-O3", "-march=native", "-fopenmp"]
SOURCE = Path(__file__).with_name("dro.c")


def main(path: str, problem: str, batch: str, *flags: str) -> None:
    whole = batch == "all"
    job = Job(path, problem, None if whole else int(batch))
    assert problem == "dro", "written for this problem only"
    assert job.size.min() == job.size.max(), "written for clients of one size"
    # In the folder of the job's file, which its creator removes.
    folder = Path(tempfile.mkdtemp(dir=Path(path).parent))
    checks, _, _, given = job.position.shape
    assert whole or job.batch == given, "check rounds have another batch size"
    shape = {"CLIENTS": job.clients, "ROWS": job.size[0], "FEATURES": job.d}
    shape |= {"CHECKS": checks, "STEPS": K, "BATCH": given}
    lines = (f"#define {name} {value}\n" for name, value in shape.items())
    (folder / "shape.h").write_text("".join(lines))
    with open(folder / "job", "wb") as file:
        for array in (job.z, job.features, job.target):
            file.write(np.ascontiguousarray(array, np.float32).tobytes())
        file.write(np.ascontiguousarray(job.position, np.int32).tobytes())
    binary = str(folder / "dro")
    build = ["gcc", *FLAGS, *flags, f"-I{folder}", "-o", binary, str(SOURCE), "-lm"]
    subprocess.run(build, check=True, stdout=sys.stderr)
    os.execv(binary, [binary, str(folder / "job"), str(int(whole))])


if __name__ == "__main__":
    main(*sys.argv[1:])
