"""Plots of a plan: shares against ε for every method, and against the number of users for every ε."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tacitly.planning.result import Plan


def drawn(plan: Plan, path: str | Path | None = None) -> Any:
    """Draw a plan; if a path is given, save it as PNG, SVG or PDF by its extension. Return Matplotlib's figure."""
    import matplotlib.ticker as ticks
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    by_epsilon, by_users = figure.subplots(1, 2, sharey=True)
    for method in plan.methods:
        lines = [line for line in plan.lines if line.method == method and line.users == plan.shape.users]
        x = [line.epsilon for line in lines]
        by_epsilon.plot(x, [line.share for line in lines], marker="o", label=method)
        by_epsilon.fill_between(x, [line.low for line in lines], [line.high for line in lines], alpha=0.15)
    by_epsilon.set(xscale="log", xlabel="ε", ylabel="share of what is possible", title=str(plan.shape))
    best = plan.recommended or plan.methods[0]
    for epsilon in plan.epsilons:
        lines = [line for line in plan.lines if line.method == best and line.epsilon == epsilon]
        by_users.plot(
            [line.users for line in lines], [line.share for line in lines], marker="o", label=f"ε = {epsilon:g}"
        )
    by_users.set(xscale="log", xlabel="users", title=best)
    for axes in (by_epsilon, by_users):
        axes.axhline(plan.goal, color="grey", linestyle=":", linewidth=1.0)
        axes.set_ylim(-0.1, 1.1)
        axes.yaxis.set_major_formatter(ticks.PercentFormatter(1.0))
        axes.legend(fontsize="small")
    by_epsilon.set_xticks(plan.epsilons, [f"{epsilon:g}" for epsilon in plan.epsilons])
    by_epsilon.minorticks_off()
    by_users.set_xticks(plan.user_numbers, [f"{number:,}" for number in plan.user_numbers])
    by_users.minorticks_off()
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure
