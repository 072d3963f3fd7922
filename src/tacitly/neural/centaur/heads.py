"""Local heads: fit one user's head on the public body, and predict with it. Nothing here is released."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from tacitly.arrays import Array
from tacitly.data.validation import DataError
from tacitly.neural.centaur.linear_heads import fit_classes, fit_linear
from tacitly.neural.engine.flat import Flat
from tacitly.neural.engine.local_training import LocalTraining
from tacitly.neural.engine.module_properties import n_outputs
from tacitly.neural.engine.update import UserUpdate
from tacitly.neural.engine.user_loss import labels

FINAL_STEPS = 200
"""Steps for a head that is fitted only once, after the rounds; with few steps it would stay close to the public one."""

WARM_STEPS = 15
"""Steps for a head that was also fitted in rounds, as in the authors' code."""

Own = tuple[Array, Array]
"""A head's parameters, and a 1 for every class that occurs in its user's rows."""


@dataclass(frozen=True)
class HeadMaker:
    """Fit heads shrunk towards a public one: in closed form if it is linear, otherwise by gradient steps.

    ``by_steps``: by gradient steps in any case. They start from the public head, or from a warm one.
    """

    public: nn.Module
    training: LocalTraining
    by_steps: bool = False

    @property
    def closed_form(self) -> bool:
        """Whether heads are linear and fitted without steps."""
        return type(self.public) is nn.Linear and self.public.bias is not None and not self.by_steps

    @property
    def classes(self) -> int:
        """Number of outputs of a head."""
        return n_outputs(self.public)

    @property
    def size(self) -> int:
        """Number of parameters of a head."""
        return sum(value.numel() for value in self.public.parameters() if value.requires_grad)

    def fit(self, features: Array, targets: npt.NDArray[Any], views: int = 1, warm: Tensor | None = None) -> Own:
        """Return one user's head from all views of all rows; ``warm`` is where steps start."""
        held = np.ones(self.classes)
        numbers = np.asarray(targets, dtype=np.float64)
        if self.training.loss == "classes":
            numbers = labels(torch.from_numpy(numbers.copy()), self.classes).numpy()
            held = (np.bincount(numbers, minlength=self.classes) > 0).astype(np.float64)
        if self.closed_form:
            assert isinstance(self.public, nn.Linear)
            prior = self.public.weight.detach().double().numpy()
            if self.training.loss == "classes":
                weights, levels = fit_classes(features, numbers, prior, views)
            else:
                weights, levels = fit_linear(features, numbers[:, None], prior, views)
            return np.concatenate([weights.ravel(), levels]), held
        flat = Flat(self.public)
        training = self._plain(WARM_STEPS if warm is not None else FINAL_STEPS)
        update = UserUpdate(body=Flat(nn.Identity()), head=flat, training=training, classes=self.classes).alone()
        rows = torch.tensor(np.asarray(features), dtype=flat.start.dtype)
        goals = torch.tensor(numbers, dtype=flat.start.dtype)
        start = flat.start if warm is None else warm.to(flat.start)
        fitted = update.fitted_head(torch.zeros(0), start, rows, goals, torch.ones_like(goals))
        return np.asarray(fitted.detach().double().numpy()), held

    def safely(self, seen: Callable[[], tuple[Array, npt.NDArray[Any], int]], warm: Tensor | None = None) -> Own:
        """Return one user's head, or the public one if fitting fails, so that failures reveal nothing."""
        try:
            features, targets, views = seen()
            if len(features):  # the mean of no rows would cause a warning that reveals whose rows these are
                head, held = self.fit(features, targets, views, warm)
                if np.isfinite(head).all():
                    return head, held
        except MemoryError:
            raise
        except Exception:
            pass
        return np.asarray(Flat(self.public).start.double().numpy()), np.ones(self.classes)

    def answers(self, features: Array, own: Own) -> npt.NDArray[Any]:
        """Return predictions: the most likely of the classes in the user's rows, or a number."""
        scores = self._scores(features, own[0])
        if self.training.loss != "classes":
            return np.asarray(scores[:, 0])
        return np.asarray(np.where(own[1] > 0, scores, -np.inf).argmax(axis=1))

    def probabilities(self, features: Array, own: Own) -> Array:
        """Return one probability per class: zero for classes that are not in the user's rows.

        Linear heads in closed form regress each class's indicator on the features, so their scores already estimate
        probabilities: they are clipped at zero and divided by their sum. Other heads have logits.
        """
        scores, held = self._scores(features, own[0]), own[1] > 0
        if self.closed_form:
            positive = np.where(held, np.maximum(scores, 0.0), 0.0)
            total = positive.sum(axis=1, keepdims=True)
            return np.asarray(np.where(total > 0, positive / np.where(total > 0, total, 1.0), held / held.sum()))
        logits = np.where(held, scores, -np.inf)
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))

    def safe_probabilities(self, seen: Callable[[], npt.NDArray[Any]], own: Own) -> Array:
        """Return :meth:`probabilities`, or equal probabilities for the user's classes if the rows fail."""
        try:
            return self.probabilities(seen(), own)
        except MemoryError:
            raise
        except Exception:
            return np.asarray(own[1] / own[1].sum())

    def _scores(self, features: Array, head: Array) -> Array:
        flat = Flat(self.public)
        with torch.no_grad():
            rows = torch.tensor(np.asarray(features), dtype=flat.start.dtype)
            scores: Tensor = flat(torch.tensor(head, dtype=flat.start.dtype), rows)
        return np.asarray(scores.double().numpy())

    def safe_answers(self, seen: Callable[[], npt.NDArray[Any]], own: Own) -> npt.NDArray[Any] | float:
        """Return :meth:`answers`, or one answer for all rows if the rows fail: no error reveals whose rows fail."""
        try:
            return self.answers(seen(), own)
        except MemoryError:
            raise
        except Exception:
            return float(own[1].argmax()) if self.training.loss == "classes" else np.nan

    def _plain(self, steps: int) -> LocalTraining:
        """Return the training settings without augmentation: features already include the augmented views."""
        return LocalTraining(
            head_steps=max(self.training.head_steps, steps),
            head_rate=self.training.head_rate,
            head_momentum=self.training.head_momentum,
            head_decay=self.training.head_decay,
            loss=self.training.loss,
        )


def usable_labels(y: npt.NDArray[Any], classes: int) -> npt.NDArray[Any]:
    """Return targets with NaN for those that are not class numbers; raise if none is.

    >>> usable_labels(np.array([0.0, 2.0, 7.0]), classes=3)
    array([ 0.,  2., nan])
    """
    with np.errstate(all="ignore"):
        usable = (y == np.rint(y)) & (y >= 0) & (y < classes)
    if not usable.any():
        raise DataError(f"y must contain class numbers from 0 to {classes - 1}, as many as the head has outputs.")
    return np.where(usable, y, y.dtype.type(np.nan))


def check_labels(y: npt.NDArray[Any], classes: int) -> None:
    """Raise on targets that are not class numbers, before anything is learned and without showing them.

    >>> check_labels(np.array([0.0, 2.0]), classes=3)
    """
    with np.errstate(all="ignore"):
        wrong = int(np.count_nonzero(~((y == np.rint(y)) & (y >= 0) & (y < classes))))
    if wrong:
        raise DataError(
            f"y must contain class numbers from 0 to {classes - 1}, as many as the head has outputs. "
            f"Found {wrong} of {len(y)} rows with other values."
        )
