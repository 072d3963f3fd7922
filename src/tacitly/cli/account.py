"""What was spent, whether a certificate holds, and the public part of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacitly.cli.console import Model, say


def verify(
    model: Model,
    ledger: Annotated[Path | None, typer.Option(help="Also compare with this ledger.")] = None,
    allow_uncertified: Annotated[bool, typer.Option("--allow-uncertified", help="Even if it claims nothing.")] = False,
) -> None:
    """Derive epsilon again from the certificate's releases with independent code; exit 1 if anything is off."""
    from tacitly.privacy.ledger import Ledger
    from tacitly.privacy.verification import verify as check

    for name in ("certificate.json", "billboard.safetensors"):
        if not (model / name).is_file():
            raise ValueError(f"{model} is not a model folder: {name} is missing.")
    if ledger is not None and not ledger.is_file():
        raise ValueError(f"there is no ledger at {ledger}.")
    text = (model / "certificate.json").read_text(encoding="utf-8")
    billboard = (model / "billboard.safetensors").read_bytes()
    account = Ledger(ledger) if ledger is not None else None
    verdict = check(text, billboard=billboard, ledger=account, allow_uncertified=allow_uncertified)
    say(str(verdict))
    if not verdict.ok:
        raise typer.Exit(1)


def budget(ledger: Annotated[Path, typer.Argument(help="Ledger file.", show_default=False)]) -> None:
    """Show what a ledger has been debited, and what is left."""
    from rich.console import Console
    from rich.table import Table as Grid

    from tacitly.privacy.certificate import shown
    from tacitly.privacy.ledger import Ledger

    if not ledger.is_file():
        raise ValueError(f"there is no ledger at {ledger}.")
    with Ledger(ledger) as account:
        grid = Grid("run", "state", "releases", "ε", title=str(ledger))
        for run in account.runs():
            epsilon = "" if run.epsilon is None else shown(run.epsilon)
            grid.add_row(run.name, run.state, str(run.releases), epsilon)
        Console().print(grid)
        ceiling = account.ceiling
        if ceiling is None:
            say(f"spent ε = {shown(account.spent(delta=1e-6))} at δ = 1e-06 (zero-out); no ceiling")
        else:
            say(
                f"spent ε = {shown(account.spent())} of {ceiling.epsilon:g} at δ = {ceiling.delta:g} "
                f"({ceiling.adjacency}, unit: {ceiling.unit})"
            )


def publish(
    model: Model,
    target: Annotated[Path, typer.Argument(help="New folder for the public part.", show_default=False)],
    allow_uncertified: Annotated[bool, typer.Option("--allow-uncertified", help="Even without a certificate.")] = False,
) -> None:
    """Copy the public part of a model (no heads, no ids), after verifying its certificate."""
    from tacitly.model_folder import publish as copy_public

    copy_public(model, target, allow_uncertified=allow_uncertified)
    say(f"public part: {target}/ (basis, certificate, configuration; no heads, no ids)")
