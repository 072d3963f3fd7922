"""How the linear score of a synthetic row determines its target: a number, a class or a count.

A class or a count is derived from a *latent* number, score + noise, whose variance has the shares that
:class:`~tacitly.planning.shape.Shape` describes. The noise has a fixed variance v:

    two classes          π²/3        the class is whether score + logistic noise is positive
    more classes         π²/6        the class with the largest score + Gumbel noise, one score per class
    counts of mean m     ln(1 + 1/m) of the logarithm of a count (Nakagawa, Johnson and Schielzeth 2017)

So with a noise share s, scores have variance v·(1 − s)/s. Errors are those that ``tacitly fit`` prints: squared errors,
the share of wrong classes, mean Poisson deviances. They are expectations given the scores of new rows, so that fewer
rows are needed to compare methods.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array
from tacitly.heads.losses import LARGEST_SCORE, Loss

if TYPE_CHECKING:
    from tacitly.planning.shape import Shape


def loss_of(shape: Shape) -> Loss:
    """Return the loss of a shape's target; classes are 0, 1 and so on."""
    return Loss(shape.loss, range(shape.classes) if shape.loss == "logistic" else None)


def latent_unit(shape: Shape) -> float:
    """Return the standard deviation of the latent number; shares refer to its variance.

    >>> from tacitly.planning.shape import Shape
    >>> two = Shape(users=9, rows=2, features=1, loss="logistic", noise=0.5)
    >>> round(latent_unit(two), 3)
    2.565
    """
    if shape.loss == "squared":
        return 1.0
    if shape.loss == "poisson":
        variance = math.log1p(1.0 / shape.mean_count)
    else:
        variance = math.pi**2 / (3.0 if shape.classes == 2 else 6.0)
    return math.sqrt(variance / shape.noise)


def level_of(shape: Shape) -> float:
    """Return the level of scores: for counts, the one that gives rates with the mean of the shape."""
    if shape.loss != "poisson":
        return 0.0
    return math.log(shape.mean_count) - 0.5 * latent_unit(shape) ** 2 * (1.0 - shape.noise)


def truth_of(loss: Loss, scores: Array) -> Array:
    """Return expected targets of rows with these scores, or a probability for each class."""
    if loss.classes is not None:
        return loss.probabilities(scores)
    return np.asarray(loss.predict(scores))


def drawn_targets(loss: Loss, scores: Array, noise: float, rng: np.random.Generator) -> Array:
    """Draw targets; ``noise`` is the variance of a number's noise, or of log rates beyond the Poisson distribution."""
    rough = scores + math.sqrt(noise) * rng.standard_normal(scores.shape) if noise and loss.classes is None else scores
    if loss.name == "squared":
        return rough
    if loss.name == "poisson":
        return np.asarray(rng.poisson(np.exp(np.minimum(rough, LARGEST_SCORE / 2.0))), dtype=np.float64)
    chances = np.cumsum(loss.probabilities(scores), axis=1)[:, :-1]
    return np.asarray((rng.random((len(scores), 1)) > chances).sum(axis=1), dtype=np.float64)


def expected_error(loss: Loss, truth: Array, prediction: npt.NDArray[Any]) -> float:
    """Return the mean error of predictions, without the part that the noise of targets adds to all errors."""
    if loss.classes is not None:
        chosen = np.asarray(prediction, dtype=np.int64)
        return float(1.0 - truth[np.arange(len(truth)), chosen].mean())
    return float(loss.errors(truth, prediction).mean())
