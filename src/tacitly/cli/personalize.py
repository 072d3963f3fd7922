"""Fit a head for a new user."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacitly.cli.console import Model, Table, say, with_heads


def personalize(
    model: Model,
    table: Table,
    out: Annotated[Path, typer.Option(help="Where to write the head.")] = Path("head.json"),
    target: Annotated[str | None, typer.Option(help="Target column; default: as at training.")] = None,
) -> None:
    """Fit a head for a new user from that user's own rows. Spends no budget; works on a published model."""
    from tacitly.data.grouping import read_rows
    from tacitly.model_folder import save_head

    fitted = with_heads(model)
    column = target or fitted.target_name_
    if column is None:
        raise ValueError("which column is the target? Give --target COLUMN.")
    rows = read_rows(table, features=fitted.feature_names_in_, target=column)
    assert rows.y is not None
    save_head(fitted.personalize(rows.X, rows.y), out)
    say(f"head from {len(rows.X)} rows: {out} (private; use it with 'tacitly predict --head')")
