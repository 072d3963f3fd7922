"""Predict with a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacitly.cli import reading
from tacitly.cli.console import Model, Table, check_new, say, with_heads, wrapped

if TYPE_CHECKING:
    from tacitly.data.grouping import TableRows

PERSONAL, POPULATION, NOBODY = "personal", "population", "none"


def predict(
    model: Model,
    table: Table,
    user: Annotated[str | None, typer.Option(help="Column with the user id; default: as at training.")] = None,
    head: Annotated[Path | None, typer.Option(help="A head from 'personalize', for all rows.")] = None,
    heads: Annotated[Path | None, typer.Option(help="A site's folder (see 'join') with its users' heads.")] = None,
    std: Annotated[bool, typer.Option("--std", help="Add the standard deviation of a new observation.")] = False,
    proba: Annotated[bool, typer.Option("--proba", help="Add the probability of each class.")] = False,
    separator: reading.Separator = None,
    decimal: reading.Decimal = None,
    out: Annotated[Path | None, typer.Option(help="CSV to write; default: standard output.")] = None,
) -> None:
    """Predict each row of a table with its user's personal model; for users without one, with the population's.

    The column 'model' says which model was used: personal, population, or none.
    """
    from tacitly.methods.trace_regression.estimator import TraceRegression
    from tacitly.model_folder import load

    fitted: Any = load(model)
    if isinstance(fitted, TraceRegression):
        if user is not None or head is not None or heads is not None or std or proba:
            raise ValueError(
                f"{model} holds a matrix, the same for all users. Leave out --user, --head, --heads, --std and --proba."
            )
        source = reading.opened(table, None, separator, decimal)
        check_new(out)
        rows = _rows(fitted, source, None)
        _write({"prediction": fitted.predict(rows.X).tolist()}, out)
        return
    fitted = with_heads(model)
    _check_wishes(fitted, std, proba)
    if heads is not None:
        from tacitly.deployment.join import take_heads

        if head is not None:
            raise ValueError("--head holds one user's head, --heads the heads of a site. Give one of them.")
        fitted.user_column_ = take_heads(heads, fitted) or fitted.user_column_
    source = reading.opened(table, user or fitted.user_column_, separator, decimal)
    check_new(out)
    if head is not None:
        _write(_with_head(fitted, _rows(fitted, source, None), head, std, proba), out)
        return
    column = _user_column(fitted, source, user)
    rows = _rows(fitted, source, column)
    _write(_by_user(fitted, rows, column, std, proba), out)


def _check_wishes(fitted: Any, std: bool, proba: bool) -> None:
    """Raise if the model does not provide a requested output."""
    if std and not _has_deviations(fitted):
        if fitted._loss().classifies:
            raise ValueError("--std is for numbers and counts. This model predicts classes: use --proba.")
        raise ValueError(f"--std needs a MixedEffects model. Found {type(fitted).__name__}.")
    if proba and not (fitted._loss().classifies and hasattr(fitted, "predict_proba")):
        raise ValueError(f"--proba is for models of classes. This {type(fitted).__name__} has loss {fitted.loss}.")


def _has_deviations(fitted: Any) -> bool:
    return "return_std" in _signature(fitted) and not fitted._loss().classifies


def _signature(fitted: Any) -> Any:
    import inspect

    return inspect.signature(fitted.predict).parameters


def _user_column(fitted: Any, source: Any, user: str | None) -> str | None:
    """Return the column with user ids; None if there is none and the model does not need one."""
    if user is not None or fitted.user_column_ in source.types:
        return user or str(fitted.user_column_)
    if _signature(fitted)["users"].default is None:  # the population's prediction needs no ids
        return None
    if fitted.user_column_ is None:
        raise ValueError("which column holds the user id? Give --user COLUMN.")
    raise ValueError(f"{source.title} has no column {fitted.user_column_!r}, the user id at training. Give --user.")


def _rows(fitted: Any, source: Any, user: str | None) -> TableRows:
    from tacitly.data.grouping import read_rows

    schema = getattr(fitted, "_schema", None)
    return read_rows(source, features=fitted.feature_names_in_, user=user, schema=schema)


def _with_head(fitted: Any, rows: TableRows, head: Path, std: bool, proba: bool) -> dict[str, list[Any]]:
    from tacitly.head_file import load_head

    columns = _columns(load_head(head, fitted), fitted, (rows.X,), std, proba)
    return {**columns, "model": [PERSONAL] * len(rows.X)}


def _by_user(fitted: Any, rows: TableRows, column: str | None, std: bool, proba: bool) -> dict[str, list[Any]]:
    """Predict rows with their users' heads, and rows of other users with the population's head, or not at all."""
    import numpy as np

    from tacitly.data.user_ids import Directory
    from tacitly.data.validation import DataError, absent

    if column is None:
        return {**_columns(fitted, fitted, (rows.X,), std, proba), "model": [POPULATION] * len(rows.X)}
    assert rows.users is not None
    names = {column: ["" if absent(name) else str(name) for name in rows.users]}
    known = Directory(fitted.users_).find(rows.users) >= 0 if len(fitted.users_) else np.full(len(rows.X), False)
    try:
        columns = _columns(fitted, fitted, (rows.X, rows.users), std, proba)
        if len(fitted.users_) and not known.any():
            _say_strangers(column)
        return {**names, **columns, "model": [PERSONAL if mine else POPULATION for mine in known]}
    except DataError:
        if known.all():
            raise
    _say_unknown(int(np.count_nonzero(~known)), len(known))
    some = _columns(fitted, fitted, (rows.X[known], rows.users[known]), std, proba)
    places = np.cumsum(known) - 1
    spread = {
        name: [values[place] if mine else "" for place, mine in zip(places, known, strict=True)]
        for name, values in some.items()
    }
    return {**names, **spread, "model": [PERSONAL if mine else NOBODY for mine in known]}


def _say_strangers(column: str) -> None:
    note = (
        f"note: no id in column {column!r} has a personal model here, so all rows get the population's prediction. Ids "
        "are compared letter by letter: 007 and 7 differ, and spreadsheets drop zeros."
    )
    say(wrapped(note), err=True)


def _say_unknown(unknown: int, rows: int) -> None:
    """Report users without a head, if the method has no model of the population; raise if this concerns all rows."""
    note = (
        f"{unknown} of {rows} rows belong to users who have no head in this model. Fit a head from such a user's "
        "own rows with 'tacitly personalize', and predict with --head."
    )
    if unknown == rows:
        raise ValueError(note)
    say(wrapped(f"note: {note} They get no prediction."), err=True)


def _columns(who: Any, fitted: Any, inputs: tuple[Any, ...], std: bool, proba: bool) -> dict[str, list[Any]]:
    """Return the numeric columns of a model or a head: predictions, and the additional outputs that were requested."""
    if std:
        mean, deviation = who.predict(*inputs, return_std=True)
        return {"prediction": mean.tolist(), "std": deviation.tolist()}
    columns = {"prediction": who.predict(*inputs).tolist()}
    if proba:
        chances = who.predict_proba(*inputs)
        columns |= {f"P({label})": chances[:, place].tolist() for place, label in enumerate(fitted.classes_)}
    return columns


def _write(columns: dict[str, list[Any]], out: Path | None) -> None:
    import csv
    import io
    import sys

    from tacitly.portable import write_private

    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    if out is None:
        sys.stdout.write(file.getvalue())
        return
    write_private(out, file.getvalue().encode())
    count = len(next(iter(columns.values())))
    say(f"{count} predictions: {out} (personal: readable by you only)")
