"""Population coefficients with their intervals, and how much users differ: what mixed effects have learned."""

from __future__ import annotations

import math

import numpy as np

from tacitly.arrays import Array
from tacitly.methods.mixed_effects.estimator import MixedEffects
from tacitly.methods.mixed_effects.summary import Summary
from tacitly.reporting.charts import Scale, drawn, whisker
from tacitly.reporting.directions import MOST_DIRECTIONS, MOST_ROWS, directions, rest
from tacitly.reporting.page import number, paragraph
from tacitly.reporting.public_part import PublicPart

_WIDE = 1.959963984540054  # half the width of a 95 % interval, in standard deviations
_STANDS_OUT = 2.0  # in multiples of the median variance


def mixed_effects(part: PublicPart) -> str:
    """Return coefficients, the scatter of observations, and the directions in which users differ."""
    model: MixedEffects = part.rebuilt()
    summary, unit = model.summary(), part.certificate.unit
    body = paragraph(summary.warning, "warn") if summary.warning else ""
    if not summary.names:
        return body
    body += paragraph(
        f"What a typical {unit} looks like, and how much {unit}s differ. An estimate is the change of "
        f"{_scale_of(model, summary)} for one more unit of the column. The drawing shows the change for one typical "
        "deviation of the column, so that columns can be compared: the dot is the estimate, the line its 95 % interval "
        "(sampling and privacy noise together), the band how far most people's own values lie from it."
    )
    body += "".join(_coefficients(model, summary, at) for at in range(len(np.atleast_2d(model.prior_.mean))))
    if not math.isnan(summary.residual):
        what = "A log rate scatters, beyond the chance of counts," if summary.counts else "An observation scatters"
        body += paragraph(f"{what} around its user's own line by {number(summary.residual)}.")
    if summary.left_out:
        body += paragraph(f"Left out, because no scale was found for them: {', '.join(summary.left_out)}.")
    if any("#" in name for name in summary.names):
        words = "NAME#3: a group of values of text column NAME (by a hash); a schema shows each value by name."
        body += paragraph(words, "small dim")
    return body + _differences(part, model)


def _scale_of(model: MixedEffects, summary: Summary) -> str:
    classes = list(model.classes or (0, 1))
    odds = f"the log odds that {{}} is {classes[1]}" if len(classes) == 2 else "the log odds of {}"
    words = {"logistic": odds, "poisson": "the log rate of {}"}
    return words.get(model.loss, "{}").format(summary.target)


def _coefficients(model: MixedEffects, summary: Summary, at: int) -> str:
    """Draw the standardised effects (of one class) next to the estimates in the units of the data."""
    prior, unit = model.prior_, model.units_.spread if model.loss == "squared" else 1.0
    means = np.atleast_2d(prior.mean)
    errors = np.sqrt(np.maximum(np.einsum("...ii->...i", model.mean_covariance_), 0.0)).reshape(-1, means.shape[1])
    middle, half = means[at] * unit, _WIDE * errors[at % len(errors)] * unit
    band = np.sqrt(np.maximum(np.diag(prior.covariance), 0.0)) * unit
    slopes = _most_certain(middle, half)
    reach = np.maximum(half, band)[slopes]
    scale = Scale.of(middle[slopes] - reach, middle[slopes] + reach)
    first, shown = at * len(middle), [0, *slopes]

    def drawing(i: int) -> str:
        interval, spread = (middle[i] - half[i], middle[i] + half[i]), (middle[i] - band[i], middle[i] + band[i])
        return whisker(scale, middle[i], interval, spread) if i else ""  # the intercept has another scale

    intervals, of = summary.intervals, f" of {model.classes_[at]}" if len(means) > 1 else ""
    return drawn(
        [summary.names[first + i] for i in shown],
        [drawing(i) for i in shown],
        [
            ("estimate", [number(summary.estimates[first + i]) for i in shown]),
            ("95 % interval", [" to ".join(number(end) for end in intervals[first + i]) for i in shown]),
            ("people vary by", [number(summary.spreads[first + i]) for i in shown]),
        ],
        first="column",
        scale=scale,
        caption=f"Population coefficients{of}{rest(len(slopes), len(middle) - 1)}",
    )


def _most_certain(middle: Array, half: Array) -> list[int]:
    """Return the coefficients to show, in the order of columns: all, or those with the largest ratio to their error."""
    every = np.arange(1, len(middle))
    if len(every) <= MOST_ROWS:
        return [int(i) for i in every]
    strength = np.abs(middle[1:]) / np.maximum(half[1:], 1e-300)
    return sorted(int(i) for i in every[np.argsort(-strength, kind="stable")[:MOST_ROWS]])


def _differences(part: PublicPart, model: MixedEffects) -> str:
    used = [str(name) for name, gain in zip(part.features, model.units_.gain, strict=True) if gain > 0]
    values, vectors = np.linalg.eigh(model.prior_.covariance)
    variances = np.maximum(values[::-1], 0.0)
    return directions(
        ["(intercept)", *used],
        vectors[:, ::-1].T[: _joint(variances)],
        variances,
        title="How people differ",
        words="Directions in which people's own intercepts and slopes vary together, in units of typical deviations, "
        "the most important first. Only what stood out of the noise was kept as a joint direction; the rest varies "
        "column by column, and has no direction.",
        share=f"share of how much {part.certificate.unit}s differ",
    )


def _joint(variances: Array) -> int:
    """Return how many of the largest variances belong to directions that stand out, if there are many variances.

    Variances below the noise are the same in every column. Eigenvectors of that part are arbitrary.

    >>> _joint(np.array([90.0, 8.0, 0.6, 0.6, 0.6, 0.5, 0.4, 0.1]))
    2
    >>> _joint(np.array([3.0, 2.0, 1.0]))
    3
    """
    if len(variances) <= MOST_DIRECTIONS:
        return len(variances)
    return max(1, int(np.count_nonzero(variances > _STANDS_OUT * np.median(variances))))
