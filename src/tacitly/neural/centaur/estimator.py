"""CENTAUR for networks (Shen et al. 2023): a body learned under user-level differential privacy, and private heads."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from tacitly.arrays import Array
from tacitly.data.cohort import Cohort
from tacitly.data.reading import read_cohort
from tacitly.federation.base import Federation, Query
from tacitly.federation.engine import Population, engine_named
from tacitly.federation.local import LocalPopulation
from tacitly.methods.base import Procedure, Statement
from tacitly.neural.centaur.fitted import FittedNetwork, flat_rows, state_arrays
from tacitly.neural.centaur.heads import check_labels, usable_labels
from tacitly.neural.centaur.noise_warning import warn_of_noise
from tacitly.neural.centaur.parameters import check_numbers, check_without_effect
from tacitly.neural.engine.bound import update_bound
from tacitly.neural.engine.executor import Executor
from tacitly.neural.engine.flat import Flat, load
from tacitly.neural.engine.layers import custom_layers, custom_layers_note
from tacitly.neural.engine.local_training import LocalTraining
from tacitly.neural.engine.module_properties import fingerprint, n_outputs, output_width
from tacitly.neural.engine.one_process import check_engine
from tacitly.neural.engine.public_prefix import apply_prefix, split_body
from tacitly.neural.engine.query import BodyUpdate
from tacitly.neural.engine.rehearsal import check_modules, rehearse, rehearse_rows
from tacitly.neural.engine.update import UserUpdate, public_start
from tacitly.privacy.calibration import Phase, Plan
from tacitly.privacy.guarantee import Budget, GaussianEvent

TRUST = (
    "central: whoever runs this process holds the rows, adds the noise and keeps the heads; all others see the "
    "body only, and each user their own head (joint differential privacy)."
)
FREE_HEADS = (
    "heads and personalize() cost no privacy: a head is computed from the public body and its user's own rows, so for "
    "all others it is post-processing, and it is not released"
)
AUGMENT = "augment: declared to keep no state between calls, which was not checked"
PUBLIC_START = "the body and head given to fit are assumed to be public: data they were trained on are not covered"


AUTO = {"step": 2.0, "average": True, "cross_fit": True, "warm_heads": False}
PAPER = {"step": 1.0, "average": False, "cross_fit": False, "warm_heads": True}
"""The defaults that None stands for in each mode."""


class RoundSetup(NamedTuple):
    """The inputs of rounds: the body's public prefix, the rest of it, the head, each user's update, its executor.

    ``n_features`` is the number of features, ``width`` that after the prefix.
    """

    prefix: nn.Module
    rest: nn.Module
    head: nn.Module
    update: UserUpdate
    executor: Executor
    n_features: int
    width: int


@dataclass(eq=False, repr=False)
class Centaur(FittedNetwork):
    """Learn the shared body of a network under user-level differential privacy; every user keeps a private head.

    ``fit`` takes class numbers from 0, or numbers to predict, as ``y``; images are flat rows, or arrays of any shape,
    which are flattened.

    Parameters
    ----------
    body, head
        Modules: rows → features, and features → class scores (or one number). Their initial values are public: the body
        starts from them, and heads start from them and are shrunk towards them. Parameters of the body that require no
        gradient are not changed and cost nothing; fewer trainable parameters mean less noise.
    rounds
        Number of noisy steps of the body.
    mode
        ``"auto"``, or ``"paper"``: Algorithms 1 and 2 as the authors ran them. Heads stay warm between rounds and are
        fitted by gradient steps, also at the end; updates are clipped to the number ``clip``; the body moves by step ·
        (noisy mean), not in units of the clipping bound; no averaging, no cross-fitting. It is certified like any other
        run: only the accountant is tacitly's. Parameters that this mode does not have raise an error.
    step
        Length of a step if all users agreed: the body moves by step · (noisy sum) / (clip · sampling_rate · users).
        None: 2, or 1 in paper mode.
    clip
        None: every update is scaled to norm one, so there is no bound to choose. A number: updates are clipped to it.
        ``"auto"``: updates are clipped to a typical norm, which is released privately before the first round for
        ``clip_share`` of the budget.
    per_layer
        Whether every parameter tensor is clipped separately, to clip/√layers: still one event.
    sampling_rate
        Probability that a user takes part in a round; who takes part is secret. The denominator stays fixed.
    average
        Whether the body is the average over the later half of the rounds (post-processing, no further release). None:
        yes, unless in paper mode.
    warm_heads
        Whether users keep their head (two, if cross-fitted) locally between rounds and start from it
        (:mod:`tacitly.neural.engine.home`); needs sampling_rate=1. None: in paper mode only.
    cross_fit
        See :class:`~tacitly.neural.LocalTraining`. None: yes, unless in paper mode.
    local_steps, local_rate, local_momentum, local_decay, batch_rows, head_steps, head_rate, head_momentum, head_decay,
    rows_per_user, loss, augment
        See :class:`~tacitly.neural.LocalTraining`. Momentum starts at zero in every round and is local to the user.
    trust_custom_layers
        True declares that your own layers keep no state between calls, and that a row's output depends on that row
        only. Otherwise only reviewed layers are accepted (:mod:`tacitly.neural.engine.layers`). With True every user
        gets copies of the modules, one user after another, and the certificate states that this was declared, not
        checked.
    device, chunk, tf32, threads
        ``"auto"`` uses a GPU if there is one; users per batch on the GPU; whether its products may round to TF32
        (faster; updates are rounded more, but privacy does not change); threads on a CPU.
    engine
        None: networks run in this process; any other engine raises an error that says what to use instead.
    epsilon, delta, adjacency, random_state, noise, noise_seed, ledger, run
        As for :class:`tacitly.PrivateFedRep`.

    Attributes
    ----------
    body_ : the learned body; public
    heads_ : (n_users, parameters of the head), private;  users_ : ids, sorted;  certificate_

    Examples
    --------
    >>> import numpy as np, tacitly.neural
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(2000, 6)); users = np.arange(2000) // 20
    >>> y = (X[:, 0] * np.where(users % 2, 1, -1) > 0).astype(int)
    >>> body, head = tacitly.neural.mlp(6, (4,), classes=2)
    >>> model = tacitly.neural.Centaur(body, head, epsilon=4.0, rounds=3, device="cpu").fit(X, y, users)
    >>> model.certificate_.certified, round(model.certificate_.epsilon, 6), model.predict(X[:3], users[:3]).shape
    (True, 4.0, (3,))
    """

    _: KW_ONLY
    rounds: int = 10
    step: float | None = None
    clip: float | str | None = None
    clip_share: float = 0.05
    per_layer: bool = False
    sampling_rate: float = 1.0
    average: bool | None = None
    warm_heads: bool | None = None
    local_steps: int = 1
    local_rate: float = 0.1
    local_momentum: float = 0.0
    local_decay: float = 0.0
    batch_rows: int | None = None
    head_steps: int = 15
    head_rate: float = 0.1
    head_momentum: float = 0.9
    head_decay: float = 0.0
    cross_fit: bool | None = None
    rows_per_user: int = 128
    loss: str = "classes"
    augment: Callable[[Tensor], Tensor] | None = None
    trust_custom_layers: bool = False
    device: str = "auto"
    chunk: int | None = None
    tf32: bool = False
    run: str = "neural-centaur"
    engine: Any = None

    _modes = ("auto", "paper")
    _learns: ClassVar[bool] = True
    _fits_heads: ClassVar[bool] = True
    """Whether users fit local parameters in the rounds."""
    _steps_heads: ClassVar[bool] = True
    """Whether these parameters are a head, fitted in ``head_steps`` steps."""
    _crosses_heads: ClassVar[bool] = True
    """Whether ``cross_fit`` is possible: heads are fitted to one half of the rows, the body to the other half."""

    @property
    def audit_labels(self) -> tuple[float, float] | None:
        """Two classes, unless numbers are predicted."""
        return (0.0, 1.0) if self.loss == "classes" else None

    def so_far(self) -> tuple[nn.Module, nn.Module]:
        """Return body and public head after the rounds before the one that ``on_release`` was just called for.

        They are post-processing of what has been released. How well they predict private rows is not: evaluate them
        only if you may see the rows, and do not use the result for anything that you publish.

        >>> from tacitly.neural import linear
        >>> model, bodies = Centaur(*linear(2, 1), epsilon=9.0, rounds=3, loss="squares", device="cpu"), []
        >>> X = np.random.default_rng(0).normal(size=(400, 2))
        >>> fitted = model.fit(X, X[:, 0], np.arange(400) // 4, on_release=lambda name: bodies.append(model.so_far()))
        >>> before, first = next(bodies[0][0].parameters()), next(model.body.parameters())
        >>> len(bodies), bool((before == first).all())  # the first body is the one before any round
        (3, True)
        """
        if "_so_far" not in self.__dict__:
            raise ValueError("so_far() can be called only in on_release, during fit. After fit, use body_.")
        setup, state = self._so_far
        return self._with(setup, state)

    def as_asked(self, cohort: Cohort) -> Cohort:
        """Return the cohort as queries see it: rows after the public prefix of the body."""
        return self._after_prefix(self._round_setup(cohort.n_features), cohort)

    @property
    def _federation_threads(self) -> int | None:
        """One, because the executor runs the threads."""
        return 1

    def _procedure(self, population: Population, budget: Budget) -> Procedure:
        setup = self._round_setup(population.n_features)
        rehearse_rows(setup.prefix, population.n_features, setup.executor.device)
        self._rehearse(setup, population.n_users)
        plan = self._plan(budget)
        event = plan.event("rounds", clip=1.0)
        warn_of_noise(event.sigma, setup.executor.size, population.n_users * self.sampling_rate, self.rounds)

        def learn(federation: Federation) -> dict[str, npt.NDArray[Any]]:
            self._so_far = setup, public_start(setup.update)
            try:
                learned = self._learn(federation, plan, setup)
            finally:
                del self._so_far  # it refers to users' local state; deleted even if the fit fails
            self._at_home = setup.executor.home, setup.update
            return self._learned_state(setup, learned)

        here = isinstance(population, LocalPopulation) and engine_named(self.engine) is None
        return Procedure(self._events(plan), learn, rows=self._rows_asked(setup, population) if here else None)

    def _rehearse(self, setup: RoundSetup, users: int) -> None:
        """Run synthetic users; batch custom layers on a GPU if no update changes compared with computing it alone."""
        given = setup.executor, public_start(setup.update), setup.width, users
        if setup.executor.custom_layers and setup.executor.device.type != "cpu":
            try:
                setup.executor.batch_custom_layers()
                rehearse(*given)
                return
            except (ValueError, RuntimeError, NotImplementedError) as error:
                setup.executor.batch_custom_layers(False)
                reason = str(error).splitlines()[0]
                warnings.warn(f"users are computed one after another, which is slow: {reason}", stacklevel=5)
        rehearse(*given)

    def _rows_asked(self, setup: RoundSetup, population: Population) -> Callable[[], Cohort]:
        assert isinstance(population, LocalPopulation)
        return partial(self._after_prefix, setup, population.cohort)

    def _after_prefix(self, setup: RoundSetup, cohort: Cohort) -> Cohort:
        return self._with_inner_targets(apply_prefix(setup.prefix, cohort, self.rows_per_user, setup.executor.device))

    def _statement(self, budget: Budget) -> Statement:
        own = custom_layers(*self._modules(self.n_features_in_))
        unverified: tuple[str, ...] = (custom_layers_note(own),) if own else ()
        if self.augment is not None:
            unverified += (AUGMENT,)
        return Statement(TRUST, notes=(FREE_HEADS, PUBLIC_START), not_covered=unverified)

    def _plan(self, budget: Budget) -> Plan:
        share = self.clip_share if self.clip == "auto" else 0.0
        phases = [Phase(name="rounds", share=1.0 - share, releases=self.rounds, acute=False)]
        if share:
            phases.insert(0, Phase(name="clip", share=share, acute=False))
        return Plan(budget, phases, sampling_rate=self.sampling_rate)

    def _events(self, plan: Plan) -> list[GaussianEvent]:
        clip = [plan.event("clip", clip=1.0)] if self.clip == "auto" else []
        return clip + [plan.event("rounds", clip=1.0)] * self.rounds

    def _learn(self, federation: Federation, plan: Plan, setup: RoundSetup) -> Array:
        """Run Algorithm 1: update the public state with noisy sums of clipped updates."""
        state = public_start(setup.update)
        bound = update_bound(federation, plan, self.clip, BodyUpdate(state, 0, setup.executor), "update norm")
        event = plan.event("rounds", clip=bound)
        unit = 1.0 if self.mode == "paper" else bound
        later: list[Array] = []
        for number in range(self.rounds):
            query = self._query(setup, state, number)
            moved = federation.release(query, event, f"body update {number + 1}")
            state = state + self._setting("step") * moved / (unit * self.sampling_rate * federation.n_users)
            if 2 * number >= self.rounds:
                later.append(state)
            self._so_far = self._so_far[0], state
        return np.mean(later, axis=0) if self._setting("average") and later else state

    def _query(self, setup: RoundSetup, state: Array, number: int) -> Query:
        """Return the query of a round."""
        return BodyUpdate(state, number, setup.executor, normalised=self.clip is None)

    def _update(self, body: nn.Module, head: nn.Module, **variant: Any) -> UserUpdate:
        parts = {"body": Flat(body), "head": Flat(head), "classes": n_outputs(head)}
        return UserUpdate(**parts, training=self._training(), **variant)  # type: ignore[arg-type]

    def _round_setup(self, n_features: int) -> RoundSetup:
        body, head = self._modules(n_features)
        prefix, rest = split_body(body, n_features, whole=self.augment is not None)
        update = self._update(rest, head)
        groups = self._groups(update)
        placed = {"device": self.device, "chunk": self.chunk, "workers": self.threads, "tf32": self.tf32}
        executor = Executor(update, groups=groups, **placed)  # type: ignore[arg-type]
        return RoundSetup(prefix, rest, head, update, executor, n_features, output_width(prefix, n_features))

    def _learned_state(self, setup: RoundSetup, learned: Array) -> dict[str, npt.NDArray[Any]]:
        """Return the state of a copy of the body (and the head, if it is shared) with the learned parameters."""
        return state_arrays(*self._with(setup, learned))

    def _with(self, setup: RoundSetup, learned: Array) -> tuple[nn.Module, nn.Module]:
        """Return copies of the whole body and the head with the learned parameters."""
        update, vector = setup.update, torch.as_tensor(learned, dtype=setup.executor.dtype)
        rest, head = copy.deepcopy(setup.rest), copy.deepcopy(setup.head)
        load(rest, update.body, vector[: update.body.size])
        if update.move_head:
            load(head, update.head, vector[update.body.size :])
        return nn.Sequential(setup.prefix, rest), head

    def _setting(self, name: str) -> Any:
        """Return a parameter, or its default in this mode if it is None."""
        value = getattr(self, name)
        return (PAPER if self.mode == "paper" else AUTO)[name] if value is None else value

    def _training(self) -> LocalTraining:
        return LocalTraining(
            local_steps=self.local_steps,
            local_rate=self.local_rate,
            local_momentum=self.local_momentum,
            local_decay=self.local_decay,
            batch_rows=self.batch_rows,
            head_steps=self.head_steps,
            head_rate=self.head_rate,
            head_momentum=self.head_momentum,
            head_decay=self.head_decay,
            cross_fit=bool(self._setting("cross_fit")),
            warm=self._fits_heads and bool(self._setting("warm_heads")),
            rows=self.rows_per_user,
            loss=self.loss,
            augment=self.augment,
        )

    def _groups(self, update: UserUpdate) -> tuple[int, ...]:
        if not self.per_layer:
            return ()
        flats = [update.body, update.head] if update.move_head else [update.body]
        return tuple(int(np.prod(shape)) for flat in flats for shape in flat.shapes.values())

    def _cohort(self, X: Any, y: Any, users: Any) -> Cohort:
        policy = self._bad_rows()
        cohort: Cohort = read_cohort(flat_rows(X), y, users, dtype=np.float32, on_bad_rows=policy)
        if self.loss == "classes" and policy != "raise":
            labels = usable_labels(np.asarray(cohort.y), n_outputs(self.head))
            cohort = replace(cohort, y=labels).settled(policy)
        return cohort

    def _check_parameters(self) -> None:
        super()._check_parameters()
        self._check_engine()
        check_numbers(self)
        check_without_effect(self)
        self._training()

    def _check_engine(self) -> None:
        check_engine(self.engine)

    def _check_population(self, population: Population) -> None:
        """Check that the modules are allowed and fit the rows, then check the labels."""
        body, head = self._modules(population.n_features)
        self._check_layers(body, head)
        check_modules(body, head, population.n_features, learned=self._learns)
        if self.loss == "classes" and n_outputs(head) < 2:
            raise ValueError(
                f"a head for classes has one output per class, at least 2. Found {n_outputs(head)}: use "
                "loss='squares' for a number, or a head with more outputs."
            )
        if self.loss == "classes" and self.on_bad_rows == "raise" and isinstance(population, LocalPopulation):
            check_labels(np.asarray(population.cohort.y), n_outputs(head))

    def _public_config(self, sizes: Mapping[str, Any]) -> dict[str, Any]:
        config = super()._public_config(sizes)
        for name in ("device", "chunk", "tf32", "augment"):
            config.pop(name, None)
        body, head = self._modules(sizes["n_features"])
        return {
            **config,
            "body": fingerprint(body),
            "head": fingerprint(head),
            "augment": self.augment is not None,
        }
