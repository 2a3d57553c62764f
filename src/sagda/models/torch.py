"""`Torch`: a PyTorch module as a scoring model.

A `Torch` model runs in PyTorch and not in a compiled program. The simulator for such
models is `sagda.simulator.torch`. Networks in JAX are in `networks.py`.
"""

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar
from zlib import crc32

import jax
import numpy as np

from sagda.check import BadKind, BadValue, quoting
from sagda.core import PyTree, Zero
from sagda.keys import Key

try:
    import torch
    from torch.func import functional_call
except ImportError:
    raise BadKind("PyTorch is not installed; pip install 'sagda[torch]'.") from None


@dataclass(frozen=True, eq=False)
class Torch:
    """A model from your own PyTorch module, which must give one score per row.

    The variable x is a dict of the parameters that require a gradient, keyed by name.
    Frozen parameters and buffers stay unchanged. A run does not change the module.
    `load` copies the trained weights into the module. Layers in training mode are used
    in training mode while clients train, and in evaluation mode for measurements.

    Args:
        make: a module, or a function without arguments that returns a module. If you
            pass a module, all seeds start from its weights. If you pass a function, it
            makes new starting weights for each seed.

    Examples:
        >>> model = Torch(torch.nn.Linear(3, 1))
        >>> sorted(model.names)
        ['bias', 'weight']
    """

    uses_torch: ClassVar[bool] = True
    make: Any
    module: Any = field(init=False, repr=False)
    # The names of the parameters that are trained.
    names: list[str] = field(init=False, repr=False)
    # Frozen parameters and buffers with floating-point numbers, by name.
    others: dict[str, Any] = field(init=False, repr=False)
    # Layers that were in training mode when this object was created.
    trained: list[Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        module = self.make
        if callable(module) and not isinstance(module, torch.nn.Module):
            with seeded(0):
                module = module()
        if not isinstance(module, torch.nn.Module):
            raise BadKind(
                "`make` must be a torch.nn.Module, or a function without arguments "
                f"that returns a module, got an object of type {type(module).__name__}."
            )
        names = [n for n, p in module.named_parameters() if p.requires_grad]
        arrays = dict(module.named_parameters()) | dict(module.named_buffers())
        others = {n: a for n, a in arrays.items() if n not in names}
        # A frozen dataclass allows no assignment, not even in this method.
        vars(self).update(
            module=module,
            names=names,
            others={n: a for n, a in others.items() if a.is_floating_point()},
            trained=[part for part in module.modules() if part.training],
        )
        self.check_parameters()

    def check_parameters(self) -> None:
        """Raise unless there are parameters to train, in float32 or float64, on CPU."""
        module = self.module
        if not self.names:
            raise BadValue(
                "`make` must have parameters that require a gradient, got none."
            )
        for name, array in (*module.named_parameters(), *module.named_buffers()):
            if array.device.type != "cpu":
                raise BadValue(
                    f"`make` must be on the CPU, like the data, got {name!r} on "
                    f"{array.device}; move the module with module.to('cpu')."
                )
            kind = array.dtype
            if name in self.names and kind not in (torch.float32, torch.float64):
                raise BadValue(
                    f"`make` must have parameters in single or double precision, got "
                    f"{name!r} in {kind}; convert the module with module.float()."
                )

    # Methods that problems and the simulator call.

    def init(self, key: Key) -> dict[str, np.ndarray]:
        """Return initial parameters by name.

        They are the weights of the module, or new weights if `make` is a function.
        """
        module = self.module
        if not isinstance(self.make, torch.nn.Module):
            with seeded(*np.asarray(jax.random.key_data(key)).tolist()):
                module = self.make()
        return {
            name: module.get_parameter(name).detach().numpy().copy()
            for name in self.names
        }

    def apply(self, parameters: Any, features: Any) -> Any:
        """Return one score per row, with `parameters` as the weights of the module."""
        # Frozen parameters and buffers must have the precision of the run.
        fixed = {
            name: value.detach().to(features.dtype)
            for name, value in self.others.items()
            if value.dtype != features.dtype
        }
        values = parameters | fixed
        out = functional_call(self.module, values, (features,))
        rows = len(features)
        if not torch.is_tensor(out) or out.shape not in ((rows,), (rows, 1)):
            shape = tuple(out.shape) if torch.is_tensor(out) else type(out).__name__
            raise BadValue(
                "`make` must give one score per row, that is shape "
                f"({rows},) or ({rows}, 1) for {rows} rows, got {shape}."
            )
        return out.reshape(rows)

    def train(self, mode: bool) -> None:
        """Set the layers in `trained` to training mode, or evaluation mode if False."""
        for part in self.trained:
            part.training = mode

    def check(self, features: Any) -> None:
        """Run a forward pass in training mode, and raise if the module is unsuitable.

        The module must return the right shape. It must change neither its input nor its
        buffers.
        """
        module = self.module
        before = {name: buffer.clone() for name, buffer in module.named_buffers()}
        self.passed(features.clone())
        rows = features.double()
        # Scores of a trained model are computed in double precision.
        self.passed(given := rows.clone(), " in double precision, as for predictions")
        if not torch.equal(given, rows):
            raise BadValue(
                "`make` must not change its input, but its forward pass changes rows "
                "in place; copy the rows first, or set inplace=False."
            )
        changed = []
        for name, buffer in module.named_buffers():
            if not torch.equal(buffer, before[name]):
                changed.append(name)
                buffer.copy_(before[name])
        if changed:
            layer, _, buffer = changed[0].rpartition(".")
            kind = type(module.get_submodule(layer)).__name__
            raise BadValue(
                "`make` must have no buffers that change in training. "
                f"{kind} {layer!r} changes {buffer!r}, so clients would have different "
                "values. Use GroupNorm or LayerNorm, or freeze the layer with .eval()."
            )

    def passed(self, features: Any, where: str = "") -> None:
        """Run one forward pass on a few rows, and turn an error into a `BadValue`.

        Args:
            features: the rows.
            where: added to the description of the rows in the message.
        """
        values = {
            name: self.module.get_parameter(name).detach().to(features.dtype)
            for name in self.names
        }
        what = f"`make` does not fit rows of {features.shape[1]} features{where}"
        with quoting(what), torch.no_grad(), seeded(0):
            self.train(True)
            self.apply(values, features)

    # Methods for a trained model.

    def load(self, tree: PyTree, seed: int = 0) -> Any:
        """Copy trained weights into the module, and return the module.

        Args:
            tree: a run, or a pytree that contains the parameters of this model once.
            seed: if `tree` is a run, the number of the seed in the run, from 0.
        """
        names = set(self.names)
        run = hasattr(tree, "carry")
        fits = lambda part: isinstance(part, dict) and set(part) == names
        leaves = jax.tree.leaves(tree.z.x if run else tree, is_leaf=fits)
        parameters = [part for part in leaves if fits(part)]
        if len(parameters) != 1:
            raise BadValue(
                "`tree` must contain the parameters of this module exactly once, got "
                f"them {len(parameters)} times."
            )
        with torch.no_grad():
            for name, value in parameters[0].items():
                value = np.array(value[seed] if run else value)
                self.module.get_parameter(name).copy_(torch.from_numpy(value))
        return self.module

    def save(self, path: str | Path) -> None:
        """Write the state of the module to a safetensors file.

        Reading such a file runs no code, unlike a pickle file.
        """
        import safetensors.torch

        from sagda import durable

        arrays = self.module.state_dict()
        state = {name: a.contiguous().clone() for name, a in arrays.items()}
        durable.write(Path(path), safetensors.torch.save(state))

    def copy(self) -> Any:
        """Return a copy of the module."""
        return copy.deepcopy(self.module)


@contextlib.contextmanager
def seeded(*words: int) -> Iterator[None]:
    """Seed the random generator of PyTorch, and restore its state at the end."""
    with torch.random.fork_rng(devices=[]):
        # A generator uses only 32 bits of its seed, so a checksum combines all words.
        # `torch.manual_seed` would also seed all other devices, which takes longer than
        # a small gradient.
        generator = torch.default_generator
        generator.manual_seed(crc32(np.array(words, np.uint32).tobytes()))
        yield


def real(tree: PyTree) -> Any:
    """Return `tree` with a tensor of zeros in place of each `Zero`."""
    return jax.tree.map(lambda a: a.tensor if isinstance(a, Zero) else a, tree)


def tensors(tree: PyTree, dtype: Any = None) -> Any:
    """Return the arrays of `tree` as tensors that share their memory.

    If `dtype` is given, arrays of floats are converted to it. Read-only arrays are
    copied.
    """

    def one(a: Any) -> Any:
        a = np.asarray(a)
        if a.dtype.kind == "f" and dtype is not None:
            a = a.astype(dtype, copy=False)
        return torch.from_numpy(a if a.flags.writeable else a.copy())

    return jax.tree.map(one, tree)


def arrays(tree: PyTree) -> Any:
    """Return the tensors of `tree` as NumPy arrays that share their memory."""
    return jax.tree.map(
        lambda a: a.detach().numpy() if torch.is_tensor(a) else np.asarray(a),
        real(tree),
    )


def check_models(problem: Any, features: int) -> None:
    """Raise unless all PyTorch models of `problem` accept rows of this width."""
    for model in models_in(problem):
        with seeded(0):
            rows = torch.rand(2, features)
        model.check(rows)


def models_in(problem: Any) -> list[Torch]:
    """Return the PyTorch models of a problem, including those of a wrapped problem."""
    if isinstance(problem, Torch):
        return [problem]
    parts = vars(problem).values() if getattr(problem, "uses_torch", False) else ()
    return [model for part in parts for model in models_in(part)]
