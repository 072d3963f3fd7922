"""The four frameworks that AMHT-LRS (Pal et al. 2024) compares its networks with, on the same engine and budget.

| framework | user i's network | here | numbers (D parameters, n users) |
|---|---|---|---|
| single model | u | :func:`single_model` | D |
| full fine-tuning | uᵢ | :func:`full_fine_tuning` | D·n |
| representation learning | U wᵢ | :func:`representation_learning` | r(D + n) |
| prompt learning | u, on rows followed by cᵢ | :class:`PromptLearning` | D + h·e + e·n, h units in the first layer |

All of them release what is shared through the federation; ``epsilon = math.inf`` is the non-private version.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from tacitly.arrays import Array
from tacitly.neural.low_rank_sparse.estimator import LowRankSparse
from tacitly.neural.low_rank_sparse.network import Network
from tacitly.neural.low_rank_sparse.personal_part import PromptUpdate
from tacitly.neural.low_rank_sparse.personal_part_model import PersonalPartModel
from tacitly.neural.low_rank_sparse.tanh_network import TanhNetwork


def single_model(epsilon: float, **settings: Any) -> LowRankSparse:
    """Share one network among all users; ``settings`` are those of :class:`LowRankSparse`.

    >>> single_model(1.0).sparsity
    0
    """
    return LowRankSparse(1, 0, epsilon, shared_weight=True, **settings)


def full_fine_tuning(epsilon: float, **settings: Any) -> LowRankSparse:
    """Give every user a whole network, which starts from the shared one and is pulled towards it by ``penalty``.

    >>> full_fine_tuning(1.0).sparsity
    1.0
    """
    return LowRankSparse(1, 1.0, epsilon, shared_weight=True, **settings)


def representation_learning(rank: int, epsilon: float, **settings: Any) -> LowRankSparse:
    """Share networks U w, of which only w is personal.

    >>> representation_learning(2, 1.0).rank
    2
    """
    return LowRankSparse(rank, 0, epsilon, **settings)


@dataclass(eq=False, repr=False)
class PromptLearning(PersonalPartModel):
    """One network for all users, on rows followed by a personal embedding.

    Parameters are those of :class:`LowRankSparse`; ``embedding`` is the embedding's length (None: as long as a row, as
    in the paper).

    Attributes
    ----------
    shared_ : the network's parameters, then the first layer's for the embedding (units × e); public
    own_ : (n_users, embedding), rows in the order of ``users_``; private
    users_, certificate_

    Examples
    --------
    >>> from tacitly import neural
    >>> data = neural.synthetic_networks(200, 4, 1, 10, 2, random_state=0)
    >>> model = neural.PromptLearning(4.0, hidden=(8,), rounds=3).fit(data.X, data.y, data.users)
    >>> model.certificate_.certified, model.own_.shape, model.n_parameters()
    (True, (200, 4), 881)
    """

    _: KW_ONLY
    embedding: int | None = None
    run: str = "neural-prompt-learning"

    def n_parameters(self) -> int:
        """Count the numbers of the model: a network of features and embedding, and one embedding per user."""
        self._check_fitted()
        return self.shared_.size + self.own_.size

    def _update(self, network: Network) -> PromptUpdate:
        assert isinstance(network, TanhNetwork)
        return PromptUpdate(
            network=network,
            training=self._training(),
            penalty=self.penalty,
            embedding=self._packed_size(network),
        )

    def _start(self, network: Network, rng: np.random.Generator) -> Array:
        """Return a network, and the first layer's weights of the embedding, drawn like those of the features."""
        assert isinstance(network, TanhNetwork)
        begin = network.start(rng)
        prompts = rng.normal(size=network.hidden[0] * self._packed_size(network)) / math.sqrt(network.features)
        return np.concatenate([begin, prompts])

    def _packed_size(self, network: Network) -> int:
        assert isinstance(network, TanhNetwork)
        return network.features if self.embedding is None else self.embedding

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.embedding is not None and self.embedding < 1:
            raise ValueError(f"embedding must be at least 1. Found {self.embedding!r}.")
