"""The same problem in tacitly and in other libraries, in one run: principal components, and a mixed model.

``python -m benchmarks.speed.peers`` (a minute; ``--quick`` for a smoke test). ``TACITLY_PEERS`` names a Python
interpreter that has diffprivlib and statsmodels; without it only tacitly is measured. Times are processor times, the
best of three fits here after one that compiles, and of one there. Simulators of federated learning are in
:mod:`benchmarks.speed.engines`.

* Principal components: rows of norm at most one, ε = 1 for a row. diffprivlib: the exponential mechanism, one component
  after the other. tacitly: ``FedPower``. Error: sine of the largest angle to the components without privacy.
* Mixed model: a random intercept and random slopes. statsmodels: restricted likelihood, not private. tacitly:
  ``MixedEffects`` at ε = 1 for a user. Error: largest error of a population effect.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import tacitly
from benchmarks.speed.mixed_effects import timed
from benchmarks.tables import keep, table

COMPONENTS, FEATURES = 2, 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small problems, nothing is written")
    quick = parser.parse_args().quick
    rows, users = (2_000, 200) if quick else (100_000, 2_000)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        X, X_panel, y, owners, effects = write(folder, rows, users)
        theirs = others(folder)
        lines = components(X, theirs.get("diffprivlib")) + mixed(X_panel, y, owners, effects, theirs.get("statsmodels"))
    keep("speed_peers", {"lines": lines}, as_text({"lines": lines}), quick=quick)


def as_text(data: dict[str, Any]) -> str:
    """Return the table."""
    rows = []
    for line in data["lines"]:
        ours = next(other for other in data["lines"] if other["problem"] == line["problem"])
        ratio = f"{line['processor'] / ours['processor']:.1f}×"
        rows.append(
            [line["problem"], line["library"], f"{line['processor']:.2f} s", ratio, line["privacy"], line["error"]]
        )
    return table(["problem", "library", "processor time", "of ours", "privacy", "error"], rows)


def write(folder: Path, rows: int, users: int) -> tuple[Any, ...]:
    """Write both problems, and return them."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((rows, 32)) * np.concatenate([[3.0, 2.0], np.ones(30)])
    X /= np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1.0)
    np.save(folder / "pca.npy", X)
    effects = np.array([1.0, 0.5, -0.5, 0.25])
    own = effects + 0.3 * rng.standard_normal((users, FEATURES + 1))
    owners = np.repeat(np.arange(users), 10)
    panel = rng.standard_normal((len(owners), FEATURES))
    y = own[owners, 0] + np.sum(panel * own[owners, 1:], axis=1) + 0.5 * rng.standard_normal(len(owners))
    np.savez(folder / "panel.npz", X=panel, y=y, users=owners)
    return X, panel, y, owners, effects


def components(X: Any, theirs: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Compare principal components."""
    truth = np.linalg.eigh(X.T @ X)[1][:, ::-1][:, :COMPONENTS]
    name = f"{COMPONENTS} components of {X.shape[0]:,} × {X.shape[1]}"

    def fit() -> Any:
        return tacitly.FedPower(COMPONENTS, epsilon=1.0).fit(X)

    def line(library: str, found: Any, processor: float, privacy: str) -> dict[str, Any]:
        error = tacitly.subspace_distance(np.asarray(found).T, truth)
        return {"problem": name, "library": library, "processor": processor, "privacy": privacy, "error": float(error)}

    model = fit()
    lines = [line("tacitly", model.components_, best(fit), f"(1, {model.delta:g}), row")]
    if theirs:
        label = f"diffprivlib {theirs['version']}"
        lines.append(line(label, theirs["components"], theirs["processor"], "(1, 0), row"))
    return lines


def mixed(X: Any, y: Any, owners: Any, effects: Any, theirs: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Compare mixed models."""
    name = f"mixed model, {owners[-1] + 1:,} users × 10 × {FEATURES}"

    def fit() -> Any:
        return tacitly.MixedEffects(epsilon=1.0).fit(X, y, users=owners)

    def line(library: str, found: Any, processor: float, privacy: str) -> dict[str, Any]:
        error = float(np.abs(np.asarray(found) - effects).max())
        return {"problem": name, "library": library, "processor": processor, "privacy": privacy, "error": error}

    model = fit()
    found = np.append(model.intercept_, model.coef_)
    lines = [line("tacitly", found, best(fit), f"(1, {model.delta:g}), user")]
    if theirs:
        lines.append(line(f"statsmodels {theirs['version']}", theirs["effects"], theirs["processor"], "none"))
    return lines


def best(fit: Any) -> float:
    """Return the least processor time of three fits."""
    return min(timed(fit)[1] for _ in range(3))


def others(folder: Path) -> dict[str, Any]:
    """Return what the other libraries report; empty where there is no interpreter for them."""
    python = os.environ.get("TACITLY_PEERS")
    if python is None:
        return {}
    script = Path(__file__).parent / "others" / "libraries.py"
    done = subprocess.run([python, str(script), str(folder)], stdout=subprocess.PIPE, text=True, check=True)
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


if __name__ == "__main__":
    main()
