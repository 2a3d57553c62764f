"""The questions of an evaluation, and the arrays that answer each question.

A *question* says what a site must compute at the current point z = (x, y). It is one of
the words "point", "quadratic" and "sums": `question_of` explains them. To evaluate z,
the server sends the same question to every site. Each site answers with means over its
rows, for example f_i (its mean loss) and the gradient of f_i.

The site computes the answer in `site.measure`. The server chooses the question, and
makes a row of the history from all answers, in `server.evaluation`.
"""

from typing import NamedTuple

import jax
import numpy as np

from sagda.core import Point
from sagda.data.federation import Table
from sagda.federation.plan import Plan
from sagda.federation.protocol.wire import Spec
from sagda.problems.base import Problem

# The values of y at which a site computes f for the question "quadratic".
NODES = (-1.0, 0.0, 1.0)
# The number of bits to which a site rounds a score in single precision: the sign, 8
# bits of the exponent and 15 bits of the mantissa.
BITS = 24


class ScoreCounts(NamedTuple):
    """The numbers of positive and negative rows at each score, in arrays of one length.

    Scores are integers here, which have the same order as the scores of the model.
    """

    score: np.ndarray
    positives: np.ndarray
    negatives: np.ndarray


SCORES = ScoreCounts._fields  # the names of these three arrays in an answer


def question_of(problem: Problem, share_losses: bool) -> str:
    """Return the question that an evaluation of `problem` asks first.

    Phi(x) is the maximum of f(x, y) over y, and y* is where f has that maximum.

    quadratic: f is quadratic in y, a single number. One exchange determines Phi.
    sums: Phi takes two exchanges: sums that determine y*, then f at (x, y*).
    point: f and its gradients only, without Phi.
    """
    if problem.quadratic_in_y:
        return "quadratic"
    return "sums" if share_losses and problem.has("inner_sums") else "point"


def answer_spec(plan: Plan, z: Point, question: str) -> Spec:
    """Return the spec of the means with which a site must answer `question`.

    The means are in double precision. An answer may also contain `ScoreCounts`, which
    this spec leaves out because each site chooses their length.
    """
    problem = plan.problem
    with jax.enable_x64(True):
        wide = lambda a: jax.ShapeDtypeStruct(np.shape(a), np.float64)
        z = jax.tree.map(wide, z)
        if question == "quadratic":
            # Values at three nodes; gradients in x, which are linear in y, at two.
            two = lambda a: jax.ShapeDtypeStruct((2, *a.shape), a.dtype)
            values = jax.ShapeDtypeStruct((len(NODES),), np.float64)
            return Spec.of({"f": values, "grad": jax.tree.map(two, z.x)})
        tree = {"f": wide(0.0), "grad": z}
        if question == "sums":
            # Sums over one row have the same shape as sums over many rows, so the
            # problem is traced with one row and its weight.
            column = lambda dtype, *shape: jax.ShapeDtypeStruct((1, *shape), dtype)
            number = column(np.float64)
            features = column(np.float64, plan.width)
            row = Table(features, number, position=column(np.int32))
            tree["sums"] = jax.eval_shape(problem.inner_sums, z.x, row, number)
        return Spec.of(tree)
