"""Check a model's certificate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacitly.cli.console import Full, Model, say, show_certificate


def verify(
    model: Model,
    ledger: Annotated[Path | None, typer.Option(help="Also compare with this ledger.")] = None,
    allow_uncertified: Annotated[
        bool, typer.Option("--allow-uncertified", help="Accept a model that claims no privacy.")
    ] = False,
    full: Full = False,
) -> None:
    """Derive epsilon again from the certificate's releases with independent code; exit 1 if anything is off."""
    from tacitly.privacy.certificate import Certificate
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
    if full:
        show_certificate(Certificate.from_json(text), full=True)
    say(str(verdict))
    if not verdict.ok:
        raise typer.Exit(1)
