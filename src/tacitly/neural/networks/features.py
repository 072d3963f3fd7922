"""Features from a public network: the practical way to use a network with fewer than ten thousand users.

The network is public and fixed, so its output for a row is the same row in other columns: nothing is released and
nothing is spent here. Privacy is needed only for what is learned afterwards, with few parameters: a population's head
and a personal deviation (:class:`tacitly.MixedEffects`), or a shared basis (:class:`tacitly.PrivateFedRep`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from tacitly.neural.engine.layers import check_layers
from tacitly.neural.engine.windows import ForwardPass


class Features:
    """A public network as a map from rows to columns, for any estimator of tacitly.

    ``encoder`` maps rows to vectors. It is copied and run in evaluation mode. Its layers must be known
    (:mod:`tacitly.neural.engine.layers`), or vouched for with ``trust_custom_layers``. Images may have any shape: rows
    are flattened. Features are divided by ``bound``, and vectors longer than one are shortened to length one, so that
    outliers do not cost accuracy in estimators that scale columns; ``bound=None`` leaves features unchanged. No
    certificate covers the data that the encoder was trained on.

    >>> rng = np.random.default_rng(0)
    >>> features = Features(nn.Sequential(nn.Linear(6, 4), nn.ReLU()))
    >>> features(rng.normal(size=(5, 2, 3))).shape
    (5, 4)
    """

    def __init__(
        self,
        encoder: nn.Module,
        *,
        bound: float | None = None,
        trust_custom_layers: bool = False,
        device: str = "auto",
        rows: int = 1024,
    ) -> None:
        if bound is not None and not bound > 0:
            raise ValueError(f"bound must be positive, or None. Found {bound!r}.")
        name = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
        check_layers(encoder, nn.Linear(1, 1), cuda=name == "cuda", trust_custom_layers=trust_custom_layers)
        self.bound = bound
        self._forward = ForwardPass(encoder, torch.device(name), rows)

    def __call__(self, X: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return one vector per row; NaN for rows that are not finite, which estimators leave out."""
        rows = np.asarray(X, dtype=np.float32)
        rows = rows.reshape(len(rows), -1)
        known = np.asarray(np.isfinite(rows).all(axis=1))
        found = np.asarray(self._forward(np.where(known[:, None], rows, 0.0)), dtype=np.float64)
        if found.ndim != 2:
            raise ValueError(f"the encoder must return one vector per row. Found shape {found.shape}.")
        if self.bound is not None:
            lengths = np.linalg.norm(found, axis=1, keepdims=True) / self.bound
            found = found / self.bound / np.maximum(1.0, lengths)
        found[~known] = np.nan
        return found

    def fit(self, X: Any = None, y: Any = None) -> Features:
        """Do nothing, because there is nothing to fit. For scikit-learn's pipelines."""
        return self

    def transform(self, X: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return the features, as a call does."""
        return self(X)
