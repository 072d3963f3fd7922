"""Attack the published output of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacitly.cli.console import say


def audit(
    target: Annotated[Path, typer.Argument(help="Model folder, or a JSON file with 'class' and 'parameters'.")],
    runs: Annotated[int | None, typer.Option(help="Runs in each of two neighbouring worlds; default 10000.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="300 runs: finds gross errors, in seconds.")] = False,
    workers: Annotated[int | None, typer.Option(help="Processes; default: all cores.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run again even if the result is cached.")] = False,
) -> None:
    """Attack a model's estimator on synthetic data; exit 1 if the attack proves more than its certificate claims."""
    from rich.console import Console
    from rich.progress import Progress

    from tacitly.audit.report import FULL, QUICK
    from tacitly.audit.subject import cached_audit, subject

    if quick and runs is not None:
        raise ValueError("--quick sets the number of runs. Leave out --runs.")
    count = runs if runs is not None else QUICK if quick else FULL
    if count < 20:
        raise ValueError(f"--runs must be at least 20. Found {count}.")
    estimator, claimed = subject(target)
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("runs", total=2 * count)
        verdict = cached_audit(
            estimator,
            claimed=claimed,
            runs=count,
            workers=workers,
            fresh=fresh,
            progress=lambda done: bar.update(task, advance=done),
        )
    say(verdict.text)
    if not verdict.ok:
        raise typer.Exit(1)
