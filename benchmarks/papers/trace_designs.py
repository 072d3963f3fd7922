"""Trace regression on designs that are not centred or have correlated entries, compared with non-private RGrad.

Relative errors ‖M̂ − M‖/‖M‖ (Frobenius), rank 2, label noise 0.1, δ = 1e-6, unit observation: with defaults, with
``center=None``, and of non-private RGrad. Shapes and draws differ from those on which the constants were chosen.

``python -m benchmarks.papers.trace_designs`` (two minutes; ``--quick`` for a smoke test).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import numpy as np

from benchmarks.tables import keep, table
from tacitly import RGrad, TraceRegression

Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
ENTRIES: dict[str, Draw] = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "uniform in [0, 1]": lambda rng, shape: rng.uniform(size=shape),
    "0 or 1, one in ten": lambda rng, shape: (rng.uniform(size=shape) < 0.1).astype(float),
    "exponential": lambda rng, shape: rng.exponential(size=shape),
    "normal, means of size 5": lambda rng, shape: rng.normal(size=shape) + 5.0 * rng.normal(size=shape[1:]),
    "normal, all correlated 0.1": lambda rng, shape: common(rng, shape, 0.1),
    "normal, all correlated 0.2": lambda rng, shape: common(rng, shape, 0.2),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few observations, nothing is written")
    quick = parser.parse_args().quick
    n, draws, shapes = (2_000, 1, ((6, 5),)) if quick else (20_000, 3, ((12, 9), (24, 16)))
    found, rows = [], []
    for design in ("dense", "tasks", "rank-one"):
        for entries in ENTRIES:
            for shape in shapes:
                errors = [measure(design, entries, shape, n, seed) for seed in range(draws)]
                every = {key: [one[key] for one in errors] for key in errors[0]}
                found.append({"design": design, "entries": entries, "shape": shape, "n": n, **every})
                cells = [f"{np.median(values):.2g} (to {max(values):.2g})" for values in every.values()]
                rows.append([design, entries, f"{shape[0]}×{shape[1]}", *cells])
    header = ["design", "entries", "M", "ε = 1", "ε = 4", "ε = 4, center=None", "RGrad, not private"]
    text = table(header, rows) + f"\n\nMedian (and largest) of {draws} draws, n = {n:,}."
    keep("trace_designs", {"designs": found}, text, quick=quick)


def common(rng: np.random.Generator, shape: tuple[int, ...], share: float) -> np.ndarray:
    """Return normal entries with one common factor."""
    factor = rng.normal(size=(shape[0],) + (1,) * (len(shape) - 1))
    return math.sqrt(1 - share) * rng.normal(size=shape) + math.sqrt(share) * factor


def measure(design: str, entries: str, shape: tuple[int, int], n: int, seed: int) -> dict[str, float]:
    """Return the errors of all methods on one draw."""
    rng, draw = np.random.default_rng([5, seed]), ENTRIES[entries]
    M = rng.normal(size=(shape[0], 2)) @ rng.normal(size=(2, shape[1]))
    if design == "dense":
        rows = matrices = draw(rng, (n, *shape))
    else:
        b = draw(rng, (n, shape[1]))
        a = draw(rng, (n, shape[0])) if design == "rank-one" else np.eye(shape[0])[rng.integers(shape[0], size=n)]
        rows = np.hstack([a if design == "rank-one" else a.argmax(axis=1)[:, None], b])
        matrices = np.einsum("ni,nj->nij", a, b)
    y = np.einsum("nij,ij->n", matrices, M) + 0.1 * rng.normal(size=n)

    def error(coefficients: np.ndarray) -> float:
        return float(np.linalg.norm(coefficients - M) / np.linalg.norm(M))

    def fit(epsilon: float, **options: object) -> float:
        model = TraceRegression(2, epsilon, design=design, shape=shape, noise="float", **options)
        return error(model.fit(rows, y).coef_)

    plain = RGrad(2, tolerance=1e-5).fit(matrices, y).coef_
    return {"1": fit(1.0), "4": fit(4.0), "4, as it comes": fit(4.0, center=None), "rgrad": error(plain)}


if __name__ == "__main__":
    main()
