"""What was learned, by what a model has: coefficients, shared directions, a spectrum, items, a matrix, a network.

A method is recognised by its public arrays, not by its name, so that a new method whose arrays mean the same has the
same pictures. Arrays that nothing here knows are listed with their sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tacitly.arrays import Array
from tacitly.reporting.charts import Scale, bar, drawn, whisker
from tacitly.reporting.page import folded, number, paragraph, table, text
from tacitly.reporting.public_part import PublicPart

_MOST_ROWS = 40  # of a table of coefficients
_MOST_LOADINGS = 8  # of a direction
_MOST_DIRECTIONS = 6
_SCREE = 20
_WIDE = 1.959963984540054


def learned(part: PublicPart) -> str:
    """Return what was learned, as safe text."""
    for needed, section in _KINDS:
        if all(name in part.arrays for name in needed):
            return section(part)
    if any(name.startswith("body.") for name in part.arrays) or "shared" in part.arrays:
        return _network(part)
    return _arrays(part)


def known(part: PublicPart) -> bool:
    """Whether this model's arrays are shown as what they mean, not only listed."""
    network = any(name.startswith("body.") for name in part.arrays) or "shared" in part.arrays
    return network or any(all(name in part.arrays for name in needed) for needed, _ in _KINDS)


def _mixed_effects(part: PublicPart) -> str:
    model = part.rebuilt()
    summary = model.summary()
    if not summary.names:
        return paragraph(summary.warning, "warn")
    target = summary.target
    body = paragraph(summary.warning, "warn") if summary.warning else ""
    body += paragraph(
        f"What a typical {part.certificate.unit} looks like, and how much {part.certificate.unit}s differ. An estimate "
        f"is the change of {_scale_of(part, target)} for one more unit of the column. The drawing shows the change for "
        "one typical deviation of the column, so that columns can be compared: the dot is the estimate, the line its "
        "95 % interval (sampling and privacy noise together), the band how far most people's own values lie from it."
    )
    body += _coefficients(part, model, summary)
    if not math.isnan(summary.residual):
        body += paragraph(f"An observation scatters around its user's own line by {number(summary.residual)}.")
    if summary.left_out:
        body += paragraph(f"Left out, because no scale was found for them: {', '.join(summary.left_out)}.")
    if any("#" in name for name in summary.names):
        body += paragraph(
            "NAME#3 stands for the levels of a text column that fall into hash bucket 3; a schema names them.",
            "small dim",
        )
    names = [
        "(intercept)",
        *(str(name) for name, gain in zip(part.features, model.units_.gain, strict=True) if gain > 0),
    ]
    values, vectors = np.linalg.eigh(model.prior_.covariance)
    body += _directions(
        names,
        vectors[:, ::-1].T,
        np.maximum(values[::-1], 0.0),
        title="How people differ",
        words="Directions in which people's own intercepts and slopes vary together, in units of typical deviations, "
        "the most important first. Only what stood out of the noise was kept as a joint direction; the rest varies "
        "column by column.",
        share=f"share of how much {part.certificate.unit}s differ",
    )
    return body


def _scale_of(part: PublicPart, target: str) -> str:
    loss = part.parameters.get("loss", "squared")
    return {"logistic": f"the log odds of {target}", "poisson": f"the log rate of {target}"}.get(loss, target)


def _coefficients(part: PublicPart, model: object, summary: object) -> str:
    """Draw the standardised effects beside the estimates in the units of the data, class by class."""
    prior, units, errors = model.prior_, model.units_, model.mean_covariance_  # type: ignore[attr-defined]
    means = np.atleast_2d(prior.mean)
    standard = np.sqrt(np.maximum(np.einsum("...ii->...i", errors), 0.0)).reshape(-1, means.shape[1])
    spreads = np.sqrt(np.maximum(np.diag(prior.covariance), 0.0))
    unit = units.spread if part.parameters.get("loss", "squared") == "squared" else 1.0
    width, classes = means.shape[1], len(means)
    s: object = summary
    parts = []
    for at in range(classes):
        rows = slice(at * width, (at + 1) * width)
        names = list(s.names[rows])  # type: ignore[attr-defined]
        estimates, intervals = s.estimates[rows], s.intervals[rows]  # type: ignore[attr-defined]
        vary = s.spreads[rows]  # type: ignore[attr-defined]
        middle, half, band = means[at] * unit, _WIDE * standard[at % len(standard)] * unit, spreads * unit
        order = _most_certain(middle, half)
        scale = Scale.of(
            *(np.array([m - w, m + w]) for m, w in zip(middle[order], np.maximum(half, band)[order], strict=True))
        )
        drawings = [
            whisker(
                scale, middle[i], (middle[i] - half[i], middle[i] + half[i]), (middle[i] - band[i], middle[i] + band[i])
            )
            if i
            else ""
            for i in [0, *order]
        ]
        shown = [0, *order]
        parts.append(
            drawn(
                [names[i] for i in shown],
                drawings,
                [
                    ("estimate", [number(estimates[i]) for i in shown]),
                    ("95 % interval", [f"{number(intervals[i][0])} to {number(intervals[i][1])}" for i in shown]),
                    ("people vary by", [number(vary[i]) for i in shown]),
                ],
                first="column",
                scale=scale,
                caption=f"Population coefficients{_rest(len(order), width - 1)}",
            )
        )
    return "".join(parts)


def _most_certain(middle: Array, half: Array) -> list[int]:
    """Return the coefficients to show, in the order of columns: all, or those that stand out most."""
    every = np.arange(1, len(middle))
    if len(every) <= _MOST_ROWS:
        return [int(i) for i in every]
    strength = np.abs(middle[1:]) / np.maximum(half[1:], 1e-300)
    return sorted(int(i) for i in every[np.argsort(-strength, kind="stable")[:_MOST_ROWS]])


def _rest(shown: int, every: int) -> str:
    return "" if shown == every else f": the {shown} of {every} that stand out most (the model folder has all)"


def _shared_basis(part: PublicPart) -> str:
    basis = np.asarray(part.arrays["basis"], dtype=np.float64)
    names = part.features
    if "head_root" in part.arrays:
        root = np.asarray(part.arrays["head_root"], dtype=np.float64)[: basis.shape[1]]
        mean = np.asarray(part.arrays["head_mean"], dtype=np.float64)
        left, values, _ = np.linalg.svd(root, full_matrices=False)
        rows, variances = (basis @ left).T, values**2
        body = _population_weights(names, basis @ mean[: basis.shape[1]], part)
        words = (
            "Directions of the columns along which people's own models lie, the one in which they differ most first. A "
            "loading is the weight of a column in the direction; its sign has a meaning only beside the other signs."
        )
        return body + _directions(
            names, rows, variances, title="Shared directions", words=words, share="share of how people differ"
        )
    rows = basis.T
    words = (
        "Everybody's own model is a mixture of these directions. How people are spread over them is not released by "
        "this model, so their order says nothing, and any rotation of them is the same model."
    )
    return _directions(names, rows, None, title="Shared directions", words=words, share="")


def _population_weights(names: Sequence[str], weights: Array, part: PublicPart) -> str:
    order = np.argsort(-np.abs(weights), kind="stable")[:_MOST_ROWS]
    chosen = sorted(int(i) for i in order)
    scale = Scale.of(weights[chosen])
    return paragraph(
        f"The model of a {part.certificate.unit} nobody knows anything about: how {part.target or 'the target'} "
        "changes for one more unit of each column. This method releases no standard errors."
    ) + drawn(
        [names[i] for i in chosen],
        [bar(scale, float(weights[i])) for i in chosen],
        [("weight", [number(float(weights[i])) for i in chosen])],
        first="column",
        scale=scale,
        caption=f"Population weights{_rest(len(chosen), len(weights))}",
    )


def _directions(
    names: Sequence[str], rows: Array, variances: Array | None, *, title: str, words: str, share: str
) -> str:
    """Return a scree of the variances, and the largest loadings of each direction."""
    body = f"<h3>{text(title)}</h3>" + paragraph(words)
    many = len(rows)
    if variances is not None and variances.sum() > 0:
        shares = variances / variances.sum()
        body += _scree([f"direction {i + 1}" for i in range(many)], shares, None, column=share, per_cent=True)
        many = min(many, int(np.searchsorted(np.cumsum(shares), 0.95)) + 1)
    tables = [
        _loadings(names, rows[i], f"Direction {i + 1}: largest loadings") for i in range(min(many, _MOST_DIRECTIONS))
    ]
    more = f" ({len(rows) - len(tables)} more are in the model folder)" if len(rows) > len(tables) else ""
    return (
        body
        + "".join(tables[:2])
        + (folded(f"Directions 3 to {len(tables)}{more}", "".join(tables[2:])) if tables[2:] else "")
    )


def _loadings(names: Sequence[str], weights: Array, caption: str) -> str:
    strongest = np.argsort(-np.abs(weights), kind="stable")[:_MOST_LOADINGS]
    sign = 1.0 if weights[strongest[0]] >= 0 else -1.0  # the largest is positive: a direction has no sign of its own
    values = [sign * float(weights[i]) for i in strongest]
    scale = Scale.of(np.array(values))
    return drawn(
        [str(names[i]) for i in strongest],
        [bar(scale, value) for value in values],
        [("loading", [number(value) for value in values])],
        first="column",
        scale=scale,
        caption=caption,
    )


def _scree(
    names: Sequence[str],
    values: Array,
    floor: float | None,
    *,
    column: str,
    per_cent: bool = False,
    more: tuple[str, list[str]] | None = None,
) -> str:
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
        first="in per cent" if per_cent else "",
        scale=scale,
        caption=caption,
    )


def _components(part: PublicPart) -> str:
    components, values = part.arrays["components"], np.asarray(part.arrays["singular_values"]) ** 2
    confidence, floor = part.arrays["confidence"], float(part.arrays["noise_floor"][0])
    names = [f"component {i + 1}" for i in range(len(components))]
    body = paragraph(
        "Principal components: the directions along which rows vary most. Their sizes have the known noise subtracted; "
        "what lies below the dashed line could be noise alone."
    )
    sure = [f"{100 * float(share):.1f} %" for share in confidence]
    more = ("certain", sure)
    body += _scree(names, values, floor, column="eigenvalue", more=more)
    body += paragraph(
        "An eigenvalue is that of the sum over all rows. “Certain” is the squared cosine between a component and the "
        "true one, as far as privacy noise is concerned.",
        "small dim",
    )
    tables = [
        _loadings(part.features, row, f"{name}: largest loadings") for name, row in zip(names, components, strict=True)
    ]
    shown = tables[:_MOST_DIRECTIONS]
    return body + "".join(shown[:2]) + (folded("More components", "".join(shown[2:])) if shown[2:] else "")


def _matrix(part: PublicPart) -> str:
    left, values, right = (np.asarray(part.arrays[name]) for name in ("left", "singular_values", "right"))
    body = paragraph(
        f"A matrix with {len(left)} rows and {len(right)} columns, as {len(values)} layers, each a pattern of rows "
        "times a pattern of columns."
    )
    body += _scree(
        [f"layer {i + 1}" for i in range(len(values))],
        np.asarray(values, dtype=np.float64),
        None,
        column="singular value",
    )
    rows, columns = (
        [f"{what} {i}" for i in range(size)] for what, size in (("row", len(left)), ("column", len(right)))
    )
    for i in range(min(len(values), 2)):
        body += _loadings(rows, left[:, i], f"Layer {i + 1}: rows that count most")
        body += _loadings(columns, right[:, i], f"Layer {i + 1}: columns that count most")
    for what, names, key in (("rows", rows, "row_effects"), ("columns", columns, "column_effects")):
        effects = part.arrays.get(key)
        if effects is not None and np.any(effects):
            body += folded(f"Effects of {what}", _extremes(names, np.asarray(effects), f"Effects of {what}", "effect"))
    return body


def _items(part: PublicPart) -> str:
    arrays, names = part.arrays, [str(item) for item in part.parameters.get("items") or ()]
    popularity = np.asarray(arrays["popularity"], dtype=np.float64)
    names = names if len(names) == len(popularity) else [f"item {i}" for i in range(len(popularity))]
    factors, plays = int(arrays["kind"][0]), bool(arrays["kind"][1])
    body = paragraph(
        f"A catalogue of {len(names)} items, {factors} item factors learned from users, and how tastes vary."
    )
    body += _extremes(names, popularity, "Most popular", "popularity", both=False)
    if not plays:
        low, high = (float(value) for value in arrays["range"])
        effects = np.asarray(arrays["effects"], dtype=np.float64) * (high - low) / 4.0
        body += _extremes(
            names, effects, "Rated best and worst, beside what their features say", "effect on the rating"
        )
    return body


def _extremes(names: Sequence[str], values: Array, caption: str, column: str, *, both: bool = True) -> str:
    order = np.argsort(-values, kind="stable")
    chosen = list(order[:10]) + (list(order[-10:]) if both and len(order) > 20 else list(order[10:20]) if both else [])
    scale = Scale.of(values[chosen])
    return drawn(
        [names[i] for i in chosen],
        [bar(scale, float(values[i])) for i in chosen],
        [(column, [number(float(values[i])) for i in chosen])],
        first="",
        scale=scale,
        caption=caption,
    )


def _network(part: PublicPart) -> str:
    count = sum(int(value.size) for value in part.arrays.values())
    return paragraph(
        f"A network with {count:,} shared numbers, and a personal part for everybody. Its numbers have no names that "
        "would say something to a reader; their shapes and sizes follow."
    ) + _listed(part)


def _arrays(part: PublicPart) -> str:
    return paragraph("The published numbers of this model, by name.") + _listed(part)


def _listed(part: PublicPart) -> str:
    rows = [
        (
            name,
            " × ".join(map(str, value.shape)) or "1",
            number(float(np.sqrt(np.mean(np.square(value, dtype=np.float64))))),
        )
        for name, value in sorted(part.arrays.items())
        if value.size
    ]
    return table(
        ("array", "shape", "typical size"),
        rows[:_MOST_ROWS],
        f"Published arrays{_rest(min(len(rows), _MOST_ROWS), len(rows))}",
    )


_KINDS: tuple[tuple[tuple[str, ...], Callable[[PublicPart], str]], ...] = (
    (("mean", "root", "mean_covariance", "gain"), _mixed_effects),
    (("basis",), _shared_basis),
    (("components", "singular_values", "noise_floor"), _components),
    (("left", "singular_values", "right"), _matrix),
    (("popularity", "effects", "kind"), _items),
)
