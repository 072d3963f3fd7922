"""Nothing of one user may stay in a module, and nothing of anybody may be published in it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tacit import neural
from tacit.neural.executor import DeviceFailure, Executor
from tacit.neural.rehearsal import check_modules, rehearse
from tacit.neural.update import Flat, LocalTraining, UserUpdate

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
    made.batched, made.chunk = batched, 8
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
    asked = model(body_with(layer))
    with pytest.raises(ValueError, match=name):
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


def test_buffers_that_rows_could_move_are_published_as_they_were_given() -> None:
    """A buffer that moves only for rows no rehearsal has: every user gets a fresh one, and nobody's is published."""

    class Trap(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            if bool((x == 0.5).any()):
                self.seen.add_(1.0)
            return x + self.seen

    X, y, users = data()
    X[:M] = 0.5
    body = nn.Sequential(Trap(), nn.Linear(D, 4))
    fitted = model(body).fit(X, y, users)
    assert float(body[0].seen) == 0.0
    assert all(float(v) == 0.0 for k, v in fitted.body_.state_dict().items() if k.endswith("seen"))
    made = executor(body)
    public = made.update.body.start.numpy().astype(np.float64)
    rows = [(X[:M], y[:M]), (X[M : 2 * M], y[M : 2 * M])]
    assert (made.one_after_the_other(public, rows, 0)[1] == made.one(public, *rows[1], 0)).all()


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
        answers = made.one_after_the_other(public, [(mine, y[: len(mine)]), (X[M : 2 * M], y[M : 2 * M])], 0)
        assert (
            answers[1] == executor(body, local_steps=3, local_rate=1.0).one(public, X[M : 2 * M], y[M : 2 * M], 0)
        ).all()


def test_what_does_not_fit_together_is_said_in_words() -> None:
    with pytest.raises(ValueError, match="does not take rows of 7 features"):
        check_modules(body_with(), nn.Linear(4, 2), 7)
    with pytest.raises(ValueError, match="does not take what the body gives"):
        check_modules(body_with(), nn.Linear(3, 2), D)
    with pytest.raises(ValueError, match="no trainable parameters"):
        check_modules(body_with().requires_grad_(False), nn.Linear(4, 2), D)
    with pytest.raises(ValueError, match="stops a whole GPU"):
        check_modules(nn.Sequential(nn.Embedding(3, 2)), nn.Linear(4, 2), D, cuda=True)


@pytest.mark.parametrize(
    "settings", [{"sampling_rate": 0.0}, {"step": float("nan")}, {"clip": True}, {"local_rate": 0.0}], ids=str
)
def test_numbers_that_make_no_sense_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        model(body_with(), **settings).fit(*data())


@pytest.mark.parametrize("batched", [False, True])
def test_a_machine_without_memory_is_no_contribution_of_zero(batched: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made = executor(body_with(), batched=batched)
    X, y, _ = data()

    def full(*_: object) -> Tensor:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(Executor, "_packed" if batched else "_alone", full)
    with pytest.raises(DeviceFailure, match="smaller chunk"):
        made.clipped_sum(
            made.update.body.start.numpy().astype(np.float64), X, y, np.arange(0, N * M + 1, M), 1.0, 0, normalised=True
        )


def test_running_out_of_memory_in_a_round_ends_the_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """It became a certified model that had learned nothing: the door took the failure for a user's."""
    genuine, calls = Executor._alone, []

    def full(self: Executor, *arguments: object) -> Tensor:
        calls.append(1)
        if len(calls) > 6:  # after the rehearsal and the door's own
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        return genuine(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Executor, "_alone", full)
    with pytest.raises(MemoryError):
        model(body_with()).fit(*data())


def test_a_user_who_makes_a_chunk_fail_moves_nobody_else() -> None:
    """The chunk was computed again one by one, in other places, and last bits were blown up to whole clips."""

    class Category(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.linear = nn.Embedding(4, 3), nn.Linear(D + 2, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(torch.cat([self.table(x[:, 0].long()), x[:, 1:]], 1))

    X, y, _ = data()
    X[:, 0] = np.arange(len(X)) % 4
    torch.manual_seed(0)
    made = executor(Category(), batched=True)
    public = made.update.body.start.numpy().astype(np.float64)
    offsets = np.arange(0, N * M + 1, M)
    good = torch.cat([part for part, _ in made._parts(public, X, y, offsets, 0)])
    X[0, 0] = 77
    bad = torch.cat([part for part, _ in made._parts(public, X, y, offsets, 0)])
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
    assert made._kept_bytes > 0
    assert (total(X[:16], y[:16], [0, 8, 16]) == first).all()
    other = 1 - y[:16]
    other.flags.writeable = False
    assert not (total(X[:16], other, [0, 8, 16]) == first).all()
    assert not (total(X[:16], y[:16], [0, 5, 16]) == first).all()
    mine = np.array(X[:16])
    before = total(mine, y[:16], [0, 8, 16])
    mine[:] = 7.0
    assert not (total(mine, y[:16], [0, 8, 16]) == before).all()
