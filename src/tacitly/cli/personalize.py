"""Fit a head for a new user."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tacitly.cli import reading
from tacitly.cli.console import Model, Table, check_new, say, with_heads


def personalize(
    model: Model,
    table: Table,
    out: Annotated[Path, typer.Option(help="Where to write the head.")] = Path("head.json"),
    target: Annotated[str | None, typer.Option(help="Target column; default: as at training.")] = None,
    user: Annotated[str | None, typer.Option(help="Column with the user id, if any; default: as at training.")] = None,
    only: Annotated[str | None, typer.Option("--id", help="The user whose rows to use, if there are several.")] = None,
    missing: reading.Missing = None,
    separator: reading.Separator = None,
    decimal: reading.Decimal = None,
) -> None:
    """Fit a head for a new user from that user's own rows. Spends no budget; works on a published model."""
    from tacitly.data.grouping import no_such_column
    from tacitly.head_file import save_head

    fitted = with_heads(model)
    column = target or fitted.target_name_
    if column is None:
        raise ValueError("which column is the target? Give --target COLUMN.")
    source = reading.opened(table, user or fitted.user_column_, separator, decimal, missing)
    if column not in source.types:
        raise ValueError(no_such_column(source, "target", column))
    X, y = _own_rows(fitted, source, column, user, only)
    check_new(out)
    save_head(fitted.personalize(X, y), out, fitted)
    say(f"head from {len(X)} row{'s' * (len(X) > 1)}: {out} (private; use it with 'tacitly predict --head {out}')")


def _own_rows(fitted: Any, source: Any, target: str, user: str | None, only: str | None) -> tuple[Any, Any]:
    """Return the rows of one user; raise if the table contains several users and none was named."""
    import numpy as np

    from tacitly.data.grouping import read_rows
    from tacitly.data.selection import complete_rows, labelled

    column = user or (fitted.user_column_ if fitted.user_column_ in source.types else None)
    if only is not None and column is None:
        raise ValueError("--id needs the column with the user id. Give --user COLUMN.")
    labels = reading.labels_of(fitted)
    source = labelled(source, target, labels) if labels else source
    source, _ = complete_rows(source, [target])
    schema = getattr(fitted, "_schema", None)
    rows = read_rows(source, features=fitted.feature_names_in_, target=target, user=column, schema=schema)
    assert rows.y is not None
    y = np.asarray(labels)[rows.y.astype(int)] if labels else rows.y
    if rows.users is None:
        return rows.X, y
    ids = rows.users.astype(str)
    mine = np.full(len(ids), True) if only is None else ids == only
    if not mine.any():
        raise ValueError(f"no row of column {column!r} has the id that --id names.")
    if (several := len(np.unique(ids[mine]))) > 1:
        raise ValueError(
            f"the table has rows of {several} users (column {column!r}), but a head is for one user. Choose with --id."
        )
    return rows.X[mine], y[mine]
