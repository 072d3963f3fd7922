"""Copy the public part of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacitly.cli.console import Model, say


def publish(
    model: Model,
    target: Annotated[Path, typer.Argument(help="New folder for the public part.", show_default=False)],
    allow_uncertified: Annotated[
        bool, typer.Option("--allow-uncertified", help="Publish even without a certificate.")
    ] = False,
) -> None:
    """Copy the public part of a model (no heads, no ids), after verifying its certificate."""
    from tacitly.model_folder import publish as copy_public

    copy_public(model, target, allow_uncertified=allow_uncertified)
    say(f"public part: {target}/ (model, certificate, configuration; no heads, no ids)")
