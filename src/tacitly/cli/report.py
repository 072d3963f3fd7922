"""Write a model's report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacitly.cli import console, reading
from tacitly.cli.console import Model, say


def report(
    model: Model,
    out: Annotated[
        Path | None, typer.Option(help="HTML file to write; default: MODEL-report.html, or MODEL-private-report.html.")
    ] = None,
    table: Annotated[
        Path | None, typer.Option(help="The training table: adds which users it helped (private edition).")
    ] = None,
    user: Annotated[str | None, typer.Option(help="Column with the user id; default: as at training.")] = None,
    audit: Annotated[Path | None, typer.Option(help="An audit's report; default: the one published with it.")] = None,
    name: Annotated[str | None, typer.Option(help="Title of the page; default: the folder's name.")] = None,
    missing: reading.Missing = None,
    separator: reading.Separator = None,
    decimal: reading.Decimal = None,
) -> None:
    """Write a one-page report: what was learned, its privacy cost, how to verify it. --table: which users it helped."""
    from tacitly.reporting import report as written

    edition = "report" if table is None else "private-report"
    target = out or Path(f"{model.resolve().name}-{edition}.html")
    console.check_new(target)
    said = None if audit is None else audit.read_text("utf-8")
    if table is None:
        written(model, target, audit=said, name=name)
        say(f"report: {target} (public edition: contains published numbers only)")
        return
    fitted = console.with_heads(model)
    with console.status("comparing with models that share nothing"):
        source = reading.opened(table, user or fitted.user_column_, separator, decimal, missing)
        cohort = reading.rows_as_fitted(fitted, source, user)
        written(model, target, rows=cohort, audit=said, name=name)
    say(f"report: {target} (PRIVATE edition: computed from people's rows, do not publish)")
