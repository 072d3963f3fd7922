"""Check a model's certificate."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tacitly.cli.console import Full, Model, say, show_certificate, wrapped

if TYPE_CHECKING:
    from tacitly.privacy.certificate import Certificate
    from tacitly.privacy.verification import Verdict


def verify(
    model: Model,
    ledger: Annotated[
        Path | None, typer.Option(help="Compare with this ledger; default: the account, if known.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="Public key of the required signer, or a file with it.")] = None,
    delta: Annotated[float | None, typer.Option(help="Also show epsilon at this delta.")] = None,
    allow_uncertified: Annotated[
        bool, typer.Option("--allow-uncertified", help="Accept a model that claims no privacy.")
    ] = False,
    full: Full = False,
) -> None:
    """Compute epsilon again from the certificate's releases, with independent code; exit 1 if a check fails."""
    from tacitly.cli.accounts import account_of
    from tacitly.model_folder import public_files
    from tacitly.privacy.certificate import Certificate
    from tacitly.privacy.ledger import Ledger
    from tacitly.privacy.verification import verify as check

    if model.is_file():
        raise ValueError(f"{model} is a file. Expected the folder that contains it: the certificate covers its files.")
    for names in (("certificate.json",), ("billboard.safetensors", "evaluation.json")):
        if not any((model / name).is_file() for name in names):
            raise ValueError(f"{model} is not a model folder: {names[0]} is missing.")
    if ledger is not None and not ledger.is_file():
        raise ValueError(f"there is no ledger at {ledger}.")
    text = (model / "certificate.json").read_text(encoding="utf-8")
    try:
        stated = Certificate.from_json(text)
    except (ValueError, RecursionError):
        stated = None  # the verdict reports what is wrong with it
    place = ledger or (None if stated is None else account_of(stated))
    wanted = None if key is None else _public_key(key)
    also = None if delta is None or stated is None else stated.epsilon_at(delta)
    verdict = check(
        text,
        files=None if stated is None else public_files(model, stated),
        ledger=None if place is None else Ledger(place),
        key=wanted,
        allow_uncertified=allow_uncertified,
    )
    if full and stated is not None:
        show_certificate(stated, full=True)
    say(str(verdict))
    if place is None:
        say("not compared with a ledger: this machine does not know it (give --ledger)")
    if place is None and key is None:
        say(
            "not compared with a key: whoever rewrites a certificate can sign it (give --key, the curator's public key)"
        )
    if also is not None and stated is not None:
        say(f"ε = {also:.6g} at δ = {delta:g} ({stated.adjacency})")
    say(wrapped(_conclusion(verdict, stated)))
    if not verdict.ok:
        raise typer.Exit(1)


def _public_key(text: str) -> str:
    """Return the key that ``--key`` gives, or the content of the file that it names."""
    key = Path(text).read_text("utf-8").strip() if Path(text).is_file() else text
    if not re.fullmatch("[0-9a-fA-F]{64}", key):
        raise ValueError(f"--key must be a public key of 64 hexadecimal digits, or a file with one. Found {text!r}.")
    return key.lower()


def _conclusion(verdict: Verdict, stated: Certificate | None) -> str:
    """Return the result in one sentence: the last line that is printed."""
    failed, many = verdict.failed, len(verdict.checks)
    if failed or stated is None:
        return f"NOT VERIFIED: {len(failed)} of {many} checks failed: {', '.join(failed)}"
    if not stated.certified:
        return f"all {many} checks passed, but there is no guarantee to verify: this model is not private"
    return f"verified: all {many} checks passed. {stated.summary()}"
