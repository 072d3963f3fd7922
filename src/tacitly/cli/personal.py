"""Use a model: predict, and fit a head for a new user."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tacitly.cli.console import Model, Table, quoted, say, with_heads


def predict(
    model: Model,
    table: Table,
    user: Annotated[str | None, typer.Option(help="Column with the user id; default: as at training.")] = None,
    head: Annotated[Path | None, typer.Option(help="A head from 'personalize', for all rows.")] = None,
    out: Annotated[Path | None, typer.Option(help="CSV to write; default: standard output.")] = None,
) -> None:
    """Predict each row of a table with its user's head, or with a matrix from 'trace'."""
    import numpy as np

    from tacitly.data.grouping import read_columns
    from tacitly.methods.trace_regression.estimator import TraceRegression
    from tacitly.model_folder import load, load_head

    matrix = load(model)
    if isinstance(matrix, TraceRegression):
        if user is not None or head is not None:
            raise ValueError(f"{model} holds a matrix, the same for everybody. Leave out --user and --head.")
        rows, _ = read_columns(table, [str(name) for name in matrix.feature_names_in_], None)
        _write("prediction", [f"{value!r}" for value in matrix.predict(rows).tolist()], out)
        return
    fitted = with_heads(model)
    names = [str(name) for name in fitted.feature_names_in_]
    if head is not None:
        rows, _ = read_columns(table, names, None)
        lines = [f"{value!r}" for value in load_head(head, fitted).predict(rows).tolist()]
        header = "prediction"
    else:
        column = user or fitted.user_column_
        if column is None:
            raise ValueError("which column holds the user id? Say --user COLUMN.")
        rows, ids = read_columns(table, names, column)
        assert ids is not None
        values = fitted.predict(rows, np.asarray(ids)).tolist()
        lines = [f"{quoted(str(name))},{value!r}" for name, value in zip(ids, values, strict=True)]
        header = f"{quoted(column)},prediction"
    _write(header, lines, out)


def _write(header: str, lines: list[str], out: Path | None) -> None:
    from tacitly.model_folder import write_private

    text = "\n".join([header, *lines]) + "\n"
    if out is None:
        sys.stdout.write(text)
    else:
        write_private(out, text.encode())
        say(f"{len(lines)} predictions: {out} (personal: readable by you only)")


def personalize(
    model: Model,
    table: Table,
    out: Annotated[Path, typer.Option(help="Where to write the head.")] = Path("head.json"),
    target: Annotated[str | None, typer.Option(help="Target column; default: as at training.")] = None,
) -> None:
    """Fit a head for a new user from that user's own rows. Costs nobody any privacy; works on a published model."""
    import numpy as np

    from tacitly.data.grouping import read_columns
    from tacitly.model_folder import save_head

    fitted = with_heads(model)
    column = target or fitted.target_name_
    if column is None:
        raise ValueError("which column is the target? Say --target COLUMN.")
    names = [str(name) for name in fitted.feature_names_in_]
    rows, _ = read_columns(table, [*names, column], None)
    values = np.asarray(rows, dtype=np.float64)
    save_head(fitted.personalize(values[:, :-1], values[:, -1]), out)
    say(f"head from {len(values)} rows: {out} (private; use it with 'tacitly predict --head')")
