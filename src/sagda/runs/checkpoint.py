"""Checkpoints of a run folder, which stay whole through a crash at any moment.

`checkpoint/manifest.json` is the one commit point. It names one safetensors file per
algorithm with its digest. Files are written before the manifest, and old files are
deleted after it. `execution.py` decides when to write.
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


# By algorithm: the arrays that resume a run.
Arrays: TypeAlias = dict[str, dict[str, np.ndarray]]


class Stored(NamedTuple):
    """The content of a checkpoint, with all digests checked."""

    runs: Arrays
    environment: dict[str, Any]


class CheckpointFile(BaseModel, extra="forbid"):
    """An algorithm's line in the manifest."""

    # A name with a folder in it would lead out of the checkpoint.
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
    """Writes and reads the checkpoints of one run folder."""

    def __init__(self, folder: Path, config_digest: str, data_digest: str):
        self.folder = folder / "checkpoint"
        self.config_digest, self.data_digest = config_digest, data_digest
        self.entries: dict[str, CheckpointFile] = {}

    def save(self, name: str, run: Run) -> None:
        """Replace the checkpoint of the algorithm `name`; the others stay."""
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
        # From here on the new checkpoint counts, and nothing refers to old files.
        current = {entry.file for entry in self.entries.values()} | {"manifest.json"}
        for path in self.folder.iterdir():
            if path.name not in current:
                durable.remove(path)

    def load(self) -> Stored:
        """The newest checkpoint, checked; without runs if there is none."""
        path = self.folder / "manifest.json"
        if not path.exists():
            return Stored({}, environment())
        manifest = read_manifest(path)
        if manifest.config_sha256 != self.config_digest:
            raise BadValue(
                f"{path} belongs to another configuration than the folder's "
                "config.toml; choose another folder with --out."
            )
        if manifest.data_sha256 != self.data_digest:
            raise BadValue(
                f"{path} belongs to other data: the data that the configuration names "
                "have changed; choose another folder with --out."
            )
        runs = {}
        for name, entry in manifest.algorithms.items():
            file = self.folder / entry.file
            if not file.is_file():
                raise unusable(f"checkpoint file {file} is missing")
            content = file.read_bytes()
            if durable.digest(content) != entry.sha256:
                raise unusable(
                    f"checkpoint file {file} is damaged: its sha256 is not the "
                    "manifest's"
                )
            runs[name] = safetensors.numpy.load(content)
        self.entries = manifest.algorithms
        return Stored(runs, manifest.environment)


def read_manifest(path: Path) -> CheckpointManifest:
    """The manifest at `path`; an error if it is damaged or of another schema."""
    try:
        return CheckpointManifest.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
    if first["type"] == "literal_error":
        raise unusable(
            f"{path}: `schema` must be {SCHEMA} for this version, got "
            f"{first['input']!r}"
        )
    raise unusable(f"{path} is damaged or not the manifest of a checkpoint")


def unusable(problem: str) -> BadValue:
    """The error for a checkpoint from which no run can resume."""
    return BadValue(f"{problem}; delete the checkpoint folder to start again.")


def environment() -> dict[str, Any]:
    """What the bits of a run depend on, in addition to its configuration."""
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
    """A digest of the processor's features, for which programs are compiled."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    flags = [line.split(":", 1)[1] for line in lines if line.startswith("flags")]
    if not flags:
        return ""
    return durable.digest(" ".join(sorted(flags[0].split())).encode())[:12]


def differences(then: dict[str, Any]) -> list[str]:
    """The changes since a checkpoint's environment, such as `jax 0.9 -> 0.10`."""
    return [
        f"{key} {then.get(key)} -> {now}"
        for key, now in environment().items()
        if then.get(key) != now
    ]
