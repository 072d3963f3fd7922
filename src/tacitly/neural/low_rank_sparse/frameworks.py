"""What paper 004 compares low rank plus sparse networks with: its four frameworks, on the same engine and budget.

| framework | user i's network | here | numbers (D parameters, n users) |
|---|---|---|---|
| single model | u | :func:`single_model` | D |
| full fine-tuning | uᵢ | :func:`full_fine_tuning` | D·n |
| representation learning | U wᵢ | :func:`representation_learning` | r(D + n) |
| prompt learning | u, on rows followed by cᵢ | :class:`PromptLearning` | D + h·e + e·n, h units in the first layer |

All learn what is shared through the door, with ``epsilon = math.inf`` for the non-private version.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tacitly.arrays import Array
from tacitly.data.cohort import Cohort
from tacitly.neural.low_rank_sparse.estimator import LowRankSparse
from tacitly.neural.low_rank_sparse.personal_part import PromptUpdate
from tacitly.neural.low_rank_sparse.personal_part_model import OwnPartModel
from tacitly.privacy.ledger import Ledger


def single_model(epsilon: float, **settings: Any) -> LowRankSparse:
    """Share one network among all; ``settings`` are those of :class:`LowRankSparse`.

    >>> single_model(1.0).sparsity
    0
    """
    return LowRankSparse(1, 0, epsilon, shared_weight=True, **settings)


def full_fine_tuning(epsilon: float, **settings: Any) -> LowRankSparse:
    """Give every user a network of their own, begun from the shared one and pulled to it by ``penalty``.

    >>> full_fine_tuning(1.0).sparsity
    1.0
    """
    return LowRankSparse(1, 1.0, epsilon, shared_weight=True, **settings)


def representation_learning(rank: int, epsilon: float, **settings: Any) -> LowRankSparse:
    """Share networks U w, with nothing of a user's own but w.

    >>> representation_learning(2, 1.0).rank
    2
    """
    return LowRankSparse(rank, 0, epsilon, **settings)


class PromptLearning(OwnPartModel):
    """One network for everybody, on rows followed by an embedding of every user's own.

    Parameters are those of :class:`LowRankSparse`; ``embedding`` is the length of a user's (the paper's is as long as a
    row, which is what None means).

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

    def __init__(
        self,
        epsilon: float,
        delta: float = 1e-6,
        adjacency: str = "zero-out",
        mode: str = "auto",
        random_state: int | None = None,
        *,
        embedding: int | None = None,
        hidden: tuple[int, ...] = (50, 50),
        rounds: int = 15,
        step: float = 1.0,
        clip: float | str | None = None,
        clip_share: float = 0.05,
        sampling_rate: float = 1.0,
        head_steps: int = 10,
        final_steps: int = 40,
        penalty: float = 3.0,
        cross_fit: bool = True,
        rows_per_user: int = 64,
        device: str = "auto",
        chunk: int | None = None,
        noise: str = "auto",
        noise_seed: int | None = None,
        ledger: Ledger | None = None,
        run: str = "neural-prompt-learning",
        threads: int | None = None,
    ) -> None:
        super().__init__(
            *(epsilon, delta, adjacency, mode, random_state),
            hidden=hidden,
            rounds=rounds,
            step=step,
            clip=clip,
            clip_share=clip_share,
            sampling_rate=sampling_rate,
            head_steps=head_steps,
            final_steps=final_steps,
            penalty=penalty,
            cross_fit=cross_fit,
            rows_per_user=rows_per_user,
            device=device,
            chunk=chunk,
            noise=noise,
            noise_seed=noise_seed,
            ledger=ledger,
            run=run,
            threads=threads,
        )
        self.embedding = embedding

    def n_parameters(self) -> int:
        """Count what the model holds: a network of features and embedding, and everybody's embedding."""
        return self.shared_.size + self.own_.size

    def _update(self) -> PromptUpdate:
        return PromptUpdate(
            network=self._network(), training=self._training(), penalty=self.penalty, embedding=self._packed_size()
        )

    def _start(self, rng: np.random.Generator) -> Array:
        """Return a network, and the first layer's numbers for the embedding, drawn as those for the features."""
        network, length = self._network(), self._packed_size()
        begin = network.start(rng)
        prompts = rng.normal(size=network.hidden[0] * length) / math.sqrt(network.features)
        return np.concatenate([begin, prompts])

    def _packed_size(self) -> int:
        return self.n_features_in_ if self.embedding is None else self.embedding

    def _check_parameters(self, cohort: Cohort) -> None:
        super()._check_parameters(cohort)
        if self._packed_size() < 1:
            raise ValueError(f"embedding must be at least 1. Found {self.embedding!r}.")
