"""Predict with a model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tacitly.cli.console import Model, Table, say, with_heads


def predict(
    model: Model,
    table: Table,
    user: Annotated[str | None, typer.Option(help="Column with the user id; default: as at training.")] = None,
    head: Annotated[Path | None, typer.Option(help="A head from 'personalize', for all rows.")] = None,
    out: Annotated[Path | None, typer.Option(help="CSV to write; default: standard output.")] = None,
) -> None:
    """Predict each row of a table with its user's head, or with a matrix from 'trace'."""
    from tacitly.data.grouping import read_rows
    from tacitly.methods.trace_regression.estimator import TraceRegression
    from tacitly.model_folder import load, load_head

    matrix = load(model)
    if isinstance(matrix, TraceRegression):
        if user is not None or head is not None:
            raise ValueError(f"{model} holds a matrix, the same for all users. Leave out --user and --head.")
        rows = read_rows(table, features=matrix.feature_names_in_)
        _write("prediction", [f"{value!r}" for value in matrix.predict(rows.X).tolist()], out)
        return
    fitted = with_heads(model)
    if head is not None:
        rows = read_rows(table, features=fitted.feature_names_in_)
        values = load_head(head, fitted).predict(rows.X).tolist()
        _write("prediction", [f"{value!r}" for value in values], out)
        return
    column = user or fitted.user_column_
    if column is None:
        raise ValueError("which column holds the user id? Give --user COLUMN.")
    rows = read_rows(table, features=fitted.feature_names_in_, user=column)
    assert rows.users is not None
    values = fitted.predict(rows.X, rows.users).tolist()
    lines = [f"{_quoted(str(name))},{value!r}" for name, value in zip(rows.users, values, strict=True)]
    _write(f"{_quoted(column)},prediction", lines, out)


def _write(header: str, lines: list[str], out: Path | None) -> None:
    from tacitly.model_folder import write_private

    text = "\n".join([header, *lines]) + "\n"
    if out is None:
        sys.stdout.write(text)
    else:
        write_private(out, text.encode())
        say(f"{len(lines)} predictions: {out} (personal: readable by you only)")


def _quoted(text: str) -> str:
    """Return a cell as CSV wants it."""
    return '"' + text.replace('"', '""') + '"' if any(mark in text for mark in ',"\n\r') else text
