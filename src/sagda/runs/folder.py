"""The run folder: which files it has, who may write to it, and its configuration.

config.toml         the whole configuration; running this file repeats the run
history.csv         one row per algorithm, seed and evaluated round
summary.json        final values, means over the last rounds, split, environment
model.safetensors   the final x and y
recipe.json         the recipe that turns rows of a file into features and scores into
                    probabilities
MODEL_CARD.md       data, training, metrics and limits of the model
images.safetensors  pictures from the first seed's model, if the model generates any
checkpoint/         the newest checkpoint
tensorboard/        event files, with `--track tensorboard`
mlflow.db           runs in MLflow, with `--track mlflow`
report.html         the report

`claimed` reserves a folder for one configuration. This file does not write results.
`execution.py` runs methods into a folder, `checkpoint.py` writes checkpoints,
`output.py` writes the results and `results.py` reads the results.
"""

import contextlib
import tomllib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from sagda import durable
from sagda.check import BadKind, BadValue
from sagda.runs.config import Config, build, read_toml, write_toml
from sagda.simulator.processes import from_first


@contextlib.contextmanager
def claimed(config: Config, folder: Path) -> Iterator[None]:
    """Lock `folder` and reserve it for `config` while the block runs.

    If the block fails with an error about invalid input and has stored nothing, the
    folder is released again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with durable.lock(folder):
        new = claim(folder, write_toml(config))
        try:
            yield
        except (BadValue, BadKind):
            if new and not other_files(folder, ["config.toml"]):
                (folder / "config.toml").unlink()
            raise


def claim(folder: Path, text: str, known: Collection[str] = ()) -> bool:
    """Write the configuration `text` into `folder`, unless it is there already.

    Returns True if the configuration was written. Raises `BadValue` if the folder has
    another configuration, or has files that are not in `known`.
    """
    path = folder / "config.toml"
    if not path.exists():
        if other_files(folder, known):
            raise BadValue(
                f"{folder} holds other files; choose another folder with --out."
            )
        durable.write(path, text)
        return True
    stored, given = flat(read_toml(path)[0]), flat(tomllib.loads(text))
    keys = [key for key in stored | given if stored.get(key) != given.get(key)]
    keys.remove("schema")  # only in `given`, because `read_toml` checks and removes it
    if keys:
        raise BadValue(
            f"{folder} holds a run of another configuration, which differs in "
            f"{', '.join(keys)}; choose another folder with --out."
        )
    return False


def flat(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a TOML file, with keys of tables written as `table.key`."""
    out = {}
    for key, value in values.items():
        if isinstance(value, dict):
            out |= {f"{key}.{k}": v for k, v in value.items()}
        else:
            out[key] = value
    return out


def other_files(folder: Path, known: Collection[str]) -> bool:
    """Return True if `folder` has files that are not in `known`.

    The lock file does not count, and neither do unfinished files of a killed process.
    """
    return any(
        path.name not in (".lock", *known) and path.suffix != durable.TEMPORARY
        for path in folder.iterdir()
    )


def read_folder_config(folder: Path) -> Config:
    """Read the configuration of a run folder."""
    path = folder / "config.toml"
    if not path.is_file():
        raise BadValue(
            f"{folder} is not a run folder: it has no config.toml. `sagda run` creates "
            "run folders."
        )
    values, text = read_toml(path)
    return build(values, str(path), text)


def shared_folder_config(folder: Path) -> Config:
    """Read the configuration on process 0, and return it on every process."""
    return from_first(
        lambda: read_folder_config(folder),
        pack=lambda config: config.model_dump_json().encode(),
        unpack=lambda content: Config.model_validate_json(content),
    )
