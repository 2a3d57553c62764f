"""Models from a user's own file, named as FILE.py:FUNCTION.

Such a model is code. It runs only where somebody named its file on this machine: a
configuration or a server that names it is not enough.
"""

import importlib.util
import sys
from functools import partial
from pathlib import Path
from typing import Any

from sagda import check
from sagda.check import BadValue
from sagda.models import MODELS

OWN: dict[str, Path] = {}  # files that may be run here, by NAME.py:FUNCTION


def is_own(name: str) -> bool:
    """Whether it names a function of the user's, as in nets.py:make."""
    return ":" in name


def allow(place: str, beside: Path | None = None) -> str:
    """Let this process run FILE.py:FUNCTION for a model; the name without folders.

    What a configuration or a server names is code. It runs only where someone who
    answers for this process has named its file.
    """
    file, _, function = place.rpartition(":")
    path = (beside or Path()) / file
    if path.suffix != ".py" or not function.isidentifier() or not path.is_file():
        raise BadValue(
            "`model` must be one of linear, mlp, cnn, or FILE.py:FUNCTION with a file "
            f"that exists, got {place!r}."
        )
    name = f"{path.name}:{function}"
    OWN[name] = path.resolve()
    return name


def check_model(name: str) -> None:
    if not is_own(name):
        check.choice("model", name, MODELS)
    elif name not in OWN:
        raise BadValue(
            f"`model` {name} is code that is run only if you name its file: give "
            f"--model FOLDER/{name}."
        )


def model_of(name: str, features: int) -> Any:
    """A model for so many features: one of MODELS, or what a user's function makes."""
    check_model(name)
    if not is_own(name):
        return MODELS[name](features)
    function = name.rpartition(":")[2]
    spec = importlib.util.spec_from_file_location("sagda_own_model", OWN[name])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    make = getattr(module, function, None)
    if not callable(make):
        raise BadValue(f"`model`: {OWN[name]} must define the function {function}.")
    made = make(features)
    if hasattr(made, "init") and hasattr(made, "apply"):
        return made
    if "torch" in sys.modules and isinstance(made, sys.modules["torch"].nn.Module):
        from sagda.models.torch import Torch

        return Torch(partial(make, features))
    raise BadValue(
        f"`model`: {name} must make a torch.nn.Module, or a model with `init` and "
        f"`apply` such as sagda.Equinox(make), got {type(made).__name__}."
    )
