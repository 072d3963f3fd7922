"""Directions, spectra and lists of named numbers, drawn as tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tacitly.arrays import Array
from tacitly.reporting.charts import Scale, bar, drawn
from tacitly.reporting.page import folded, number, paragraph, text

MOST_ROWS = 40
"""Rows of a table of coefficients."""
MOST_DIRECTIONS = 6
_MOST_LOADINGS = 8  # per direction
_SCREE = 20


def directions(
    names: Sequence[str], rows: Array, variances: Array | None, *, title: str, words: str, share: str
) -> str:
    """Return a scree plot of the variances, and the largest loadings of each direction.

    There may be more variances than directions: the last row of the scree plot is then the sum of the others.
    """
    body = f"<h3>{text(title)}</h3>" + paragraph(words)
    many = len(rows)
    if variances is not None and variances.sum() > 0:
        shares = variances / variances.sum()
        named = [f"direction {i + 1}" for i in range(many)]
        if len(shares) > many:
            named.append(f"{len(shares) - many} columns, each for itself")
            shares = np.append(shares[:many], shares[many:].sum())
        body += scree(named, shares, None, column=share, per_cent=True)
        many = min(many, int(np.searchsorted(np.cumsum(shares), 0.95)) + 1)
    tables = [
        loadings(names, rows[i], f"Direction {i + 1}: largest loadings") for i in range(min(many, MOST_DIRECTIONS))
    ]
    more = f" ({len(rows) - len(tables)} more are in the model folder)" if len(rows) > len(tables) else ""
    return (
        body
        + "".join(tables[:2])
        + (folded(f"Directions 3 to {len(tables)}{more}", "".join(tables[2:])) if tables[2:] else "")
    )


def loadings(names: Sequence[str], weights: Array, caption: str) -> str:
    """Return the largest loadings of one direction, by name."""
    strongest = np.argsort(-np.abs(weights), kind="stable")[:_MOST_LOADINGS]
    sign = 1.0 if weights[strongest[0]] >= 0 else -1.0  # the largest is positive: signs are arbitrary
    largest = abs(float(weights[strongest[0]]))
    # Rounding errors of the solver are shown as zero.
    values = [sign * float(weights[i]) if abs(weights[i]) > 1e-9 * largest else 0.0 for i in strongest]
    scale = Scale.of(np.array(values))
    return drawn(
        [str(names[i]) for i in strongest],
        [bar(scale, value) for value in values],
        [("loading", [number(value) for value in values])],
        first="column",
        scale=scale,
        caption=caption,
    )


def scree(
    names: Sequence[str],
    values: Array,
    floor: float | None,
    *,
    column: str,
    per_cent: bool = False,
    more: tuple[str, list[str]] | None = None,
) -> str:
    """Return a spectrum, with its noise floor if it is known, and ``more``, an additional column."""
    shown = [float(value) * (100 if per_cent else 1) for value in values[:_SCREE]]
    scale = Scale.of(np.array(shown), 0.0 if floor is None else floor)
    said = [f"{value:.1f} %" if per_cent else number(value) for value in shown]
    caption = (
        "Scree: the largest first"
        if floor is None
        else f"Scree: the largest first; the dashed line is the noise floor, {number(floor)}"
    )
    return drawn(
        names[: len(shown)],
        [bar(scale, value, floor) for value in shown],
        [(column, said), *([more] if more else [])],
        first="in per cent" if per_cent else "size",
        scale=scale,
        caption=caption,
    )


def extremes(names: Sequence[str], values: Array, caption: str, column: str, *, both: bool = True) -> str:
    """Return the ten largest of many named numbers and, with ``both``, the ten smallest."""
    order = np.argsort(-values, kind="stable")
    smallest = order[max(10, len(order) - 10) :] if both else order[:0]
    chosen = [*order[:10], *smallest]
    scale = Scale.of(values[chosen])
    return drawn(
        [names[i] for i in chosen],
        [bar(scale, float(values[i])) for i in chosen],
        [(column, [number(float(values[i])) for i in chosen])],
        first="name",
        scale=scale,
        caption=caption,
    )


def rest(shown: int, every: int) -> str:
    """Return the part of a caption that states how many entries are shown, if not all are."""
    return "" if shown == every else f": the {shown} of {every} that stand out most (the model folder has all)"
