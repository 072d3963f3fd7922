"""Fit a low-rank matrix on a table: matrix completion, and regressions for many tasks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tacitly.cli.accounts import opened_account
from tacitly.cli.console import (
    Delta,
    Epsilon,
    Full,
    LedgerFile,
    Neighbours,
    Out,
    Table,
    Target,
    adjacency_of,
    check_columns,
    fit_with_progress,
    names_in,
    say,
    show_certificate,
    status,
)
from tacitly.cli.method_options import Chosen

if TYPE_CHECKING:
    from tacitly.data.cohort import Cohort
    from tacitly.methods.trace_regression.estimator import TraceRegression


@dataclass(frozen=True)
class _Layout:
    """How the columns of the table are used, and the size of the matrix if it is given."""

    table: Path
    target: str
    user: str | None
    row: str | None
    column: str | None
    rows: int | None
    columns: int | None
    task: str | None
    tasks: int | None
    features: list[str] | None

    def names(self) -> list[str]:
        """Return the columns of an observation."""
        from tacitly.data.tables import open_table

        if self.task is None:
            return [str(self.row), str(self.column)]
        if self.features is not None:
            return [self.task, *self.features]
        others = (self.task, self.target, self.user)
        return [self.task, *(name for name in open_table(self.table, self.user).types if name not in others)]

    def shape(self, names: list[str]) -> tuple[int, int]:
        """Return the size of the matrix."""
        rows = self.rows if self.task is None else self.tasks
        return int(rows or 0), self.columns if self.columns is not None else len(names) - 1

    def check(self) -> None:
        """Raise if options contradict each other or one is missing."""
        sides, sizes = (self.row, self.column), (self.rows, self.columns)
        if (sides == (None, None)) == (self.task is None):
            raise ValueError("give either --row and --column (matrix completion) or --task (many tasks).")
        if self.user is not None and self.user in sides:
            raise ValueError(
                f"column {self.user!r} is both the user and a side of the matrix: under user-level privacy no user's "
                "own row can be released. Use 'tacitly fit', where it stays with the user, or --unit observation."
            )
        if self.task is not None:
            if self.tasks is None:
                raise ValueError("--task needs --tasks: the number of tasks is public, so it has to be given.")
            if sizes != (None, None):
                raise ValueError("--rows and --columns are for --row and --column.")
            return
        if None in sides or None in sizes:
            raise ValueError(
                "matrix completion needs --row, --column, --rows and --columns. The size of the matrix is public, so "
                "it has to be given: the largest number in private data is private."
            )
        if self.features is not None or self.tasks is not None:
            raise ValueError("--features and --tasks are for --task.")


def trace(
    context: typer.Context,
    table: Table,
    target: Target,
    epsilon: Epsilon,
    row: Annotated[str | None, typer.Option(help="Completion: column with the row's number, from 0.")] = None,
    column: Annotated[str | None, typer.Option(help="Completion: column with the column's number, from 0.")] = None,
    rows: Annotated[int | None, typer.Option(help="Completion: number of rows of the matrix.")] = None,
    columns: Annotated[int | None, typer.Option(help="Completion: number of columns of the matrix.")] = None,
    task: Annotated[str | None, typer.Option(help="Many tasks: column with the task's number, from 0.")] = None,
    tasks: Annotated[int | None, typer.Option(help="Many tasks: number of tasks.")] = None,
    features: Annotated[
        str | None, typer.Option(help="Many tasks: feature columns, with commas; default: all others.")
    ] = None,
    user: Annotated[str | None, typer.Option(help="Column with the user id, for --unit user.")] = None,
    out: Out = Path("matrix"),
    delta: Delta = None,
    adjacency: Neighbours = "zero-out",
    ledger: LedgerFile = None,
    compare: Annotated[bool, typer.Option(help="Show the share of the target's variance explained here.")] = True,
    full: Full = False,
) -> None:
    """Fill in a matrix (--row, --column), or fit many related regressions (--task), as one low-rank matrix."""
    from tacitly.privacy.guarantee import check_target

    assert delta is not None
    chosen = Chosen.of(context)
    adjacency_of(adjacency)
    _check_unit(chosen.values["unit"], user)
    layout = _Layout(table, target, user, row, column, rows, columns, task, tasks, names_in(features))
    check_target(epsilon, delta)  # an invalid budget would become the ceiling of a new ledger
    layout.check()
    names = layout.names()
    check_columns(table, out, user=user, target=target, features=names)
    model = _model(chosen, layout, names, epsilon=epsilon, delta=delta, adjacency=adjacency)
    with status("reading the table"):
        cohort = _read(layout, names)
    path = _fit(model, cohort, target, ledger, out, full=full)
    if compare:
        say(f"explains {_explained(model, cohort):.3f} of the target's variance here (private: do not publish)")
    say(f"model: {out}/ (all of it public; use it with 'tacitly predict')\nledger: {path}")


def _check_unit(unit: str, user: str | None) -> None:
    if unit == "user" and user is None:
        raise ValueError("--unit user needs --user COLUMN: the column with the user id.")
    if unit == "observation" and user is not None:
        raise ValueError("--user is for --unit user. Found --unit observation, which protects one row.")


def _model(chosen: Chosen, layout: _Layout, names: list[str], **shared: object) -> TraceRegression:
    """Return the estimator; its parameters are checked before any row is read."""
    from tacitly.methods.trace_regression.parameters import check_choices

    every = [*names, layout.target]
    if twice := sorted({name for name in every if every.count(name) > 1}):
        raise ValueError(f"a column can be used once. Found twice: {', '.join(map(repr, twice))}.")
    shape, rank = layout.shape(names), chosen.values["rank"]
    if rank != "auto" and not (isinstance(rank, int) and 1 <= rank <= min(shape)):
        raise ValueError(
            f"--rank must be auto or lie between 1 and the smaller side of the matrix ({min(shape)}). Found {rank}."
        )
    design = "entries" if layout.task is None else "tasks"
    model: TraceRegression = chosen.method.build(**chosen.values, **shared, design=design, shape=shape)
    check_choices(model, layout.user is not None, False)
    return model


def _fit(model: TraceRegression, cohort: Cohort, target: str, ledger: Path | None, out: Path, *, full: bool) -> Path:
    """Fit, save and show; return the path of the ledger."""
    from tacitly.model_folder import save

    with opened_account(model, cohort, ledger, out) as path:
        fit_with_progress(model, cohort)
        model.target_name_ = target
        save(model, out)
    show_certificate(model.certificate_, full=full)
    rows, columns = model.shape or (0, 0)
    values = ", ".join(f"{value:.4g}" for value in model.singular_values_)
    say(f"a {rows} × {columns} matrix; singular values {values}")
    return path


def _read(layout: _Layout, names: list[str]) -> Cohort:
    from tacitly.data.cohort import Cohort
    from tacitly.data.grouping import read_rows

    table, target = layout.table, layout.target
    if layout.user is not None:
        return Cohort.from_table(table, user=layout.user, target=target, features=names, on_bad_rows="drop-unlabelled")
    rows = read_rows(table, features=names, target=target)
    return Cohort.from_offsets(rows.X, rows.y, [0, len(rows.X)], feature_names=names, target_name=target)


def _explained(model: TraceRegression, cohort: Cohort) -> float:
    """Return the share of the variance that is explained on rows inside the matrix."""
    import numpy as np

    assert cohort.y is not None
    predicted = model.predict(cohort.X)
    known = np.isfinite(predicted)
    return model.score(cohort.X[known], cohort.y[known]) if known.any() else float("nan")
