"""Low rank plus sparse for networks: a user's small network is U w + b (AMHT-LRS, Pal et al. 2024, appendix B.2)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from tacitly.arrays import Array
from tacitly.data.cohort import Cohort
from tacitly.federation.engine import Population
from tacitly.heads.losses import Loss
from tacitly.methods.parameters import RankAndSparsity
from tacitly.methods.personal import by_user, with_type
from tacitly.neural.centaur.heads import check_labels, usable_labels
from tacitly.neural.engine.layers import check_layers
from tacitly.neural.engine.module_properties import fingerprint, n_outputs
from tacitly.neural.low_rank_sparse.module_network import ModuleNetwork
from tacitly.neural.low_rank_sparse.network import Network
from tacitly.neural.low_rank_sparse.personal_part import SparseUpdate
from tacitly.neural.low_rank_sparse.personal_part_model import PersonalPartModel

SLOW = (
    "personal parts of a module are fitted through torch.func, which is slow: compiled kernels exist for networks of "
    "tanh units only (module=None)."
)


@dataclass(eq=False, repr=False)
class LowRankSparse(PersonalPartModel, RankAndSparsity):
    """Learn a basis of networks privately; every user adds a few personal parameters (AMHT-LRS, appendix B.2).

    The parameters of user i's network are U wᵢ + bᵢ with bᵢ sparse; wᵢ and bᵢ stay with their user. The network has
    tanh units and one output, for regression by squared error; or it is your own module, for numbers or classes.
    Features and targets should have a magnitude of about one, by public scales, because tanh units saturate beyond a
    few.

    Parameters
    ----------
    rank
        Number of columns of U, r. The first column is a network, the others are directions of deviation from it.
    sparsity
        Number of personal parameters per user: a count, or a fraction of the network's parameters (rounded up, as in
        the paper's Table 2 for MovieLens); 0 is representation learning, 1.0 means all parameters.
    random_state
        Seeds public randomness only: the initial network. None is a fixed seed too.
    hidden
        Units of the hidden layers: ``(50,)`` and ``(50, 50)`` are the paper's two- and three-layer networks.
    module
        A network of known layers (:mod:`tacitly.neural.engine.layers`) instead of tanh units; its initial parameters
        are public and are the first column of U. Its derivatives come from ``torch.func``, which is slower than the
        compiled kernels for tanh units; ``fit`` prints a note.
    loss
        ``"squares"`` for numbers; ``"classes"`` for class numbers from 0, as many as the module has outputs.
    shared_weight
        Whether all users have weight one (rank 1): one network, sparsely fine-tuned by every user.
    rounds
        Number of noisy sums.
    step
        How far the first round moves outputs if all users agree, in units of the targets (root mean square over
        synthetic standard normal rows, which are public). Later steps shrink in proportion to the rounds left, and
        every step is multiplied by the share of the released sum that is not noise.
    clip, clip_share, sampling_rate
        As for :class:`tacitly.neural.Centaur`.
    head_steps, final_steps
        Steps on the personal part in a round, and the maximum number at the end, where half of the user's rows decide
        when to stop.
    penalty
        Strength of the pull of the personal part towards its initial value, in rows of the user.
    cross_fit
        Whether U's gradient uses other rows than those that the personal part was fitted to.
    rows_per_user
        Rows per user in a round; a user with more rows uses others in the next round.
    device, chunk, engine
        ``"auto"`` uses a GPU for the rounds if there is one; users per batch; None, as for
        :class:`tacitly.neural.Centaur`.
    epsilon, delta, adjacency, mode, noise, noise_seed, ledger, run, threads
        As for :class:`tacitly.PrivateFedRep`; ``threads`` has no effect here.

    Attributes
    ----------
    basis_ : (parameters of the network, rank); public
    heads_ : (n_users, rank), rows in the order of ``users_``; private
    sparse_indices_, sparse_values_ : (n_users, k), positions in the flat network and the values added there; private
    users_, certificate_

    Examples
    --------
    >>> from tacitly import neural
    >>> data = neural.synthetic_networks(200, 4, 1, 10, 2, random_state=0)
    >>> model = neural.LowRankSparse(1, 2, epsilon=4.0, hidden=(8,), rounds=3).fit(data.X, data.y, data.users)
    >>> model.certificate_.certified, model.basis_.shape, model.sparse_indices_.shape, model.n_parameters()
    (True, (49, 1), (200, 2), 649)
    >>> mine = data.users == 3
    >>> model.personalize(data.X[mine], data.y[mine]).predict(data.X[mine]).shape  # costs no privacy
    (10,)
    """

    _: KW_ONLY
    module: nn.Module | None = None
    loss: str = "squares"
    shared_weight: bool = False
    run: str = "neural-low-rank-sparse"

    @property
    def basis_(self) -> Array:
        """U."""
        return self.shared_.reshape(-1, self.rank)

    @property
    def heads_(self) -> Array:
        """Weights on the basis, one row per user."""
        return self.own_[:, : self.rank]

    @property
    def sparse_indices_(self) -> npt.NDArray[np.int64]:
        """Positions of each user's personal parameters."""
        return self.own_[:, self.rank : self.rank + self._sparsity()].astype(np.int64)

    @property
    def sparse_values_(self) -> Array:
        """The values that each user adds at those positions."""
        return self.own_[:, self.rank + self._sparsity() :]

    def private_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return weights, and the personal parameters as indices and values."""
        indices = self.sparse_indices_.astype(np.int32)
        return {"heads": self.heads_, "sparse_indices": indices, "sparse_values": self.sparse_values_}

    def take_private_arrays(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Set what :meth:`private_arrays` returned."""
        indices, size = arrays["sparse_indices"], self._network().size
        if not ((indices >= 0) & (indices < size)).all():
            raise ValueError(f"personal parameters must lie in a network of {size}. Found positions outside.")
        super().take_private_arrays({"own": np.hstack([arrays["heads"], indices, arrays["sparse_values"]])})

    def n_parameters(self) -> int:
        """Count the numbers of the model as the paper's Table 2 does: r(D + n) + k·n, without indices.

        A shared weight is not counted per user; if all parameters are personal, nothing else is needed.
        """
        self._check_fitted()
        own, size, users = self._sparsity(), self._network().size, len(self.users_)
        if own == size:
            return size * users
        return self.shared_.size + (0 if self.shared_weight else self.rank * users) + own * users

    def predict_proba(self, X: npt.ArrayLike, users: npt.ArrayLike) -> Array:
        """Return one probability per class for each row."""
        if self.loss != "classes":
            raise AttributeError(f"predict_proba needs loss='classes'. Found loss={self.loss!r}.")
        rows, positions = self._rows_and_positions(X, users)
        found = np.zeros((len(rows), len(self._loss().classes or ())))
        for user, mine in by_user(positions):
            found[mine] = self._network_of(self.own_[user]).predict_proba(rows[mine])
        return found

    @property
    def audit_labels(self) -> tuple[float, float] | None:
        """Two classes, unless numbers are predicted."""
        return (0.0, 1.0) if self.loss == "classes" else None

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags: a classifier or a regressor, by the loss."""
        return with_type(super().__sklearn_tags__(), classifies=self.loss == "classes")

    def folder_parameters(self) -> dict[str, Any]:
        """Return the parameters stored in a model folder; a module is code and is left out."""
        return {**super().folder_parameters(), "module": self.module is not None}

    def _network(self, n_features: int | None = None) -> Network:
        """Return the network: tanh units, or the module; a new fit gets its own copy."""
        if self.module is None:
            return super()._network(n_features)
        classes = n_outputs(self.module) if self.loss == "classes" else None
        if n_features is not None:
            return ModuleNetwork(self.module, n_features, classes)
        known = self.__dict__.get("_kept_network")
        if known is None or known[0] is not self.module:
            self._kept_network = known = self.module, ModuleNetwork(self.module, self.n_features_in_, classes)
        network: Network = known[1]
        return network

    def _task(self) -> str:
        return self.loss

    def _loss(self) -> Loss:
        return Loss() if self.loss == "squares" else Loss("logistic", range(self._network_outputs()))

    def _network_outputs(self) -> int:
        assert self.module is not None
        return n_outputs(self.module)

    def _cohort(self, X: Any, y: Any, users: Any) -> Cohort:
        cohort = super()._cohort(X, y, users)
        if self.loss == "squares":
            return cohort
        numbers, policy = np.asarray(cohort.y), self._bad_rows()
        if policy == "raise":
            check_labels(numbers, self._network_outputs())
            return cohort
        return replace(cohort, y=usable_labels(numbers, self._network_outputs())).settled(policy)

    def _public_config(self, sizes: Mapping[str, Any]) -> dict[str, Any]:
        config = super()._public_config(sizes)
        return {**config, "module": None if self.module is None else fingerprint(self.module)}

    def _sparsity(self, network: Network | None = None) -> int:
        """Return k, the number of personal parameters; for the fitted network by default."""
        size, given = (network or self._network()).size, self.sparsity
        if isinstance(given, float) and 0.0 < given <= 1.0:
            return math.ceil(round(given * size, 6))  # 0.1 of 50 is 5 despite rounding
        if isinstance(given, int | np.integer) and not isinstance(given, bool) and 0 <= given <= size:
            return int(given)
        raise ValueError(f"sparsity must be a count from 0 to {size}, or a fraction up to 1.0. Found {given!r}.")

    def _update(self, network: Network) -> SparseUpdate:
        return SparseUpdate(
            network=network,
            training=self._training(),
            penalty=self.penalty,
            rank=self.rank,
            sparsity=self._sparsity(network),
            shared_weight=self.shared_weight,
        )

    def _start(self, network: Network, rng: np.random.Generator) -> Array:
        """Return a network, and directions of length one."""
        others = rng.normal(size=(network.size, self.rank - 1)) / math.sqrt(network.size)
        return np.column_stack([network.start(rng), others]).ravel()

    def _packed_size(self, network: Network) -> int:
        return int(self.rank + 2 * self._sparsity(network))

    def _packed(self, own: Tensor) -> Tensor:
        weights, values = torch.vmap(self._update(self._network()).weights)(own), own[:, self.rank :]
        indices = torch.topk(values.abs(), self._sparsity(), dim=1).indices.sort(dim=1).values
        return torch.cat([weights, indices.double(), values.gather(1, indices)], dim=1)

    def _unpacked(self, row: Array) -> Tensor:
        own = self._sparsity()
        values = np.zeros(self._network().size)
        values[row[self.rank : self.rank + own].astype(np.int64)] = row[self.rank + own :]
        return torch.as_tensor(np.concatenate([row[: self.rank] - np.eye(1, self.rank)[0], values]))

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.loss not in ("squares", "classes"):
            raise ValueError(f"loss must be 'squares' or 'classes'. Found {self.loss!r}.")
        if self.loss == "classes" and self.module is None:
            raise ValueError(
                "loss='classes' needs a module with one output per class: networks of tanh units have one."
            )
        if self.module is not None and tuple(self.hidden) != type(self).hidden:
            raise ValueError(f"hidden has no effect if a module is given. Found hidden={self.hidden!r}: leave it out.")
        if self.rank < 1:
            raise ValueError(f"rank must be at least 1. Found {self.rank!r}.")
        if self.shared_weight and self.rank != 1:
            raise ValueError(f"shared_weight is for rank 1: one network. Found rank {self.rank!r}.")

    def _check_population(self, population: Population) -> None:
        if self.module is not None:
            on_gpu = self.device != "cpu" and torch.cuda.is_available()
            check_layers(self.module, nn.Linear(1, 1), cuda=on_gpu)
            warnings.warn(SLOW, stacklevel=5)
        self._sparsity(self._network(population.n_features))
