"""Top components of everybody's rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacitly.cli.console import Table, say


def svd(
    table: Table,
    rank: Annotated[str, typer.Option(help="Number of components, or 'auto'.", show_default=False)],
    epsilon: Annotated[float, typer.Option(help="Privacy budget; 'inf' for no privacy.", show_default=False)],
    unit: Annotated[str, typer.Option(help="row or user: whose data are protected.", show_default=False)],
    user: Annotated[str | None, typer.Option(help="Column with the user (device) id.")] = None,
    out: Annotated[Path, typer.Option(help="Where to write the model folder.")] = Path("components"),
    delta: Annotated[float, typer.Option(help="Probability with which epsilon may fail.")] = 1e-6,
    adjacency: Annotated[str, typer.Option(help="zero-out or replace-one.")] = "zero-out",
    features: Annotated[str | None, typer.Option(help="Feature columns, with commas; default: all others.")] = None,
    low: Annotated[float | None, typer.Option(help="Public lower bound of every feature.")] = None,
    high: Annotated[float | None, typer.Option(help="Public upper bound of every feature.")] = None,
    center: Annotated[bool, typer.Option(help="Subtract the mean, bought privately (PCA).")] = False,
    route: Annotated[str, typer.Option(help="auto, gram, power, device or local-noise.")] = "auto",
    trust: Annotated[str, typer.Option(help="central, or local: every user adds the noise.")] = "central",
    ledger: Annotated[Path | None, typer.Option(help="Account to debit; default: OUT.ledger, new.")] = None,
) -> None:
    """Find the top components of everybody's rows."""
    from rich.console import Console
    from rich.table import Table as Grid

    from tacitly.data.cohort import Cohort
    from tacitly.data.grouping import read_columns
    from tacitly.data.tables import open_table
    from tacitly.methods.fedpower.estimator import FedPower
    from tacitly.model_folder import save
    from tacitly.privacy.guarantee import Adjacency, Budget, Unit, check_target
    from tacitly.privacy.ledger import Ledger

    if out.exists():
        raise ValueError(f"{out} exists already. Choose another --out, or remove it.")
    if unit not in ("row", "user"):
        raise ValueError(f"--unit must be row or user. Found {unit!r}.")
    if unit == "user" and user is None:
        raise ValueError("--unit user needs --user COLUMN: the column with the user id.")
    if (low is None) != (high is None):
        raise ValueError("--low and --high go together.")
    if rank != "auto" and not rank.isdigit():
        raise ValueError(f"--rank must be a whole number or auto. Found {rank!r}.")
    check_target(epsilon, delta)  # a ledger would keep a wrong one as its ceiling
    budget = Budget(epsilon=epsilon, delta=delta, adjacency=Adjacency(adjacency), unit=Unit(unit))
    chosen = None if features is None else [name.strip() for name in features.split(",")]
    if user is not None:
        cohort = Cohort.from_table(table, user=user, features=chosen)
    else:
        names = chosen if chosen is not None else list(open_table(table).types)
        rows, _ = read_columns(table, names, None)
        cohort = Cohort.from_offsets(rows, None, [0, len(rows)], feature_names=names)
    path = ledger or out.with_name(out.name + ".ledger")
    with Ledger(path, ceiling=None if path.exists() or not budget.private else budget) as account:
        model = FedPower(
            rank if rank == "auto" else int(rank),
            epsilon,
            delta,
            adjacency,
            unit=unit,
            center=center,
            feature_range=None if low is None else (low, high),
            route=route,
            trust=trust,
            ledger=account,
            run=out.name,
        ).fit(cohort)
        save(model, out)
    say(str(model.certificate_))
    grid = Grid("component", "singular value", "confidence", title=f"route: {model.route_}")
    for number, (value, sure) in enumerate(zip(model.singular_values_, model.confidence_, strict=True), start=1):
        grid.add_row(str(number), f"{value:.4g}", f"{sure:.3f}")
    Console().print(grid)
    error = "not known for this route" if model.predicted_error_ is None else f"{model.predicted_error_:.3g}"
    say(f"expected sine of the angle to the true space: {error}")
    say(f"components: {out}/ (all of it public)\nledger: {path}")
