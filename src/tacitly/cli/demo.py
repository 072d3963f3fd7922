"""Fit a model to synthetic patients, as a demonstration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacitly.cli import console, reading
from tacitly.cli.console import say


def demo(
    out: console.Out = Path("demo-model"),
    epsilon: Annotated[float, typer.Option(help="Privacy budget.")] = 1.0,
    users: Annotated[int, typer.Option(help="Number of synthetic patients.")] = 2000,
    full: console.Full = False,
) -> None:
    """Demonstrate everything on synthetic patients, in seconds: table, fit, certificate, comparison, model folder."""
    import shutil

    from tacitly.data.cohort import Cohort
    from tacitly.datasets import load_visits
    from tacitly.methods.mixed_effects.estimator import MixedEffects
    from tacitly.model_folder import PUBLIC, save

    if out.exists():
        if not all((out / name).is_file() for name in PUBLIC):
            raise ValueError(f"{out} exists and is not a model folder. Choose another --out.")
        shutil.rmtree(out)
    table = load_visits(users)
    path = _written(table, out.with_name("visits.csv"))
    cohort = Cohort.from_table(table, user="patient", target="score", schema={"age": {"range": [18, 110]}})
    reading.describe(cohort)
    model = MixedEffects(epsilon=epsilon, schema={"age": {"range": [18, 110]}}, run="demo")
    console.fit_with_progress(model, cohort)
    model.user_column_ = "patient"
    save(model, out)
    console.show_certificate(model.certificate_, full=full)
    console.show_comparison(model, cohort)
    console.show_summary(model)
    say(f"table: {path} (synthetic)\nmodel: {out}/  next: tacitly predict {out} {path} --std")


def _written(table: object, path: Path) -> Path:
    """Write the table next to the model, for experiments; an existing table is not changed."""
    from pyarrow.csv import write_csv

    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_csv(table, path)
    return path
