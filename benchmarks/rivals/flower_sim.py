"""Flower's simulation engine: a message to every client and back in each round.

The server is a ServerApp that drives the grid itself. A client stores its variate in
the state of its context. Ray actors, one per core, run the clients.
"""

import os
import time
from functools import cache

import numpy as np
from common import SERVER, Job, begin, serve

os.environ |= {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}

from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

JOB = "RIVAL_JOB"  # the environment variable that names the job for the actors
client = ClientApp()


@cache
def actor_job() -> tuple[Job, np.random.Generator]:
    """Return the data, which an actor reads once, and a generator that draws rows."""
    path, problem, batch = os.environ[JOB].split(os.pathsep)
    return Job(path, problem, int(batch) or None), np.random.default_rng()


@client.train()
def visit(message: Message, context: Context) -> Message:
    """Run K local steps. Reply with the movement and the change of v_i."""
    job, rng = actor_job()
    i = int(context.node_config["partition-id"])
    (z, v), *given = message.content["arrays"].to_numpy_ndarrays()
    if "v" in context.state:
        (v_i,) = context.state["v"].to_numpy_ndarrays()
    else:
        v_i = np.zeros_like(z)
    position = given[0][i] if given else job.draw(rng, i)
    moved, fresh = job.visit(i, z, v, v_i, position)
    context.state["v"] = ArrayRecord([fresh])
    reply = ArrayRecord([np.stack([moved, fresh - v_i])])
    return Message(RecordDict({"arrays": reply}), reply_to=message)


def server(job: Job, answers) -> ServerApp:
    """Return the app of the server, which runs the rounds."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        while len(nodes := list(grid.get_node_ids())) < job.clients:
            time.sleep(0.1)
        state = np.stack([job.z, np.zeros_like(job.z)])  # z and v
        scale = np.array([[SERVER], [1]], np.float32)

        def round(*given: np.ndarray) -> None:
            nonlocal state
            content = RecordDict({"arrays": ArrayRecord([state, *given])})
            messages = [
                Message(content, dst_node_id=node, message_type="train")
                for node in nodes
            ]
            replies = [
                reply.content["arrays"].to_numpy_ndarrays()[0]
                for reply in grid.send_and_receive(messages)
            ]
            assert len(replies) == job.clients
            state = state + scale * np.mean(replies, axis=0)

        def run(rounds: int) -> None:
            for _ in range(rounds):
                round()

        for position in job.checks():
            round(*([] if position is None else [position]))
        serve(answers, state[0], run, ["flwr", "ray", "numpy"])

    return app


def main() -> None:
    # Imported by its name, so that actors import it instead of unpickling it.
    import flower_sim

    job, answers = begin()
    cores = len(os.sched_getaffinity(0))
    path, batch = os.path.abspath(job.path), str(job.batch or 0)
    os.environ[JOB] = os.pathsep.join([path, job.problem, batch])
    run_simulation(
        server(job, answers),
        flower_sim.client,
        num_supernodes=job.clients,
        backend_config={
            "init_args": {"num_cpus": cores, "_node_ip_address": "127.0.0.1"},
            "client_resources": {"num_cpus": 1, "num_gpus": 0},
        },
    )


if __name__ == "__main__":
    main()
