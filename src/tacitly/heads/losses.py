"""The loss that a target is fitted with, and how a linear score becomes a prediction.

``squared`` is for numbers; ``logistic`` for two classes (softmax for more); ``hinge`` for two classes separated by a
margin (the squared hinge, because Newton's method needs a second derivative); ``poisson`` for counts, with rates
exp(score).

The set of classes is *declared*. If it were read from the data, it would reveal which labels occur, and a label that
only one user has would reveal that user.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array
from tacitly.data.validation import DataError, alike, cells_of, numbers, rows_in_words

LOSSES = ("squared", "logistic", "hinge", "poisson")
LOGISTIC, HINGE, POISSON, SOFTMAX = 1, 2, 3, 4  # codes for compiled kernels
LARGEST_SCORE = 30.0  # largest log rate: e^30 exceeds any count


@dataclass(frozen=True)
class Loss:
    """A loss and, for classes, the labels that may occur.

    >>> Loss("logistic", ("no", "yes")).encode(["yes", "no"])
    array([1., 0.])
    """

    name: str = "squared"
    classes: Sequence[Any] | None = None

    def __post_init__(self) -> None:
        if self.name not in LOSSES:
            raise ValueError(f"loss must be one of {LOSSES}. Found {self.name!r}.")
        if not self.classifies:
            object.__setattr__(self, "classes", None)
            return
        labels = (0, 1) if self.classes is None else _listed(self.classes)
        if len(labels) < 2 or len(set(labels)) != len(labels):
            raise ValueError(f"classes must be at least two different labels. Found {labels!r}.")
        if len(labels) > 2 and self.name == "hinge":
            raise ValueError(f"loss 'hinge' needs two classes; use 'logistic' for more. Found {labels!r}.")
        object.__setattr__(self, "classes", labels)

    @property
    def classifies(self) -> bool:
        """Whether targets are classes."""
        return self.name in ("logistic", "hinge")

    @property
    def columns(self) -> int:
        """Scores per row: one, or one per class if there are more than two classes."""
        return len(self.classes) if self.classes is not None and len(self.classes) > 2 else 1

    @property
    def code(self) -> int:
        """Code of the loss for compiled kernels."""
        return SOFTMAX if self.columns > 1 else {"logistic": LOGISTIC, "hinge": HINGE, "poisson": POISSON}[self.name]

    def encode(self, y: npt.ArrayLike, *, blank: bool = False) -> Array:
        """Return targets as numbers: the position of each label among ``classes``; counts stay as they are.

        Raises an error if a label is not declared; the message gives the number of rows, never the labels. With
        ``blank``, such targets become NaN, and an error is raised only if no target can be used
        (:mod:`tacitly.data.bad_rows`).
        """
        if blank:
            return self._blank(y)
        if self.classes is None:
            return self._numbers(y)
        given = cells_of(y)
        codes = np.full(given.shape, -1.0)
        for position, label in enumerate(self.classes):
            codes[alike(given, label)] = position
        if unknown := int(np.count_nonzero(codes < 0)):
            raise DataError(
                f"the target has {rows_in_words(unknown)} with a label outside classes={list(self.classes)!r}. "
                "Declare every label that may occur, even if it does not occur here, or drop these rows."
            )
        return codes

    def _blank(self, y: npt.ArrayLike) -> Array:
        """Return targets as numbers, with NaN for those that cannot be used."""
        given = cells_of(y)
        if self.classes is None:
            codes = np.array(numbers(given.ravel(), np.nan)[0], dtype=np.float64).reshape(given.shape)
            if self.name == "poisson":
                codes[codes < 0] = np.nan
        else:
            codes = np.full(given.shape, np.nan)
            for position, label in enumerate(self.classes):
                codes[alike(given, label)] = position
        if codes.size and not np.isfinite(codes).any():
            kinds = {"poisson": "counts: numbers that are not negative"}
            wanted = kinds.get(self.name, "numbers")
            if self.classes is not None:
                wanted = f"labels among classes={list(self.classes)!r}: declare your labels with classes="
            raise DataError(f"the target has no values that loss={self.name!r} can use. Expected {wanted}.")
        return codes

    def predict(self, scores: Array) -> npt.NDArray[Any]:
        """Return classes, rates or numbers from scores (one per row, or one per row and class)."""
        if self.classes is not None:
            codes = scores.argmax(axis=1) if self.columns > 1 else (scores > 0).astype(np.int64)
            labels: npt.NDArray[Any] = np.asarray(self.classes)[codes]
            return labels
        return np.exp(np.minimum(scores, LARGEST_SCORE)) if self.name == "poisson" else scores

    def probabilities(self, scores: Array) -> Array:
        """Return one probability per class."""
        if self.name != "logistic":
            raise AttributeError(f"predict_proba needs loss='logistic'. Found loss={self.name!r}.")
        from scipy.special import expit, softmax  # imported here and below so that a node starts without SciPy

        if self.columns > 1:
            return np.asarray(softmax(scores, axis=1))
        return np.column_stack([expit(-scores), expit(scores)])

    def score(
        self, y: npt.ArrayLike, prediction: npt.NDArray[Any], sample_weight: npt.ArrayLike | None = None
    ) -> float:
        """Return accuracy for classes; for numbers, the explained share of the (squared or Poisson) deviance."""
        weights = None if sample_weight is None else _as_numbers(sample_weight)
        if self.classes is not None:
            return float(np.average(np.asarray(y) == prediction, weights=weights))
        target = _as_numbers(y)
        level = np.full_like(target, np.average(target, weights=weights))
        spread = self._deviance(target, level, weights)
        return float(1.0 - self._deviance(target, prediction, weights) / spread) if spread > 0 else 0.0

    def error(self, y: npt.ArrayLike, prediction: npt.NDArray[Any]) -> float:
        """Return the mean loss of predictions: share of wrong classes, squared error, or Poisson deviance."""
        if self.classes is not None:
            return 1.0 - self.score(y, prediction)
        return self._deviance(_as_numbers(y), prediction) / len(prediction)

    def errors(self, y: npt.ArrayLike, prediction: npt.NDArray[Any]) -> Array:
        """Return the loss of each prediction: 1 for a wrong class, squared error, or Poisson deviance."""
        if self.classes is not None:
            return np.asarray(np.asarray(y) != prediction, dtype=np.float64)
        target = _as_numbers(y)
        if self.name == "squared":
            return np.asarray((target - prediction) ** 2)
        from scipy.special import xlogy

        rates = np.maximum(prediction, np.finfo(float).tiny)
        return np.asarray(2.0 * (xlogy(target, target) - xlogy(target, rates) - target + rates))

    def _deviance(self, target: Array, prediction: Array, weights: Array | None = None) -> float:
        each = np.ones(len(target)) if weights is None else weights
        return float(each @ self.errors(target, prediction))

    def _numbers(self, y: npt.ArrayLike) -> Array:
        target = _as_numbers(y)
        negative = int(np.count_nonzero(target < 0)) if self.name == "poisson" else 0
        if negative:
            raise DataError(
                f"the target has {rows_in_words(negative)} below zero. loss='poisson' is for counts: drop these "
                "rows, or use loss='squared'."
            )
        return target


def _as_numbers(y: npt.ArrayLike) -> Array:
    """Return targets as floats; the error message counts cells that are not numbers and never shows them."""
    values, invalid = numbers(np.asarray(y))
    if invalid:
        raise DataError(f"the target has {rows_in_words(invalid)} that are not numbers. Drop or fix these rows.")
    return np.asarray(values, dtype=np.float64)


def _listed(classes: Any) -> tuple[Any, ...]:
    """Return declared labels in the given order, as plain Python values."""
    if isinstance(classes, str | bytes | set | frozenset | dict) or not hasattr(classes, "__iter__"):
        raise ValueError(
            "classes must be a list of labels, in the order of the columns of predict_proba. "
            f"Found a {type(classes).__name__}."
        )
    labels = tuple(label.item() if isinstance(label, np.generic) else label for label in classes)
    if not (all(isinstance(label, str) for label in labels) or all(isinstance(label, int | float) for label in labels)):
        raise ValueError(f"classes must be all text or all numbers. Found {labels!r}.")
    return labels
