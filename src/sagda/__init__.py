"""Federated min-max learning: SAGDA, FSGDA and their peers, one text for every engine.

The table of contents: each name is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sagda.algorithms import ALGORITHMS as ALGORITHMS
    from sagda.algorithms import algorithm as algorithm
    from sagda.algorithms.cd_ma import cd_ma as cd_ma
    from sagda.algorithms.cd_mage import cd_mage as cd_mage
    from sagda.algorithms.cd_mage import cd_mage_plus as cd_mage_plus
    from sagda.algorithms.costs import cost as cost
    from sagda.algorithms.local_sgda import local_sgda as local_sgda
    from sagda.algorithms.local_sgda import local_sgda_plus as local_sgda_plus
    from sagda.algorithms.momentum_local_sgda import (
        momentum_local_sgda as momentum_local_sgda,
    )
    from sagda.algorithms.parallel_sgda import parallel_sgda as parallel_sgda
    from sagda.algorithms.sagda import fsgda as fsgda
    from sagda.algorithms.sagda import sagda_i as sagda_i
    from sagda.algorithms.sagda import sagda_ii as sagda_ii
    from sagda.core import Algorithm as Algorithm
    from sagda.core import Objective as Objective
    from sagda.core import Phase as Phase
    from sagda.core import Point as Point
    from sagda.core import Rates as Rates
    from sagda.core import Turn as Turn
    from sagda.core import descend_ascend as descend_ascend
    from sagda.core import loop as loop
    from sagda.core import zeros_like as zeros_like
    from sagda.data.datasets import DATASETS as DATASETS
    from sagda.data.datasets import Dataset as Dataset
    from sagda.data.datasets import balanced as balanced
    from sagda.data.datasets import binary as binary
    from sagda.data.datasets import from_frame as from_frame
    from sagda.data.datasets import load as load
    from sagda.data.federation import Federation as Federation
    from sagda.data.federation import Table as Table
    from sagda.data.partition import PARTITIONS as PARTITIONS
    from sagda.data.partition import partition as partition
    from sagda.estimators.auc import FederatedAUCClassifier as FederatedAUCClassifier
    from sagda.estimators.dro import FederatedDROClassifier as FederatedDROClassifier
    from sagda.methods import Method as Method
    from sagda.methods import method as method
    from sagda.models import CNN as CNN
    from sagda.models import MLP as MLP
    from sagda.models import Equinox as Equinox
    from sagda.models import Generator as Generator
    from sagda.models import Linear as Linear
    from sagda.models.torch import Torch as Torch
    from sagda.problems import PROBLEMS as PROBLEMS
    from sagda.problems.adversarial import Adversarial as Adversarial
    from sagda.problems.agnostic import Agnostic as Agnostic
    from sagda.problems.auc import AUC as AUC
    from sagda.problems.base import Problem as Problem
    from sagda.problems.dro import DRO as DRO
    from sagda.problems.fair import Fair as Fair
    from sagda.problems.gan import GAN as GAN
    from sagda.problems.losses import entries as entries
    from sagda.problems.losses import sigmoid as sigmoid
    from sagda.problems.losses import softplus as softplus
    from sagda.problems.minmax import MinMax as MinMax
    from sagda.problems.quadratic import Quadratic as Quadratic
    from sagda.problems.sets import Ball as Ball
    from sagda.problems.sets import Box as Box
    from sagda.problems.sets import ConvexSet as ConvexSet
    from sagda.problems.sets import Simplex as Simplex
    from sagda.problems.treated import Treated as Treated
    from sagda.scoring.scorer import Scorer as Scorer
    from sagda.simulator.devices import use_cores as use_cores
    from sagda.simulator.history import History as History
    from sagda.simulator.run import Progress as Progress
    from sagda.simulator.run import Run as Run
    from sagda.simulator.simulate import DivergenceWarning as DivergenceWarning
    from sagda.simulator.simulate import UnsolvedWarning as UnsolvedWarning
    from sagda.simulator.simulate import simulate as simulate
    from sagda.simulator.sweep import sweep as sweep
    from sagda.trackers import EarlyStop as EarlyStop
    from sagda.trackers import MLflow as MLflow
    from sagda.trackers import TensorBoard as TensorBoard

__version__ = "0.1.0"

_HOME = {
    "sagda.algorithms": "ALGORITHMS algorithm",
    "sagda.algorithms.cd_ma": "cd_ma",
    "sagda.algorithms.cd_mage": "cd_mage cd_mage_plus",
    "sagda.algorithms.local_sgda": "local_sgda local_sgda_plus",
    "sagda.algorithms.momentum_local_sgda": "momentum_local_sgda",
    "sagda.algorithms.parallel_sgda": "parallel_sgda",
    "sagda.algorithms.sagda": "sagda_i sagda_ii fsgda",
    "sagda.core": "Algorithm Objective Phase Point Rates Turn descend_ascend loop "
    "zeros_like",
    "sagda.algorithms.costs": "cost",
    "sagda.data.datasets": "DATASETS Dataset balanced binary from_frame load",
    "sagda.data.federation": "Federation Table",
    "sagda.data.partition": "PARTITIONS partition",
    "sagda.simulator.devices": "use_cores",
    "sagda.simulator.run": "Progress Run",
    "sagda.simulator.simulate": "DivergenceWarning UnsolvedWarning simulate",
    "sagda.simulator.sweep": "sweep",
    "sagda.estimators.auc": "FederatedAUCClassifier",
    "sagda.estimators.dro": "FederatedDROClassifier",
    "sagda.problems.losses": "entries sigmoid softplus",
    "sagda.simulator.history": "History",
    "sagda.methods": "Method method",
    "sagda.models": "CNN Equinox Generator Linear MLP",
    "sagda.problems": "PROBLEMS",
    "sagda.problems.adversarial": "Adversarial",
    "sagda.problems.agnostic": "Agnostic",
    "sagda.problems.auc": "AUC",
    "sagda.problems.base": "Problem",
    "sagda.problems.dro": "DRO",
    "sagda.problems.fair": "Fair",
    "sagda.problems.gan": "GAN",
    "sagda.problems.minmax": "MinMax",
    "sagda.problems.quadratic": "Quadratic",
    "sagda.problems.treated": "Treated",
    "sagda.models.torch": "Torch",
    "sagda.scoring.scorer": "Scorer",
    "sagda.trackers": "EarlyStop MLflow TensorBoard",
    "sagda.problems.sets": "Ball Box ConvexSet Simplex",
}
_WHERE = {name: home for home, names in _HOME.items() for name in names.split()}
# What needs an extra is not there for `import *`.
__all__ = sorted(set(_WHERE) - {"Torch"})  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'sagda' has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
