"""One local step for many users at once: no gradient is materialised, and no user adds more than the clip."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tacitly.neural.engine.executor import Executor
from tacitly.neural.engine.flat import Flat
from tacitly.neural.engine.ghost_clipping import Products, Vectors, norms
from tacitly.neural.engine.local_training import LocalTraining
from tacitly.neural.engine.one_step import OneStep
from tacitly.neural.engine.update import UserUpdate
from tacitly.neural.networks.architectures import LinearWithSkip, lenet, mlp

torch.set_num_threads(1)
D = 6
COUNTS = np.array([5, 11, 21, 1, 0, 2])
OFFSETS = np.append(0, np.cumsum(COUNTS))


@pytest.fixture(params=["alone", "padded"])
def route(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run rows as on a CPU, each user's alone, and as on a GPU, all users' padded in one call."""
    monkeypatch.setattr("tacitly.neural.engine.one_step.runs_padded", lambda *_: request.param == "padded")


def rows(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(OFFSETS[-1], D)), rng.integers(3, size=OFFSETS[-1]).astype(float)


def executor(
    dtype: torch.dtype = torch.float64, shared: str = "body", groups: bool = False, **training: object
) -> Executor:
    torch.manual_seed(0)
    loss = training.get("loss", "classes")
    classes = 3 if loss == "classes" else 1
    body, head = (module.to(dtype) for module in mlp(D, (8, 5), classes=classes))
    settings = LocalTraining(**{"head_steps": 3, "rows": 16, **training})  # type: ignore[arg-type]
    update = UserUpdate(body=Flat(body), head=Flat(head), training=settings, classes=classes, shared=shared)
    parts = [*update.body.shapes.values(), *(update.head.shapes.values() if update.move_head else ())]
    lengths = tuple(shape.numel() for shape in parts) if groups else ()
    return Executor(update, device="cpu", workers=2, groups=lengths)


def start_of(asked: Executor) -> np.ndarray:
    update = asked.update
    parts = [update.body.start, update.head.start] if update.move_head else [update.body.start]
    return torch.cat(parts).double().numpy()


def one_by_one(asked: Executor) -> Executor:
    """Return the executor set to materialise every gradient, as with several local steps."""
    asked.one_step = False
    return asked


@pytest.mark.parametrize("shared", ["body", "both", "sum"])
@pytest.mark.parametrize(
    "training",
    [{}, {"cross_fit": False}, {"batch_rows": 5}, {"head_steps": 0}, {"loss": "squares"}],
    ids=lambda value: "-".join(value) or "plain",
)
@pytest.mark.parametrize("groups", [False, True])
@pytest.mark.usefixtures("route")
def test_it_is_the_same_update_as_with_gradients(shared: str, training: dict[str, object], groups: bool) -> None:
    X, y = rows()
    for dtype, close in ((torch.float64, 1e-12), (torch.float32, 1e-6)):
        quick = executor(dtype, shared, groups, **training)
        plain = one_by_one(executor(dtype, shared, groups, **training))
        assert quick.one_step
        quick.chunk, public = 4, start_of(quick)
        for bound, normalised in ((1e-2, True), (1e-2, False), (1e3, False)):
            if normalised and groups:
                continue  # tensors with zero gradient would be scaled to norm one from rounding errors alone
            one, two = (
                asked.clipped_sum(public, X, y, OFFSETS, bound, 1, normalised=normalised) for asked in (quick, plain)
            )
            # In float32 the other route's update is a difference of weights and is rounded like them.
            assert np.linalg.norm(one - two) <= close * (np.linalg.norm(two) if dtype == torch.float64 else 1.0)
        one, two = (asked.norms(public, X, y, OFFSETS, 1) for asked in (quick, plain))
        # A user without rows has a NaN norm on the other route; on both routes the contribution is zero.
        np.testing.assert_allclose(one, np.nan_to_num(two), rtol=close if dtype == torch.float64 else 1e-4, atol=1e-12)


def test_what_runs_row_by_row_and_what_does_not() -> None:
    def chosen(body: nn.Module, **training: object) -> bool:
        settings = LocalTraining(**{"rows": 4, **training})  # type: ignore[arg-type]
        update = UserUpdate(body=Flat(body), head=Flat(nn.Linear(4, 3)), training=settings, classes=3)
        return Executor(update, device="cpu").one_step

    assert chosen(nn.Sequential(nn.Linear(D, 4), nn.Tanh()))
    assert chosen(nn.Sequential(nn.Linear(D, 5), nn.LayerNorm(5).requires_grad_(False), nn.Linear(5, 4)))
    assert chosen(LinearWithSkip(D, 2, 2))
    assert not chosen(nn.Linear(D, 4), local_steps=2)
    assert not chosen(nn.Linear(D, 4), augment=lambda x: -x)
    assert not chosen(nn.Sequential(nn.Linear(D, 4), nn.LayerNorm(4)))
    assert not chosen(nn.Sequential(nn.Linear(D, 4), nn.LayerNorm((4, 4)).requires_grad_(False)))
    assert not chosen(nn.Sequential(nn.Flatten(0), nn.Linear(D, 4)))
    assert not chosen(nn.Sequential(nn.Linear(D, 4), nn.PReLU().requires_grad_(False)))
    assert not chosen(lenet(widths=(2, 2, 4, 4))[0])
    assert not executor(groups=False).groups
    uneven = executor()
    assert not Executor(uneven.update, device="cpu", groups=(10, uneven.size - 10)).one_step


def hostile(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of a user that are built to exceed the clip."""
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(16, D)), rng.integers(3, size=16).astype(float)
    match name:
        case "huge":
            X *= 1e30
        case "one huge row":
            X[3] *= 1e25
        case "denormal":
            X *= 1e-310
        case "tiny":
            X *= 1e-160
        case "pairs that cancel":
            X[1::2], y[1::2] = X[::2], (y[::2] + 1) % 3
        case "huge pairs that nearly cancel":
            X *= 1e6
            X[1::2], y[1::2] = X[::2] * (1 + 1e-7), (y[::2] + 1) % 3
        case "equal rows":
            X[:], y[:] = X[0], y[0]
        case "nothing":
            X[:] = 0.0
    return X, y


HOSTILE = (
    *("ordinary", "huge", "one huge row", "denormal", "tiny", "pairs that cancel"),
    *("huge pairs that nearly cancel", "equal rows", "nothing"),
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("normalised", "groups"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("loss", ["classes", "squares"])
@pytest.mark.usefixtures("route")
def test_nobody_moves_the_sum_by_more_than_the_clip(
    dtype: torch.dtype, normalised: bool, groups: bool, loss: str
) -> None:
    """Compare the sum with one user and with that user's rows set to NaN, in float64."""
    X, y = rows()
    asked = executor(dtype, groups=groups, loss=loss, cross_fit=False, head_steps=0)
    asked.chunk, public, longest = 8, start_of(asked), 0.0
    offsets = np.append(OFFSETS, OFFSETS[-1] + 16)
    for name in HOSTILE:
        mine, targets = hostile(name)
        for bound in (1e-3, 1.0):
            with np.errstate(all="ignore"):
                sums = [
                    asked.clipped_sum(
                        public, np.vstack([X, user]), np.append(y, targets), offsets, bound, 0, normalised=normalised
                    )
                    for user in (mine, np.full_like(mine, np.nan))
                ]
            moved = np.linalg.norm((sums[0] - sums[1]) / bound)
            assert moved <= 1.0, name
            longest = max(longest, moved)
    assert longest > 0.999


@pytest.mark.parametrize("hole", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.usefixtures("route")
def test_a_hole_zeroes_its_user_exactly_and_nobody_else(hole: float, dtype: torch.dtype) -> None:
    X, y = rows()
    asked = executor(dtype)
    asked.chunk, public = 8, start_of(asked)
    X[OFFSETS[2] + 3, 1] = hole
    total = asked.clipped_sum(public, X, y, OFFSETS, 0.01, 0, normalised=True)
    X[OFFSETS[2] : OFFSETS[3]] = np.nan
    assert (total == asked.clipped_sum(public, X, y, OFFSETS, 0.01, 0, normalised=True)).all()
    alone = sum(
        asked.clipped_sum(public, X[a:b], y[a:b], np.array([0, b - a]), 0.01, 0, normalised=True)
        for i, (a, b) in enumerate(itertools.pairwise(OFFSETS))
        if i != 2
    )
    np.testing.assert_allclose(total, alone, atol=1e-8)
    assert np.isfinite(asked.norms(public, X, y, OFFSETS, 0)).tolist() == [True, True, False, True, True, True]


@pytest.mark.parametrize("change", ["nan", "huge", "other", "fewer"])
@pytest.mark.usefixtures("route")
def test_nothing_of_others_moves_by_a_bit(change: str) -> None:
    X, y = rows()
    asked = executor(torch.float32)
    public = asked._public(start_of(asked))
    counts = COUNTS.copy()

    def pieces() -> list[Products | Vectors]:
        offsets = np.append(0, np.cumsum(counts))
        return OneStep(asked.update)(public, *asked.packing(X, y, offsets, 8, 0), asked.home.start([None] * 8, 0))[0]

    before = pieces()
    changed = slice(OFFSETS[2], OFFSETS[3])
    if change == "fewer":
        gone = np.arange(OFFSETS[2] + 1, OFFSETS[3])
        X, y, counts[2] = np.delete(X, gone, 0), np.delete(y, gone), 1
    else:
        X[changed] = {"nan": np.nan, "huge": 1e30, "other": 0.5}[change]
    after = pieces()
    for one, two in zip(before, after, strict=True):
        for user in (0, 1, 3, 4, 5, 6, 7):
            assert torch.equal(one.materialise(user), two.materialise(user))
            assert one.norm_bound[user] == two.norm_bound[user]
            assert one.scale[user] == two.scale[user]


def norms_beside(count: int, dtype: torch.dtype) -> np.ndarray:
    """Return norms of users whose rows nearly cancel, behind a user of ``count`` rows; odd widths misalign them."""
    rng, width, m = np.random.default_rng(0), 129, 64
    torch.manual_seed(0)
    body, head = (module.to(dtype) for module in mlp(width, (33,), classes=1))
    training = LocalTraining(head_steps=0, cross_fit=False, loss="squares", rows=m)
    update = UserUpdate(body=Flat(body), head=Flat(head), training=training, classes=1)
    x = rng.normal(size=(m // 2, width))
    X = np.vstack([x, x + 0.03 * rng.normal(size=x.shape)])
    with torch.no_grad():
        y = head(body(torch.tensor(X).to(dtype))).double().numpy()[:, 0]
    off = 1 + rng.random(m // 2)
    y += np.concatenate([off, -off * (1 + 0.03 * rng.normal(size=m // 2))])
    first, level = rng.normal(size=(m, width)), rng.normal(size=m)
    rows, targets = np.vstack([first[:count], *([X] * 7)]), np.concatenate([level[:count], *([y] * 7)])
    offsets = np.append(0, np.cumsum([count, *([m] * 7)]))
    asked = Executor(update, device="cpu", workers=1)
    assert asked.one_step
    return asked.norms(start_of(asked), rows, targets, offsets, 0)[1:]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_how_many_rows_another_has_moves_no_last_bit(dtype: torch.dtype) -> None:
    """Regression: with all rows in one array it changed these norms, and with them bins of the norm histogram."""
    found = [norms_beside(count, dtype) for count in (40, 41, 64)]
    assert (found[0] == found[1]).all()
    assert (found[0] == found[2]).all()
    assert len(set(found[0])) == 1


class Largest(TorchDispatchMode):
    """Records the size of the largest tensor that was allocated."""

    most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        made = func(*args, **(kwargs or {}))
        for value in made if isinstance(made, list | tuple) else [made]:
            if isinstance(value, Tensor):
                self.most = max(self.most, value.numel())
        return made


@pytest.mark.usefixtures("route")
def test_no_gradient_of_anybody_is_ever_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither for 16 users at once nor for one: no tensor is larger than rows × width, or a single body."""
    torch.manual_seed(0)
    body, head = mlp(200, (300,), classes=3)
    training = LocalTraining(head_steps=2, rows=4)
    update = UserUpdate(body=Flat(body), head=Flat(head), training=training, classes=3)
    asked = Executor(update, device="cpu", workers=1)
    asked.chunk = 16
    rng = np.random.default_rng(0)
    X, y, offsets = rng.normal(size=(64, 200)), rng.integers(3, size=64).astype(float), 4 * np.arange(17)
    for route, most in ((True, update.size), (False, 16 * update.size)):
        asked.one_step, asked.batched = route, not route
        with Largest() as seen:
            asked.clipped_sum(start_of(asked), X, y, offsets, 1.0, 0, normalised=True)
        assert seen.most <= most if route else seen.most >= most
    asked.one_step = True
    formed: list[int] = []
    genuine = torch.Tensor.__matmul__

    def counted(one: Tensor, two: Tensor) -> Tensor:
        made = genuine(one, two)
        if made.numel() >= 200 * 300:
            formed.append(one.shape[-1])
        return made

    monkeypatch.setattr(torch.Tensor, "__matmul__", counted)
    asked.clipped_sum(start_of(asked), X, y, offsets, 1.0, 0, normalised=True)
    assert formed == [64]  # one product as large as the weights, over all users' rows


def test_norms_for_a_private_clip_are_the_bounds_that_clip() -> None:
    asked = executor(torch.float32)
    X, y = rows()
    found = asked.norms(start_of(asked), X, y, OFFSETS, 0)
    given = *asked.packing(X, y, OFFSETS, 8, 0), asked.home.start([None] * 8, 0)
    pieces, _ = OneStep(asked.update)(asked._public(start_of(asked)), *given)
    np.testing.assert_array_equal(found, norms(pieces, asked.update.training.local_rate)[:6].numpy())
    for i, (a, b) in enumerate(itertools.pairwise(OFFSETS)):
        if found[i] > 0:
            lone = asked.clipped_sum(
                start_of(asked), X[a:b], y[a:b], np.array([0, b - a]), 0.5 * found[i], 0, normalised=False
            )
            assert 0.999 < np.linalg.norm(lone) / (0.5 * found[i]) <= 1.0


def test_a_chunk_that_fails_is_asked_again_in_the_same_places(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = executor(torch.float32)
    X, y = rows()
    asked.chunk, public = 8, start_of(asked)
    X[OFFSETS[1]] = 77.0
    genuine = OneStep.__call__

    def failing(self: OneStep, public: Tensor, rows: Tensor, *rest: Tensor) -> object:
        if bool((rows == 77.0).any()):
            raise RuntimeError("private")
        return genuine(self, public, rows, *rest)

    others = X.copy()
    others[OFFSETS[1] : OFFSETS[2]] = np.nan
    expected = asked.clipped_sum(public, others, y, OFFSETS, 0.01, 0, normalised=True)
    monkeypatch.setattr(OneStep, "__call__", failing)
    found = asked.clipped_sum(public, X, y, OFFSETS, 0.01, 0, normalised=True)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-15)
    assert np.isfinite(asked.norms(public, X, y, OFFSETS, 0)).tolist() == [True, False, True, True, True, True]
