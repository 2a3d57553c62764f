"""Custom models from a Python file of the user, named FILE.py:FUNCTION.

Loading such a model runs the file. For safety, a file runs only if somebody on this
machine named it, for example with `--model`. A name in a stored configuration or in a
message from a server is not enough. Built-in models are in `networks.py`.
"""

import runpy
import sys
from functools import partial
from pathlib import Path
from typing import Any

from sagda import check
from sagda.check import BadValue
from sagda.models import MODELS

OWN: dict[str, Path] = {}  # files that this process may run, keyed by FILE.py:FUNCTION


def is_own(name: str) -> bool:
    """Return whether `name` is the name of a custom model, such as nets.py:make."""
    return ":" in name


def allow(place: str, folder: Path | None = None) -> str:
    """Allow this process to run a file of the user. Return FILE.py:FUNCTION.

    Args:
        place: FOLDER/FILE.py:FUNCTION, as the user on this machine typed it.
        folder: the folder for relative paths; by default the current one.
    """
    file, _, function = place.rpartition(":")
    path = (folder or Path()) / file
    if path.suffix != ".py" or not function.isidentifier() or not path.is_file():
        raise BadValue(
            f"`model` must be one of {', '.join(MODELS)}, or FILE.py:FUNCTION with an "
            f"existing file, got {place!r}."
        )
    name = f"{path.name}:{function}"
    OWN[name] = path.resolve()
    return name


def check_model(name: str) -> None:
    """Raise unless `name` is in `MODELS`, or its file is allowed in this process."""
    if not is_own(name):
        check.choice("model", name, MODELS)
    elif name not in OWN:
        raise BadValue(
            f"`model` {name} is Python code, which runs only if you name its file; "
            f"add --model FOLDER/{name}."
        )


def model_of(name: str, features: int) -> Any:
    """Return the model `name` for rows with `features` entries.

    Args:
        name: a key of `MODELS`, or FILE.py:FUNCTION with an allowed file.
        features: the number of entries of a row.
    """
    check_model(name)
    if not is_own(name):
        return MODELS[name](features)
    function = name.rpartition(":")[2]
    make = runpy.run_path(str(OWN[name]), run_name="sagda_own_model").get(function)
    if not callable(make):
        raise BadValue(
            f"`model` {name} needs a function {function} in {OWN[name]}, got none."
        )
    model = make(features)
    if hasattr(model, "init") and hasattr(model, "apply"):
        return model
    if "torch" in sys.modules and isinstance(model, sys.modules["torch"].nn.Module):
        from sagda.models.torch import Torch

        return Torch(partial(make, features))
    raise BadValue(
        f"`model` {name} must return a torch.nn.Module, or a model with `init` and "
        f"`apply` such as sagda.Equinox(make), got {type(model).__name__}."
    )
