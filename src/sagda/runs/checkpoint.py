"""Checkpoints: the runs of a folder as they stand, kept whole through any crash.

`checkpoint/manifest.json` is the one commit point. It names a safetensors file per
algorithm with its digest; files are written before it and old ones deleted after it.
"""

import json
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import safetensors.numpy

import sagda
from sagda import durable
from sagda.check import BadValue
from sagda.simulator.run import Run

SCHEMA = 2


class Stored(NamedTuple):
    """A checkpoint as it was read and checked."""

    runs: dict[str, dict[str, np.ndarray]]  # by algorithm: what `resume` takes
    environment: dict[str, Any]


class Checkpoints:
    """The writer of one run folder's checkpoints."""

    def __init__(self, folder: Path, config_digest: str, data_digest: str):
        self.folder = folder / "checkpoint"
        self.config_digest, self.data_digest = config_digest, data_digest
        self.entries: dict[str, dict[str, Any]] = {}

    def save(self, name: str, run: Run) -> None:
        """Keep this run; what was kept of others stays."""
        self.folder.mkdir(exist_ok=True)
        durable.sync_folder(self.folder.parent)
        content = safetensors.numpy.save(run.arrays(), {"schema": str(SCHEMA)})
        file = f"{name}-{run.round:08d}.safetensors"
        self.entries[name] = {
            "file": file,
            "sha256": durable.write(self.folder / file, content),
            "round": run.round,
        }
        manifest = {
            "schema": SCHEMA,
            "config_sha256": self.config_digest,
            "data_sha256": self.data_digest,
            "environment": environment(),
            "algorithms": self.entries,
        }
        text = json.dumps(manifest, indent=1) + "\n"
        durable.write(self.folder / "manifest.json", text)
        kept = {entry["file"] for entry in self.entries.values()} | {"manifest.json"}
        for path in self.folder.iterdir():
            if path.name not in kept:
                durable.remove(path)

    def load(self) -> Stored | None:
        """What was kept, checked; None if nothing was."""
        path = self.folder / "manifest.json"
        if not path.exists():
            return None
        manifest = read_manifest(path)
        if manifest["config_sha256"] != self.config_digest:
            raise BadValue(
                f"{path} belongs to another configuration than the config.toml beside "
                "it; choose another folder with --out."
            )
        if manifest["data_sha256"] != self.data_digest:
            raise BadValue(
                f"{path} belongs to other data: what the configuration names has "
                "changed since; choose another folder with --out."
            )
        runs = {}
        for name, entry in manifest["algorithms"].items():
            file = self.folder / entry["file"]
            if not file.is_file():
                raise BadValue(f"checkpoint file {file} is missing.")
            content = file.read_bytes()
            if durable.digest(content) != entry["sha256"]:
                raise BadValue(
                    f"checkpoint file {file} is damaged: its sha256 is not the "
                    "manifest's; delete the checkpoint folder to start afresh."
                )
            runs[name] = safetensors.numpy.load(content)
        self.entries = manifest["algorithms"]
        return Stored(runs, manifest["environment"])


def read_manifest(path: Path) -> dict[str, Any]:
    keys = {"schema", "config_sha256", "data_sha256", "environment", "algorithms"}
    try:
        manifest = json.loads(path.read_bytes())
        whole = keys <= set(manifest) and all(
            {"file", "sha256", "round"} <= set(entry)
            and Path(entry["file"]).name == entry["file"]
            for entry in manifest["algorithms"].values()
        )
    except (ValueError, TypeError, AttributeError, KeyError):
        whole, manifest = False, {}
    if not whole:
        raise BadValue(
            f"{path} is damaged or not a checkpoint's manifest; delete the checkpoint "
            "folder to start afresh."
        )
    if manifest["schema"] != SCHEMA:
        raise BadValue(
            f"{path}: `schema` must be {SCHEMA} for this version, got "
            f"{manifest['schema']!r}; delete the checkpoint folder to start afresh."
        )
    return manifest


def environment() -> dict[str, Any]:
    """What the bits of a run depend on beside its configuration."""
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
    """A name for the processor's features: programs are compiled for them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    flags = [line.split(":", 1)[1] for line in lines if line.startswith("flags")]
    return (
        durable.digest(" ".join(sorted(flags[0].split())).encode())[:12]
        if flags
        else ""
    )


def differences(then: dict[str, Any]) -> list[str]:
    """What changed since a checkpoint was written, as `jax 0.9 -> 0.10`."""
    now = environment()
    return [
        f"{key} {then.get(key)} -> {now[key]}"
        for key in now
        if then.get(key) != now[key]
    ]
