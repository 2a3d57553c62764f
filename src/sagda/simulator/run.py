"""`Run`: what a simulation has done, to look at, to keep and to go on from."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np

from sagda import check
from sagda.check import BadValue
from sagda.core import Point, PyTree
from sagda.methods import Method
from sagda.problems.metrics import OPTIONAL
from sagda.simulator.history import History
from sagda.simulator.recorder import Recorder, Tallies
from sagda.simulator.rounds import Carry


class Run(NamedTuple):
    """What `simulate` returns; `resume=run` goes on from it."""

    history: History
    carry: Carry  # the server's state and the clients' memories, seeds first
    round: int
    ledger: Tallies
    compile_seconds: float
    setting: dict[str, str] | None = None  # what a resumed run must have in common
    layout: str = ""  # how clients and runs were laid out

    @property
    def z(self) -> Point:
        """The last iterate; every array has the seeds as its first axis."""
        return self.carry.state.z

    def arrays(self) -> dict[str, np.ndarray]:
        """All of it as arrays by name, for a file; `resume` takes these too."""
        columns = {
            f"history/{i:03d}/{name}": column
            for i, (name, column) in enumerate(self.history.columns.items())
        }
        setting = {}
        if self.setting is not None:
            setting["setting"] = written(self.setting)
        numbers = {"round": self.round, "compile_seconds": self.compile_seconds}
        return (
            named(self.carry, "carry")
            | named(self.ledger, "ledger")
            | {name: np.array(value) for name, value in numbers.items()}
            | {name: np.asarray(column, order="C") for name, column in columns.items()}
            | setting
        )

    @property
    def diverged(self) -> dict[int, int]:
        """By seed, the first round that was not finite."""
        pairs = zip(self.history.seeds, self.carry.broken.tolist(), strict=True)
        return {seed: t for seed, t in pairs if t >= 0}


class Progress(NamedTuple):
    """What a callback is told after each chunk of rounds; its True stops the run."""

    round: int
    rounds: int
    seconds: float  # in rounds so far, without compiling
    latest: dict[str, np.ndarray]  # the newest evaluation, [seeds] each
    snapshot: Callable[[], Run]  # the run as it stands, to be kept and resumed
    history: History  # all evaluations so far, the newest last; to be read only
    methods: tuple[Method, ...]  # one for each of the history's seeds
    setting: dict[str, str]  # problem, split, cohort and so on, as texts


Callback: TypeAlias = Callable[[Progress], object]
Callbacks: TypeAlias = Callback | Sequence[Callback]


def checked_resume(
    resume: Run | Mapping[str, np.ndarray],
    expected: Carry,
    recorder: Recorder,
    setting: dict[str, str],
) -> Run:
    """A run that fits the configuration, from itself or from its arrays."""
    if isinstance(resume, Mapping):
        columns = sorted(name for name in resume if name.startswith("history/"))
        history = {name.split("/", 2)[2]: resume[name] for name in columns}
        ledger: Tallies = filled(recorder.ledger, resume, "ledger")
        resume = Run(
            History(recorder.seeds, history),
            filled(expected, resume, "carry"),
            int(resume["round"]),
            ledger._replace(seconds=float(ledger.seconds)),
            float(resume["compile_seconds"]),
            read(resume["setting"]) if "setting" in resume else None,
        )
    check.kind("resume", resume, Run, "as `simulate` returns it, or its arrays")
    for field, now in setting.items():
        # Arrays of older versions do not tell, and none tells where a function was.
        then = (resume.setting or {}).get(field, now)
        if then not in (now, portable(now)):
            raise BadValue(
                f"`resume` must be a run of the same configuration, but its {field} "
                f"was {then}, not {now}."
            )
    kinds = lambda tree: jax.tree.map(lambda a: (a.shape, str(a.dtype)), tree)
    if kinds(expected) != kinds(resume.carry):
        raise BadValue(
            "`resume` must be a run of the same method, problem and clients; its "
            "arrays have other shapes."
        )
    check_columns(resume.history, recorder)
    return resume


def check_columns(past: History, recorder: Recorder) -> None:
    """Refuse rows that have other columns than those to come."""
    chosen = [name for name, _ in recorder.metrics]
    wanted = {"round", *chosen}
    if recorder.evaluator.test is not None and "auc_train" in past.columns:
        wanted.add("auc_test")
    for name in ("round", *OPTIONAL, *chosen, "auc_test"):
        found = name in past.columns
        if found != (name in wanted):
            raise BadValue(
                f"`resume` must have the columns of this run, but its history has "
                f"{'the' if found else 'no'} column {name!r}; give the `metrics` and "
                "`test` that it had."
            )


def portable(text: str) -> str:
    """A text without addresses in memory, which no other process shares."""
    return re.sub(r" at 0x[0-9A-Fa-f]+", "", text)


def written(setting: dict[str, str]) -> np.ndarray:
    """Texts as an array, for a file."""
    texts = {field: portable(text) for field, text in setting.items()}
    return np.frombuffer(json.dumps(texts).encode(), np.uint8)


def read(array: np.ndarray) -> dict[str, str]:
    return json.loads(np.asarray(array, np.uint8).tobytes())


def named(tree: PyTree, prefix: str) -> dict[str, np.ndarray]:
    """The arrays of a tree under the names of their places in it."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    name = lambda path: "/".join([prefix, *(plain(key) for key in path)])
    return {name(path): np.asarray(leaf, order="C") for path, leaf in leaves}


def plain(key: Any) -> str:
    """One step of a path, without JAX's brackets and dots."""
    for attribute in ("name", "key", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def filled(like: PyTree, arrays: Mapping[str, np.ndarray], prefix: str) -> Any:
    """A tree of the shape of `like` with the arrays of those names."""
    expected = named(jax.tree.map(lambda a: np.zeros(0), like), prefix)
    missing = [name for name in expected if name not in arrays]
    if missing:
        raise BadValue(f"saved run: no array {missing[0]!r}; it is of another method.")
    return jax.tree.unflatten(jax.tree.structure(like), [arrays[n] for n in expected])
