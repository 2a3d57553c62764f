"""Write and read the checkpoints of a run folder. A crash never damages them.

`checkpoint/manifest.json` names one safetensors file per algorithm, with its digest.
New files are written before the manifest, and old files are deleted after it. So a
checkpoint counts from the moment when the manifest is replaced. `execution.py` decides
when to write. The results of a finished run are in `output.py`.
"""

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import jax
import numpy as np
import safetensors.numpy
from pydantic import BaseModel, Field, ValidationError

import sagda
from sagda import durable
from sagda.check import BadValue
from sagda.simulator.run import Run

SCHEMA: Literal[2] = 2


# For each algorithm (or batch of a sweep), the arrays from which its run resumes.
Arrays: TypeAlias = dict[str, dict[str, np.ndarray]]


class Stored(NamedTuple):
    """The content of a checkpoint folder. All digests have been checked."""

    runs: Arrays
    environment: dict[str, Any]


class CheckpointFile(BaseModel, extra="forbid"):
    """The entry of one algorithm in the manifest."""

    # Without slashes, the name cannot refer to a file outside the checkpoint folder.
    file: Annotated[str, Field(pattern=r"^[^/\\]+$")]
    sha256: str
    round: int


class CheckpointManifest(BaseModel, extra="forbid"):
    """The content of manifest.json."""

    version: Literal[2] = Field(alias="schema")
    config_sha256: str
    data_sha256: str
    environment: dict[str, Any]
    algorithms: dict[str, CheckpointFile]


class Checkpoints:
    """The checkpoints of one run folder: one file per algorithm and a manifest."""

    def __init__(self, folder: Path, config_digest: str, data_digest: str):
        self.folder = folder / "checkpoint"
        self.config_digest, self.data_digest = config_digest, data_digest
        self.entries: dict[str, CheckpointFile] = {}

    def save(self, name: str, run: Run) -> None:
        """Replace the checkpoint of the algorithm `name` only."""
        self.folder.mkdir(exist_ok=True)
        durable.sync_folder(self.folder.parent)
        content = safetensors.numpy.save(run.arrays(), {"schema": str(SCHEMA)})
        file = f"{name}-{run.round:08d}.safetensors"
        self.entries[name] = CheckpointFile(
            file=file,
            sha256=durable.write(self.folder / file, content),
            round=run.round,
        )
        manifest = CheckpointManifest(
            schema=SCHEMA,
            config_sha256=self.config_digest,
            data_sha256=self.data_digest,
            environment=environment(),
            algorithms=self.entries,
        )
        text = manifest.model_dump_json(by_alias=True, indent=1) + "\n"
        durable.write(self.folder / "manifest.json", text)
        # The manifest now names the new file, so the old files are no longer needed.
        current = {entry.file for entry in self.entries.values()} | {"manifest.json"}
        for path in self.folder.iterdir():
            if path.name not in current:
                durable.remove(path)

    def load(self) -> Stored:
        """Return the newest checkpoint, or one without runs if none was written.

        Raises `BadValue` if the checkpoint is damaged, or if it was written for another
        configuration or for other data.
        """
        path = self.folder / "manifest.json"
        if not path.exists():
            return Stored({}, environment())
        manifest = read_manifest(path)
        if manifest.config_sha256 != self.config_digest:
            raise BadValue(
                f"{path} was written for another configuration than the one in "
                "config.toml; choose another folder with --out."
            )
        if manifest.data_sha256 != self.data_digest:
            raise BadValue(
                f"{path} was written for other data. The data in the configuration "
                "changed since then; choose another folder with --out."
            )
        runs = {}
        for name, entry in manifest.algorithms.items():
            file = self.folder / entry.file
            if not file.is_file():
                raise unusable(f"checkpoint file {file} is missing")
            content = file.read_bytes()
            if durable.digest(content) != entry.sha256:
                raise unusable(
                    f"checkpoint file {file} is damaged: its sha256 differs from the "
                    "one in the manifest"
                )
            runs[name] = safetensors.numpy.load(content)
        self.entries = manifest.algorithms
        return Stored(runs, manifest.environment)


def read_manifest(path: Path) -> CheckpointManifest:
    """Read the manifest at `path`.

    Raises `BadValue` if the manifest is damaged or has another schema version.
    """
    try:
        return CheckpointManifest.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
    if first["type"] == "literal_error":
        raise unusable(
            f"{path}: `schema` must be {SCHEMA} for this version, got "
            f"{first['input']!r}"
        )
    raise unusable(f"{path} must be the manifest of a checkpoint, but is damaged")


def unusable(problem: str) -> BadValue:
    """Return the error for a checkpoint from which no run can resume."""
    return BadValue(f"{problem}; delete the checkpoint folder to start again.")


def environment() -> dict[str, Any]:
    """List everything outside the configuration that can change a run's exact numbers.

    These are versions, the processor, the devices and the flags of the XLA compiler.
    """
    return {
        "sagda": sagda.__version__,
        "python": platform.python_version(),
        "jax": jax.__version__,
        "jaxlib": version("jaxlib"),
        "numpy": np.__version__,
        "machine": platform.machine(),
        "processor": processor(),
        "devices": f"{jax.device_count()} {jax.default_backend()}",
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }


def processor() -> str:
    """Return a digest of the processor's features, such as its vector instructions.

    XLA compiles programs for these features, so they can change the exact numbers.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    flags = [line.split(":", 1)[1] for line in lines if line.startswith("flags")]
    if not flags:
        return ""
    return durable.digest(" ".join(sorted(flags[0].split())).encode())[:12]


def differences(then: dict[str, Any]) -> list[str]:
    """List the changes since the environment `then`, such as `jax 0.9 -> 0.10`."""
    return [
        f"{key} {then.get(key)} -> {now}"
        for key, now in environment().items()
        if then.get(key) != now
    ]
