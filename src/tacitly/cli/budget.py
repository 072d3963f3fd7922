"""Show what a ledger has been debited."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacitly.cli.console import say


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
