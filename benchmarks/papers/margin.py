"""Private FedRep, section 4: personal classifiers. Share of wrong labels on held-out rows.

* ``losses``: users with logistic models on a shared subspace (n = 10,000, d = 50, k = 3, m = 20): which share of the
  gap between local models and the true subspace is lost to privacy.
* ``margin``: rows near an 8-dimensional space in d dimensions, labelled by personal boundaries in a shared plane of it,
  with margin ρ; against n, m, d, ρ and ε, one at a time.
* ``wide``: d = 5,000: risk, peak memory of the whole process, and the time of a selection relative to the projection.
* ``mnist-writers``, ``walking-uci``: MNIST by its true writers (even or odd, 14×14 pixels); 22 walkers (whether the
  vertical acceleration rises).

``python -m benchmarks.papers.margin`` (about fifteen minutes on two cores; ``--quick`` for a smoke test).
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks import data as real_data
from benchmarks.tables import IMAGES, RESULTS, keep, table
from tacitly import Cohort, FedRep, LocalModels, MarginClassifier, PrivateFedRep, SingleModel, UncertifiedWarning
from tacitly.federation.local import LocalFederation
from tacitly.federation.shard import one_blas_thread
from tacitly.linalg import orthonormal
from tacitly.methods.margin.algorithm import sign_matrix
from tacitly.methods.margin.queries import MarginLosses, head_dictionary
from tacitly.methods.shared_basis import HeadsOnBasis
from tacitly.privacy.guarantee import SelectionEvent
from tacitly.privacy.ledger import Ledger

DELTA = 1e-6
SECTIONS = ("losses", "margin", "wide", "mnist-writers", "walking-uci")
LOCAL_USERS = 1000  # local models are fitted for this many users: enough for two digits, and all would take too long
_DRAWS = 3
Parts = tuple[Any, Any, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small problems, nothing is written")
    parser.add_argument("--only", choices=SECTIONS, action="append", help="these parts; others keep their results")
    parser.add_argument("--wide", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.wide:
        print(json.dumps(wide(given.wide)))
        return
    warnings.simplefilter("ignore", UncertifiedWarning)
    quick, path = given.quick, RESULTS / "margin.json"
    parts: dict[str, Callable[[], Any]] = {
        "losses": lambda: losses(quick),
        "margin": lambda: margins(quick),
        "wide": lambda: wide_apart(100 if quick else 2000),
        "mnist-writers": lambda: {} if quick or not real_data.available() else real(*_mnist()),
        "walking-uci": lambda: {} if quick or not real_data.available() else real(*_walking()),
    }
    found = {name: parts[name]() for name in given.only or SECTIONS}
    kept: dict[str, Any] = json.loads(path.read_text("utf-8")) if given.only and path.exists() else {}
    out = {**kept, **found}
    keep("margin", out, as_text(out), quick=quick)
    if not quick and out.get("margin"):
        plot(out["margin"])


def split(X: Any, y: Any, users: Any, every: int) -> tuple[Parts, Parts]:
    """Hold out the last ``1/every`` of each user's rows (rows are grouped by user)."""
    counts = np.bincount(users)
    position = np.arange(len(users)) - np.repeat(np.cumsum(counts) - counts, counts)
    late = position >= np.repeat(counts - counts // every, counts)
    return (X[~late], y[~late], users[~late]), (X[late], y[late], users[late])


def wrong(model: Any, test: Parts) -> float:
    """Return the share of wrong labels of the users that the model knows."""
    known = np.isin(test[2], model.users_)
    return 1.0 - float(model.score(*(part[known] for part in test)))


def local_models(train: Parts, **options: Any) -> LocalModels:
    some = train[2] < LOCAL_USERS
    return LocalModels(**options).fit(*(part[some] for part in train))


class Oracle(HeadsOnBasis):
    """Heads on the true basis."""

    def __init__(self, basis: Any, train: Parts, loss: str) -> None:
        cohort = Cohort.from_arrays(*train)
        self.loss, self.basis_, self.users_ = loss, basis, cohort.users
        self.feature_names_in_ = np.array(cohort.feature_names)
        self._take_heads(self.head_work()(cohort.X, np.asarray(cohort.y), cohort.offsets))


def losses(quick: bool) -> dict[str, list[float]]:
    """Return wrong labels of logistic users, and the share of the gap lost to privacy."""
    n, draws, epsilons = (150, 1, (4.0,)) if quick else (10_000, 2, (1.0,))
    errors: dict[str, list[float]] = {}
    for draw in range(draws):
        rng = np.random.default_rng(2000 + draw)
        basis = orthonormal(rng.normal(size=(50, 3)))[0]
        heads = rng.normal(size=(n, 3)) * (4.0 / math.sqrt(3.0))
        users = np.repeat(np.arange(n), 40)
        X = rng.normal(size=(len(users), 50))
        scores = np.einsum("nk,nk->n", X @ basis, heads[users])
        y = (rng.random(len(users)) < 1 / (1 + np.exp(-scores))).astype(float)
        train, test = split(X, y, users, 2)  # 20 rows to fit, 20 to test
        found = {
            "true subspace": wrong(Oracle(basis, train, "logistic"), test),
            "not private": wrong(FedRep(rank=3, loss="logistic").fit(*train), test),
            "local": wrong(local_models(train, loss="logistic"), test),
            "one model": wrong(SingleModel(loss="logistic").fit(*train), test),
        }
        for epsilon in epsilons:
            for loss in ("logistic", "hinge"):
                model = PrivateFedRep(rank=3, epsilon=epsilon, delta=DELTA, loss=loss).fit(*train)
                found[f"{loss}, ε = {epsilon:g}"] = wrong(model, test)
        gap = found["local"] - found["true subspace"]
        for name in [name for name in found if "ε" in name]:
            found[f"share of the gap, {name}"] = (found[name] - found["true subspace"]) / gap
        for name, value in found.items():
            errors.setdefault(name, []).append(value)
    return errors


def separable(n: int, m: int, d: int, rho: float, seed: int) -> tuple[Any, Any, Any, Any]:
    """Make rows near an 8-dimensional subspace, with personal boundaries of margin ρ in a shared plane of it."""
    rng = np.random.default_rng(seed)
    frame = orthonormal(rng.normal(size=(d, 8)))[0]
    basis = orthonormal(rng.normal(size=(8, 2)))[0]
    angles = rng.uniform(0, 2 * np.pi, size=n)
    heads = np.column_stack([np.cos(angles), np.sin(angles)])
    tries = rng.normal(size=(n, 6 * m, 8))
    tries /= np.linalg.norm(tries, axis=2, keepdims=True)
    scores = np.einsum("nmk,nk->nm", tries @ basis, heads)
    order = np.argsort(np.abs(scores) <= rho, axis=1, kind="stable")[:, :m]
    points = np.take_along_axis(tries, order[:, :, None], axis=1).reshape(-1, 8)
    y = (np.take_along_axis(scores, order, axis=1).ravel() > 0).astype(np.float32)
    X = np.empty((n * m, d), dtype=np.float32)
    for start in range(0, len(X), 5000):
        noise = rng.standard_normal((len(points[start : start + 5000]), d), dtype=np.float32)
        X[start : start + 5000] = points[start : start + 5000] @ frame.T + (0.2 / math.sqrt(d)) * noise
    return X, y, np.repeat(np.arange(n), m), frame @ basis


def margins(quick: bool) -> list[dict[str, Any]]:
    """Return wrong labels of each method, with one parameter changed at a time."""
    base: dict[str, Any] = {"n": 2000, "m": 20, "d": 100, "rho": 0.1, "epsilon": 1.0}
    changes: list[dict[str, Any]] = [
        {},
        *({"n": n} for n in (500, 5000)),
        *({"m": m} for m in (8,)),
        *({"d": d} for d in (300,)),
        *({"rho": rho} for rho in (0.02,)),
        *({"epsilon": epsilon} for epsilon in (0.3, 3.0)),
    ]
    if quick:
        base, changes = {**base, "n": 100}, [{}]
    return [_margin_row({**base, **change}, draws=1 if quick else _DRAWS) for change in changes]


def _margin_row(at: dict[str, Any], draws: int) -> dict[str, Any]:
    found: dict[str, list[float]] = {}
    epsilon = at["epsilon"]
    for draw in range(draws):
        X, y, users, basis = separable(at["n"], 2 * at["m"], at["d"], at["rho"], 3000 + draw)
        train, test = split(X, y, users, 2)
        found.setdefault("true subspace", []).append(wrong(Oracle(basis, train, "hinge"), test))
        found.setdefault("local", []).append(wrong(local_models(train, loss="logistic"), test))
        models = {
            "margin, pure ε": MarginClassifier(2, epsilon),
            "margin, (ε, δ)": MarginClassifier(2, epsilon, DELTA),
            "logistic FedRep": PrivateFedRep(2, epsilon, DELTA, loss="logistic"),
            "not private": FedRep(2, loss="logistic"),
            "one model": SingleModel(loss="logistic"),
        }
        for name, model in models.items():
            found.setdefault(name, []).append(wrong(model.fit(*train), test))
    return {**at, "wrong": found}


def wide_apart(n: int) -> dict[str, Any]:
    """Run :func:`wide` in a separate process, so that its peak memory can be measured."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.papers.margin", "--wide", str(n)], capture_output=True, text=True, check=True
    )
    return dict(json.loads(done.stdout))


def wide(n: int) -> dict[str, Any]:
    """Return the risk at d = 100 and 5,000 with the same users, the time of a selection and the peak memory."""
    risk, widest = {}, 5000 if n >= 1000 else 300
    for d in (100, widest):
        X, y, users, _ = separable(n, 20, d, 0.1, 4000)
        counts = np.full(n, 20)
        first = np.tile(np.arange(20) < 10, n)
        cohort = Cohort.from_offsets(X, y, np.concatenate([[0], np.cumsum(counts)]))
        del X
        tested = np.array_split(np.flatnonzero(first), 20)
        for epsilon in (1.0, 4.0):
            errors = []
            for seed in range(1 if n < 1000 else 8):
                model = MarginClassifier(2, epsilon, random_state=seed, heads="second half", threads=1).fit(cohort)
                # Heads were fitted on the second half, so the first tests them; the basis depends on it only through
                # a pure-ε release.
                right = [np.sum(model.predict(cohort.X[part], users[part]) == y[part]) for part in tested]
                errors.append(1.0 - float(np.sum(right)) / int(first.sum()))
            risk[f"d = {d}, ε = {epsilon:g}"] = errors
    signs = sign_matrix(48, widest, 0)
    federation = LocalFederation(cohort, Ledger().run("time", config={}), threads=1)
    reduced = federation.projected(signs)
    candidates = np.array([orthonormal(np.random.default_rng(i).normal(size=(48, 2)))[0] for i in range(256)])
    query = MarginLosses(candidates, head_dictionary(2), 0.05)
    public = np.ascontiguousarray(signs.T, dtype=np.float32)
    times: dict[str, list[float]] = {"gemm": [], "projection": [], "choice": []}
    with one_blas_thread():
        for number in range(3):
            for name, work in (
                ("gemm", lambda: cohort.X @ public),
                ("projection", lambda: federation._shard._project(signs, math.inf)),
                ("choice", lambda number=number: reduced.select(query, SelectionEvent(scale=1.0), f"{number}")),
            ):
                start = time.perf_counter()
                work()
                times[name].append(time.perf_counter() - start)
    best = {name: min(values) for name, values in times.items()}
    return {
        "risk": risk,
        "rows": cohort.n_rows,
        "data_mb": round(cohort.X.nbytes / 2**20),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "projection_over_gemm": best["projection"] / best["gemm"],
        "choice_of_256_over_gemm": best["choice"] / best["gemm"],
    }


def real(X: Any, y: Any, users: Any, rank: int) -> dict[str, float]:
    """Return wrong labels on real users; the last quarter of each user's rows is held out."""
    train, test = split(X, y, users, 4)
    options: dict[str, Any] = {"loss": "logistic", "fit_intercept": True}
    models = {
        "local": LocalModels(**options),
        "one model": SingleModel(**options),
        "not private": FedRep(rank, **options),
    }
    for epsilon in (1.0, 8.0):
        models[f"logistic FedRep, ε = {epsilon:g}"] = PrivateFedRep(rank, epsilon, 1e-5, **options)
        models[f"margin, pure ε = {epsilon:g}"] = MarginClassifier(rank, epsilon, **options)
    found = {}
    for key, model in models.items():
        draws = [wrong(model.fit(*train), test) for _ in range(_DRAWS if "ε" in key else 1)]
        found[key] = float(np.mean(draws))
    return {"users": float(len(np.unique(users))), **found}


def _mnist() -> tuple[Any, Any, Any, int]:
    folder = real_data.FOLDER / "mnist"
    with gzip.open(folder / "train-images-idx3-ubyte.gz") as file:
        pixels = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 28, 28) / 255.0
    about = np.load(folder / "mnist_train_writers.npz")
    small = pixels.reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4)).reshape(-1, 196)
    order = np.argsort(about["writer"], kind="stable")
    users = np.unique(about["writer"][order], return_inverse=True)[1]
    return small[order], (about["label"][order] % 2).astype(float), users, 4


def _walking() -> tuple[Any, Any, Any, int]:
    with gzip.open(real_data.FOLDER / "walking-uci" / "walking.csv.gz", "rt") as file:
        rows = np.loadtxt(file, delimiter=",", skiprows=1)
    X, y, users = [], [], []
    for position, walker in enumerate(np.unique(rows[:, 4])):
        signal = rows[rows[:, 4] == walker, 1:4]
        starts = np.arange(0, len(signal) - 15, 8)
        X.append(np.array([signal[s : s + 10].ravel() for s in starts]) / 10.0)
        y.append((signal[starts + 13, 1] > signal[starts + 9, 1]).astype(float))
        users.append(np.full(len(starts), position))
    return np.concatenate(X), np.concatenate(y), np.concatenate(users), 3


def as_text(out: dict[str, Any]) -> str:
    """Return everything as tables."""
    texts: dict[str, Callable[[Any], str]] = {"losses": _losses_text, "margin": _margin_text, "wide": _wide_text}
    for name in ("mnist-writers", "walking-uci"):
        texts[name] = partial(_real_text, name)
    return "\n\n".join(texts[name](out[name]) for name in SECTIONS if out.get(name))


def _losses_text(found: dict[str, list[float]]) -> str:
    mean = {name: float(np.mean(values)) for name, values in found.items()}
    rows = [
        [name, f"{value:.4f}", f"{100 * mean[share]:.1f} %" if (share := f"share of the gap, {name}") in mean else ""]
        for name, value in mean.items()
        if not name.startswith("share")
    ]
    draws = len(next(iter(found.values())))
    return (
        f"**Logistic users** (n = 10,000, d = 50, k = 3, m = 20, δ = 1e-6, zero-out; mean of {draws} draws)\n\n"
        + table(["", "wrong", "share of the gap between local and true subspace"], rows)
    )


def _margin_text(found: list[dict[str, Any]]) -> str:
    methods = list(found[0]["wrong"])
    rows = [
        [f"{row[key]:g}" for key in ("n", "m", "d", "rho", "epsilon")]
        + [f"{np.mean(row['wrong'][method]):.3f}" for method in methods]
        for row in found
    ]
    draws = len(found[0]["wrong"][methods[0]])
    head = f"**Margins** (zero-out; δ = 1e-6 or 0; mean of {draws} draws): share of wrong labels\n\n"
    return head + table(["n", "m", "d", "ρ", "ε", *methods], rows)


def _wide_text(found: dict[str, Any]) -> str:
    return (
        f"**d = 5,000** ({found['rows'] // 20} users, 20 rows each, ρ = 0.1, pure ε)\n\n"
        + table(
            ["", "wrong, mean (smallest to largest of eight projections)"],
            [[name, spread(values)] for name, values in found["risk"].items()],
        )
        + f"\n\nRows {found['data_mb']} MB, peak memory {found['peak_mb']} MB. Time relative to one matrix product of "
        f"rows and signs: projection {found['projection_over_gemm']:.2f}, selection among 256 candidates "
        f"{found['choice_of_256_over_gemm']:.2f}."
    )


def spread(values: list[float]) -> str:
    return f"{np.mean(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def _real_text(name: str, found: dict[str, float]) -> str:
    kept = {key: value for key, value in found.items() if key != "users"}
    head = (
        f"**{name}** ({found['users']:g} users, last quarter of each user's rows held out; private: mean of {_DRAWS} "
        "draws): share of wrong labels\n\n"
    )
    return head + table(list(kept), [[f"{value:.3f}" for value in kept.values()]])


def plot(rows: list[dict[str, Any]]) -> None:
    """Plot wrong labels against n and against ε, with the other parameters as in the first row."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    base, names = rows[0], {"n": "users", "epsilon": "ε"}
    figure, both = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True)
    for axes, (key, label) in zip(both, names.items(), strict=True):
        others = [name for name in ("n", "m", "d", "rho", "epsilon") if name != key]
        line = sorted((r for r in rows if all(r[o] == base[o] for o in others)), key=lambda r: float(r[key]))
        for method in base["wrong"]:
            style = "o-" if "margin" in method or "FedRep" in method else ":"
            axes.loglog([r[key] for r in line], [np.mean(r["wrong"][method]) for r in line], style, label=method)
        axes.set_xlabel(label)
        axes.set_xticks([r[key] for r in line], [f"{r[key]:,g}" for r in line])
        axes.minorticks_off()
    both[0].set_ylabel("wrong labels")
    both[0].set_title(f"ε = {base['epsilon']:g}", fontsize=9)
    both[1].set_title(f"{base['n']:,} users", fontsize=9)
    both[1].legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))
    figure.tight_layout()
    IMAGES.mkdir(parents=True, exist_ok=True)
    figure.savefig(IMAGES / "margin.png", dpi=130)


if __name__ == "__main__":
    main()
