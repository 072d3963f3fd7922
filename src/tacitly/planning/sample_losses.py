"""Synthetic users drawn from a public sample whose target is a class or a count.

Features are those of the sample, as in :mod:`tacitly.planning.sample`. The distribution of users' weights is the one
that :class:`~tacitly.MixedEffects` estimates from the sample without privacy: their mean, their covariance, and for
counts the variance of log rates beyond the Poisson distribution. Synthetic users have new weights from that
distribution, and targets drawn according to their scores.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace

import numpy as np

from tacitly.arrays import Array
from tacitly.data.cohort import Cohort
from tacitly.data.validation import DataError
from tacitly.heads.losses import Loss
from tacitly.methods.registry import Method
from tacitly.planning.made_up import Counts, MadeUp, WithTarget, made_up
from tacitly.planning.sample import between, held_out, resampled, usual_rows, with_several_rows
from tacitly.planning.shape import Shape
from tacitly.planning.targets import drawn_targets, truth_of

_NOISES = {1: math.pi**2 / 3.0, 2: math.pi**2 / 6.0}  # for two classes, and for more


@dataclass(frozen=True)
class SampledLoss(WithTarget):
    """Users drawn from the features of a public sample, with classes or counts to predict."""

    shape: Shape
    cohort: Cohort  # missing cells are replaced by their column's mean
    mean: Array  # mean of users' weights, the level first; one row per score
    root: Array  # root of their covariance
    rough: float  # variance of log rates beyond the Poisson distribution

    @classmethod
    def of(cls, cohort: Cohort, users: int, loss: Loss, method: Method, random_state: int = 0) -> SampledLoss:
        """Make a population from a public sample; ``method`` estimates the distribution of weights."""
        kept = with_several_rows(cohort, random_state)
        codes = loss.encode(kept.y)  # type: ignore[arg-type]
        plain = Loss(loss.name, None if loss.classes is None else range(len(loss.classes)))
        center = np.nanmean(np.where(np.isfinite(kept.X), kept.X, np.nan), axis=0)
        full = replace(kept, X=np.where(np.isfinite(kept.X), kept.X, center), y=codes)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # public users without privacy: nothing here is certified
            model = method.build(epsilon=math.inf, loss=plain.name, classes=plain.classes).fit(full)
        mean = np.column_stack([np.atleast_1d(model.intercept_), np.atleast_2d(model.coef_)])
        covariance, rough = model.covariance_, model.noise_variance_ if loss.name == "poisson" else 0.0
        values, vectors = np.linalg.eigh(covariance)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        if not np.isfinite(root).all():
            raise DataError("the sample does not show how its users differ. Give more users, or describe the shape.")
        shape = _described(full, users, plain, mean, root, rough)
        return cls(shape, full, mean, root, rough)

    @property
    def noise(self) -> float:
        """Variance of log rates beyond the Poisson distribution."""
        return self.rough

    def draw(self, n_users: int, rng: np.random.Generator) -> MadeUp:
        """Draw that many synthetic users."""
        rows, owner, counts = resampled(self.cohort, n_users, rng)
        X = self.cohort.X[rows]
        scores = self._scores(X, owner, n_users, rng)
        fresh, kept = held_out(owner, counts, rng)
        number = np.bincount(owner[fresh], minlength=n_users).astype(np.int64)
        y = drawn_targets(self.loss, scores, self.rough, rng)
        # The mean of a log-normal rate is the best prediction of a count with random rate.
        truth = truth_of(self.loss, scores[fresh] + 0.5 * self.rough)
        return made_up((X[kept], y[kept], counts - number), (X[fresh], y[fresh], number), truth, self.cohort.schema)

    def _scores(self, X: Array, owner: Counts, n_users: int, rng: np.random.Generator) -> Array:
        design = np.column_stack([np.ones(len(X)), X])
        own = rng.standard_normal((len(self.mean), n_users, self.root.shape[1])) @ self.root.T
        found = [np.einsum("nd,nd->n", design, (mean + part)[owner]) for mean, part in zip(self.mean, own, strict=True)]
        return found[0] if len(found) == 1 else np.column_stack(found)


def _described(cohort: Cohort, users: int, loss: Loss, mean: Array, root: Array, rough: float) -> Shape:
    """Return the shape that describes the sample: the shares of the latent number's variance."""
    X, y = np.asarray(cohort.X, dtype=np.float64), np.asarray(cohort.y)
    center = X.mean(axis=0)
    common = float(np.mean([np.var(X @ weights[1:]) for weights in mean]))
    levels = float(np.sum(np.square(root[0] + center @ root[1:])))
    slopes = float(np.mean(np.sum(np.square((X - center) @ root[1:]), axis=1)))
    noise = rough + (math.log1p(1.0 / float(y.mean())) if loss.name == "poisson" else _NOISES[min(loss.columns, 2)])
    parts = np.array([common, levels, slopes, noise]) / (common + levels + slopes + noise)
    return Shape(
        users=users,
        rows=usual_rows(cohort),
        features=cohort.n_features,
        noise=max(round(float(parts[3]), 3), 0.001),
        levels=math.floor(1000.0 * float(parts[1])) / 1000.0,
        slopes=math.floor(1000.0 * float(parts[2])) / 1000.0,
        between=between(cohort),
        loss=loss.name,
        classes=2 if loss.classes is None else len(loss.classes),
        mean_count=float(y.mean()) if loss.name == "poisson" else 1.0,
    )
