"""Show a certificate, or write it as a readable page or as an entry of a public registry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tacitly.cli.console import Model, say


def certificate(
    model: Model,
    label: Annotated[Path | None, typer.Option(help="Write a one-page label (HTML) to this file.")] = None,
    registry: Annotated[
        Path | None, typer.Option(help="Write an entry for OpenDP's deployment registry (YAML).")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the model; default: its folder's.")] = None,
    description: Annotated[str | None, typer.Option(help="Description of the model, for the registry.")] = None,
    sector: Annotated[str | None, typer.Option(help="Technology, Healthcare, Education, … for the registry.")] = None,
    sources: Annotated[str | None, typer.Option(help="Links to papers or pages, for the registry.")] = None,
    author: Annotated[list[str] | None, typer.Option(help="Author of the registry entry; repeatable.")] = None,
) -> None:
    """Show a model's certificate, or write it as a label (--label) or a registry entry (--registry)."""
    from tacitly.privacy.certificate import Certificate
    from tacitly.privacy.label import label as page
    from tacitly.privacy.registry import count_fields, registry_entry

    file = model / "certificate.json"
    if not file.is_file():
        raise ValueError(f"{model} is not a model folder: certificate.json is missing.")
    stated, title = Certificate.from_json(file.read_text("utf-8")), name or model.resolve().name
    for target in (label, registry):
        if target is not None and target.exists():
            raise ValueError(f"{target} exists already. Choose another file, or remove it.")
    if label is not None:
        label.write_text(page(stated, title), encoding="utf-8")
        say(f"label: {label}")
    if registry is not None:
        entry = registry_entry(
            stated, name=title, description=description, sector=sector, sources=sources, authors=tuple(author or ())
        )
        registry.write_text(json.dumps(entry, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        say(f"registry entry: {registry} ({count_fields(entry)} of 32 fields; JSON is YAML)")
    if label is None and registry is None:
        say(str(stated))
