"""Low rank plus sparse for networks: everybody's small network is U w + b (paper 004, appendix B.2)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacitly.arrays import Array
from tacitly.data.cohort import Cohort
from tacitly.neural.low_rank_sparse.personal_part import SparseUpdate
from tacitly.neural.low_rank_sparse.personal_part_model import OwnPartModel
from tacitly.privacy.ledger import Ledger


class LowRankSparse(OwnPartModel):
    """A basis of networks, learned privately, and a few parameters of their own for every user (paper 004, B.2).

    The parameters of user i's tanh network are U wᵢ + bᵢ with bᵢ sparse; wᵢ and bᵢ stay with their user. For numbers to
    predict, by squared error.

    Parameters
    ----------
    rank
        Columns of U, r. The first is a network, the others are directions to leave it by.
    sparsity
        Parameters of their own that users have: a count, or a fraction of the network's (rounded up, as the paper's
        Table 2 has it for MovieLens); 0 is representation learning, 1.0 all of them.
    epsilon, delta, adjacency
        The promise for everything that is released together. ``math.inf`` for none (not certified).
    mode
        ``"auto"``.
    random_state
        Steers public randomness only: the network that rounds begin from. None is a fixed one too.
    hidden
        Units of the hidden layers: ``(50,)`` and ``(50, 50)`` are the paper's two- and three-layer networks.
    shared_weight
        Everybody's weight is one (rank 1): one network, sparsely fine-tuned by every user.
    rounds
        Noisy sums.
    step
        How far the first round moves outputs if all users agree, in units of the targets (root mean square over made-up
        rows of standard normals, which are public); later steps shrink in proportion to the rounds left, and every step
        to the share of the released sum that noise does not explain.
    clip
        None: every answer counts with norm one, so there is nothing to choose. A number: answers are clipped to it.
        ``"auto"``: to the median norm, bought before the first round with ``clip_share`` of the budget.
    sampling_rate
        Chance with which a user takes part in a round, by a coin nobody sees. The denominator stays fixed.
    head_steps, final_steps
        Steps on the own part in a round, and at the end, at most: half of a user's rows says when to stop.
    penalty
        Pull of the own part to where it starts: that of this many rows of the user's.
    cross_fit
        Whether U's gradient sees other rows than the own part was fitted to.
    rows_per_user
        Rows a user brings to a round; who has more brings others in the next.
    device, chunk
        ``"auto"`` takes a GPU for the rounds if there is one; users at a time.
    noise, noise_seed, ledger, run, threads
        As for :class:`tacitly.PrivateFedRep`; ``threads`` changes nothing here.

    Attributes
    ----------
    basis_ : (parameters of the network, rank); public
    heads_ : (n_users, rank), rows in the order of ``users_``; private
    sparse_indices_, sparse_values_ : (n_users, k), places in the flat network and what is added there; private
    users_, certificate_

    Examples
    --------
    >>> from tacitly import neural
    >>> data = neural.synthetic_networks(200, 4, 1, 10, 2, random_state=0)
    >>> model = neural.LowRankSparse(1, 2, epsilon=4.0, hidden=(8,), rounds=3).fit(data.X, data.y, data.users)
    >>> model.certificate_.certified, model.basis_.shape, model.sparse_indices_.shape, model.n_parameters()
    (True, (49, 1), (200, 2), 649)
    >>> mine = data.users == 3
    >>> model.personalize(data.X[mine], data.y[mine]).predict(data.X[mine]).shape  # costs nobody anything
    (10,)
    """

    def __init__(
        self,
        rank: int,
        sparsity: int | float,
        epsilon: float,
        delta: float = 1e-6,
        adjacency: str = "zero-out",
        mode: str = "auto",
        random_state: int | None = None,
        *,
        hidden: tuple[int, ...] = (50, 50),
        shared_weight: bool = False,
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
        run: str = "neural-low-rank-sparse",
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
        self.rank = rank
        self.sparsity = sparsity
        self.shared_weight = shared_weight

    @property
    def basis_(self) -> Array:
        """U."""
        return self.shared_.reshape(-1, self.rank)

    @property
    def heads_(self) -> Array:
        """Weights on the basis, a row a user."""
        return self.own_[:, : self.rank]

    @property
    def sparse_indices_(self) -> npt.NDArray[np.int64]:
        """Which parameters each user has of their own."""
        return self.own_[:, self.rank : self.rank + self._own_parameters()].astype(np.int64)

    @property
    def sparse_values_(self) -> Array:
        """What each user adds to them."""
        return self.own_[:, self.rank + self._own_parameters() :]

    def private_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return weights, and the users' own parameters as indices and values."""
        indices = self.sparse_indices_.astype(np.int32)
        return {"heads": self.heads_, "sparse_indices": indices, "sparse_values": self.sparse_values_}

    def take_private_arrays(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Set what :meth:`private_arrays` gave."""
        indices, size = arrays["sparse_indices"], self._network().size
        if not ((indices >= 0) & (indices < size)).all():
            raise ValueError(f"users have parameters of their own that a network of {size} does not have.")
        super().take_private_arrays({"own": np.hstack([arrays["heads"], indices, arrays["sparse_values"]])})

    def n_parameters(self) -> int:
        """Count what the model holds, as the paper's Table 2 does: r(D + n) + k·n, indices not counted.

        A shared weight is one number for all, and so is not counted for each; and where users have all parameters of
        their own, nothing else is needed.
        """
        own, size, users = self._own_parameters(), self._network().size, len(self.users_)
        if own == size:
            return size * users
        return self.shared_.size + (0 if self.shared_weight else self.rank * users) + own * users

    def _own_parameters(self) -> int:
        """Return k."""
        size, given = self._network().size, self.sparsity
        if isinstance(given, float) and 0.0 < given <= 1.0:
            return math.ceil(round(given * size, 6))  # 0.1 of 50 is 5, whatever floats say
        if isinstance(given, int | np.integer) and not isinstance(given, bool) and 0 <= given <= size:
            return int(given)
        raise ValueError(f"sparsity must be a count from 0 to {size}, or a fraction up to 1.0. Found {given!r}.")

    def _update(self) -> SparseUpdate:
        return SparseUpdate(
            network=self._network(),
            training=self._training(),
            penalty=self.penalty,
            rank=self.rank,
            sparsity=self._own_parameters(),
            shared_weight=self.shared_weight,
        )

    def _start(self, rng: np.random.Generator) -> Array:
        """Return a network, and directions of length one."""
        network = self._network()
        others = rng.normal(size=(network.size, self.rank - 1)) / math.sqrt(network.size)
        return np.column_stack([network.start(rng), others]).ravel()

    def _packed_size(self) -> int:
        return self.rank + 2 * self._own_parameters()

    def _packed(self, own: Tensor) -> Tensor:
        weights, values = torch.vmap(self._update().weights)(own), own[:, self.rank :]
        places = torch.topk(values.abs(), self._own_parameters(), dim=1).indices.sort(dim=1).values
        return torch.cat([weights, places.double(), values.gather(1, places)], dim=1)

    def _unpacked(self, row: Array) -> Tensor:
        own = self._own_parameters()
        values = np.zeros(self._network().size)
        values[row[self.rank : self.rank + own].astype(np.int64)] = row[self.rank + own :]
        return torch.as_tensor(np.concatenate([row[: self.rank] - np.eye(1, self.rank)[0], values]))

    def _check_parameters(self, cohort: Cohort) -> None:
        super()._check_parameters(cohort)
        if self.rank < 1:
            raise ValueError(f"rank must be at least 1. Found {self.rank!r}.")
        if self.shared_weight and self.rank != 1:
            raise ValueError(f"shared_weight is for rank 1: one network. Found rank {self.rank!r}.")
        self._own_parameters()
