"""A low-rank matrix from a table: matrix completion, and regressions for many tasks at once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tacitly.cli.console import Table, Target, fit_with_progress, say, show_certificate, status

if TYPE_CHECKING:
    from tacitly.data.cohort import Cohort
    from tacitly.methods.trace_regression.estimator import TraceRegression


def trace(
    table: Table,
    target: Target,
    rank: Annotated[int, typer.Option(help="Rank of the matrix.", show_default=False)],
    epsilon: Annotated[float, typer.Option(help="Privacy budget; 'inf' for no privacy.", show_default=False)],
    unit: Annotated[str, typer.Option(help="observation or user: whose data are protected.", show_default=False)],
    row: Annotated[str | None, typer.Option(help="Completion: column with the row's number, from 0.")] = None,
    column: Annotated[str | None, typer.Option(help="Completion: column with the column's number, from 0.")] = None,
    rows: Annotated[int | None, typer.Option(help="Completion: how many rows the matrix has.")] = None,
    columns: Annotated[int | None, typer.Option(help="Completion: how many columns the matrix has.")] = None,
    task: Annotated[str | None, typer.Option(help="Many tasks: column with the task's number, from 0.")] = None,
    tasks: Annotated[int | None, typer.Option(help="Many tasks: how many there are.")] = None,
    features: Annotated[
        str | None, typer.Option(help="Many tasks: feature columns, with commas; default: all others.")
    ] = None,
    user: Annotated[str | None, typer.Option(help="Column with the user id, for --unit user.")] = None,
    out: Annotated[Path, typer.Option(help="Where to write the model folder.")] = Path("matrix"),
    delta: Annotated[float, typer.Option(help="Probability with which epsilon may fail.")] = 1e-6,
    adjacency: Annotated[str, typer.Option(help="zero-out or replace-one.")] = "zero-out",
    privacy: Annotated[str, typer.Option(help="full, or labels: everything but the target is public.")] = "full",
    steps: Annotated[int, typer.Option(help="Noisy gradient steps.")] = 8,
    max_observations: Annotated[int | None, typer.Option(help="For --unit user: most rows of a user.")] = None,
    ledger: Annotated[Path | None, typer.Option(help="Account to debit; default: OUT.ledger, new.")] = None,
    compare: Annotated[bool, typer.Option(help="Say how much of the target it explains here.")] = True,
) -> None:
    """Fill in a matrix (--row, --column), or fit many related regressions (--task), as one low-rank matrix."""
    from tacitly.methods.trace_regression.estimator import TraceRegression
    from tacitly.methods.trace_regression.parameters import check_choices
    from tacitly.model_folder import save
    from tacitly.privacy.guarantee import Adjacency, Budget, check_target
    from tacitly.privacy.ledger import Ledger

    if out.exists():
        raise ValueError(f"{out} exists already. Choose another --out, or remove it.")
    if unit == "user" and user is None:
        raise ValueError("--unit user needs --user COLUMN: the column with the user id.")
    if unit == "observation" and user is not None:
        raise ValueError("--user is for --unit user. Found --unit observation, which protects one row.")
    if user is not None and user in (row, column):
        raise ValueError(
            f"column {user!r} is both the user and a side of the matrix: under user-level privacy nobody's own row can "
            "be released. Use 'tacitly fit', where it stays with the user, or --unit observation."
        )
    check_target(epsilon, delta)  # a ledger would keep a wrong one as its ceiling
    names, first, design = _columns(table, target, user, (row, column), (rows, columns), task, tasks, features)
    twice = sorted({name for name in [*names, target] if [*names, target].count(name) > 1})
    if twice:
        raise ValueError(f"a column can be used once. Found twice: {', '.join(map(repr, twice))}.")
    shape = (first, columns if columns is not None else len(names) - 1)
    if not 1 <= rank <= min(shape):
        raise ValueError(f"--rank must lie between 1 and the smaller side of the matrix ({min(shape)}). Found {rank}.")
    model = TraceRegression(
        rank,
        epsilon,
        delta,
        adjacency,
        unit=unit,
        privacy=privacy,
        design=design,
        shape=shape,
        max_observations=max_observations,
        steps=steps,
        run=out.name,
    )
    check_choices(model, user is not None, False)
    with status("reading the table"):
        cohort = _read(table, names, target, user)
    budget = Budget(epsilon=epsilon, delta=delta, adjacency=Adjacency(adjacency), unit=model._unit_of_privacy())
    path = ledger or out.with_name(out.name + ".ledger")
    with Ledger(path, ceiling=None if path.exists() or not budget.private else budget) as account:
        model.ledger = account
        fit_with_progress(model, cohort)
        model.target_name_ = target
        save(model, out)
    show_certificate(model)
    values = ", ".join(f"{value:.4g}" for value in model.singular_values_)
    say(f"a {shape[0]} × {shape[1]} matrix; singular values {values}; moved by noise: about {model.noise_error_:.3g}")
    if compare:
        say(f"explains {_explained(model, cohort):.3f} of the target's variance here (private: do not publish)")
    say(f"model: {out}/ (all of it public; use it with 'tacitly predict')\nledger: {path}")


def _columns(
    table: Path,
    target: str,
    user: str | None,
    sides: tuple[str | None, str | None],
    sizes: tuple[int | None, int | None],
    task: str | None,
    tasks: int | None,
    features: str | None,
) -> tuple[list[str], int, str]:
    """Return the columns of an observation, the number of rows of the matrix, and the design."""
    from tacitly.data.tables import open_table

    if (sides == (None, None)) == (task is None):
        raise ValueError("say --row and --column (matrix completion), or --task (many tasks): one of the two.")
    if task is None:
        if None in sides or None in sizes:
            raise ValueError(
                "matrix completion needs --row, --column, --rows and --columns. The size of the matrix is public, so "
                "it has to be said: the largest number in private data is private."
            )
        if features is not None or tasks is not None:
            raise ValueError("--features and --tasks are for --task.")
        return [str(side) for side in sides], int(sizes[0] or 0), "entries"
    if tasks is None:
        raise ValueError("--task needs --tasks: how many there are is public, so it has to be said.")
    if sizes != (None, None):
        raise ValueError("--rows and --columns are for --row and --column.")
    own = (task, target, user)
    if features is None:
        return [task, *(name for name in open_table(table, user).types if name not in own)], tasks, "tasks"
    return [task, *(name.strip() for name in features.split(","))], tasks, "tasks"


def _read(table: Path, names: list[str], target: str, user: str | None) -> Cohort:
    from tacitly.data.cohort import Cohort
    from tacitly.data.grouping import read_columns

    if user is not None:
        return Cohort.from_table(table, user=user, target=target, features=names)
    rows, _ = read_columns(table, [*names, target], None)
    return Cohort.from_offsets(rows[:, :-1], rows[:, -1], [0, len(rows)], feature_names=names, target_name=target)


def _explained(model: TraceRegression, cohort: Cohort) -> float:
    """Share of the variance explained on rows that the matrix has a place for."""
    import numpy as np

    assert cohort.y is not None
    predicted = model.predict(cohort.X)
    known = np.isfinite(predicted)
    return model.score(cohort.X[known], cohort.y[known]) if known.any() else float("nan")
