"""Speed of a round of local training for many users: batched in chunks, and as a loop over users.

Five local steps of twenty images, a hundred images per user; images per second, and ratios within one run. On a CPU the
library runs a loop over users on a few workers; there it is compared with batching and with the fastest loop written
by hand.

And a single local step of the perceptron for 500 users with 20 rows each, with per-user gradients materialised (a loop
on a CPU, chunks on a GPU) and without (tacitly.neural.engine.one_step): with the public head, and with fifteen steps on
personal heads.

    python -m benchmarks.speed.neural [--quick]
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.tables import keep, table
from tacitly.neural.engine.device import one_thread
from tacitly.neural.engine.executor import Executor
from tacitly.neural.engine.flat import Flat
from tacitly.neural.engine.local_training import LocalTraining
from tacitly.neural.engine.update import UserUpdate
from tacitly.neural.networks.architectures import lenet, mlp

TRAINING = LocalTraining(local_steps=5, batch_rows=20, head_steps=0, rows=100, local_rate=0.01)
NETWORKS = {"LeNet": (lenet, 3072), "MLP": (mlp, 784)}


def rate(work: Callable[[], Any], images: int, repeats: int) -> float:
    """Return images per second: the median of several runs after a warm-up."""
    times = []
    for i in range(repeats + 1):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        if i:
            times.append(time.perf_counter() - start)
    return images / float(np.median(times))


def hand_loop(name: str, X: Any, y: Any, users: int, workers: int) -> torch.Tensor:
    """Run a loop written by hand: one module, reset for every user, plain SGD, threads; return the clipped sum."""
    from concurrent.futures import ThreadPoolExecutor

    def work(part_of_users: range) -> torch.Tensor:
        body, head = NETWORKS[name][0]()
        total = torch.zeros(sum(p.numel() for p in body.parameters()), dtype=torch.float64)
        first = [p.detach().clone() for p in body.parameters()]
        for i in part_of_users:
            rows, labels = (
                torch.as_tensor(X[100 * i : 100 * i + 100]),
                torch.as_tensor(y[100 * i : 100 * i + 100]).long(),
            )
            with torch.no_grad():
                for p, value in zip(body.parameters(), first, strict=True):
                    p.copy_(value)
            for step in range(5):
                part = slice(20 * step, 20 * step + 20)
                loss = torch.nn.functional.cross_entropy(head(body(rows[part])), labels[part])
                gradients = torch.autograd.grad(loss, list(body.parameters()))
                with torch.no_grad():
                    for p, g in zip(body.parameters(), gradients, strict=True):
                        p -= 0.01 * g
            moved = torch.cat([(p.detach() - v).flatten() for p, v in zip(body.parameters(), first, strict=True)])
            moved = moved.double()
            total.add_(moved, alpha=min(1.0, 1.0 / float(torch.linalg.vector_norm(moved))))
        return total

    with one_thread(), ThreadPoolExecutor(workers) as pool:
        return torch.stack(list(pool.map(work, [range(k, users, workers) for k in range(workers)]))).sum(0)


def measure(name: str, device: str, quick: bool) -> list[dict[str, Any]]:
    make, d = NETWORKS[name]
    found: list[dict[str, Any]] = []
    on_gpu = device == "cuda"
    users = 2 if quick else ((1024 if name == "MLP" else 256) if on_gpu else (8 if name == "LeNet" else 100))
    rng = np.random.default_rng(0)
    X, y = rng.uniform(size=(users * 100, d)).astype(np.float32), rng.integers(10, size=users * 100).astype(np.float32)
    X.flags.writeable = y.flags.writeable = False  # as in a cohort: rows may then stay on a GPU between rounds
    offsets = 100 * np.arange(users + 1)
    repeats = 1 if quick else (5 if on_gpu else 9)
    for tf32 in (False, True) if on_gpu else (False,):
        torch.manual_seed(0)
        body, head = make()

        def executor(chunk: int | None = None, body: Any = body, head: Any = head, tf32: bool = tf32) -> Executor:
            update = UserUpdate(body=Flat(body), head=Flat(head), training=TRAINING, classes=10)
            return Executor(update, device=device, chunk=chunk, tf32=tf32)

        plain = executor(1)
        start = plain._update.body.start.cpu().numpy().astype(np.float64)

        def note(way: str, speed: float, tf32: bool = tf32) -> None:
            found.append({"network": name, "device": device, "tf32": tf32, "way": way, "images_per_second": speed})

        def added(which: Executor, count: int, start: Any = start) -> Callable[[], Any]:
            return lambda: which.clipped_sum(
                start, X[: 100 * count], y[: 100 * count], offsets[: count + 1], 1.0, 0, normalised=False
            )

        if on_gpu:
            few = min(users, 24)

            def loop(few: int = few, plain: Executor = plain, start: Any = start) -> None:
                update = plain._update.alone()
                total = torch.zeros(plain.size, dtype=torch.float64, device="cuda")
                torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = plain.tf32
                public = torch.as_tensor(start, dtype=torch.float32).cuda()
                for i in range(few):
                    rows, labels, ones = plain.packing(X, y, offsets[i : i + 2], 1, 0)
                    total += plain.bounded_sum(update(public, rows[0], labels[0], ones[0])[None], 1.0, normalised=False)
                total.cpu()

            note("loop over users", rate(loop, 100 * few, repeats))
            for chunk in (2,) if quick else (64, 128, 256, 1024):
                if chunk <= users:
                    note(f"chunks of {chunk}", rate(added(executor(chunk), users), 100 * users, repeats))
        else:
            ways = {"this library": added(plain, users)}
            ways["loop by hand"] = partial(hand_loop, name, X.copy(), y.copy(), users, plain.workers)
            # In turns, so that other load affects both.
            speeds = [{way: rate(work, 100 * users, 1) for way, work in ways.items()} for _ in range(repeats)]
            for way in ways:
                note(way, float(np.median([speed[way] for speed in speeds])))
            batched = executor(16)
            batched.batched, batched.chunk = True, 16
            note("chunks of 16", rate(added(batched, users), 100 * users, min(repeats, 2)))
    return found


def measure_one_step(device: str, quick: bool) -> list[dict[str, Any]]:
    users, size, found = (8 if quick else 500), 20, []
    rng = np.random.default_rng(0)
    X, y = (
        rng.uniform(size=(users * size, 784)).astype(np.float32),
        rng.integers(10, size=users * size).astype(np.float32),
    )
    X.flags.writeable = y.flags.writeable = False
    offsets = size * np.arange(users + 1)
    torch.manual_seed(0)
    body, head = mlp()
    for steps in (0, 15):
        ways: dict[str, Callable[[], Any]] = {}
        for way, written_down in (("gradients", True), ("no gradients", False)):
            training = LocalTraining(local_steps=1, head_steps=steps, rows=size)
            update = UserUpdate(body=Flat(body), head=Flat(head), training=training, classes=10)
            engine = Executor(update, device=device)
            if written_down:
                engine.one_step, engine.chunk = False, 256
            start = update.body.start.cpu().double().numpy()
            ways[way] = partial(engine.clipped_sum, start, X, y, offsets, 1.0, 0, normalised=True)
        speeds = [{way: rate(work, users * size, 1) for way, work in ways.items()} for _ in range(1 if quick else 3)]
        for way in ways:
            speed = float(np.median([one[way] for one in speeds]))
            name = f"MLP, one local step, {steps} head steps"
            found.append({"network": name, "device": device, "tf32": False, "way": way, "images_per_second": speed})
    return found


def measure_memory(quick: bool) -> dict[int, float]:
    """Return the peak MiB of a round of LeNets in chunks of 32, for two numbers of users."""
    found = {}
    for users in (32, 64) if quick else (128, 256):
        rng = np.random.default_rng(0)
        X = rng.uniform(size=(users * 100, 3072)).astype(np.float32)
        y = rng.integers(10, size=users * 100).astype(np.float32)
        body, head = lenet()
        update = UserUpdate(body=Flat(body), head=Flat(head), training=TRAINING, classes=10)
        engine = Executor(update, device="cuda", chunk=32)
        start = update.body.start.cpu().double().numpy()
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        engine.clipped_sum(start, X, y, 100 * np.arange(users + 1), 1.0, 0, normalised=False)
        found[users] = (torch.cuda.max_memory_allocated() - before) / 2**20
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows = [row for name in NETWORKS for row in measure(name, device, options.quick)]
    rows += measure_one_step(device, options.quick)
    printed = []
    for row in rows:
        first = next(r for r in rows if (r["network"], r["tf32"]) == (row["network"], row["tf32"]))
        ratio = row["images_per_second"] / first["images_per_second"]
        printed.append(
            [row["network"], device, "yes" if row["tf32"] else "no", row["way"], row["images_per_second"], ratio]
        )
    header = ["network", "device", "TF32", "method", "images/s", "ratio"]
    text = table(header, printed)
    found: dict[str, Any] = {"rows": rows}
    if device == "cuda":
        found["memory"] = memory = measure_memory(options.quick)
        each = " and ".join(f"{size:.0f} MiB for {users} users" for users, size in memory.items())
        text += f"\n\nPeak memory on the GPU, LeNets in chunks of 32: {each}."
    keep(f"speed_neural_{device}", found, text, quick=options.quick)


if __name__ == "__main__":
    main()
