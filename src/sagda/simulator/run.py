"""`Run`: the result of a simulation, which can be saved and resumed.

Callbacks receive a `Progress` while a simulation runs. Checkpoint files are written in
`runs/checkpoint.py`.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np
from jax.tree_util import keystr

from sagda import check
from sagda.check import BadValue
from sagda.core import Point, PyTree
from sagda.methods import Method
from sagda.problems.metrics import OPTIONAL
from sagda.simulator.history import History
from sagda.simulator.recorder import Recorder, Tallies
from sagda.simulator.rounds import Carry


class Run(NamedTuple):
    """The result of `simulate`. `simulate(..., resume=run)` continues the run."""

    history: History
    carry: Carry  # the server's state and the clients' memories, seeds on axis 0
    round: int
    ledger: Tallies
    compile_seconds: float
    # The configuration as strings. `resume` needs an equal one. None is not compared.
    setting: dict[str, str] | None = None
    layout: str = ""  # the layout that was used; pass it as `layout=` to repeat it

    @property
    def z(self) -> Point:
        """The last iterate z = (x, y). Every array has the seeds on axis 0."""
        return self.carry.state.z

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the run as a dictionary of arrays, which can be saved in a file.

        `simulate(..., resume=...)` accepts such a dictionary.
        """
        columns = {
            f"history/{i:03d}/{name}": np.asarray(column, order="C")
            for i, (name, column) in enumerate(self.history.columns.items())
        }
        arrays = named(self.carry, "carry") | named(self.ledger, "ledger") | columns
        arrays["round"] = np.array(self.round)
        arrays["compile_seconds"] = np.array(self.compile_seconds)
        if self.setting is not None:
            texts = {name: portable(text) for name, text in self.setting.items()}
            arrays["setting"] = np.frombuffer(json.dumps(texts).encode(), np.uint8)
        return arrays

    @property
    def diverged(self) -> dict[int, int]:
        """The seeds that diverged, each with its first round of NaN or infinity."""
        pairs = zip(self.history.seeds, self.carry.broken.tolist(), strict=True)
        return {seed: t for seed, t in pairs if t >= 0}


class Progress(NamedTuple):
    """The progress of a simulation. Callbacks receive it after each chunk of rounds."""

    round: int  # rounds done
    rounds: int  # rounds in total
    seconds: float  # time spent in rounds, without compilation
    latest: dict[str, np.ndarray]  # columns of the newest evaluation, [seeds] each
    snapshot: Callable[[], Run]  # returns a `Run` up to this round
    history: History  # all evaluations until now, read-only
    methods: tuple[Method, ...]  # one per run, in the order of `history.seeds`
    setting: dict[str, str]  # the configuration as strings: problem, cohort and so on


Callback: TypeAlias = Callable[[Progress], object]
Callbacks: TypeAlias = Callback | Sequence[Callback]


def checked_resume(
    resume: Run | Mapping[str, np.ndarray],
    expected: Carry,
    recorder: Recorder,
    setting: dict[str, str],
) -> Run:
    """Return `resume` as a `Run`, or raise if its configuration is different.

    `resume` is a `Run` or the dictionary that `Run.arrays` returns. `expected` has the
    shapes of the carry, and `setting` is the configuration of the new run.
    """
    if isinstance(resume, Mapping):
        columns = sorted(name for name in resume if name.startswith("history/"))
        history = {name.split("/", 2)[2]: resume[name] for name in columns}
        ledger: Tallies = filled(recorder.ledger, resume, "ledger")
        texts = resume.get("setting")
        resume = Run(
            history=History(recorder.seeds, history),
            carry=filled(expected, resume, "carry"),
            round=int(resume["round"]),
            ledger=ledger._replace(seconds=float(ledger.seconds)),
            compile_seconds=float(resume["compile_seconds"]),
            setting=None if texts is None else json.loads(texts.tobytes()),
        )
    check.kind("resume", resume, Run, "as `simulate` returns it, or its arrays")
    for field, now in setting.items():
        # A `setting` of None is not compared. Saved strings have no memory addresses.
        then = (resume.setting or {}).get(field, now)
        if then not in (now, portable(now)):
            raise BadValue(
                f"`resume` must be a run of the same configuration, but its {field} "
                f"was {then}, not {now}."
            )
    kinds = lambda tree: jax.tree.map(lambda a: (a.shape, str(a.dtype)), tree)
    if kinds(expected) != kinds(resume.carry):
        raise BadValue(
            "`resume` must be a run of the same method, problem and clients, but its "
            "arrays have different shapes."
        )
    check_columns(resume.history, recorder)
    return resume


def check_columns(past: History, recorder: Recorder) -> None:
    """Raise unless the history `past` has the columns that `recorder` measures."""
    chosen = [name for name, _ in recorder.evaluator.metrics]
    wanted = {"round", *chosen}
    if recorder.evaluator.test is not None and "auc_train" in past.columns:
        wanted.add("auc_test")
    for name in ("round", *OPTIONAL, *chosen, "auc_test"):
        exists = name in past.columns
        if exists != (name in wanted):
            raise BadValue(
                "`resume` must have the columns of this run, but its history has "
                f"{'the' if exists else 'no'} column {name!r}; use the same `metrics` "
                "and `test` for both runs."
            )


def portable(text: str) -> str:
    """Return `text` without memory addresses, which differ between processes."""
    return re.sub(r" at 0x[0-9A-Fa-f]+", "", text)


def named(tree: PyTree, prefix: str) -> dict[str, np.ndarray]:
    """Return the arrays of a tree by name. A name is a path like `carry/state/z/x`."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    first = jax.tree_util.GetAttrKey(prefix)
    name = lambda path: keystr((first, *path), simple=True, separator="/")
    return {name(path): np.asarray(leaf, order="C") for path, leaf in leaves}


def filled(like: PyTree, arrays: Mapping[str, np.ndarray], prefix: str) -> Any:
    """Return a tree with the structure of `like`, filled from `arrays`.

    It reverses `named`.
    """
    expected = named(jax.tree.map(lambda a: np.zeros(0), like), prefix)
    missing = [name for name in expected if name not in arrays]
    if missing:
        raise BadValue(
            f"the saved run must have an array {missing[0]!r}, but does not; resume it "
            "with the method that it was made with."
        )
    return jax.tree.unflatten(jax.tree.structure(like), [arrays[n] for n in expected])
