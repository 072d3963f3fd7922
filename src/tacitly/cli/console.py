"""What commands share: their common options and how they print."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacitly.methods import REGISTRY

if TYPE_CHECKING:
    from tacitly.baselines.comparison import Line
    from tacitly.data.cohort import Cohort
    from tacitly.methods.shared_basis import SharedBasisModel
    from tacitly.methods.trace_regression.estimator import TraceRegression

Table = Annotated[Path, typer.Argument(help="CSV, Parquet or Arrow file: one row per observation.", show_default=False)]
Model = Annotated[Path, typer.Argument(help="Model folder, as written by fit.", show_default=False)]
User = Annotated[str, typer.Option("--user", help="Column with the user id.", show_default=False)]
Target = Annotated[str, typer.Option("--target", help="Column to predict.", show_default=False)]
Epsilon = Annotated[float, typer.Option("--epsilon", help="Privacy budget; 'inf' for no privacy.", show_default=False)]
Delta = Annotated[float | None, typer.Option("--delta", help="Probability with which epsilon may fail.")]
Neighbours = Annotated[str, typer.Option("--adjacency", help="zero-out or replace-one.")]
Out = Annotated[Path, typer.Option("--out", help="Where to write the model folder.")]
Features = Annotated[str | None, typer.Option("--features", help="Feature columns, with commas; default: all others.")]
LedgerFile = Annotated[
    Path | None, typer.Option("--ledger", help="Ledger to debit; default: the account that these users have.")
]

_MEASURES = {"squared": ("squared error", "R²"), "classes": ("wrong", "accuracy"), "poisson": ("deviance", "explained")}


def method_option(command: str) -> Any:
    """Return the ``--method`` option of a command."""
    names = ", ".join(REGISTRY.offered(command))
    return typer.Option("--method", help=f"{names}. '--method NAME --help' shows the options of one.")


def say(text: str) -> None:
    """Print a line, and flush it even if stdout is not a terminal."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def status(what: str) -> AbstractContextManager[Any]:
    """Show on the terminal what is being done, while the block runs."""
    from rich.console import Console

    return Console(stderr=True).status(what)


def check_new(out: Path) -> None:
    """Raise if a model folder would be overwritten."""
    if out.exists():
        raise ValueError(f"{out} exists already. Choose another --out, or remove it.")


def names_in(features: str | None) -> list[str] | None:
    """Return the columns of ``--features``; None for all others."""
    return None if features is None else [name.strip() for name in features.split(",")]


def fit_with_progress(model: SharedBasisModel | TraceRegression, cohort: Cohort) -> None:
    """Fit with a progress bar that counts releases."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("releases", total=model.planned_releases(cohort))

        def released(name: str) -> None:
            progress.update(task, advance=1, description=name)

        report: Callable[[str], None] = released
        model.fit(cohort, on_release=report)


def show_certificate(model: SharedBasisModel | TraceRegression) -> None:
    """Print what was released and what it costs."""
    say(str(model.certificate_))


def show_comparison(model: SharedBasisModel, cohort: Cohort) -> None:
    """Print how the model compares with what users would have without it."""
    from rich.console import Console
    from rich.table import Table as Grid

    from tacitly.baselines.comparison import compare

    with status("comparing with what you would have without it"):
        lines: list[Line] = compare(model, cohort)
    grid = Grid(
        "",
        "private?",
        *_MEASURES["classes" if model._loss().classifies else model.loss],
        title="On rows held out from every head (private: do not publish)",
    )
    for line in lines:
        grid.add_row(line.method, line.private, f"{line.error:.4g}", f"{line.score:.3f}")
    Console().print(grid)


def with_heads(folder: Path) -> SharedBasisModel:
    """Load a model that predicts with one head per user."""
    from tacitly.methods.shared_basis import SharedBasisModel
    from tacitly.methods.trace_regression.estimator import TraceRegression
    from tacitly.model_folder import load

    model = load(folder)
    if isinstance(model, TraceRegression):
        raise ValueError(f"{folder} holds a matrix, the same for all users: there are no heads. Use 'tacitly predict'.")
    if not isinstance(model, SharedBasisModel):
        raise ValueError(f"{folder} holds a {type(model).__name__}: components only, nothing to predict with.")
    return model
