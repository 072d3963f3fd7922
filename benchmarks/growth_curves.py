"""Draw what a private mixed model knows about growth: the egsingle panel, mathematics scores of pupils over six years.

``python -m benchmarks.growth_curves`` (seconds). Fits MixedEffects at ε = 1 and draws the population's line with its
confidence band, the variation between pupils, and three synthetic pupils, drawn from the public prior and not from any
rows: each has a few synthetic tests and the personal line and band that result. Nothing in the picture is private.
"""

from __future__ import annotations

import argparse

import numpy as np

import tacitly
from benchmarks.panel_data import load
from benchmarks.tables import IMAGES, keep

_NINETY = 1.6448536269514722


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="draw nothing")
    options = parser.parse_args()
    panel = load("egsingle")
    # Growth over years alone, centred in the middle of primary school, as textbooks draw it.
    years = panel.X[:, [panel.features.index("year")]]
    model = tacitly.MixedEffects(epsilon=1.0).fit(years, panel.y, panel.users)
    keep("growth_curves", {"summary": str(model.summary())}, f"```\n{model.summary()}\n```", quick=options.quick)
    if not options.quick:
        draw(model)


def draw(model: tacitly.MixedEffects) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rng = np.random.default_rng(3)
    grid = np.linspace(-2.5, 2.5, 60)[:, None]
    mean, spread = model.predict(grid, return_std=True)
    figure, axes = plt.subplots(1, 2, figsize=(10, 4.2), sharey=True, layout="constrained")
    low, high = mean - _NINETY * spread, mean + _NINETY * spread
    axes[0].fill_between(grid[:, 0], low, high, color="#cfe0f3", label="90 % of tests")
    axes[0].plot(grid[:, 0], mean, color="#1f4e79", linewidth=2, label="population")
    axes[0].set_title("What is public: the prior")
    axes[0].legend(loc="upper left", frameon=False)
    covariance, level = model.covariance_, np.append(model.intercept_, model.coef_)
    for colour, tests in zip(("#b3541e", "#2a7f62", "#6a4c93"), (1, 3, 6), strict=True):
        weights = rng.multivariate_normal(level, covariance)
        seen = np.sort(rng.uniform(-2.5, 2.0, size=tests))[:, None]
        scores = weights[0] + weights[1] * seen[:, 0] + np.sqrt(model.noise_variance_) * rng.normal(size=tests)
        own, band = model.personalize(seen, scores).predict(grid, return_std=True)
        axes[1].fill_between(grid[:, 0], own - _NINETY * band, own + _NINETY * band, color=colour, alpha=0.15)
        axes[1].plot(grid[:, 0], own, color=colour, linewidth=2, label=f"{tests} test{'s' if tests > 1 else ''}")
        axes[1].plot(seen[:, 0], scores, "o", color=colour)
    axes[1].set_title("What stays at home: posteriors (made-up pupils)")
    axes[1].legend(loc="upper left", frameon=False)
    for axis in axes:
        axis.set_xlabel("years from the middle of primary school")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("mathematics score")
    figure.savefig(IMAGES / "growth_curves.png", dpi=120)


if __name__ == "__main__":
    main()
