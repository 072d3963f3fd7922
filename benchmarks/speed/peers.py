"""Other libraries on the same work, in one run: diffprivlib, statsmodels, Opacus, DPALS, Private FedRep's own script.

``python -m benchmarks.speed.peers`` (minutes; ``--quick`` for a smoke test). A peer runs in its own environment, on the
same rows, right after us; ``TACITLY_DIFFPRIVLIB``, ``TACITLY_STATSMODELS`` and ``TACITLY_OPACUS`` name Python
interpreters, ``TACITLY_AUTHORS`` the script ``FedRep_Ready.py`` of github.com/learningformality/Private_FedRep, run by
Opacus's interpreter, which needs Matplotlib for it. One that is not named is left out, one that takes longer than
``LIMIT`` seconds is stopped. All on one thread; the least of several runs; ratios are of processor times.

* *PCA*: spiked rows, one row is a unit, the same ε. diffprivlib's guarantee is pure (δ = 0), ours has δ = 1e-6; it is
  told a bound on norms that holds for nearly all rows. Error: sine of the angle to the true directions.
* *Mixed model*: six rows per user, two features, all coefficients vary over users. MixedLM is not private. Error: root
  mean square of predicted minus true means of new rows of the same users.
* *A round of a network*: every user's gradient (perceptron, 784-256-128-16, fixed head) clipped and added, without
  noise. Opacus materialises these gradients, we do not. Difference: of both sums, relative to their norm.
* *A round of Private FedRep*: heads, gradients, clip, sum; theirs also orthonormalises the basis (64 × 4: little). The
  authors' contributions are clipped, ours are normalised together with the heads, so the bases after a round differ.
* *DPALS* (Chien et al. 2021) is written in NumPy by us, from the paper's equations. Time per release, whole fits over
  their releases, so not the same work; how well both predict is in ``benchmarks/ratings.py``.

diffprivlib and MixedLM run once, ours after a warm-up: what takes them seconds has no start that counts.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.tables import keep, table
from tacitly import FedPower, MixedEffects, Recommender, subspace_distance
from tacitly.arrays import Array
from tacitly.baselines.recommenders import PrivateALS
from tacitly.data.cohort import Cohort
from tacitly.datasets import make_shared_subspace
from tacitly.federation.local import LocalFederation
from tacitly.linalg import orthonormal
from tacitly.methods.fedrep.queries import BasisStep
from tacitly.methods.shared.whitening import Whitening
from tacitly.privacy.ledger import Ledger

SCRIPTS = {"diffprivlib": "diffprivlib_pca", "statsmodels": "statsmodels_mixed", "opacus": "opacus_rounds"}
LIMIT = 90.0
Line = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, nothing is written")
    quick = parser.parse_args().quick
    lines: list[Line] = []
    with threadpool_limits(1):
        lines += [components(n) for n in ((200,) if quick else (1_000, 20_000))]
        lines += [mixed(n) for n in ((100,) if quick else (500, 2_000))]
        lines.append(network(4 if quick else 500, 1 if quick else 3))
        lines.append(basis_round(20 if quick else 2_000, 1 if quick else 3))
        lines.append(recommender(60 if quick else 3_000))
    data = {"lines": lines}
    keep("speed_peers", data, as_text(data), quick=quick)


def as_text(data: dict[str, Any]) -> str:
    """Return the table, and a plain line about every peer that is not there."""
    rows, missing = [], []
    for line in data["lines"]:
        ours, theirs = line["ours"], line["theirs"]
        if theirs is None:
            missing.append(line["peer"])
            continue
        most = ">" if theirs["stopped"] else ""
        rows.append(
            [
                line["work"],
                theirs["version"],
                _seconds(ours),
                most + _seconds(theirs),
                f"{most}{theirs['processor'] / ours['processor']:.3g}×",
                f"{most}{theirs['clock'] / ours['clock']:.3g}×",
                line["accuracy"],
            ]
        )
    header = ["work", "peer", "tacitly", "peer's time", "ratio", "ratio on the clock", "error, ours and theirs"]
    notes = [f"{name} is not installed here: not measured." for name in dict.fromkeys(missing)]
    return "\n\n".join([table(header, rows), "Seconds of processor time, one thread.", *notes])


def components(n: int) -> Line:
    """Find principal components of spiked rows."""
    d, k, size, epsilon = 50, 2, 10.0, 1.0
    X = np.random.default_rng(0).normal(size=(n, d)) * np.sqrt([size] * k + [1.0] * (d - k))
    bound = 1.5 * np.sqrt(d - k + k * size)  # of the population, which is public here
    truth = np.eye(d)[:, :k]
    ours = timed(lambda: FedPower(k, epsilon=epsilon, threads=1).fit(X).components_, 3)
    theirs, found = peer("diffprivlib", 1, X=X, public=np.array([k, epsilon, bound]))
    errors = [subspace_distance(one.T, truth) for one in (ours["found"], found) if one is not None]
    work = f"PCA: {n:,} × {d}, {k} components, ε = {epsilon:g}"
    return line("diffprivlib", work, ours, theirs, "sin θ " + ", ".join(f"{error:.3f}" for error in errors))


def mixed(n: int) -> Line:
    """Fit a panel like those of schools: few rows per user, and every coefficient varies."""
    m, d, rng = 6, 2, np.random.default_rng(n)
    own = np.array([1.0, 0.5, -0.5]) + rng.normal(size=(n, d + 1)) * [0.7, 0.3, 0.3]
    users, new_users = np.repeat(np.arange(n), m), np.arange(n)
    X, new = rng.normal(size=(n * m, d)), rng.normal(size=(n, d))
    y = own[users, 0] + np.sum(X * own[users, 1:], axis=1) + 0.5 * rng.normal(size=n * m)
    truth = own[:, 0] + np.sum(new * own[:, 1:], axis=1)

    def fit() -> Array:
        model = MixedEffects(epsilon=1.0, threads=1).fit(X, y, users=users)
        return np.asarray(model.predict(new, users=new_users))

    ours = timed(fit, 3)
    theirs, found = peer("statsmodels", 1, X=X, y=y, users=users, new=new, new_users=new_users)
    errors = [np.sqrt(np.mean((one - truth) ** 2)) for one in (ours["found"], found) if one is not None]
    work = f"mixed model: {n:,} users × {m} rows × {d} features (ours: ε = 1; theirs: not private)"
    return line("statsmodels", work, ours, theirs, ", ".join(f"{error:.3f}" for error in errors))


def network(users: int, repeats: int) -> Line:
    """Add the clipped gradients of all users of a network."""
    import torch

    from tacitly.neural.engine.executor import Executor
    from tacitly.neural.engine.flat import Flat
    from tacitly.neural.engine.local_training import LocalTraining
    from tacitly.neural.engine.update import UserUpdate
    from tacitly.neural.networks.architectures import mlp

    rows, rate, rng = 20, 0.1, np.random.default_rng(0)
    X = rng.uniform(size=(users * rows, 784)).astype(np.float32)
    y = np.tile(np.arange(rows) % 10, users).astype(np.float32)  # all classes: ours leaves out those a user lacks
    X.flags.writeable = y.flags.writeable = False
    torch.manual_seed(0)
    body, head = mlp()
    training = LocalTraining(local_steps=1, local_rate=rate, head_steps=0, rows=rows)
    threads = torch.get_num_threads()
    engine = Executor(UserUpdate(body=Flat(body), head=Flat(head), training=training, classes=10), device="cpu")
    engine.workers = 1
    start, offsets, clip = engine.update.body.start.double().numpy(), rows * np.arange(users + 1), 0.02
    try:
        torch.set_num_threads(1)
        ours = timed(lambda: engine.clipped_sum(start, X, y, offsets, rate * clip, 0, normalised=False), repeats)
    finally:
        torch.set_num_threads(threads)
    layers = [layer for layer in [*body, head] if isinstance(layer, torch.nn.Linear)]
    weights = {
        f"{number}.{name}": value.detach().numpy()
        for number, layer in enumerate(layers)
        for name, value in layer.named_parameters()
    }
    shaped = {"X": X.reshape(users, rows, -1), "y": y.reshape(users, rows), "clip": np.array(clip)}
    theirs, found = peer("opacus", repeats, weights=weights, **shaped)
    accuracy = ""
    if found is not None:
        apart = np.linalg.norm(np.asarray(ours["found"]).ravel() / -rate - found) / np.linalg.norm(found)
        if not apart < 1e-3:
            raise RuntimeError(f"Opacus computes something else: the sums differ by {apart:.2g}.")
        accuracy = f"sums differ by {apart:.0e}"
    return line("opacus", f"a round of a perceptron: {users:,} users × {rows} rows", ours, theirs, accuracy)


def basis_round(users: int, repeats: int) -> Line:
    """Run a round of Private FedRep, and one of the script of its authors."""
    rows, d, k = 20, 64, 4
    made = make_shared_subspace(users, d, k, rows, 0.1, random_state=0)
    X, y = np.asarray(made.X, dtype=np.float32), np.asarray(made.y, dtype=np.float32)
    first = orthonormal(made.basis + 0.05 * np.random.default_rng(1).normal(size=(d, k)))[0]
    cohort = Cohort.from_offsets(X, y, np.arange(0, users * rows + 1, rows))
    federation = LocalFederation(cohort, Ledger().run("peers", config={}), threads=1)
    query = BasisStep(first, np.eye(k), 0.5, Whitening.identity(d))
    ours = timed(lambda: federation._exact_sum(query, 1.0, 2.0**-40), 20 * repeats)
    shaped = {"X": X.reshape(users, rows, d), "y": y.reshape(users, rows), "basis": first.astype(np.float32)}
    theirs, _ = peer("the authors' script", repeats, **shaped)
    work = f"a round of Private FedRep: {users:,} users × {rows} rows × {d} features, k = {k}"
    return line("the authors' script", work, ours, theirs, "")


def recommender(users: int) -> Line:
    """Fit ratings; times per release."""
    items, each, rng = 500, 40, np.random.default_rng(0)
    places = np.concatenate([rng.choice(items, each, replace=False) for _ in range(users)]).astype(np.float64)
    ratings = rng.integers(1, 6, size=users * each).astype(np.float64)
    cohort = Cohort.from_offsets(places[:, None], ratings, np.arange(users + 1) * each)
    releases = 0

    def fit() -> None:
        nonlocal releases
        model = Recommender(1.0, items=np.arange(items), rating_range=(1, 5), threads=1).fit(cohort)
        releases = len(model.certificate_.releases)

    ours = timed(fit, 2)
    theirs = timed(lambda: PrivateALS(8, 1.0, random_state=0).fit(cohort, items, 1.0, 5.0), 2)
    for one, count in ((ours, releases), (theirs, 4)):  # item means, and three rounds
        one |= {"clock": one["clock"] / count, "processor": one["processor"] / count}
    theirs |= {"version": "DPALS in NumPy", "stopped": False}
    work = f"a release of ratings: {users:,} users × {each} ratings of {items} items"
    return line("DPALS", work, ours, theirs, "")


def line(name: str, work: str, ours: Line, theirs: Line | None, accuracy: str) -> Line:
    """Return one line of the results."""
    kept = [{key: value for key, value in one.items() if key != "found"} if one else None for one in (ours, theirs)]
    return {"peer": name, "work": work, "ours": kept[0], "theirs": kept[1], "accuracy": accuracy}


def timed(work: Callable[[], Any], repeats: int) -> Line:
    """Return the least clock and processor times of several runs after one that may compile, and what was found."""
    found, clock, processor = work(), [], []
    for _ in range(repeats):
        start, before = time.perf_counter(), time.process_time()
        found = work()
        clock.append(time.perf_counter() - start)
        processor.append(time.process_time() - before)
    return {"clock": min(clock), "processor": min(processor), "found": found}


def peer(name: str, repeats: int, **arrays: Any) -> tuple[Line | None, Array | None]:
    """Run a peer on these arrays, if it is there; return its report and what it found."""
    words = [os.environ.get(f"TACITLY_{name.upper()}"), SCRIPTS.get(name)]
    more: list[str | None] = []
    if name not in SCRIPTS:
        words, more = [os.environ.get("TACITLY_OPACUS"), "authors_rounds"], [os.environ.get("TACITLY_AUTHORS")]
    if None in words + more:
        return None, None
    with tempfile.TemporaryDirectory() as folder:
        for key, value in arrays.items():
            if isinstance(value, dict):
                np.savez(Path(folder) / f"{key}.npz", **value)
            else:
                np.save(Path(folder) / f"{key}.npy", value)
        script = Path(__file__).parent / "others" / f"{words[1]}.py"
        limits = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
        command = [str(words[0]), str(script), folder, str(repeats), *map(str, more)]
        start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        try:
            done = subprocess.run(
                command, env={**os.environ, **limits}, stdout=subprocess.PIPE, text=True, timeout=LIMIT
            )
        except subprocess.TimeoutExpired:
            used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
            return {"clock": time.perf_counter() - start, "processor": used, "version": name, "stopped": True}, None
        if done.returncode:
            raise RuntimeError(f"{name} failed.")
        report = json.loads(done.stdout.strip().splitlines()[-1])
        return report | {"stopped": False}, np.load(Path(folder) / "found.npy")


def _seconds(one: Line) -> str:
    return f"{one['processor']:.3g} s"


if __name__ == "__main__":
    main()
