"""What commands have in common: the types of their arguments, and how they speak."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from tacitly.baselines.comparison import Line
    from tacitly.data.cohort import Cohort
    from tacitly.methods.shared_basis import SharedBasisModel
    from tacitly.methods.trace_regression.estimator import TraceRegression

Table = Annotated[Path, typer.Argument(help="CSV, Parquet or Arrow file: a row an observation.", show_default=False)]
Model = Annotated[Path, typer.Argument(help="Model folder, as written by fit.", show_default=False)]
User = Annotated[str, typer.Option("--user", help="Column with the user id.", show_default=False)]
Target = Annotated[str, typer.Option("--target", help="Column to predict.", show_default=False)]

_MEASURES = {"squared": ("squared error", "R²"), "classes": ("wrong", "accuracy"), "poisson": ("deviance", "explained")}


def say(text: str) -> None:
    """Print a line now, whatever stdout is."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def status(what: str) -> AbstractContextManager[Any]:
    """Show on the terminal what is going on, while it is."""
    from rich.console import Console

    return Console(stderr=True).status(what)


def fit_with_progress(model: SharedBasisModel | TraceRegression, cohort: Cohort) -> None:
    """Fit with a bar that counts releases."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("releases", total=model.planned_releases(cohort))

        def tell(name: str) -> None:
            progress.update(task, advance=1, description=name)

        report: Callable[[str], None] = tell
        model.fit(cohort, on_release=report)


def show_certificate(model: SharedBasisModel | TraceRegression) -> None:
    """Print what was released and what it costs."""
    say(str(model.certificate_))


def show_comparison(model: SharedBasisModel, cohort: Cohort) -> None:
    """Print what users would have without it."""
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
    """Load a model that predicts."""
    from tacitly.methods.shared_basis import SharedBasisModel
    from tacitly.methods.trace_regression.estimator import TraceRegression
    from tacitly.model_folder import load

    model = load(folder)
    if isinstance(model, TraceRegression):
        raise ValueError(f"{folder} holds a matrix, the same for everybody: there are no heads. Use 'tacitly predict'.")
    if not isinstance(model, SharedBasisModel):
        raise ValueError(f"{folder} holds a {type(model).__name__}: components only, nothing to predict with.")
    return model


def quoted(text: str) -> str:
    """Return a cell as CSV wants it."""
    return '"' + text.replace('"', '""') + '"' if any(mark in text for mark in ',"\n\r') else text
