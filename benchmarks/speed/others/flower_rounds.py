"""Rounds of Flower's simulator (on Ray): the same computation as tacitly's query, one virtual client per user.

Needs flwr[simulation]. Every message goes to a Ray actor and back. Only rounds are timed, not the simulator's start-up.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
# Ray's workers import modules from there.
os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from same_maths import advance, contribution, read

FOLDER, ROUNDS, LIMIT = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
USERS = len(read(FOLDER)[0])
OUT = Path(tempfile.mkdtemp()) / "times.json"
POLL = 0.1  # seconds, Flower's default in simulations
client, server = ClientApp(), ServerApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    user = int(context.node_config["partition-id"])
    X, y, _ = read(FOLDER)
    vector = contribution(np.array(X[user]), np.array(y[user]), message.content["basis"]["U"].numpy())
    return Message(content=RecordDict({"step": ArrayRecord({"sum": Array(vector)})}), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    basis = np.array(read(FOLDER)[2])
    while len(list(grid.get_node_ids())) < USERS:
        time.sleep(0.1)
    times, busy, after = [], [], basis
    for number in range(ROUNDS + 1):
        start, before = time.perf_counter(), time.process_time()
        body = RecordDict({"basis": ArrayRecord({"U": Array(basis)})})
        nodes = list(grid.get_node_ids())[: USERS if number else 4]  # a few first: that starts Ray
        out = [Message(content=body, message_type="train", dst_node_id=node, group_id=str(number)) for node in nodes]
        pending, total = set(grid.push_messages(out)), 0.0
        while pending:
            if (passed := time.perf_counter() - start) > LIMIT:
                OUT.write_text(json.dumps({"more than": passed, "answered": len(nodes) - len(pending)}))
                return
            for reply in list(grid.pull_messages(pending)):
                pending.discard(reply.metadata.reply_to_message_id)
                total = total + reply.content["step"]["sum"].numpy()
            if pending:
                time.sleep(POLL)
        after = advance(basis, total)
        times.append(time.perf_counter() - start)
        busy.append(time.process_time() - before)
        print(f"{len(nodes)} clients: {times[-1]:.1f} s", file=sys.stderr, flush=True)
    OUT.write_text(json.dumps({"times": times[1:], "busy": busy[1:], "basis": after.tolist()}))


if __name__ == "__main__":
    run_simulation(
        server_app=server,
        client_app=client,
        num_supernodes=USERS,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    print(OUT.read_text(), flush=True)
    os._exit(0)  # clients of an abandoned round may still be running
