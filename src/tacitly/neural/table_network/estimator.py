"""CENTAUR for a network that is named, not written: ``tacitly fit --method networks``, and folders without code.

The network is determined by public numbers alone (number of columns, widths or the shape of images, number of classes,
a seed). So a model folder can state which network it contains, and :func:`tacitly.load` needs no modules. Privacy is
that of :class:`~tacitly.neural.Centaur`: the same queries, events and clipping of the same user updates.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from tacitly.arrays import Array
from tacitly.data.cohort import Cohort
from tacitly.data.reading import read_cohort
from tacitly.federation.base import Query
from tacitly.federation.cuda.engine import CudaEngine
from tacitly.federation.engine import Population, engine_named
from tacitly.heads.losses import Loss
from tacitly.methods.base import HomeWork
from tacitly.methods.personal import Positions
from tacitly.methods.targets import check_labels_elsewhere
from tacitly.neural.centaur.estimator import Centaur, RoundSetup
from tacitly.neural.centaur.fitted import flat_rows
from tacitly.neural.centaur.personal_network import PersonalNetwork
from tacitly.neural.engine.flat import Flat
from tacitly.neural.engine.public_prefix import split_body
from tacitly.neural.networks.images import image_architecture, image_network
from tacitly.neural.table_network.named_network import NamedNetwork, Network, named_network, to_unit_range
from tacitly.neural.table_network.queries import NetworkHeads, NetworkUpdate
from tacitly.privacy.ledger import Ledger


class TableNetwork(Centaur):
    """A perceptron for columns, or fixed filters and a learned layer for images; one private head per user.

    Parameters
    ----------
    epsilon, delta, adjacency
        The privacy budget for everything that is released, together; as for :class:`tacitly.PrivateFedRep`.
    classes
        The labels that may occur, declared; None if the target is a number.
    widths
        Units of the perceptron's hidden layers, all of which are learned. Noise grows with the square root of their
        number of weights: before it spends anything, :meth:`fit` warns if there are too many for this number of users.
        None: one layer of 16.
    shape
        (channels, side, side) if rows are images: the network is :func:`tacitly.neural.image_network`.
    feature_range
        Public lowest and highest value of all features: they are clipped to this range and mapped to [−1, 1], or to
        [0, 1] for images. None: they are used unscaled, and should have that magnitude.
    target_range
        Public range of a numeric target, which is mapped to [−1, 1]. None: it is used unscaled.
    random_state
        Seed of the first weights, which are public.
    engine
        As for :class:`tacitly.PrivateFedRep`: the network is sent as numbers (:class:`NamedNetwork
        <tacitly.neural.table_network.named_network.NamedNetwork>`), so users may be on a Ray cluster or at sites.
    rounds, sampling_rate, local_steps, local_rate, head_steps, device, noise, noise_seed, ledger, run, threads
        As for :class:`~tacitly.neural.Centaur`.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X, users = rng.uniform(-1, 1, size=(3000, 2)), np.arange(3000) // 10
    >>> y = np.where(X[:, 0] * X[:, 1] > 0, "same", "other")
    >>> model = TableNetwork(epsilon=4.0, classes=("other", "same"), rounds=3, device="cpu").fit(X, y, users)
    >>> model.predict(X[:2], users[:2]).dtype.kind, model.certificate_.certified
    ('U', True)
    """

    def __init__(
        self,
        epsilon: float,
        delta: float = 1e-6,
        adjacency: str = "zero-out",
        *,
        classes: Sequence[Any] | None = None,
        widths: Sequence[int] | None = None,
        shape: Sequence[int] | None = None,
        feature_range: Sequence[float] | None = None,
        target_range: Sequence[float] | None = None,
        rounds: int = 10,
        sampling_rate: float = 1.0,
        local_steps: int = 5,
        local_rate: float = 0.1,
        head_steps: int = 3,
        device: str = "auto",
        random_state: int | None = 0,
        noise: str = "auto",
        noise_seed: int | None = None,
        ledger: Ledger | None = None,
        run: str = "networks",
        threads: int | None = None,
        on_bad_rows: str = "drop",
        engine: Any = None,
    ) -> None:
        self.epsilon, self.delta, self.adjacency = epsilon, delta, adjacency
        self.classes, self.widths, self.shape = classes, widths, shape
        self.feature_range, self.target_range = feature_range, target_range
        self.rounds, self.sampling_rate = rounds, sampling_rate
        self.local_steps, self.local_rate, self.head_steps = local_steps, local_rate, head_steps
        self.device, self.random_state, self.noise, self.noise_seed = device, random_state, noise, noise_seed
        self.ledger, self.run, self.threads, self.on_bad_rows = ledger, run, threads, on_bad_rows
        self.engine = engine

    _modes = ("auto",)  # type: ignore[assignment]

    @property
    def loss(self) -> str:  # type: ignore[override]
        """``"classes"`` if classes are declared, ``"squares"`` otherwise."""
        return "squares" if self.classes is None else "classes"

    @property
    def body(self) -> nn.Module:  # type: ignore[override]
        """The initial body; it depends on the number of columns, so it does not exist before ``fit``."""
        self._check_fitted()
        return copy.deepcopy(self._modules(self.n_features_in_)[0])

    @property
    def head(self) -> nn.Module:  # type: ignore[override]
        """The public head."""
        self._check_fitted()
        return copy.deepcopy(self._modules(self.n_features_in_)[1])

    @property
    def classes_(self) -> npt.NDArray[Any]:
        """The declared labels."""
        if self.classes is None:
            raise AttributeError("a model of numbers has no classes.")
        return np.asarray(self.classes)

    @property
    def audit_labels(self) -> tuple[float, float] | None:
        """Two classes, unless numbers are predicted or labels are text."""
        if self.classes is None or isinstance(self.classes[0], str):
            return None
        return float(self.classes[0]), float(self.classes[1])

    def as_asked(self, cohort: Cohort) -> Cohort:
        """Return the cohort as queries see it: targets as the network sees them, rows after the public prefix."""
        return super().as_asked(self._cohort(cohort, None, None))

    def folder_parameters(self) -> dict[str, Any]:
        """Return all parameters: they determine the network."""
        return {key: value for key, value in super().folder_parameters().items() if key != "augment"}

    def _modules(self, n_features: int) -> Network:
        return _network(image_network, **self._facts(n_features))

    def _modules_to_fill(self) -> Network:
        return _network(image_architecture, **self._facts(self.n_features_in_))

    def _facts(self, n_features: int) -> dict[str, Any]:
        """Return the numbers that determine the network."""
        return {
            "columns": n_features,
            "outputs": 1 if self.classes is None else len(self.classes),
            **self._layout(),
            "feature_range": None if self.feature_range is None else tuple(self.feature_range),
            "seed": self.random_state or 0,
        }

    def _layout(self) -> dict[str, tuple[int, ...]]:
        if self.shape is not None:
            return {"widths": (), "shape": tuple(self.shape)}
        return {"widths": tuple(self.widths or (16,)), "shape": ()}

    def _described(self, prefix: nn.Module, head: nn.Module, n_features: int) -> NamedNetwork:
        """Return the network as data, for users in other processes."""
        facts = {**self._facts(n_features), "target_range": self.target_range}
        del facts["seed"]
        return NamedNetwork.of(prefix, head, self._training(), **facts)

    def head_work(self) -> NetworkHeads:
        """Return the computation by which users fit heads to the learned network, as data."""
        self._check_fitted()
        prefix, rest = self.body_.children()
        learned = np.asarray(Flat(rest).start.cpu().numpy(), dtype=np.float64)
        return NetworkHeads(learned, self._described(prefix, self.public_head_, self.n_features_in_))

    def for_site(self, cohort: Cohort) -> Cohort:
        """Return a site's cohort as :meth:`head_work` sees it: labels as class numbers."""
        return self._cohort(cohort, None, None)

    def _query(self, setup: RoundSetup, state: Array, number: int) -> Query:
        if engine_named(self.engine) is None:
            return super()._query(setup, state, number)
        return NetworkUpdate(state, number, self._described(setup.prefix, setup.head, setup.n_features))

    def _home_work(self) -> HomeWork:
        return super()._home_work() if engine_named(self.engine) is None else self.head_work()

    def _check_engine(self) -> None:
        if isinstance(self.engine, CudaEngine) or self.engine == "cuda":
            raise ValueError("networks use a GPU without an engine: device='auto' or 'cuda'. Leave engine out.")

    def _check_elsewhere(self) -> None:
        check_labels_elsewhere(self.classes)

    def _check_parameters(self) -> None:
        for name in ("feature_range", "target_range"):
            bounds = getattr(self, name)
            if bounds is not None and not (len(bounds) == 2 and bounds[0] < bounds[1]):
                raise ValueError(f"{name} must be two numbers, the lower first. Found {bounds!r}.")
        if self.target_range is not None and self.classes is not None:
            raise ValueError("target_range is for numbers. Found classes too.")
        if self.shape is not None and (self.widths is not None or self.classes is None):
            raise ValueError("shape is for images in classes, and has no widths.")
        super()._check_parameters()

    def _check_population(self, population: Population) -> None:
        if self.shape is not None and int(np.prod(self.shape)) != population.n_features:
            pixels = int(np.prod(self.shape))
            raise ValueError(
                f"shape {tuple(self.shape)} means {pixels} columns. Found {population.n_features}: name those of the "
                "pixels with features, or exclude the others."
            )
        super()._check_population(population)
        if engine_named(self.engine) is not None:  # networks that cannot be sent are refused before anything is spent
            body, head = self._modules(population.n_features)
            self._described(split_body(body, population.n_features)[0], head, population.n_features)

    def _loss(self) -> Loss:
        return Loss() if self.classes is None else Loss("logistic", self.classes)

    def _cohort(self, X: Any, y: Any, users: Any) -> Cohort:
        policy = self._bad_rows()
        whole = isinstance(X, Cohort) or y is None
        given = y if whole or self.classes is None else self._loss().encode(y, blank=policy != "raise")
        cohort: Cohort = read_cohort(flat_rows(X), given, users, dtype=np.float32, on_bad_rows=policy)
        if not whole or self.classes is None:
            return cohort
        codes = self._loss().encode(np.asarray(cohort.y), blank=policy != "raise")
        return replace(cohort, y=codes.astype(cohort.dtype)).settled(policy)

    def _with_inner_targets(self, cohort: Cohort) -> Cohort:
        if self.target_range is None or cohort.y is None:
            return cohort
        return replace(cohort, y=self._inside(cohort.y).astype(cohort.dtype))

    def _inside(self, y: Any) -> Array:
        """Return targets as the network sees them: from −1 to 1, if their range is public."""
        numbers = np.asarray(y, dtype=np.float64)
        return numbers if self.target_range is None else to_unit_range(numbers, *self.target_range)

    def _outside(self, answers: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return outputs of the network as labels, or in the units of the target."""
        if self.classes is not None:
            return np.asarray(self.classes)[answers.astype(np.int64)]
        if self.target_range is None:
            return answers
        low, high = self.target_range
        return np.asarray(low + (answers + 1.0) * ((high - low) / 2.0))

    def _encoded(self, y: npt.ArrayLike) -> Array:
        return self._inside(super()._encoded(y)) if self.classes is None else self._loss().encode(y)

    def _predictions(self, rows: npt.NDArray[Any], positions: Positions) -> npt.NDArray[Any]:
        return self._outside(super()._predictions(rows, positions))

    def with_head(self, head: Array, held: Array) -> PersonalNetwork:
        """Return the public body with one user's head; outputs are labels, or in the target's units."""
        inner = super().with_head(head, held)
        return replace(inner, answers=lambda features, own: self._outside(inner.answers(features, own)))


_network = lru_cache(maxsize=4)(named_network)
"""The directions of a network for images take seconds to compute, and a fit builds its network several times."""
