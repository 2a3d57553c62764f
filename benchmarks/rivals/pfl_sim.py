"""Apple's pfl: its simulated backend and its SCAFFOLD, on the same min-max loss.

Only its speed is compared. SCAFFOLD is the method of pfl that is most similar to SAGDA,
Option I. It has K local steps with control variates, and one more gradient that renews
the variates, but on all local rows. pfl makes batches in the order of the rows, so it
cannot run the check rounds.
"""

import math

import torch
import torch.nn.functional as F
from common import ALPHA, LAMBDA_2, LOCAL, SERVER, Job, K, begin, serve
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.scaffold import SCAFFOLD, SCAFFOLDParams
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.data.user_state import InMemoryUserStateStorage
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel

torch.set_num_threads(1)  # the tensors are too small to gain from more threads


class Saddle(torch.nn.Module):
    """The loss with the opposite gradient in y, so that descent in y is ascent."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.problem, self.tau, self.d = job.problem, job.tau, job.d
        split = job.d + 2 if job.problem == "auc" else job.d
        z = torch.from_numpy(job.z)
        self.x = torch.nn.Parameter(z[:split].clone())
        self.y = torch.nn.Parameter(z[split:].clone())

    def loss(self, features, target, position):
        y = 2 * self.y.detach() - self.y
        if self.problem == "auc":
            return self.auc(y, features, target)
        return self.dro(y, features, target, position)

    def auc(self, lam, a, s):
        w, c_1, c_2 = self.x.split([self.d, 1, 1])
        h = a @ w
        losses = s.abs() * (h - torch.where(s > 0, c_1, c_2)) ** 2
        losses = losses - 2 * (1 + lam) * s * h
        return losses.mean() - self.tau * (1 - self.tau) * lam.square().sum()

    def dro(self, y, a, b, position):
        square = ALPHA * self.x**2
        g = LAMBDA_2 * (square / (1 + square)).sum()
        V = 0.5 * (y - 1 / len(y)).square().sum()
        return (y[position] * F.softplus(-b * (a @ self.x))).mean() - V + g

    def metrics(self, features, target, position):
        loss = self.loss(features, target, position)
        return {"loss": Weighted.from_unweighted(loss.item())}


def clients(job: Job) -> FederatedDataset:
    """Return the clients of the job as users of pfl."""
    columns = torch.from_numpy(job.features), torch.from_numpy(job.target)

    def user(i: int) -> PyTorchTensorDataset:
        rows = slice(job.start[i], job.start[i] + job.size[i])
        tensors = [column[rows] for column in columns]
        return PyTorchTensorDataset((*tensors, torch.arange(job.size[i])), str(i))

    # Made once, because a data set of pfl stores the batches that it was cut into.
    users = [user(i) for i in range(job.clients)]
    sampler = get_user_sampler("minimize_reuse", list(range(job.clients)))
    return FederatedDataset(users.__getitem__, sampler)


def main() -> None:
    job, answers = begin()
    saddle = Saddle(job)
    central = torch.optim.SGD(saddle.parameters(), lr=SERVER)
    model = PyTorchModel(saddle, torch.optim.SGD, central)
    data = clients(job)
    backend = SimulatedBackend(training_data=data, val_data=data)
    batches = 1 if job.batch is None else math.ceil(job.size.max() / job.batch)
    assert K % batches == 0, "pfl's SCAFFOLD takes whole passes over the local rows"
    train = NNTrainHyperParams(
        local_batch_size=job.batch,
        local_num_epochs=K // batches,
        local_learning_rate=LOCAL,
    )
    scaffold, storage, done = SCAFFOLD(), InMemoryUserStateStorage(), 0

    def run(rounds: int) -> None:
        """Continue from the finished rounds. pfl evaluates in the first round only."""
        nonlocal done
        done += rounds
        params = SCAFFOLDParams(
            central_num_iterations=done,
            evaluation_frequency=10**9,
            train_cohort_size=job.clients,
            val_cohort_size=0,
            population=job.clients,
            use_gradient_as_control_variate=True,
            user_state_storage=storage,
        )
        scaffold.run(params, backend, model, train, send_metrics_to_platform=False)

    run(2)
    serve(answers, None, run, ["pfl", "torch", "numpy"])


if __name__ == "__main__":
    main()
