"""CENTAUR for networks: a body learned together under user-level differential privacy, a head that stays at home."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from tacit.algorithms.clip_quantile import private_clip
from tacit.cells import DataError
from tacit.cohort import Cohort
from tacit.estimators.base import PrivateModel, abandoned_on_failure
from tacit.federation.base import Array, Federation
from tacit.federation.local import LocalFederation
from tacit.ids import Directory
from tacit.neural.executor import Executor
from tacit.neural.parts import PersonalNetwork, cohort_of, describe, load, outputs, public_start, split_body, through
from tacit.neural.personal import fit_classes, fit_linear
from tacit.neural.query import BodyUpdate
from tacit.neural.update import Flat, LocalTraining, UserUpdate
from tacit.privacy.calibration import Phase, Plan
from tacit.privacy.guarantee import Budget, GaussianEvent
from tacit.privacy.ledger import Ledger

TRUST = (
    "central: whoever runs this process holds the rows, adds the noise and keeps the heads; everybody else sees the "
    "body only, and a user their own head (joint differential privacy)."
)
FREE_HEADS = (
    "heads and personalize() cost nothing: a head is computed from the public body and its own user's rows, so for "
    "everybody else it is post-processing, and it is not released"
)
PUBLIC_START = "the body and head handed to fit are taken for public: whatever they were trained on is not covered"


class Centaur(PrivateModel):
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
        See :class:`~tacit.neural.LocalTraining`.
    device, chunk, threads
        Where: ``"auto"`` takes a GPU if there is one; users at a time on it; threads on a CPU.
    random_state, noise, noise_seed, ledger, run
        As for :class:`tacit.PrivateFedRep`.

    Attributes
    ----------
    body_ : the body with what was learned; public
    heads_ : (n_users, parameters of the head), private;  users_ : ids, sorted;  certificate_

    Examples
    --------
    >>> import numpy as np, tacit.neural
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(2000, 6)); users = np.arange(2000) // 20
    >>> y = (X[:, 0] * np.where(users % 2, 1, -1) > 0).astype(int)
    >>> body, head = tacit.neural.mlp(6, (4,), classes=2)
    >>> model = tacit.neural.Centaur(body, head, epsilon=4.0, rounds=3, device="cpu").fit(X, y, users)
    >>> model.certificate_.certified, round(model.certificate_.epsilon, 6), model.predict(X[:3], users[:3]).shape
    (True, 4.0, (3,))
    """

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
            Rows (n_rows × n_features), in any order; or a :class:`~tacit.cohort.Cohort`, alone. Images as flat rows.
        y
            Class numbers from 0, or numbers to predict.
        users
            The id of the user each row belongs to.
        on_release
            Called with the name of each release when it is out (for progress bars; see :func:`tacit.neural.progress`).
        """
        cohort = self._cohort(X, y, users)
        budget, plan = self._budget(), self._plan(self._budget())
        run = self._open(budget, self._events(plan), {"n_users": cohort.n_users, "n_features": cohort.n_features})
        with abandoned_on_failure(run):
            prefix, rest = split_body(self.body, cohort.n_features, whole=self.augment is not None)
            update = self._update(rest)
            executor = Executor(
                update, device=self.device, chunk=self.chunk, workers=self.threads, groups=self._groups(update)
            )
            federation = LocalFederation(
                through(prefix, cohort, self.rows_per_user, executor.device),
                run,
                noise=self.noise,
                noise_seed=self.noise_seed,
                on_release=on_release,
                threads=1,
            )
            learned = torch.as_tensor(self._learn(federation, plan, executor, update), dtype=torch.float32)
            self.body_, self.public_head_ = self._take(rest, prefix, learned, update)
            self.heads_ = self._fit_heads(federation)
        self.users_ = cohort.users
        self.n_features_in_ = cohort.n_features
        self.feature_names_in_ = np.array(cohort.feature_names, dtype=str)
        self.target_name_ = cohort.target_name
        self._certify(run, budget, units=cohort.n_users, trust=TRUST, notes=(FREE_HEADS, PUBLIC_START))
        return self

    def predict(self, X: npt.ArrayLike, users: npt.ArrayLike) -> npt.NDArray[Any]:
        """Predict each row with the head of its user."""
        rows, ids = np.asarray(X, dtype=np.float32), np.asarray(users)
        if ids.shape != (len(rows),):
            raise DataError(f"users must have one id a row of X ({len(rows)}). Found shape {ids.shape}.")
        places = Directory(self.users_).find(ids)
        if unknown := int(np.count_nonzero(places < 0)):
            raise DataError(
                f"{unknown} of {len(rows)} rows belong to users who have no head. "
                "Give a new user one with personalize(X, y), from that user's own rows."
            )
        out = np.zeros(len(rows), dtype=np.int64 if self.loss == "classes" else np.float64)
        order = np.argsort(places, kind="stable")
        features = self._features(rows[order])
        cuts = np.flatnonzero(np.diff(places[order])) + 1
        for mine, own in zip(np.split(order, cuts), np.split(features, cuts), strict=True):
            if len(mine):
                out[mine] = self._answers(own, self.heads_[places[mine[0]]])
        return out

    def score(self, X: npt.ArrayLike, y: npt.ArrayLike, users: npt.ArrayLike) -> float:
        """Share of rows predicted right (or R²). Computed from private data: not for publication."""
        target, found = np.asarray(y, dtype=np.float64), self.predict(X, users)
        if self.loss == "classes":
            return float(np.mean(found == target))
        spread = float(np.sum((target - target.mean()) ** 2))
        return 1.0 - float(np.sum((target - found) ** 2)) / spread if spread > 0 else 0.0

    def personalize(self, X: npt.ArrayLike, y: npt.ArrayLike) -> PersonalNetwork:
        """Fit a head for a user who was not there at training. Costs nobody any privacy: nothing of it is released."""
        rows, targets = np.asarray(X, dtype=np.float32), np.asarray(y, dtype=np.float64)
        if targets.shape != (len(rows),):
            raise DataError(f"y must have one value a row of X ({len(rows)}). Found shape {targets.shape}.")
        return PersonalNetwork(self._features, self._answers, self._head_of(self._features(rows), targets))

    def public_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return parameters and buffers of the body, in the order of the modules, and of the public head."""
        return {
            f"{part}.{place}": value.detach().cpu().numpy()
            for part, module in (("body", self.body_), ("head", self.public_head_))
            for place, value in enumerate(module.state_dict().values())
        }

    def take_public_arrays(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Set body and public head; nobody has a head of their own yet."""
        self.body_, self.public_head_ = copy.deepcopy(self.body).eval(), copy.deepcopy(self.head).eval()
        for part, module in (("body", self.body_), ("head", self.public_head_)):
            names = list(module.state_dict())
            values = [torch.as_tensor(np.array(arrays[f"{part}.{place}"])) for place in range(len(names))]
            module.load_state_dict(dict(zip(names, values, strict=True)))
        self.heads_ = np.zeros((0, Flat(self.head).size))
        self.users_ = np.zeros(0, dtype=np.int64)

    def private_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the heads."""
        return {"heads": self.heads_}

    def take_private_arrays(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Set the heads."""
        self.heads_ = arrays["heads"]

    @property
    def folder_class(self) -> str:
        """What a model folder calls this kind of model."""
        return f"neural.{type(self).__name__}"

    def folder_parameters(self) -> dict[str, Any]:
        """Return the parameters a model folder keeps; modules are code, and stay outside."""
        code = ("body", "head", "augment")
        return {key: value for key, value in super().folder_parameters().items() if key not in code}

    def _plan(self, budget: Budget) -> Plan:
        share = self.clip_share if self.clip == "auto" else 0.0
        phases = [Phase(name="rounds", share=1.0 - share, releases=self.rounds)]
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
        return UserUpdate(body=flat, head=head, training=self._training(), classes=outputs(self.head), **variant)

    def _take(
        self, rest: nn.Module, prefix: nn.Module, learned: Tensor, update: UserUpdate
    ) -> tuple[nn.Module, nn.Module]:
        """Put what was learned into a copy of the body (and head, where that is shared)."""
        body = nn.Sequential(copy.deepcopy(prefix), copy.deepcopy(rest))
        load(body[1], update.body, learned[: update.body.size])
        head = copy.deepcopy(self.head)
        if update.move_head:
            load(head, update.head, learned[update.body.size :])
        return body.eval(), head.eval()

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

    def _features(self, rows: npt.NDArray[np.float32]) -> Array:
        """Rows after the learned body."""
        device = torch.device("cuda" if self.device != "cpu" and torch.cuda.is_available() else "cpu")
        with torch.no_grad():
            body = self.body_.to(device)
            parts = [
                body(torch.as_tensor(rows[i : i + 2048]).to(device)).cpu().numpy() for i in range(0, len(rows), 2048)
            ]
            self.body_.to("cpu")
        return np.asarray(np.concatenate(parts), dtype=np.float64)

    def _fit_heads(self, federation: LocalFederation) -> Array:
        rest = self.body_[1]  # type: ignore[index]

        def work(X: npt.NDArray[Any], y: npt.NDArray[Any], offsets: npt.NDArray[np.int64]) -> Array:
            heads = []
            with torch.no_grad():
                for first, last in itertools.pairwise(offsets.tolist()):
                    rows = torch.as_tensor(np.array(X[first:last], dtype=np.float32))
                    features, targets = rest(rows), y[first:last]
                    if self.augment is not None:
                        features = torch.cat([features, rest(self.augment(rows))])
                        targets = np.concatenate([targets, targets])
                    heads.append(self._head_of(features.double().numpy(), targets))
            return np.array(heads)

        return federation.users_map(work)

    def _head_of(self, features: Array, targets: npt.NDArray[Any]) -> Array:
        """One user's head as a flat vector: closed form where the head is linear, steps otherwise."""
        head = self.public_head_
        if isinstance(head, nn.Linear) and head.bias is not None:
            prior = head.weight.detach().double().numpy()
            if self.loss == "classes":
                weights, levels = fit_classes(features, np.rint(targets), prior)
            else:
                weights, levels = fit_linear(features, np.asarray(targets, dtype=np.float64)[:, None], prior)
            return np.concatenate([weights.ravel(), levels])
        flat = Flat(head)
        update = UserUpdate(body=Flat(nn.Identity()), head=flat, training=self._training(), classes=outputs(head))
        rows, numbers = torch.as_tensor(features).float(), torch.as_tensor(np.asarray(targets, dtype=np.float32))
        fitted = update.fitted_head(torch.zeros(0), flat.start, rows, numbers, torch.ones(len(rows)))
        return np.asarray(fitted.detach().double().numpy())

    def _answers(self, features: Array, head: Array) -> npt.NDArray[Any]:
        with torch.no_grad():
            vector = torch.as_tensor(head).float()
            scores = Flat(self.public_head_)(vector, torch.as_tensor(features).float()).numpy()
        return np.asarray(scores.argmax(axis=1) if self.loss == "classes" else scores[:, 0])

    def _cohort(self, X: Any, y: Any, users: Any) -> Cohort:
        if self.mode != "auto":
            raise ValueError(f"mode must be 'auto'. Found {self.mode!r}.")
        if self.rounds < 1:
            raise ValueError(f"rounds must be at least 1. Found {self.rounds!r}.")
        if self.clip == "auto" and self.per_layer:
            raise ValueError("clip='auto' measures whole updates. Give a number, or per_layer=False.")
        if isinstance(self.clip, str) and self.clip != "auto":
            raise ValueError(f"clip must be None, a number or 'auto'. Found {self.clip!r}.")
        return cohort_of(X, y, users)

    def _public_config(self, sizes: Mapping[str, Any]) -> dict[str, Any]:
        config = super()._public_config(sizes)
        for name in ("device", "chunk", "augment"):
            config.pop(name)
        return {**config, "body": describe(self.body), "head": describe(self.head), "augment": self.augment is not None}
