"""Models from a user's own file, named as FILE.py:FUNCTION.

Such a model is code. It runs only where somebody named its file on this machine: a
configuration or a server that names it is not enough.
"""

import runpy
import sys
from functools import partial
from pathlib import Path
from typing import Any

from sagda import check
from sagda.check import BadValue
from sagda.models import MODELS

OWN: dict[str, Path] = {}  # files that this process may run, by NAME.py:FUNCTION


def is_own(name: str) -> bool:
    """Whether it names a user's function, as in nets.py:make."""
    return ":" in name


def allow(place: str, folder: Path | None = None) -> str:
    """Allow this process to run FILE.py:FUNCTION. Returns the name without folders.

    Args:
        place: FILE.py:FUNCTION as a person named it on this machine.
        folder: the folder that a relative path starts from.
    """
    file, _, function = place.rpartition(":")
    path = (folder or Path()) / file
    if path.suffix != ".py" or not function.isidentifier() or not path.is_file():
        raise BadValue(
            f"`model` must be one of {', '.join(MODELS)}, or FILE.py:FUNCTION with a "
            f"file that exists, got {place!r}."
        )
    name = f"{path.name}:{function}"
    OWN[name] = path.resolve()
    return name


def check_model(name: str) -> None:
    """Raise unless it is a key of `MODELS`, or a file that this process may run."""
    if not is_own(name):
        check.choice("model", name, MODELS)
    elif name not in OWN:
        raise BadValue(
            f"`model` {name} is code that is run only if you name its file: give "
            f"--model FOLDER/{name}."
        )


def model_of(name: str, features: int) -> Any:
    """The named model for rows of `features` entries."""
    check_model(name)
    if not is_own(name):
        return MODELS[name](features)
    function = name.rpartition(":")[2]
    make = runpy.run_path(str(OWN[name]), run_name="sagda_own_model").get(function)
    if not callable(make):
        raise BadValue(f"`model`: {OWN[name]} must define the function {function}.")
    model = make(features)
    if hasattr(model, "init") and hasattr(model, "apply"):
        return model
    if "torch" in sys.modules and isinstance(model, sys.modules["torch"].nn.Module):
        from sagda.models.torch import Torch

        return Torch(partial(make, features))
    raise BadValue(
        f"`model`: {name} must make a torch.nn.Module, or a model with `init` and "
        f"`apply` such as sagda.Equinox(make), got {type(model).__name__}."
    )
