"""Fit on synthetic users, to show the whole thing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacitly.cli.console import Out, fit_with_progress, say, show_certificate, show_comparison


def demo(
    out: Out = Path("demo-model"),
    epsilon: Annotated[float, typer.Option(help="Privacy budget.")] = 1.0,
    users: Annotated[int, typer.Option(help="Number of synthetic users.")] = 5000,
) -> None:
    """Show the whole thing on synthetic users in seconds: fit, certificate, comparison, model folder."""
    import shutil

    from tacitly.data.cohort import Cohort
    from tacitly.datasets import make_shared_subspace
    from tacitly.linalg import subspace_distance
    from tacitly.methods.fedrep.estimator import PrivateFedRep
    from tacitly.model_folder import PUBLIC, save

    if out.exists():
        if not all((out / name).is_file() for name in PUBLIC):
            raise ValueError(f"{out} exists and is not a model folder. Choose another --out.")
        shutil.rmtree(out)
    say(f"{users} synthetic users with 10 rows each: 50 features, 2 shared directions, a personal head")
    data = make_shared_subspace(users, 50, 2, 10, noise=0.1)
    cohort = Cohort.from_arrays(data.X, data.y, data.users)
    model = PrivateFedRep(rank=2, epsilon=epsilon, run="demo")
    fit_with_progress(model, cohort)
    save(model, out)
    show_certificate(model.certificate_)
    show_comparison(model, cohort)
    say(f"distance to the true subspace: {subspace_distance(model.basis_, data.basis):.4f}")
    say(f"model: {out}/  next: tacitly verify {out}")
