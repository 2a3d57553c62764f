"""SAGDA against FSGDA on real data: 100 clients, each with rows of one class only."""

import sagda

data = sagda.load("a9a")
clients = sagda.partition(data.train, "by-label", clients=100, samples=100)
problem = sagda.AUC.of(clients)

for name in ("sagda-i", "sagda-ii", "fsgda"):
    method = sagda.algorithm(name, local_lr=0.01, server_lr=2.0, local_steps=10)
    run = sagda.simulate(method, problem, clients, seeds=range(3), test=data.test)
    error = run.history.tail("grad_phi_sq").mean()
    auc = run.history["auc_test"][:, -1].mean()
    print(f"{name:9} ||grad Phi||^2 {error:.1e}   test AUC {auc:.3f}")
