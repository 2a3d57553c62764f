"""`Torch`: a PyTorch module as a scoring model, its parameters by name.

Such a model runs in PyTorch, not in a compiled program: see `sagda.simulator.torch`.
Networks in JAX are in `networks.py`.
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
    raise BadKind("PyTorch is not installed: pip install 'sagda[torch]'.") from None


@dataclass(frozen=True, eq=False)
class Torch:
    """A model from your own PyTorch module that gives one score per row.

    Parameters that require a gradient are x, by name. Frozen parameters and buffers
    stay unchanged. A run does not change the module: `load` puts the trained weights
    into it. Layers that were in training mode are in that mode while clients train.

    Args:
        make: a module, or a function without arguments that makes one. All seeds start
            from a module's weights. A function gives every seed its own start.

    Examples:
        >>> model = Torch(torch.nn.Linear(3, 1))
        >>> sorted(model.names)
        ['bias', 'weight']
    """

    uses_torch: ClassVar[bool] = True
    make: Any
    module: Any = field(init=False, repr=False)
    names: list[str] = field(init=False, repr=False)  # of trained parameters
    others: dict[str, Any] = field(init=False, repr=False)  # fixed floats
    trained: list[Any] = field(init=False, repr=False)  # layers in training mode

    def __post_init__(self) -> None:
        module = self.make
        if callable(module) and not isinstance(module, torch.nn.Module):
            with seeded(0):
                module = module()
        if not isinstance(module, torch.nn.Module):
            raise BadKind(
                "`make` must be a torch.nn.Module, or a function without arguments "
                f"that makes one, found one of type {type(module).__name__}."
            )
        names = [n for n, p in module.named_parameters() if p.requires_grad]
        arrays = dict(module.named_parameters()) | dict(module.named_buffers())
        others = {n: a for n, a in arrays.items() if n not in names}
        # A frozen dataclass allows no assignment, also not here.
        vars(self).update(
            module=module,
            names=names,
            others={n: a for n, a in others.items() if a.is_floating_point()},
            trained=[part for part in module.modules() if part.training],
        )
        self.check_parameters()

    def check_parameters(self) -> None:
        """Raise unless there are trained parameters, in floats and on the CPU."""
        module = self.module
        if not self.names:
            raise BadValue(
                "`make` must have parameters that require a gradient, found none."
            )
        for name, array in (*module.named_parameters(), *module.named_buffers()):
            if array.device.type != "cpu":
                raise BadValue(
                    f"`make` must be on the CPU, where the rows are, found {name!r} on "
                    f"{array.device}; move it with module.to('cpu')."
                )
            kind = array.dtype
            if name in self.names and kind not in (torch.float32, torch.float64):
                raise BadValue(
                    f"`make` must have parameters in single or double precision, found "
                    f"{name!r} in {kind}; convert it with module.float()."
                )

    # What problems and the simulator need of a model.

    def init(self, key: Key) -> dict[str, np.ndarray]:
        """Initial parameters by name: the module's weights, or fresh ones."""
        module = self.module
        if not isinstance(self.make, torch.nn.Module):
            with seeded(*np.asarray(jax.random.key_data(key)).tolist()):
                module = self.make()
        return {
            name: module.get_parameter(name).detach().numpy().copy()
            for name in self.names
        }

    def apply(self, parameters: Any, features: Any) -> Any:
        """One score per row, with these parameters in place of the module's."""
        # Frozen parameters and buffers are converted if the run's precision differs.
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
                f"`make` must give one score per row, shape ({rows},) or ({rows}, 1) "
                f"for {rows} rows, got {shape}."
            )
        return out.reshape(rows)

    def train(self, mode: bool) -> None:
        """Switch the layers that were in training mode into that mode or out of it."""
        for part in self.trained:
            part.training = mode

    def check(self, features: Any) -> None:
        """Try a forward pass in training mode: check its shape and its side effects."""
        module = self.module
        before = {name: buffer.clone() for name, buffer in module.named_buffers()}
        self.passed(features.clone())
        rows = features.double()
        # Scores of a trained model are computed in double precision.
        self.passed(given := rows.clone(), ", as for scores in double precision")
        if not torch.equal(given, rows):
            raise BadValue(
                "`make` must not change its input, but its forward pass changes rows "
                "in place; copy them first, or set inplace=False."
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
                f"`make` must have no buffers that change in training, but {kind} "
                f"{layer!r} changes {buffer!r}, which would differ between clients; "
                "use GroupNorm or LayerNorm, or freeze it with .eval()."
            )

    def passed(self, features: Any, where: str = "") -> None:
        """Run one forward pass on a few rows; an error in it becomes a sentence."""
        values = {
            name: self.module.get_parameter(name).detach().to(features.dtype)
            for name in self.names
        }
        what = f"`make` does not fit rows of {features.shape[1]} features{where}"
        with quoting(what), torch.no_grad(), seeded(0):
            self.train(True)
            self.apply(values, features)

    # After training.

    def load(self, tree: PyTree, seed: int = 0) -> Any:
        """The module, with trained weights put into it.

        Args:
            tree: a run, or a tree that contains this model's parameters once.
            seed: the number of a run's seed, counted from 0.
        """
        names = set(self.names)
        run = hasattr(tree, "carry")
        fits = lambda part: isinstance(part, dict) and set(part) == names
        leaves = jax.tree.leaves(tree.z.x if run else tree, is_leaf=fits)
        parameters = [part for part in leaves if fits(part)]
        if len(parameters) != 1:
            raise BadValue(
                "`tree` must hold the parameters of this module once, found them "
                f"{len(parameters)} times."
            )
        with torch.no_grad():
            for name, value in parameters[0].items():
                value = np.array(value[seed] if run else value)
                self.module.get_parameter(name).copy_(torch.from_numpy(value))
        return self.module

    def save(self, path: str | Path) -> None:
        """Write the module's whole state as safetensors, which loads without pickle."""
        import safetensors.torch

        from sagda import durable

        arrays = self.module.state_dict()
        state = {name: a.contiguous().clone() for name, a in arrays.items()}
        durable.write(Path(path), safetensors.torch.save(state))

    def copy(self) -> Any:
        """A copy of the module."""
        return copy.deepcopy(self.module)


@contextlib.contextmanager
def seeded(*words: int) -> Iterator[None]:
    """Seed PyTorch's generator from `words`, and restore it afterwards."""
    with torch.random.fork_rng(devices=[]):
        # manual_seed uses 32 bits only. `torch.manual_seed` would also seed all other
        # devices, which takes longer than a small gradient.
        generator = torch.default_generator
        generator.manual_seed(crc32(np.array(words, np.uint32).tobytes()))
        yield


def real(tree: PyTree) -> Any:
    """The tree with tensors in place of `Zero`s."""
    return jax.tree.map(lambda a: a.tensor if isinstance(a, Zero) else a, tree)


def tensors(tree: PyTree, dtype: Any = None) -> Any:
    """Arrays as tensors that share their memory; floats become `dtype` if given."""

    def one(a: Any) -> Any:
        a = np.asarray(a)
        if a.dtype.kind == "f" and dtype is not None:
            a = a.astype(dtype, copy=False)
        return torch.from_numpy(a if a.flags.writeable else a.copy())

    return jax.tree.map(one, tree)


def arrays(tree: PyTree) -> Any:
    """Tensors as arrays that share their memory."""
    return jax.tree.map(
        lambda a: a.detach().numpy() if torch.is_tensor(a) else np.asarray(a),
        real(tree),
    )


def check_models(problem: Any, features: int) -> None:
    """Raise unless the problem's modules accept rows of that width."""
    for model in models_in(problem):
        with seeded(0):
            rows = torch.rand(2, features)
        model.check(rows)


def models_in(problem: Any) -> list[Torch]:
    """The PyTorch models of a problem, also of a problem inside it."""
    if isinstance(problem, Torch):
        return [problem]
    parts = vars(problem).values() if getattr(problem, "uses_torch", False) else ()
    return [model for part in parts for model in models_in(part)]
