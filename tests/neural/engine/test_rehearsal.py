"""The dry run finds layers that keep rows or draw random numbers, and networks that cannot run."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from small_networks import D, N, body_with, data, executor, model
from tacitly import neural
from tacitly.neural.engine.executor import Executor
from tacitly.neural.engine.flat import Flat
from tacitly.neural.engine.layers import check_layers
from tacitly.neural.engine.local_training import LocalTraining
from tacitly.neural.engine.rehearsal import _ordinary_user, check_modules, check_rows_apart, rehearse
from tacitly.neural.engine.update import UserUpdate, public_start

torch.set_num_threads(1)


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
    """Dropout that ignores evaluation mode."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, 0.5, training=True)


class NumpyNoise(nn.Module):
    """Draws from NumPy's global generator."""

    def forward(self, x: Tensor) -> Tensor:
        return x + float(np.random.normal())  # noqa: NPY002


@pytest.mark.parametrize("classes", [2, 3, 4])
def test_the_synthetic_user_has_something_to_learn(classes: int) -> None:
    """Two classes in turn are one class in each half of the rows: every update was zero, whatever the layers do."""
    body, head = nn.Linear(5, 4), nn.Linear(4, classes)
    training = LocalTraining(head_steps=2, rows=16)
    update = UserUpdate(body=Flat(body), head=Flat(head), training=training, classes=classes)
    moved = Executor(update, device="cpu").one_update(public_start(update), *_ordinary_user(update, 5), 0)
    assert np.abs(moved).max() > 0


@pytest.mark.parametrize("batched", [False, True])
def test_a_plain_network_passes(batched: bool) -> None:
    tried(body_with(nn.GroupNorm(1, 5), nn.Dropout(0.5)), batched=batched)


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (RunningCentre(), r"RunningCentre \(body.1\) stores"),
        (Remembers(), r"Remembers \(body.1\) stores"),
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


class Branches(nn.Module):
    """Branches on values, which vmap does not allow."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if bool(x.abs().max() > 1) else x


def test_what_cannot_run_in_a_batch_is_heard_of() -> None:
    """Regression: it became a certified model that had learned nothing."""
    with pytest.raises(RuntimeError, match="vmap"):
        tried(body_with(Branches()), batched=True)


@pytest.mark.parametrize("batched", [False, True])
def test_updates_that_are_not_finite_for_anybody_are_heard_of(batched: bool) -> None:
    body = body_with()
    with torch.no_grad():
        body[0].weight.fill_(1e38)
    with pytest.raises(ValueError, match="is not finite, so all updates would be dropped"):
        tried(body, batched=batched)


class FirstTouch(nn.Module):
    """Centres at the first rows it ever sees, stored under a private name."""

    _centre: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self._centre is None:
            self._centre = x.detach().mean(0)
        return x - self._centre


class InABox(nn.Module):
    """The same, stored in a separate object."""

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
        with pytest.raises(ValueError, match=rf"{layer.__name__} \(body\.\d\) stores something"):
            model(body, trust_custom_layers=True).fit(*data())
        with pytest.raises(ValueError, match="stores something"):
            neural.LocalHeads(body, nn.Linear(4, 2), epsilon=1.0, device="cpu", trust_custom_layers=True).fit(*data())


def test_what_does_not_fit_together_is_said_in_words() -> None:
    with pytest.raises(ValueError, match="does not accept rows of 7 features"):
        check_modules(body_with(), nn.Linear(4, 2), 7)
    with pytest.raises(ValueError, match="does not accept the body's output"):
        check_modules(body_with(), nn.Linear(3, 2), D)
    with pytest.raises(ValueError, match="no trainable parameters"):
        check_modules(body_with().requires_grad_(False), nn.Linear(4, 2), D)
    with pytest.raises(ValueError, match="stops the whole GPU"):
        check_layers(nn.Sequential(nn.Embedding(3, 2)), nn.Linear(4, 2), cuda=True)


class Centred(nn.Module):
    """Subtracts the mean over the rows that are computed together."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 4)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.linear(rows)
        return found - found.mean(0)


class Lookup(nn.Module):
    """A table of five words."""

    def __init__(self, clamp: bool) -> None:
        super().__init__()
        self.words, self.clamp = nn.Embedding(5, 4), clamp

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        numbers = rows.long()
        found: torch.Tensor = self.words(numbers.clamp(0, 4) if self.clamp else numbers).mean(1)
        return found


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (Lookup(clamp=False), r"neural\.Tokens"),
        (nn.Sequential(nn.Embedding(5, 4), nn.Flatten()), r"neural\.Tokens"),
        (nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten()), r"FlatToImage\(\(channels, height, width\)\)"),
    ],
)
def test_a_body_that_cannot_take_flat_rows_one_by_one_is_told_what_to_do(body: nn.Module, reason: str) -> None:
    X, users = np.arange(240.0).reshape(40, 6) % 5, np.arange(40) // 4
    made = neural.Centaur(body, nn.Linear(4, 2), epsilon=1.0, rounds=1, device="cpu", trust_custom_layers=True)
    with pytest.raises(ValueError, match=reason):
        made.fit(X, np.arange(40) % 2, users)


def test_a_body_that_mixes_a_users_rows_is_said() -> None:
    with pytest.warns(UserWarning, match="the body mixes rows"):
        check_rows_apart(Centred(6), 6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_rows_apart(neural.transformer(9, 6, width=8, heads=2)[0], 6)


def test_a_table_of_words_that_clamps_is_taken() -> None:
    X, users = np.arange(240.0).reshape(40, 6) % 5, np.arange(40) // 4
    made = neural.Centaur(
        Lookup(clamp=True), nn.Linear(4, 2), epsilon=9.0, rounds=1, device="cpu", trust_custom_layers=True
    )
    assert made.fit(X, np.arange(40) % 2, users).predict(X[:3], users[:3]).shape == (3,)
