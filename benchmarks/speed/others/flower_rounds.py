"""Rounds per second of Flower's simulator (on Ray): the same maths as a query, a virtual client a user.

Needs flwr[simulation]. Every message goes to a Ray actor and back. Only rounds are timed, not the simulator's start.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

ROWS, D, K, ROUNDS = 50, 200, 5, 1
USERS = int(sys.argv[1])
OUT = Path(tempfile.mkdtemp()) / "times.json"
client, server = ClientApp(), ServerApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    user = int(context.node_config["partition-id"])
    rng = np.random.default_rng(user)  # the user's rows: drawn where they are used, as a client would hold them
    X = rng.standard_normal((ROWS, D), dtype=np.float32)
    y = rng.standard_normal(ROWS, dtype=np.float32)
    basis = message.content["basis"]["U"].numpy()
    projected = X @ basis
    head = np.linalg.solve(projected.T @ projected, projected.T @ y)
    gradient = np.outer(X.T @ (y - projected @ head) / (ROWS - K), head)
    gradient /= max(1.0, float(np.linalg.norm(gradient)))
    return Message(content=RecordDict({"g": ArrayRecord({"G": Array(gradient)})}), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    basis = np.linalg.qr(np.random.default_rng(0).normal(size=(D, K)))[0].astype(np.float32)
    while len(list(grid.get_node_ids())) < USERS:
        time.sleep(0.1)
    times = []
    for number in range(ROUNDS + 1):
        start = time.perf_counter()
        body = RecordDict({"basis": ArrayRecord({"U": Array(basis)})})
        out = [
            Message(content=body, message_type="train", dst_node_id=node, group_id=str(number))
            for node in list(grid.get_node_ids())[: USERS if number else 4]  # a few first: that starts Ray
        ]
        pending, total = set(grid.push_messages(out)), np.zeros((D, K))
        while pending:
            for reply in list(grid.pull_messages(pending)):
                pending.discard(reply.metadata.reply_to_message_id)
                total += reply.content["g"]["G"].numpy()
            time.sleep(0.02)
        times.append(time.perf_counter() - start)
    OUT.write_text(json.dumps(times[1:]))


if __name__ == "__main__":
    run_simulation(
        server_app=server,
        client_app=client,
        num_supernodes=USERS,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    print(json.dumps({"rounds per second": 1 / statistics.median(json.loads(OUT.read_text()))}))
