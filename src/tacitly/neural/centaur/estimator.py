"""CENTAUR for networks: a body learned together under user-level differential privacy, a head that stays at home."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from tacitly.arrays import Array
from tacitly.data.cohort import Cohort
from tacitly.federation.base import Federation
from tacitly.federation.local import LocalFederation
from tacitly.methods.base import abandoned_on_failure
from tacitly.methods.shared.norm_histogram import private_clip
from tacitly.neural.centaur.fitted import FittedNetwork
from tacitly.neural.centaur.heads import check_labels
from tacitly.neural.engine.executor import Executor
from tacitly.neural.engine.flat import load
from tacitly.neural.engine.layers import check_layers, custom_layers, custom_layers_note
from tacitly.neural.engine.module_properties import fingerprint, n_outputs, output_width
from tacitly.neural.engine.neural_cohort import cohort_of
from tacitly.neural.engine.public_prefix import apply_prefix, split_body
from tacitly.neural.engine.query import BodyUpdate
from tacitly.neural.engine.rehearsal import check_modules, rehearse, rehearse_rows
from tacitly.neural.engine.update import Flat, LocalTraining, UserUpdate, public_start
from tacitly.privacy.calibration import Phase, Plan
from tacitly.privacy.guarantee import Budget, GaussianEvent
from tacitly.privacy.ledger import Ledger, Run

TRUST = (
    "central: whoever runs this process holds the rows, adds the noise and keeps the heads; everybody else sees the "
    "body only, and a user their own head (joint differential privacy)."
)
FREE_HEADS = (
    "heads and personalize() cost nothing: a head is computed from the public body and its own user's rows, so for "
    "everybody else it is post-processing, and it is not released"
)
AUGMENT = "augment: that it keeps nothing between calls is your word and was not checked"
PUBLIC_START = "the body and head handed to fit are taken for public: whatever they were trained on is not covered"


class Engine(NamedTuple):
    """What a round is run with: the public part of the body, the rest of it, what every user does, who runs it."""

    prefix: nn.Module
    rest: nn.Module
    update: UserUpdate
    executor: Executor
    width: int


class Centaur(FittedNetwork):
    """Learn the shared body of a network under user-level differential privacy; every user keeps a head of their own.

    Parameters
    ----------
    body, head
        Modules: rows → features, and features → scores of the classes (or one number). As given they are public: where
        the body starts, and what heads start from and are shrunk towards. Parameters of the body that require no
        gradient stay as they are and cost nothing; fewer trainable ones mean less noise.
    epsilon, delta, adjacency
        The promise for everything that is released together. ``math.inf`` for none (not certified).
    rounds
        Noisy steps of the body.
    step
        Length of a step if all users agreed: the body moves by step · (noisy sum) / (clip · sampling_rate · users).
    clip
        None: every update counts with norm one, so there is nothing to choose. A number: updates are clipped to it.
        ``"auto"``: to the median norm, bought before the first round with ``clip_share`` of the budget.
    per_layer
        Whether every parameter tensor is clipped by itself, to clip/√layers: still one event.
    sampling_rate
        Chance with which a user takes part in a round, by a coin nobody sees. The denominator stays fixed.
    average
        Whether the body is the average over the later half of the rounds (nothing is released for it).
    local_steps, local_rate, batch_rows, head_steps, head_rate, cross_fit, rows_per_user, loss, augment
        See :class:`~tacitly.neural.LocalTraining`.
    trust_custom_layers
        True says: "I vouch that my layers keep nothing between calls, and that a row's output depends on that row
        alone." Without it only layers that are known for that are taken (:mod:`tacitly.neural.engine.layers`). With it
        every user gets copies of the modules, one user after the other, and the certificate says that it rests on your
        word.
    device, chunk, threads
        Where: ``"auto"`` takes a GPU if there is one; users at a time on it; threads on a CPU.
    random_state, noise, noise_seed, ledger, run
        As for :class:`tacitly.PrivateFedRep`.

    Attributes
    ----------
    body_ : the body with what was learned; public
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

    _learns: ClassVar[bool] = True

    def __init__(
        self,
        body: nn.Module,
        head: nn.Module,
        epsilon: float,
        delta: float = 1e-6,
        adjacency: str = "zero-out",
        mode: str = "auto",
        random_state: int | None = None,
        *,
        rounds: int = 10,
        step: float = 2.0,
        clip: float | str | None = None,
        clip_share: float = 0.05,
        per_layer: bool = False,
        sampling_rate: float = 1.0,
        average: bool = True,
        local_steps: int = 1,
        local_rate: float = 0.1,
        batch_rows: int | None = None,
        head_steps: int = 15,
        head_rate: float = 0.1,
        cross_fit: bool = True,
        rows_per_user: int = 128,
        loss: str = "classes",
        augment: Callable[[Tensor], Tensor] | None = None,
        trust_custom_layers: bool = False,
        device: str = "auto",
        chunk: int | None = None,
        noise: str = "auto",
        noise_seed: int | None = None,
        ledger: Ledger | None = None,
        run: str = "neural-centaur",
        threads: int | None = None,
    ) -> None:
        self.body = body
        self.head = head
        self.epsilon = epsilon
        self.delta = delta
        self.adjacency = adjacency
        self.mode = mode
        self.random_state = random_state
        self.rounds = rounds
        self.step = step
        self.clip = clip
        self.clip_share = clip_share
        self.per_layer = per_layer
        self.sampling_rate = sampling_rate
        self.average = average
        self.local_steps = local_steps
        self.local_rate = local_rate
        self.batch_rows = batch_rows
        self.head_steps = head_steps
        self.head_rate = head_rate
        self.cross_fit = cross_fit
        self.rows_per_user = rows_per_user
        self.loss = loss
        self.augment = augment
        self.trust_custom_layers = trust_custom_layers
        self.device = device
        self.chunk = chunk
        self.noise = noise
        self.noise_seed = noise_seed
        self.ledger = ledger
        self.run = run
        self.threads = threads

    def fit(
        self, X: Any, y: Any = None, users: Any = None, *, on_release: Callable[[str], None] | None = None
    ) -> Centaur:
        """Learn the body privately, then a head for every user.

        Parameters
        ----------
        X
            Rows (n_rows × n_features), in any order; or a :class:`~tacitly.data.cohort.Cohort`, alone. Images as flat
            rows.
        y
            Class numbers from 0, or numbers to predict.
        users
            The id of the user each row belongs to.
        on_release
            Called with the name of each release when it is out (for progress bars; see
            :func:`tacitly.neural.progress`).
        """
        cohort = self._cohort(X, y, users)
        engine = self._engine(cohort)
        rehearse_rows(engine.prefix, cohort.n_features, engine.executor.device)
        rehearse(engine.executor, public_start(engine.update), engine.width, cohort.n_users)
        budget, plan = self._budget(), self._plan(self._budget())
        run = self._open(budget, self._events(plan), {"n_users": cohort.n_users, "n_features": cohort.n_features})
        with abandoned_on_failure(run):
            federation = LocalFederation(
                self._through(engine, cohort),
                run,
                noise=self.noise,
                noise_seed=self.noise_seed,
                on_release=on_release,
                threads=1,
            )
            self._take(engine, self._learn(federation, plan, engine.executor, engine.update))
            self._take_heads(federation.users_map(self._fit_heads))
        self._know(cohort)
        self._state(run, budget, cohort.n_users)
        return self

    def _state(self, run: Run, budget: Budget, users: int) -> None:
        """Certify, with what rests on the user's word."""
        own = custom_layers(self.body, self.head)
        words: tuple[str, ...] = (custom_layers_note(own),) if own else ()
        if self.augment is not None:
            words += (AUGMENT,)
        self._certify(run, budget, units=users, trust=TRUST, notes=(FREE_HEADS, PUBLIC_START), not_covered=words)

    def _through(self, engine: Engine, cohort: Cohort) -> Cohort:
        return apply_prefix(engine.prefix, cohort, self.rows_per_user, engine.executor.device)

    @property
    def audit_labels(self) -> tuple[float, float] | None:
        """Two classes, unless numbers are predicted."""
        return (0.0, 1.0) if self.loss == "classes" else None

    def as_asked(self, cohort: Cohort) -> Cohort:
        """Return the cohort as queries see it: after the public part of the body."""
        return self._through(self._engine(cohort), cohort)

    def _plan(self, budget: Budget) -> Plan:
        share = self.clip_share if self.clip == "auto" else 0.0
        phases = [Phase(name="rounds", share=1.0 - share, releases=self.rounds, acute=False)]
        if share:
            phases.insert(0, Phase(name="clip", share=share))
        return Plan(budget, phases, sampling_rate=self.sampling_rate)

    def _events(self, plan: Plan) -> list[GaussianEvent]:
        clip = [plan.event("clip", clip=1.0, acute=True)] if self.clip == "auto" else []
        return clip + [plan.event("rounds", clip=1.0)] * self.rounds

    def _learn(self, federation: Federation, plan: Plan, executor: Executor, update: UserUpdate) -> Array:
        """Algorithm 1: public state, moved by noisy sums of clipped updates."""
        state = public_start(update)
        bound = 1.0
        if self.clip == "auto":
            event = plan.event("clip", clip=1.0, acute=True)
            bound = private_clip(federation, BodyUpdate(state, 0, executor), event, "update norms")
        elif self.clip is not None:
            bound = float(self.clip)
        event = plan.event("rounds", clip=bound)
        later: list[Array] = []
        for number in range(self.rounds):
            query = BodyUpdate(state, number, executor, normalised=self.clip is None)
            moved = federation.release(query, event, f"body update {number + 1}")
            state = state + self.step * moved / (bound * self.sampling_rate * federation.n_users)
            if 2 * number >= self.rounds:
                later.append(state)
        return np.mean(later, axis=0) if self.average and later else state

    def _update(self, body: nn.Module, **variant: Any) -> UserUpdate:
        flat, head = Flat(body), Flat(self.head)
        return UserUpdate(body=flat, head=head, training=self._training(), classes=n_outputs(self.head), **variant)

    def _engine(self, cohort: Cohort) -> Engine:
        """Return what a round is run with, after trying whether the modules fit together and may be used at all."""
        prefix, rest = split_body(self.body, cohort.n_features, whole=self.augment is not None)
        update = self._update(rest)
        groups = self._groups(update)
        executor = Executor(update, device=self.device, chunk=self.chunk, workers=self.threads, groups=groups)
        return Engine(prefix, rest, update, executor, output_width(prefix, cohort.n_features))

    def _take(self, engine: Engine, learned: Array) -> None:
        """Put what was learned into a copy of the body (and head, where that is shared) as they were given."""
        update, vector = engine.update, torch.as_tensor(learned, dtype=engine.executor.dtype)
        body = nn.Sequential(copy.deepcopy(engine.prefix), copy.deepcopy(engine.rest))
        head = copy.deepcopy(self.head)
        load(body[1], update.body, vector[: update.body.size])
        if update.move_head:
            load(head, update.head, vector[update.body.size :])
        self.body_, self.public_head_ = body.eval(), head.eval()
        self._billboard = self._public_numbers()

    def _training(self) -> LocalTraining:
        return LocalTraining(
            local_steps=self.local_steps,
            local_rate=self.local_rate,
            batch_rows=self.batch_rows,
            head_steps=self.head_steps,
            head_rate=self.head_rate,
            cross_fit=self.cross_fit,
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
        """Check everything that is public, then the targets; return the users."""
        if self.mode != "auto":
            raise ValueError(f"mode must be 'auto'. Found {self.mode!r}.")
        if self.rounds < 1:
            raise ValueError(f"rounds must be at least 1. Found {self.rounds!r}.")
        if self.clip == "auto" and self.per_layer:
            raise ValueError("clip='auto' measures whole updates. Give a number, or per_layer=False.")
        if isinstance(self.clip, str | bool) and self.clip != "auto":
            raise ValueError(f"clip must be None, a number or 'auto'. Found {self.clip!r}.")
        if not 0 < self.sampling_rate <= 1:
            raise ValueError(f"sampling_rate must lie in (0, 1]. Found {self.sampling_rate!r}.")
        if self.clip == "auto" and not 0 < self.clip_share < 1:
            raise ValueError(f"clip_share must lie between 0 and 1. Found {self.clip_share!r}.")
        for name in ("step", "local_rate", "head_rate"):
            if not (math.isfinite(value := getattr(self, name)) and value > 0):
                raise ValueError(f"{name} must be positive and finite. Found {value!r}.")
        self._training()
        cohort = cohort_of(X, y, users)
        cuda = self.device != "cpu" and torch.cuda.is_available()
        check_layers(self.body, self.head, cuda=cuda, trust_custom_layers=self.trust_custom_layers)
        check_modules(self.body, self.head, cohort.n_features, learned=self._learns)
        if self.loss == "classes":
            check_labels(np.asarray(cohort.y), n_outputs(self.head))
        return cohort

    def _public_config(self, sizes: Mapping[str, Any]) -> dict[str, Any]:
        config = super()._public_config(sizes)
        for name in ("device", "chunk", "augment"):
            config.pop(name)
        return {
            **config,
            "body": fingerprint(self.body),
            "head": fingerprint(self.head),
            "augment": self.augment is not None,
        }
