"""Nothing of one user may stay in a module, and nothing of anybody may be published in it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tacitly import neural
from tacitly.neural.engine.device import DeviceFailure
from tacitly.neural.engine.executor import Block, Executor
from tacitly.neural.engine.layers import check_layers
from tacitly.neural.engine.one_step import OneStep
from tacitly.neural.engine.packing import Packing
from tacitly.neural.engine.rehearsal import check_modules, rehearse
from tacitly.neural.engine.update import Flat, LocalTraining, UserUpdate

torch.set_num_threads(1)
D, N, M = 6, 20, 8


def data(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N * M, D))
    return X, (X[:, 0] > 0).astype(int), np.repeat(np.arange(N), M)


def body_with(*layers: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(D, 5), *layers, nn.ReLU(), nn.Linear(5, 4))


def model(body: nn.Module, head: nn.Module | None = None, **settings: object) -> neural.Centaur:
    chosen = {"epsilon": 2.0, "rounds": 2, "head_steps": 2, "rows_per_user": 8, "device": "cpu", **settings}
    return neural.Centaur(body, head or nn.Linear(4, 2), **chosen)  # type: ignore[arg-type]


def executor(body: nn.Module, *, batched: bool = False, **training: object) -> Executor:
    settings = LocalTraining(**{"head_steps": 2, "rows": M, **training})  # type: ignore[arg-type]
    torch.manual_seed(1)
    update = UserUpdate(body=Flat(body), head=Flat(nn.Linear(4, 2)), training=settings, classes=2)
    made = Executor(update, device="cpu", workers=1)
    made.batched, made.chunk, made.packing.caches = batched, 8, batched
    return made


def tried(body: nn.Module, **settings: object) -> None:
    made = executor(body, **settings)  # type: ignore[arg-type]
    rehearse(made, made.update.body.start.numpy().astype(np.float64), D, N)


class RunningCentre(nn.Module):
    """Subtracts a running mean, in evaluation mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(5))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return x - self.mean


class Remembers(nn.Module):
    """Keeps the last rows in a plain attribute."""

    last: Tensor | float = 0.0

    def forward(self, x: Tensor) -> Tensor:
        before, self.last = self.last, x.detach().mean()
        return x + before


class AlwaysDrops(nn.Module):
    """Dropout that does not know of evaluation mode."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, 0.5, training=True)


class NumpyNoise(nn.Module):
    """Draws from another common generator."""

    def forward(self, x: Tensor) -> Tensor:
        return x + float(np.random.normal())  # noqa: NPY002


@pytest.mark.parametrize("batched", [False, True])
def test_a_plain_network_passes(batched: bool) -> None:
    tried(body_with(nn.GroupNorm(1, 5), nn.Dropout(0.5)), batched=batched)


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (RunningCentre(), r"RunningCentre \(body.1\) keeps"),
        (Remembers(), r"Remembers \(body.1\) keeps"),
        (AlwaysDrops(), r"AlwaysDrops \(body.1\) draws"),
        (NumpyNoise(), r"NumpyNoise \(body.1\) draws"),
    ],
    ids=lambda value: "",
)
def test_a_layer_that_remembers_or_draws_is_refused_by_name_before_anything_is_debited(
    layer: nn.Module, name: str
) -> None:
    for vouched, words in ((False, "is not a layer that is known"), (True, name)):
        asked = model(body_with(layer), trust_custom_layers=vouched)
        with pytest.raises(ValueError, match=words):
            asked.fit(*data())
        assert not hasattr(asked, "certificate_")


def test_a_random_view_is_refused() -> None:
    with pytest.raises(ValueError, match="augment draws random numbers"):
        model(body_with(), augment=lambda x: x + 0.3 * torch.randn_like(x)).fit(*data())


def test_batch_normalisation_is_refused_by_name_unless_it_is_a_constant() -> None:
    with pytest.raises(ValueError, match=r"BatchNorm1d \(body.1\) mixes users: use GroupNorm"):
        model(body_with(nn.BatchNorm1d(5))).fit(*data())
    with pytest.raises(ValueError, match="mixes users"):
        model(body_with(nn.BatchNorm1d(5, track_running_stats=False).eval())).fit(*data())
    fitted = model(body_with(nn.BatchNorm1d(5)).eval()).fit(*data())
    published = [value for value in fitted.body_.state_dict().items() if "running" in value[0] or "num" in value[0]]
    assert [float(value.sum()) for _, value in published] == [0.0, 5.0, 0.0]


class Trap(nn.Module):
    """Keeps something of rows that no rehearsal has."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))
        self._count = 0.0

    def forward(self, x: Tensor) -> Tensor:
        if bool((x.abs().amax() - 77.0).abs() < 1.0):
            self.seen.add_(1.0)
            self._count += 1.0
        return x + 3.0 * self.seen + self._count


def doubling() -> nn.Linear:
    """Frozen: twice the rows, whose size is then private and public layers still come first."""
    layer = nn.Linear(D, D, bias=False).requires_grad_(False)
    with torch.no_grad():
        layer.weight.copy_(2.0 * torch.eye(D))
    return layer


TRAPS = {
    "first": lambda: nn.Sequential(Trap(), nn.Linear(D, 4)),
    "in the prefix": lambda: nn.Sequential(doubling(), Trap(), nn.Linear(D, 4)),
    "behind what is learned": lambda: nn.Sequential(nn.Linear(D, D, bias=False), Trap(), nn.Linear(D, 4)),
}


@pytest.mark.parametrize("kind", [neural.Centaur, neural.FedAvg, neural.LocalHeads])
@pytest.mark.parametrize("place", TRAPS)
def test_nothing_of_a_user_stays_in_a_layer_that_the_user_vouched_for(place: str, kind: type[neural.Centaur]) -> None:
    """Rows that a trap waits for: others' heads and predictions stay as they are, and nothing of it is published."""
    X, y, users = data()
    torch.manual_seed(0)
    body, head = TRAPS[place](), nn.Linear(4, 2)
    if place == "behind what is learned":
        with torch.no_grad():
            body[0].weight.copy_(2.0 * torch.eye(D))
    trap = next(layer for layer in body if isinstance(layer, Trap))
    with pytest.raises(ValueError, match=r"Trap \(body\.\d\) is not a layer that is known"):
        kind(body, head, epsilon=2.0, device="cpu").fit(X, y, users)
    found = []
    for size in (1.0, 38.5 if place != "first" else 77.0):
        mine = X.copy()
        mine[:M] = size
        asked = kind(
            body,
            head,
            epsilon=2.0,
            rounds=1,
            step=1e-9,
            head_steps=1,
            device="cpu",
            rows_per_user=M,
            trust_custom_layers=True,
        )
        fitted = asked.fit(mine, y, users)
        heads, before = fitted.heads_[1:], {k: v.copy() for k, v in fitted.public_arrays().items()}
        guesses = fitted.predict(mine, users)[M:]
        after = fitted.public_arrays()
        assert all((before[name] == after[name]).all() for name in before)
        assert all(float(v) == 0.0 for k, v in fitted.body_.state_dict().items() if k.endswith("seen"))
        assert (float(trap.seen), trap._count) == (0.0, 0.0)
        assert "custom layers (Trap)" in str(fitted.certificate_)
        found.append((heads, guesses))
    np.testing.assert_allclose(found[0][0], found[1][0], atol=1e-4)
    assert (found[0][1] == found[1][1]).all()


@pytest.mark.parametrize("place", TRAPS)
def test_nothing_of_a_user_stays_between_updates(place: str) -> None:
    X, y, _ = data()
    torch.manual_seed(0)
    update = UserUpdate(
        body=Flat(TRAPS[place]()), head=Flat(nn.Linear(4, 2)), training=LocalTraining(head_steps=2, rows=M), classes=2
    )
    made = Executor(update, device="cpu", workers=1)
    public = made.update.body.start.numpy().astype(np.float64)
    trapped = np.full((M, D), 77.0 if place == "first" else 38.5)
    if place == "behind what is learned":
        public[: D * D] = 2.0 * np.eye(D).ravel()
    rows = [(trapped, y[:M]), (X[M : 2 * M], y[M : 2 * M])]
    assert (made.updates_alone(public, rows, 0)[1] == made.one_update(public, *rows[1], 0)).all()


class Subclass(nn.Linear):
    """Inherits from a layer that is known, and may do more."""


def with_hook(kind: str) -> nn.Module:
    layer = nn.Linear(5, 5)
    getattr(layer, kind)(lambda *_: None)
    return layer


def with_forward() -> nn.Module:
    layer = nn.Linear(5, 5)
    layer.forward = lambda x: x  # type: ignore[method-assign]
    return layer


class ExtraState(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x

    def get_extra_state(self) -> object:
        return {"rows": 1}


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(5, 5), nn.Linear(5, 5)
        self.two.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("layer", "words", "vouched"),
    [
        (Subclass(5, 5), r"Subclass \(body.1\) is not a layer that is known", True),
        (torch.nn.utils.parametrizations.weight_norm(nn.Linear(5, 5)), "a parametrization", False),
        (with_forward(), r"Linear \(body.1\) has its own forward", True),
        (with_hook("register_forward_hook"), r"Linear \(body.1\) has a hook \(forward_hooks\)", False),
        (with_hook("register_forward_pre_hook"), "has a hook", False),
        (with_hook("register_full_backward_hook"), "has a hook", False),
        (with_hook("register_state_dict_post_hook"), "has a hook", False),
        (torch.nn.utils.spectral_norm(nn.Linear(5, 5)), "has a hook", False),
        (nn.LazyLinear(5), r"LazyLinear \(body.1\) does not know its size", False),
        (nn.Embedding(5, 5, max_norm=1.0), "writes into its table", False),
        (ExtraState(), r"ExtraState \(body.1\) has a get_extra_state", False),
        (Tied(), "body.1.two.weight is the same parameter as body.1.one.weight", False),
        (nn.Linear(5, 5).bfloat16(), r"Linear \(body.1\) has numbers of type torch.bfloat16", False),
        (nn.Linear(5, 5).double(), "numbers of one type", False),
    ],
    ids=lambda value: "",
)
@pytest.mark.parametrize("kind", [neural.Centaur, neural.LocalHeads])
def test_what_could_keep_rows_is_refused_by_name(
    layer: nn.Module, words: str, vouched: bool, kind: type[neural.Centaur]
) -> None:
    strange = isinstance(layer, ExtraState | Tied)  # of kinds that are not known either: say so first, or vouch
    with pytest.raises(ValueError, match="body.1" if strange else words):
        kind(body_with(layer), nn.Linear(4, 2), epsilon=1.0, device="cpu").fit(*data())
    if vouched:
        check_layers(body_with(layer), nn.Linear(4, 2), trust_custom_layers=True)
        return
    with pytest.raises(ValueError, match=words):
        kind(body_with(layer), nn.Linear(4, 2), epsilon=1.0, device="cpu", trust_custom_layers=True).fit(*data())


class Category(nn.Module):
    """A table for the first column, which holds categories."""

    def __init__(self, categories: int = 4, **settings: float) -> None:
        super().__init__()
        self.table = nn.Embedding(categories, 3, **settings)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.table(x[:, 0].long()), x[:, 1:]], 1)


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("kind", [neural.Centaur, neural.LocalHeads])
def test_a_category_that_is_not_there_is_nobodys_business(kind: type[neural.Centaur], frozen: bool) -> None:
    """It raised out of the public part of the body, and out of predict: who has it is private."""
    X, y, users = data()
    X[:, 0] = np.arange(len(X)) % 4
    X[3, 0] = 77
    torch.manual_seed(0)
    body = nn.Sequential(Category().requires_grad_(not frozen), nn.Linear(D + 2, 4))
    asked = kind(
        body,
        nn.Linear(4, 2),
        epsilon=2.0,
        rounds=1,
        head_steps=1,
        device="cpu",
        rows_per_user=M,
        trust_custom_layers=True,
    )
    fitted = asked.fit(X, y, users)
    assert np.isfinite(fitted.heads_).all()
    assert np.abs(fitted.heads_[1]).max() > 0
    assert set(fitted.predict(X, users)) <= {0, 1}


def test_nobody_writes_into_anybody_elses_start() -> None:
    """A table with a largest norm writes into its parameters: they shared memory with the public vector."""
    torch.manual_seed(0)
    body = nn.Sequential(Category(max_norm=0.1), nn.Linear(D + 2, 4)).double()
    head = nn.Sequential(nn.Linear(4, 2)).double()
    update = UserUpdate(body=Flat(body), head=Flat(head), training=LocalTraining(rows=M, head_steps=2), classes=2)
    made = Executor(update, device="cpu", workers=1)
    public = update.body.start.numpy().copy()
    X, y, _ = data()
    X[:, 0] = 0.0
    given = public.copy()
    made.updates_alone(public, [(X[:M], y[:M]), (X[M : 2 * M], y[M : 2 * M])], 0)
    assert (public == given).all()
    assert np.linalg.norm(public[:3]) > 0.1
    vector = made._public(public)
    assert not np.shares_memory(vector.numpy(), public)
    made._update_alone(update.alone(), vector, X[:M], y[:M], 0)
    assert (vector.numpy() == given).all()


class Branches(nn.Module):
    """Asks what its rows are, which a batch of users cannot be asked."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if bool(x.abs().max() > 1) else x


def test_what_cannot_run_in_a_batch_is_heard_of() -> None:
    """It became a certified model that had learned nothing."""
    with pytest.raises(RuntimeError, match="vmap"):
        tried(body_with(Branches()), batched=True)


@pytest.mark.parametrize("batched", [False, True])
def test_updates_that_are_not_finite_for_anybody_are_heard_of(batched: bool) -> None:
    body = body_with()
    with torch.no_grad():
        body[0].weight.fill_(1e38)
    with pytest.raises(ValueError, match="is not finite, so no user's would count"):
        tried(body, batched=batched)


class FirstTouch(nn.Module):
    """Centres at the first rows it ever sees, under a private name."""

    _centre: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self._centre is None:
            self._centre = x.detach().mean(0)
        return x - self._centre


class InABox(nn.Module):
    """The same, in an object of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.box = type("Box", (), {})()

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self.box, "centre"):
            self.box.centre = x.detach().mean(0)
        return x - self.box.centre


class Peak(nn.Module):
    """Keeps the largest finite number in a frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = nn.Parameter(torch.ones(()), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        if bool(torch.isfinite(x).all()):
            self.peak.data.copy_(torch.maximum(self.peak.data, x.detach().abs().max()))
        return x / self.peak


@pytest.mark.parametrize("layer", [FirstTouch, InABox, Peak])
def test_what_hides_what_it_keeps_is_found(layer: type[nn.Module]) -> None:
    for body in (body_with(layer()), nn.Sequential(layer(), nn.Linear(D, 4))):
        with pytest.raises(ValueError, match=rf"{layer.__name__} \(body\.\d\) keeps something"):
            model(body, trust_custom_layers=True).fit(*data())
        with pytest.raises(ValueError, match="keeps something"):
            neural.LocalHeads(body, nn.Linear(4, 2), epsilon=1.0, device="cpu", trust_custom_layers=True).fit(*data())


def test_a_users_predictions_do_not_depend_on_others_rows() -> None:
    class Centre(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x - x.mean(0)

    X, y, users = data()
    fitted = model(nn.Sequential(nn.Linear(D, 4), Centre()), trust_custom_layers=True).fit(X, y, users)
    before = fitted.predict(X, users)[:M]
    X[M:] += 5.0
    assert (fitted.predict(X, users)[:M] == before).all()


def test_layers_that_write_over_their_input_leave_rows_alone() -> None:
    made = executor(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(D, 4)), batched=True)
    rows, targets, _ = (np.asarray(part, dtype=np.float32) for part in data())
    for part in (rows, targets):
        part.flags.writeable = False
    made.clipped_sum(
        made.update.body.start.numpy().astype(np.float64),
        rows,
        targets,
        np.arange(0, N * M + 1, M),
        1.0,
        0,
        normalised=True,
    )
    kept = next(iter(made.packing._cache.values()))[0]
    assert (kept[0].numpy() == rows[:M]).all()


def test_a_head_with_nothing_to_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="the head has no trainable parameters"):
        model(body_with(), nn.Linear(4, 2).requires_grad_(False)).fit(*data())


def test_dropout_and_spectral_norm_do_not_join_users() -> None:
    """One row fewer of one user moved everybody else's answer by several clips."""
    X, y, _ = data()
    torch.manual_seed(0)
    body = nn.Sequential(
        torch.nn.utils.parametrizations.spectral_norm(nn.Linear(D, 5)), nn.Dropout(0.5), nn.ReLU(), nn.Linear(5, 4)
    )
    for mine in (X[:M], X[: M - 1], np.full((M, D), np.nan)):
        made = executor(body, local_steps=3, local_rate=1.0)
        public = made.update.body.start.numpy().astype(np.float64)
        answers = made.updates_alone(public, [(mine, y[: len(mine)]), (X[M : 2 * M], y[M : 2 * M])], 0)
        other = executor(body, local_steps=3, local_rate=1.0)
        assert (answers[1] == other.one_update(public, X[M : 2 * M], y[M : 2 * M], 0)).all()


def test_what_does_not_fit_together_is_said_in_words() -> None:
    with pytest.raises(ValueError, match="does not accept rows of 7 features"):
        check_modules(body_with(), nn.Linear(4, 2), 7)
    with pytest.raises(ValueError, match="does not accept the body's output"):
        check_modules(body_with(), nn.Linear(3, 2), D)
    with pytest.raises(ValueError, match="no trainable parameters"):
        check_modules(body_with().requires_grad_(False), nn.Linear(4, 2), D)
    with pytest.raises(ValueError, match="stops the whole GPU"):
        check_layers(nn.Sequential(nn.Embedding(3, 2)), nn.Linear(4, 2), cuda=True)


@pytest.mark.parametrize(
    "settings", [{"sampling_rate": 0.0}, {"step": float("nan")}, {"clip": True}, {"local_rate": 0.0}], ids=str
)
def test_numbers_that_make_no_sense_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        model(body_with(), **settings).fit(*data())


@pytest.mark.parametrize("place", [(Executor, "_update_alone"), (Packing, "__call__"), (OneStep, "__call__")], ids=str)
def test_a_machine_without_memory_is_no_contribution_of_zero(
    place: tuple[type, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = executor(body_with(), batched=place[0] is Packing)
    made.one_step = place[0] is OneStep
    X, y, _ = data()

    def full(*_: object) -> Tensor:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(*place, full)
    with pytest.raises(DeviceFailure, match="smaller chunk"):
        made.clipped_sum(
            made.update.body.start.numpy().astype(np.float64), X, y, np.arange(0, N * M + 1, M), 1.0, 0, normalised=True
        )


@pytest.mark.parametrize(("kind", "name", "steps"), [(Executor, "_update_alone", 2), (OneStep, "__call__", 1)], ids=str)
def test_running_out_of_memory_in_a_round_ends_the_fit(
    kind: type, name: str, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It became a certified model that had learned nothing: the door took the failure for a user's."""
    genuine, calls = getattr(kind, name), []

    def full(self: object, *arguments: object) -> object:
        calls.append(1)
        if len(calls) > 6:  # after the rehearsal and the door's own
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        return genuine(self, *arguments)

    monkeypatch.setattr(kind, name, full)
    with pytest.raises(MemoryError):
        model(body_with(), local_steps=steps, rounds=10).fit(*data())
    assert len(calls) >= 7


def test_a_user_who_makes_a_chunk_fail_moves_nobody_else() -> None:
    """The chunk was computed again one by one, in other places, and last bits were blown up to whole clips."""

    X, y, _ = data()
    X[:, 0] = np.arange(len(X)) % 4
    torch.manual_seed(0)
    made = executor(nn.Sequential(Category(), nn.Linear(D + 2, 4)), batched=True)
    public = made.update.body.start.numpy().astype(np.float64)
    offsets = np.arange(0, N * M + 1, M)
    good = torch.cat([part for part, _ in made.chunks(Block(public, X, y, offsets, 0))])
    X[0, 0] = 77
    bad = torch.cat([part for part, _ in made.chunks(Block(public, X, y, offsets, 0))])
    assert torch.equal(good[1:], bad[1:])
    assert bool(torch.isnan(bad[0]).all())


def test_rows_that_are_kept_on_a_device_are_those_that_were_asked_for() -> None:
    made = executor(body_with(), batched=True)
    public = made.update.body.start.numpy().astype(np.float64)
    X, y, _ = (np.asarray(part, dtype=np.float32) for part in data())

    def total(X: np.ndarray, y: np.ndarray, offsets: list[int]) -> np.ndarray:
        return made.clipped_sum(public, X, y, np.array(offsets), 1.0, 0, normalised=True)

    for part in (X, y):
        part.flags.writeable = False
    first = total(X[:16], y[:16], [0, 8, 16])
    assert made.packing._cached_bytes > 0
    assert (total(X[:16], y[:16], [0, 8, 16]) == first).all()
    other = 1 - y[:16]
    other.flags.writeable = False
    assert not (total(X[:16], other, [0, 8, 16]) == first).all()
    assert not (total(X[:16], y[:16], [0, 5, 16]) == first).all()
    mine = np.array(X[:16])
    before = total(mine, y[:16], [0, 8, 16])
    mine[:] = 7.0
    assert not (total(mine, y[:16], [0, 8, 16]) == before).all()
