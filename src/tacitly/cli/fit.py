"""Fit a model on a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacitly.cli.accounts import opened_account
from tacitly.cli.console import (
    Delta,
    Epsilon,
    Features,
    LedgerFile,
    Neighbours,
    Out,
    Table,
    Target,
    User,
    check_new,
    fit_with_progress,
    method_option,
    names_in,
    say,
    show_certificate,
    show_comparison,
    status,
)
from tacitly.cli.method_options import Chosen
from tacitly.methods import REGISTRY

if TYPE_CHECKING:
    from tacitly.data.cohort import Cohort


def fit(
    context: typer.Context,
    table: Table,
    user: User,
    target: Target,
    epsilon: Epsilon,
    method: Annotated[str, method_option("fit")] = REGISTRY.default("fit").name,
    out: Out = Path("model"),
    delta: Delta = None,
    adjacency: Neighbours = "zero-out",
    features: Features = None,
    ledger: LedgerFile = None,
    on_disk: Annotated[
        Path | None, typer.Option(help="Group the rows in this folder instead of memory; reused if it exists.")
    ] = None,
    engine: Annotated[str, typer.Option(help="local, or ray: spread users over a Ray cluster.")] = "local",
    workers: Annotated[int | None, typer.Option(help="Shards on the cluster; default: one per core.")] = None,
    address: Annotated[
        str | None, typer.Option(help="Address of a running Ray cluster, or auto; default: a new one here.")
    ] = None,
    compare: Annotated[bool, typer.Option(help="Compare with what you would have without it.")] = True,
) -> None:
    """Fit a model on a table of (user, features, target)."""
    from tacitly.model_folder import save
    from tacitly.privacy.guarantee import Adjacency, check_target

    chosen = Chosen.of(context)
    check_new(out)
    spread = _engine(engine, address, workers)
    chosen.method.check(chosen.values)
    assert delta is not None
    if chosen.method.delta > 0:  # under pure ε the estimator checks δ; a ledger would keep a wrong one as its ceiling
        check_target(epsilon, delta)
    Adjacency(adjacency)
    with status("reading the table"):
        cohort = _read(table, user, target, names_in(features), on_disk)
    say(f"{cohort.n_users} users, {cohort.n_features} features")
    model = chosen.method.build(
        **{**chosen.values, **spread, "epsilon": epsilon, "delta": delta, "adjacency": adjacency}
    )
    with opened_account(model, cohort, ledger, out) as path:
        fit_with_progress(model, cohort)
        model.user_column_ = user
        save(model, out)
    show_certificate(model)
    if compare:
        show_comparison(model, cohort)
    say(f"model: {out}/ (share it with 'tacitly publish'; private/ holds the heads)\nledger: {path}")


def _engine(engine: str, address: str | None, workers: int | None) -> dict[str, Any]:
    """Return the estimator's parameter that says where users are; nothing for this process."""
    if engine not in ("local", "ray"):
        raise ValueError(f"--engine must be local or ray. Found {engine!r}.")
    if engine == "local":
        return {}
    from tacitly.federation.ray import RayEngine

    return {"engine": RayEngine(address=address, workers=workers)}


def _read(table: Path, user: str, target: str, features: list[str] | None, folder: Path | None) -> Cohort:
    """Read the table, or open the folder in which it was grouped earlier."""
    from tacitly.data.cohort import Cohort

    if folder is None or not folder.exists():
        return Cohort.from_table(table, user=user, target=target, features=features, folder=folder)
    cohort = Cohort.open(folder)
    if cohort.target_name != target or (features is not None and list(cohort.feature_names) != features):
        raise ValueError(f"{folder} holds rows with another target or other features. Remove it, or name another.")
    say(f"using the rows grouped in {folder} earlier (remove it to read the table again)")
    return cohort
