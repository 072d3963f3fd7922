"""Fit a model on a table."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacitly.cli import console, reading
from tacitly.cli.accounts import opened_account
from tacitly.cli.console import say
from tacitly.cli.method_options import Chosen
from tacitly.methods import REGISTRY
from tacitly.methods.registry import Method

if TYPE_CHECKING:
    from tacitly.data.cohort import Cohort


def fit(
    context: typer.Context,
    table: console.Table,
    user: console.User,
    target: console.Target,
    epsilon: console.Epsilon,
    method: Annotated[str, console.method_option("fit")] = REGISTRY.default("fit").name,
    out: console.Out = Path("model"),
    delta: console.Delta = None,
    adjacency: console.Neighbours = "zero-out",
    features: console.Features = None,
    exclude: reading.Exclude = None,
    ranges: reading.Ranges = None,
    levels: reading.Levels = None,
    missing: reading.Missing = None,
    drop_missing: reading.DropMissing = False,
    separator: reading.Separator = None,
    decimal: reading.Decimal = None,
    ledger: console.LedgerFile = None,
    on_disk: Annotated[
        Path | None, typer.Option(help="Group the rows in this folder, not in memory; reused if it exists.")
    ] = None,
    engine: Annotated[
        str, typer.Option(help="local; cuda: rows on a GPU; ray: spread users over a Ray cluster.")
    ] = "local",
    workers: Annotated[int | None, typer.Option(help="Shards on the cluster; default: one per core.")] = None,
    address: Annotated[
        str | None, typer.Option(help="Address of a running Ray cluster, or auto; default: a new one here.")
    ] = None,
    compare: Annotated[bool, typer.Option(help="Compare with other models on held-out rows.")] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List columns and warnings, spend nothing.")] = False,
    full: console.Full = False,
) -> None:
    """Fit a model to a table with users, features and a target: a private shared part, a personal model per user."""
    chosen = Chosen.of(context)
    check_budget(chosen.method, chosen.values, epsilon, delta, adjacency)
    shared = {"epsilon": epsilon, "delta": delta, "adjacency": adjacency}
    shared |= _engine(chosen.method, engine, address, workers)
    values, labels = _values(chosen, ranges, levels)
    source = reading.opened(table, user, separator, decimal, missing)
    chosen_names = None if features is None else list(reading.named([features], source))
    columns = reading.Columns(user, target, chosen_names, reading.named(exclude, source), labels)
    names = reading.features_of(source, columns)
    if "schema" in values:  # kept with the model, so that 'predict' reads tables in the same way
        reading.declare_codes(values["schema"], names, reading.codes_of(source, missing))
    console.check_new(out)
    console.check_writable(out)
    cohort = _read(chosen.method, source, columns, values.get("schema"), drop_missing, on_disk)
    model = chosen.method.build(**values, **shared)
    _check(model, cohort, source, columns, values)
    if dry_run:
        say("nothing was spent or written: this was a dry run")
        return
    with opened_account(model, cohort, ledger, out) as path:
        fit_and_save(model, cohort, user, labels, out)
    console.show_certificate(model.certificate_, full=full)
    if compare:
        _show_comparison(model, cohort)
    _show_model(model, labels, out, path)


def check_budget(method: Method, values: dict[str, Any], epsilon: float, delta: float | None, adjacency: str) -> None:
    """Raise if the budget or the parameters are invalid, before any table is read."""
    from tacitly.privacy.guarantee import check_target

    assert delta is not None
    console.adjacency_of(adjacency)
    method.check(values)
    if method.delta > 0:  # under pure ε the estimator checks δ
        check_target(epsilon, delta)


def _values(
    chosen: Chosen, ranges: list[str] | None, levels: list[str] | None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the method's parameters, and the target's text labels, whose positions are passed to the method."""
    values = dict(chosen.values)
    if chosen.method.takes_schema:
        values["schema"] = reading.declared(values["schema"], ranges, levels)
    elif ranges or levels:
        usual, option = REGISTRY.default("fit").name, "--range" if ranges else "--levels"
        raise ValueError(f"{option} is for --method {usual}. Found --method {chosen.method.name}.")
    labels = tuple(values.get("classes") or ())
    if not (labels and isinstance(labels[0], str)):
        return values, ()
    values["classes"] = list(range(len(labels)))
    return values, labels


def _engine(method: Method, engine: str, address: str | None, workers: int | None) -> dict[str, Any]:
    """Return the estimator's ``engine`` parameter, which says where users' rows are; empty for this process."""
    if engine not in ("local", "cuda", "ray"):
        raise ValueError(f"--engine must be local, cuda or ray. Found {engine!r}.")
    if engine not in method.engines and method.network:
        raise ValueError(
            f"--method {method.name} uses the GPU of this process without --engine. Found --engine {engine}: leave it "
            "out."
        )
    if engine == "local":
        return {}
    if engine == "cuda":
        from tacitly.federation.cuda.engine import CudaEngine

        CudaEngine().checked_device()  # before any table is read
        return {"engine": engine}
    from tacitly.federation.ray import RayEngine

    return {"engine": RayEngine(address=address, workers=workers)}


def _check(model: Any, cohort: Cohort, source: Any, columns: reading.Columns, values: dict[str, Any]) -> None:
    """Before anything is spent, raise on inputs that would waste the budget, and report inputs that look like it."""
    reading.point_out_ranges(values)
    reading.point_out_misfits(source, columns, cohort, values.get("loss"))
    check_targets(model, cohort)
    reading.point_out_few_users(model, cohort)


def _show_model(model: Any, labels: tuple[str, ...], out: Path, ledger: Path) -> None:
    """Show the summary, and where the model was saved."""
    if labels:
        model.classes = list(labels)  # the summary names them
    console.show_summary(model)
    share = "share it with 'tacitly publish'" if model.certificate_.certified else "not certified: keep it to yourself"
    say(f"model: {out}/ ({share}; private/ holds the heads)\nledger: {ledger}")


def _show_comparison(model: Any, cohort: Cohort) -> None:
    """Compare if possible; an error must not stop the command, because the budget is spent and the summary follows."""
    try:
        console.show_comparison(model, cohort)
    except (console.Interrupted, MemoryError):
        say("no comparison: it was interrupted or ran out of memory. The model is complete.")


def check_targets(model: Any, cohort: Cohort) -> None:
    """Raise if the loss cannot use some targets, before anything is spent: a fit drops them without a message."""
    import numpy as np

    if hasattr(model, "_loss") and cohort.y is not None:
        model._loss().encode(cohort.y[~np.isnan(cohort.y)])


def _read(
    method: Method,
    source: Any,
    columns: reading.Columns,
    schema: dict[str, Any] | None,
    drop_missing: bool,
    folder: Path | None,
) -> Cohort:
    """Read the table, or open the folder in which it was grouped earlier; print what is used."""
    from tacitly.data.cohort import Cohort

    if folder is None or not folder.exists():
        with console.status("reading the table") as shown:

            def progress(what: str, part: float) -> None:
                shown.update(f"{what}: {part:.0%}" if part else what)

            cohort = reading.read_cohort(
                source, columns, schema, drop_missing=drop_missing, folder=folder, progress=progress, method=method
            )
        reading.describe(cohort)
        reading.point_out_twins(cohort, columns.user)
        reading.point_out_ids(source, columns)
        return cohort
    cohort = Cohort.open(folder)
    names = cohort.feature_names if cohort.schema is None else cohort.schema.names
    if cohort.target_name != columns.target or (columns.features is not None and list(names) != columns.features):
        raise ValueError(f"{folder} holds rows with another target or other features. Remove it, or name another.")
    say(f"using the rows that were grouped in {folder} earlier (remove it to read the table again)")
    reading.describe(cohort)
    return cohort


def fit_and_save(
    model: Any,
    cohort: Cohort,
    user: str,
    labels: tuple[str, ...],
    out: Path,
    fitted: Callable[[Any, Cohort], None] = console.fit_with_progress,
) -> None:
    """Fit a model on its account and write its folder; ``fitted`` fits the model and shows progress."""
    from tacitly.model_folder import save
    from tacitly.privacy.guarantee import TooFewUsersWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TooFewUsersWarning)  # the summary reports it
        fitted(model, cohort)
    model.user_column_ = user
    codes = model.classes if labels else None
    if labels:  # the saved model predicts labels; this run continues with their positions
        model.classes = list(labels)
    save(model, out)
    if labels:
        model.classes = codes
