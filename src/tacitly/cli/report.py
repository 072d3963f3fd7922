"""Write a model's report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacitly.cli import console, reading
from tacitly.cli.console import Model, say

if TYPE_CHECKING:
    from tacitly.data.cohort import Cohort
    from tacitly.data.source import Source


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
        cohort = _rows(fitted, reading.opened(table, user or fitted.user_column_, separator, decimal, missing), user)
        written(model, target, rows=cohort, audit=said, name=name)
    say(f"report: {target} (PRIVATE edition: computed from people's rows, do not publish)")


def _rows(fitted: Any, source: Source, user: str | None) -> Cohort:
    """Read the table as the model's fit did; text labels become their positions."""
    column, target = user or fitted.user_column_, fitted.target_name_
    if column is None or target is None:
        raise ValueError("the model does not state which column contains the users. Give --user.")
    classes = getattr(fitted, "classes", None) or ()
    labels = tuple(classes) if classes and isinstance(classes[0], str) else ()
    schema = fitted._schema if hasattr(fitted, "_schema") else None
    features = list(fitted.feature_names_in_ if schema is None else schema.names)
    declared = None if schema is None else schema.to_dict()["columns"]
    columns = reading.Columns(column, target, [str(name) for name in features], (), labels)
    return reading.read_cohort(source, columns, declared, drop_missing=False, folder=None)
