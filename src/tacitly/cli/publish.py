"""Copy the public part of a model."""

from __future__ import annotations

from contextlib import nullcontext
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
    audit: Annotated[Path | None, typer.Option(help="Also publish this audit report.")] = None,
    purpose: Annotated[str | None, typer.Option(help="What the model is for; stated in its certificate.")] = None,
    curator: Annotated[str | None, typer.Option(help="Who is responsible; stated in its certificate.")] = None,
    region: Annotated[str | None, typer.Option(help="Where, and under what law; stated in its certificate.")] = None,
    ledger: Annotated[Path | None, typer.Option(help="The model's ledger; default: the account, if known.")] = None,
) -> None:
    """Copy the public part of a model (no heads, no ids), after verifying its certificate."""
    from tacitly.cli.accounts import account_of
    from tacitly.model_folder import publish as copy_public
    from tacitly.privacy.certificate import Certificate
    from tacitly.privacy.ledger import Ledger

    words = {"purpose": purpose, "curator": curator, "region": region}
    given = {key: value for key, value in words.items() if value is not None}
    place, file = ledger, model / "certificate.json"
    if place is None and file.is_file():
        place = account_of(Certificate.from_json(file.read_text("utf-8")))
    with nullcontext() if place is None else Ledger(place) as account:
        copy_public(model, target, allow_uncertified=allow_uncertified, audit=audit, ledger=account, **given)
    say(f"public part: {target}/ (model, certificate, configuration; no heads, no ids)")
