"""The report: one page that states what a model has learned, for whom it helped, its privacy cost, and how to check it.

The public edition is computed from the published files only and may be published with them. The private edition also
needs the table: it compares the model with what users would have otherwise, shows for whom sharing helped, and every
page of it is marked as private. Charts are inline SVG (:mod:`tacitly.reporting.charts` explains why); the page has no
scripts and makes no requests.
"""

from __future__ import annotations

import dataclasses
import os
from copy import copy
from pathlib import Path
from typing import Any

from tacitly.baselines.comparison import held_out
from tacitly.data.cohort import Cohort
from tacitly.methods.base import PrivateModel
from tacitly.model_folder import load
from tacitly.portable import write_private
from tacitly.reporting import gains, guarantee
from tacitly.reporting.learned import learned
from tacitly.reporting.page import Section, document, paragraph, text
from tacitly.reporting.public_part import PublicPart


def report(
    model: PrivateModel | str | os.PathLike[str],
    path: str | os.PathLike[str] | None = None,
    *,
    rows: Cohort | tuple[Any, Any, Any] | None = None,
    audit: str | None = None,
    name: str | None = None,
) -> str:
    """Return a model's report, one HTML page, and write it to ``path`` if there is one.

    Parameters
    ----------
    model
        A fitted model, or a model folder.
    path
        A new file. Only its owner can read the private edition.
    rows
        For the private edition: the users' rows, as a cohort or as (X, y, users). None for the public edition, which is
        computed from published numbers only.
    audit
        The text of an audit's report; by default the one published with the model, if any.
    name
        The page's title; by default the folder's name.

    Examples
    --------
    >>> import tacitly
    >>> X, y, users, *_ = tacitly.datasets.make_shared_subspace(200, 4, 1, 8, random_state=0)
    >>> model = tacitly.PrivateFedRep(rank=1, epsilon=4.0).fit(X, y, users)
    >>> ["Do not publish" in page for page in (report(model), report(model, rows=(X, y, users)))]
    [False, True]
    """
    target = None if path is None else Path(path)
    if target is not None and target.exists():
        raise ValueError(f"{target} exists already. Choose another file, or remove it.")
    if isinstance(model, PrivateModel):
        model._check_fitted()
        part = PublicPart.of_model(model, name=name)
    else:
        part = PublicPart.of_folder(model, name=name)
    if audit is not None:
        part = dataclasses.replace(part, audit=audit)
    private: list[Section] = []
    if rows is not None:
        private = _private_sections(model if isinstance(model, PrivateModel) else load(model), rows)
    page = _page(part, private)
    if target is not None and rows is None:
        target.write_text(page, encoding="utf-8")
    elif target is not None:
        write_private(target, page.encode())
    return _Shown(page)


class _Shown(str):
    """A page that a notebook's last line, or a log, does not print in full: the private edition least of all."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<report: a page of HTML, {len(self):,} characters>"


def _page(part: PublicPart, private: list[Section]) -> str:
    certificate = part.certificate
    sections = [
        Section("learned", "What was learned", learned(part)),
        *private,
        Section("epsilon", "What it costs in privacy", guarantee.epsilon(certificate)),
        Section("releases", "What was released, and when", guarantee.timeline(certificate)),
        Section("audit", "Was it attacked?", guarantee.audited(part)),
        Section("open", "What is not protected", guarantee.not_protected(certificate)),
        Section("verify", "How to verify this page", guarantee.how_to_verify(part, private=bool(private))),
    ]
    about = certificate.purpose or part.about
    users = (
        f"{certificate.n_users:,} {certificate.unit}s; target: {part.target}"
        if part.target
        else (f"{certificate.n_users:,} {certificate.unit}s")
    )
    lead = (
        (paragraph(about) if about else "") + paragraph(f"{part.kind}; {users}.", "dim") + guarantee.claim(certificate)
    )
    if not private and part.personal:
        lead += paragraph(
            "This page is made of published numbers only. Whether sharing helped, and whom, is computed from private "
            "rows and is in the private edition (tacitly report MODEL --table TABLE).",
            "small dim",
        )
    foot = f"<p>Made by tacitly {text(certificate.code['version'])}. No scripts, no requests.</p>"
    return document(part.name, lead, sections, private=bool(private), foot=foot)


def _private_sections(model: Any, rows: Cohort | tuple[Any, Any, Any]) -> list[Section]:
    """Compute the sections that only the person who has the rows may see."""
    if not hasattr(model, "with_heads_of"):
        raise ValueError(
            f"the private edition compares personal models with local ones. Found a {type(model).__name__}, which has "
            "none: leave the table out for the public edition."
        )
    named = isinstance((model._loss().classes or (0,))[0], str)
    if isinstance(rows, Cohort):  # it contains numbers: for text labels, their positions
        cohort = (_by_positions(model) if named else model)._cohort(rows, None, None)
    else:
        cohort = model._cohort(*rows)
    model = _by_positions(model)  # the cohort now has positions, not labels
    found = held_out(model, cohort)
    if found is None:
        words = "No comparison: it holds out rows of users who have two or more, and no user has."
        return [Section("comparison", "Did sharing help?", paragraph(words))]
    return [
        Section("comparison", "Did sharing help?", gains.comparison(found)),
        Section("helped", "For whom did it help?", gains.helped(found)),
    ]


def _by_positions(model: Any) -> Any:
    """Return the same model with its classes numbered from 0."""
    classes = model._loss().classes
    if classes is None:
        return model
    model = copy(model)
    model.classes = list(range(len(classes)))
    return model


__all__ = ["PublicPart", "report"]
