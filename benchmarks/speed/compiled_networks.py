"""Does ``torch.compile`` pay for a round of networks on a CPU? The first call against what later rounds save.

    python -m benchmarks.speed.compiled_networks [--quick]

One round as the library runs it (users one by one; the ``mlp`` without gradients of users), and the same round by one
compiled function: that of one user, for all users in turn, or that of a chunk of 10 users (``vmap``, which is measured
uncompiled too). 100 users with 20 rows each, three head steps and one step of the body (five for ``image_network``):
fewer than by default, so that there is less to compile. Times are processor seconds, the compiler's own processes
included. Rounds to break even: the first call's seconds over what a later round saves; a fit has ten rounds by default.
Nothing here is an option of the library.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import vmap

from benchmarks.papers.centaur import free_layer
from benchmarks.tables import RESULTS, keep, table
from tacitly.neural.engine.device import one_thread
from tacitly.neural.engine.executor import Executor
from tacitly.neural.engine.flat import Flat
from tacitly.neural.engine.local_training import LocalTraining
from tacitly.neural.engine.update import UserUpdate, public_start
from tacitly.neural.networks.architectures import mlp
from tacitly.neural.networks.blocks import residual_network, transformer

ROWS, ROUNDS, CHUNK = 20, 10, 10
WAYS = ("one user, compiled", f"chunk of {CHUNK}, compiled", f"chunk of {CHUNK}")
HEADS = LocalTraining(rows=ROWS, head_steps=3)
STEPS = LocalTraining(rows=ROWS, head_steps=3, local_steps=5, local_rate=0.5)
NETWORKS: dict[str, tuple[Callable[[], tuple[nn.Module, nn.Linear]], int, LocalTraining]] = {
    "image_network": (lambda: free_layer(128), 128, STEPS),  # what is learned of it: filters run once per fit
    "mlp": (mlp, 784, HEADS),
    "transformer, 2 layers": (lambda: transformer(1000, 16, classes=2), 16, HEADS),
    "residual network, 3 blocks": (lambda: residual_network(classes=2), 3072, HEADS),
}
USERS = 100


def seconds(work: Callable[[], Any]) -> float:
    """Return processor seconds of this process and of those it waited for."""
    before = _used()
    work()
    return _used() - before


def _used() -> float:
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in both)


def measure(name: str, users: int, *, backend: str = "inductor", repeats: int = 3) -> dict[str, Any]:
    """Return processor seconds of a round: the library's, and both compiled ones with their first calls."""
    torch.manual_seed(0)
    make, width, training = NETWORKS[name]
    body, head = make()
    update = UserUpdate(body=Flat(body), head=Flat(head), training=training, classes=head.out_features)
    rng = np.random.default_rng(0)
    X = rng.integers(1000, size=(users * ROWS, width)) if width == 16 else rng.uniform(size=(users * ROWS, width))
    X, y = X.astype(np.float32), rng.integers(head.out_features, size=users * ROWS).astype(np.float32)
    offsets, public = np.arange(0, users * ROWS + 1, ROWS), public_start(update)
    library = Executor(update, device="cpu", workers=1)
    given = public, X, y, offsets, 1.0, 0

    def ours() -> None:
        library.clipped_sum(*given, normalised=True)

    ours()
    found: dict[str, Any] = {"network": name, "users": users, "library": min(seconds(ours) for _ in range(repeats))}
    start = torch.as_tensor(public, dtype=torch.float32)
    rows, targets = torch.as_tensor(X).view(users, ROWS, -1), torch.as_tensor(y).view(users, ROWS)
    weights, own = torch.ones_like(targets), torch.zeros(users, 0)

    def one(*row: Tensor) -> Tensor:
        return update.with_state(start.clone(), *row)[0]

    exact = library.clipped_sum(*given, normalised=True)
    for way in WAYS:
        size = CHUNK if way.startswith("chunk") else 1
        function: Callable[..., Tensor] = vmap(one) if size > 1 else one
        if way.endswith("compiled"):
            torch.compiler.reset()
            function = torch.compile(function, backend=backend, dynamic=False)
        parts = [part.split(size) if size > 1 else part.unbind() for part in (rows, targets, weights, own)]
        found[way] = _timed(function, parts, library, exact, repeats)
    return found


def _timed(function: Callable[..., Tensor], parts: list[Any], library: Executor, exact: Any, repeats: int) -> Any:
    """Return processor seconds of the first call and of a round, and how far its sum is from the library's."""

    def calls(count: int | None = None) -> Tensor:
        given = list(zip(*parts, strict=True))[:count]
        updates = (function(*row).detach().view(-1, library.size) for row in given)
        return sum((library.bounded_sum(part, 1.0, normalised=True) for part in updates), torch.zeros(()))

    try:
        with one_thread():
            first = seconds(lambda: calls(1))
            later = min(seconds(calls) for _ in range(repeats))
            apart = float(np.linalg.norm(calls().numpy() - exact) / np.linalg.norm(exact))
        return {"first call": first, "round": later, "apart": apart}
    except Exception as error:  # some networks cannot be compiled this way: a result too
        return {"error": f"{type(error).__name__}: {error}"[:300]}


def report(rows: list[dict[str, Any]]) -> str:
    """Return one line per network, number of users and way."""
    lines = []
    for row in rows:
        for way in WAYS:
            cells, ratio = ["–"] * 4, "–"
            apart = f"{row[way]['apart']:.0e}" if "apart" in row[way] else row[way]["error"].partition(":")[0]
            if "error" not in row[way]:
                first, later, before = row[way]["first call"], row[way]["round"], row["library"]
                even = math.ceil(first / (before - later)) if later < before else math.inf
                ratio = f"{(first + ROUNDS * later) / (ROUNDS * before):.2f}"
                cells = [f"{before:.2f}", f"{later:.2f}", f"{first:.1f}", "never" if math.isinf(even) else f"{even:,}"]
                if not way.endswith("compiled"):
                    cells[2:] = ["–", "–"]
                    ratio = f"{later / before:.2f}"
            lines.append([row["network"], row["users"], way, *cells, ratio, apart])
    header = ["network", "users", "way", "round, s", "round this way, s", "first call, s", "rounds to break even"]
    return table([*header, f"{ROUNDS} rounds, ratio", "distance of sums"], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS), choices=NETWORKS)
    options = parser.parse_args()
    if options.quick:
        print(report([measure("image_network", 2 * CHUNK, backend="eager", repeats=1)]))  # without a C++ compiler
        return
    path = RESULTS / "speed_compiled_networks.json"
    with tempfile.TemporaryDirectory() as empty:  # nothing compiled before
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = empty
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # or compilers run in processes whose times are not counted
        for name in options.networks:
            new = measure(name, USERS)
            rows = json.loads(path.read_text())["rows"] if path.is_file() else []
            rows = sorted([row for row in rows if row["network"] != name] + [new], key=_place)
            found = {"rows": rows, "torch": torch.__version__}
            keep("speed_compiled_networks", found, report(rows), quick=False)  # as it comes


def _place(row: dict[str, Any]) -> int:
    return list(NETWORKS).index(row["network"])


if __name__ == "__main__":
    main()
