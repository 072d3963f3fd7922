"""Methods of learned principal components: coordinates of rows, likelihoods, explained variances.

The interface is that of scikit-learn's PCA. Results computed from rows are as private as the rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import scipy.sparse
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin

from tacitly.arrays import Array
from tacitly.data.reading import read_rows, wrong_width
from tacitly.data.validation import DataError, plain_numbers
from tacitly.methods.base import Fitted
from tacitly.privacy.certificate import Certificate

_LEARNED = ("components", "singular_values", "explained_variance", "confidence", "mean", "eigenvalues")


class Components(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Fitted):  # type: ignore[misc]
    """Learned components of :class:`tacitly.FedPower` after ``fit``."""

    certificate_: Certificate
    groups_: int

    _learned: ClassVar[str] = "components_"

    @np.errstate(all="ignore")  # no warning depends on a private number
    def transform(self, X: Any) -> Array:
        """Return rows in the coordinates of the components. The result is as private as the rows: do not publish it."""
        self._check_fitted()
        rows = X
        if not scipy.sparse.issparse(X):
            rows = read_rows(X, self.feature_names_in_)
        elif X.shape[1] != self.n_features_in_:
            raise DataError(wrong_width(X.shape, self.n_features_in_))
        return np.asarray(rows @ self.components_.T - self.mean_ @ self.components_.T)

    @np.errstate(all="ignore")  # no warning depends on a private number
    def inverse_transform(self, X: npt.ArrayLike) -> Array:
        """Return approximate rows from their coordinates along the components."""
        self._check_fitted()
        return np.asarray(plain_numbers(X, "X") @ self.components_ + self.mean_)

    @np.errstate(all="ignore")  # no warning depends on a private number
    def score_samples(self, X: Any) -> Array:
        """Return each row's log-likelihood under probabilistic PCA (Tipping and Bishop 1999). Do not publish it."""
        self._check_fitted()
        if not self.noise_variance_ > 0:
            raise ValueError(
                f"the likelihood needs the variance outside the components, which route {self.route_!r} does not "
                "release or which is below its noise. Use route='gram', or fewer components."
            )
        rows = (
            np.asarray(X.toarray() if scipy.sparse.issparse(X) else read_rows(X, self.feature_names_in_)) - self.mean_
        )
        inside = rows @ self.components_.T
        kept = np.maximum(self.explained_variance_, self.noise_variance_)
        outside = np.sum(rows**2, axis=1) - np.sum(inside**2, axis=1)
        d, k = self.n_features_in_, len(kept)
        constant = d * math.log(2 * math.pi) + float(np.sum(np.log(kept))) + (d - k) * math.log(self.noise_variance_)
        return np.asarray(-0.5 * (constant + (inside**2 / kept).sum(axis=1) + outside / self.noise_variance_))

    def score(self, X: Any, y: Any = None) -> float:
        """Return the mean log-likelihood of rows, as scikit-learn's PCA does. Do not publish it."""
        return float(np.mean(self.score_samples(X)))

    def plot_scree(self, axes: Any = None) -> Any:
        """Draw the released eigenvalues, the corrected ones, and the noise floor, below which values are only noise.

        Parameters
        ----------
        axes
            Matplotlib axes to draw on; None for a new figure. Everything in the plot is public.
        """
        from tacitly.methods.fedpower.scree import draw

        self._check_fitted()
        return draw(self.eigenvalues_, self.singular_values_**2, self.noise_floor_, axes)

    @property
    def bytes_sent_(self) -> int:
        """Bytes that one device sends in all releases together."""
        # Releases in turns, and releases per device, count the numbers of all groups or devices.
        sums = [release for release in self.certificate_.releases if "step" in release.name.partition("norms of")[0]]
        numbers = sum(release.coordinates for release in self.certificate_.releases)
        return 8 * (numbers - sum(release.coordinates * (self.groups_ - 1) // self.groups_ for release in sums))

    @property
    def explained_variance_ratio_(self) -> Array:
        """Share of the total variance that each component explains."""
        return np.asarray(self.explained_variance_ / self.total_variance_)

    @property
    def noise_variance_(self) -> float:
        """Mean variance of the directions outside the components."""
        left = self.total_variance_ - float(np.sum(self.explained_variance_))
        return (
            left / (self.n_features_in_ - len(self.components_)) if self.n_features_in_ > len(self.components_) else 0.0
        )

    def fit_transform(self, X: Any, y: Any = None, users: Any = None) -> Array:
        """Fit, then transform the same rows."""
        rows: Array = self.fit(X, y, users).transform(X)
        return rows

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def public_arrays(self) -> dict[str, Array]:
        """Return everything that was learned; all of it is public."""
        self._check_fitted()
        error = math.nan if self.predicted_error_ is None else self.predicted_error_
        numbers = {
            "noise_floor": self.noise_floor_, "predicted_error": error, "total_variance": self.total_variance_,
            "groups": float(self.groups_),
        }  # fmt: skip
        arrays = {name: np.asarray(getattr(self, f"{name}_"), dtype=np.float64) for name in _LEARNED}
        route = {"route": np.frombuffer(self.route_.encode(), dtype=np.uint8)}
        return arrays | {name: np.array([value]) for name, value in numbers.items()} | route

    def take_public_arrays(self, arrays: Mapping[str, Array]) -> None:
        """Set what :meth:`public_arrays` returned."""
        for name in _LEARNED:
            setattr(self, f"{name}_", arrays[name])
        self.total_variance_, self.groups_ = float(arrays["total_variance"][0]), int(arrays["groups"][0])
        self.noise_floor_, error = float(arrays["noise_floor"][0]), float(arrays["predicted_error"][0])
        self.predicted_error_ = None if math.isnan(error) else error
        self.route_ = bytes(arrays["route"].tolist()).decode()
        self.n_components_ = len(self.components_)

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags: a transformer that takes sparse rows."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags
