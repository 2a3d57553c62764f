"""The run folder: which files it has, who may write to it, and its configuration.

config.toml         the whole configuration; running it again repeats the run
history.csv         one row per algorithm, seed and evaluated round
summary.json        final and tail values, the split, the environment
model.safetensors   the final x and y
recipe.json         how to turn rows of a file into features, and scores into
                    probabilities
MODEL_CARD.md       data, training, metrics and limits of the model
images.safetensors  pictures that the first seed's model generates, if it does
checkpoint/         the newest checkpoint
tensorboard/        event files, with `--track tensorboard`
mlflow.db           MLflow's runs, with `--track mlflow`
report.html         the report

`claimed` reserves a folder for one configuration. `execution.py` runs into it,
`checkpoint.py` makes runs survive crashes, `output.py` writes the results and
`results.py` reads them.
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
    """Lock `folder` and reserve it for this configuration.

    If invalid input ends the block before anything is stored, the folder is free again.
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
    """Write the configuration `text` into `folder`. Returns True if it had none.

    Raises `BadValue` if the folder has another configuration, or files that are not
    `known`.
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
    keys.remove("schema")  # which `read_toml` has checked and removed
    if keys:
        raise BadValue(
            f"{folder} holds a run of another configuration, which differs in "
            f"{', '.join(keys)}; choose another folder with --out."
        )
    return False


def flat(values: dict[str, Any]) -> dict[str, Any]:
    """The values of a TOML file, with `table.key` for the keys of its tables."""
    out = {}
    for key, value in values.items():
        if isinstance(value, dict):
            out |= {f"{key}.{k}": v for k, v in value.items()}
        else:
            out[key] = value
    return out


def other_files(folder: Path, known: Collection[str]) -> bool:
    """True if `folder` has files that are not `known`.

    The lock and the unfinished files of a killed writer do not count.
    """
    return any(
        path.name not in (".lock", *known) and path.suffix != durable.TEMPORARY
        for path in folder.iterdir()
    )


def read_folder_config(folder: Path) -> Config:
    """The configuration of a run folder."""
    path = folder / "config.toml"
    if not path.is_file():
        raise BadValue(
            f"{folder} is not a run folder: it has no config.toml. `sagda run` creates "
            "run folders."
        )
    values, text = read_toml(path)
    return build(values, str(path), text)


def shared_folder_config(folder: Path) -> Config:
    """The configuration of a run folder of process 0, on every process."""
    return from_first(
        lambda: read_folder_config(folder),
        pack=lambda config: config.model_dump_json().encode(),
        unpack=lambda content: Config.model_validate_json(content),
    )
