"""The report's section on what was learned: coefficients, directions, a spectrum, items, a matrix or a network.

A method is recognised by its public arrays, not by its name, so that a new method with the same kinds of arrays gets
the same charts. Unknown arrays are listed with their sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tacitly.arrays import Array
from tacitly.reporting.charts import Scale, bar, drawn
from tacitly.reporting.coefficients import mixed_effects
from tacitly.reporting.directions import MOST_DIRECTIONS, MOST_ROWS, directions, extremes, loadings, rest, scree
from tacitly.reporting.page import folded, number, paragraph, table
from tacitly.reporting.public_part import PublicPart


def learned(part: PublicPart) -> str:
    """Return what was learned, as escaped HTML."""
    for needed, section in _KINDS:
        if all(name in part.arrays for name in needed):
            return section(part)
    if any(name.startswith("body.") for name in part.arrays) or "shared" in part.arrays:
        return _network(part)
    return _arrays(part)


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
        return body + directions(
            names, rows, variances, title="Shared directions", words=words, share="share of how people differ"
        )
    rows = basis.T
    words = (
        "Everybody's own model is a mixture of these directions. How people are spread over them is not released by "
        "this model, so their order says nothing, and any rotation of them is the same model."
    )
    return directions(names, rows, None, title="Shared directions", words=words, share="")


def _population_weights(names: Sequence[str], weights: Array, part: PublicPart) -> str:
    order = np.argsort(-np.abs(weights), kind="stable")[:MOST_ROWS]
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
        caption=f"Population weights{rest(len(chosen), len(weights))}",
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
    body += scree(names, values, floor, column="eigenvalue", more=more)
    body += paragraph(
        "An eigenvalue is that of the sum over all rows. “Certain” is the squared cosine between a component and the "
        "true one, as far as privacy noise is concerned.",
        "small dim",
    )
    tables = [
        loadings(part.features, row, f"{name}: largest loadings") for name, row in zip(names, components, strict=True)
    ]
    shown = tables[:MOST_DIRECTIONS]
    return body + "".join(shown[:2]) + (folded("More components", "".join(shown[2:])) if shown[2:] else "")


def _matrix(part: PublicPart) -> str:
    left, values, right = (np.asarray(part.arrays[name]) for name in ("left", "singular_values", "right"))
    body = paragraph(
        f"A matrix with {len(left)} rows and {len(right)} columns, as {len(values)} layers, each a pattern of rows "
        "times a pattern of columns."
    )
    body += scree(
        [f"layer {i + 1}" for i in range(len(values))],
        np.asarray(values, dtype=np.float64),
        None,
        column="singular value",
    )
    rows, columns = (
        [f"{what} {i}" for i in range(size)] for what, size in (("row", len(left)), ("column", len(right)))
    )
    for i in range(min(len(values), 2)):
        body += loadings(rows, left[:, i], f"Layer {i + 1}: rows that count most")
        body += loadings(columns, right[:, i], f"Layer {i + 1}: columns that count most")
    for what, names, key in (("rows", rows, "row_effects"), ("columns", columns, "column_effects")):
        effects = part.arrays.get(key)
        if effects is not None and np.any(effects):
            body += folded(f"Effects of {what}", extremes(names, np.asarray(effects), f"Effects of {what}", "effect"))
    return body


def _items(part: PublicPart) -> str:
    arrays, names = part.arrays, [str(item) for item in part.parameters.get("items") or ()]
    popularity = np.asarray(arrays["popularity"], dtype=np.float64)
    names = names if len(names) == len(popularity) else [f"item {i}" for i in range(len(popularity))]
    factors, plays = int(arrays["kind"][0]), bool(arrays["kind"][1])
    body = paragraph(
        f"A catalogue of {len(names)} items, {factors} item factors learned from users, and how tastes vary."
    )
    body += extremes(names, popularity, "Most popular", "popularity", both=False)
    if not plays:
        low, high = (float(value) for value in arrays["range"])
        effects = np.asarray(arrays["effects"], dtype=np.float64) * (high - low) / 4.0
        body += extremes(names, effects, "Rated best and worst, beside what their features say", "effect on the rating")
    return body


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
        rows[:MOST_ROWS],
        f"Published arrays{rest(min(len(rows), MOST_ROWS), len(rows))}",
    )


_KINDS: tuple[tuple[tuple[str, ...], Callable[[PublicPart], str]], ...] = (
    (("mean", "root", "mean_covariance", "gain"), mixed_effects),
    (("basis",), _shared_basis),
    (("components", "singular_values", "noise_floor"), _components),
    (("left", "singular_values", "right"), _matrix),
    (("popularity", "effects", "kind"), _items),
)
