"""Find the top components of all rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacitly.cli import console
from tacitly.cli.accounts import opened_account
from tacitly.cli.console import say
from tacitly.cli.method_options import Chosen

if TYPE_CHECKING:
    from tacitly.data.cohort import Cohort


def svd(
    context: typer.Context,
    table: console.Table,
    epsilon: console.Epsilon,
    user: Annotated[str | None, typer.Option(help="Column with the user (device) id.")] = None,
    out: console.Out = Path("components"),
    delta: console.Delta = None,
    adjacency: console.Neighbours = "zero-out",
    features: console.Features = None,
    low: Annotated[float | None, typer.Option(help="Public lower bound of every feature.")] = None,
    high: Annotated[float | None, typer.Option(help="Public upper bound of every feature.")] = None,
    ledger: console.LedgerFile = None,
    full: console.Full = False,
) -> None:
    """Find the top components of all rows."""
    from tacitly.model_folder import save
    from tacitly.privacy.guarantee import check_target

    chosen = Chosen.of(context)
    unit, rank = chosen.values["unit"], chosen.values["n_components"]
    if unit not in ("row", "user"):
        raise ValueError(f"--unit must be row or user. Found {unit!r}.")
    if unit == "user" and user is None:
        raise ValueError("--unit user needs --user COLUMN: the column with the user id.")
    if (low is None) != (high is None):
        raise ValueError("--low and --high go together.")
    if isinstance(rank, str) and rank != "auto":
        raise ValueError(f"--rank must be a whole number or auto. Found {rank!r}.")
    assert delta is not None
    check_target(epsilon, delta)  # an invalid budget would become the ceiling of a new ledger
    console.adjacency_of(adjacency)
    console.check_columns(table, out, user=user, features=console.names_in(features))
    cohort = _read(table, user, console.names_in(features))
    bounds = None if low is None else (low, high)
    shared = {"epsilon": epsilon, "delta": delta, "adjacency": adjacency, "feature_range": bounds}
    model = chosen.method.build(**chosen.values, **shared)
    with opened_account(model, cohort, ledger, out) as path:
        save(model.fit(cohort), out)
    _show(model, full)
    say(f"components: {out}/ (all of it public)\nledger: {path}")


def _read(table: Path, user: str | None, features: list[str] | None) -> Cohort:
    from tacitly.data.cohort import Cohort
    from tacitly.data.grouping import read_rows
    from tacitly.data.tables import open_table

    if user is not None:
        return Cohort.from_table(table, user=user, features=features)
    names = features if features is not None else list(open_table(table).types)
    rows = read_rows(table, features=names)
    return Cohort.from_offsets(rows.X, None, [0, len(rows.X)], feature_names=names)


def _show(model: Any, full: bool) -> None:
    from rich.console import Console
    from rich.table import Table as Grid

    console.show_certificate(model.certificate_, full=full)
    grid = Grid("component", "singular value", "confidence", title=f"route: {model.route_}")
    for number, (value, sure) in enumerate(zip(model.singular_values_, model.confidence_, strict=True), start=1):
        grid.add_row(str(number), f"{value:.4g}", f"{sure:.3f}")
    Console().print(grid)
    error = "not known for this route" if model.predicted_error_ is None else f"{model.predicted_error_:.3g}"
    say(f"expected sine of the angle to the true space: {error}")
