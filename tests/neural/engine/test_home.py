"""What users keep between rounds: it reaches nobody else, and a round has one start."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from tacitly.arrays import read_only
from tacitly.neural.engine import executor as executor_module
from tacitly.neural.engine.executor import Executor
from tacitly.neural.engine.flat import Flat
from tacitly.neural.engine.local_training import LocalTraining
from tacitly.neural.engine.query import BodyUpdate
from tacitly.neural.engine.update import UserUpdate, public_start
from tacitly.neural.networks.architectures import mlp

torch.set_num_threads(1)
COUNTS = np.array([5, 7, 4, 6, 8])
OFFSETS = np.append(0, np.cumsum(COUNTS))
CHANGED = 4  # the last one: of state that is shared, the last to be written is what others find
FORMS = ("loop", "batch", "one step")
VARIANTS = [("body", 0.0, True), ("body", 0.0, False), ("sum", 0.0, False), ("both", 1.0, False)]


def executor(
    form: str, shared: str = "body", pull: float = 0.0, cross_fit: bool = True, **training: object
) -> Executor:
    torch.manual_seed(0)
    body, head = mlp(6, (8,), classes=3)
    settings = {"local_steps": 1 if form == "one step" else 2, "head_steps": 3, "rows": 8, "warm": True, **training}
    taken = LocalTraining(cross_fit=cross_fit, **settings)  # type: ignore[arg-type]
    update = UserUpdate(body=Flat(body), head=Flat(head), training=taken, classes=3, shared=shared, pull=pull)
    made = Executor(update, device="cpu", chunk=4, workers=1)
    made.batched = form == "batch"
    return made


def rows(change: str | None = None) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(OFFSETS[-1], 6)).astype(np.float32)
    y = rng.integers(3, size=OFFSETS[-1]).astype(np.float32)
    mine = slice(OFFSETS[CHANGED], OFFSETS[CHANGED + 1])
    if change is not None:
        X[mine] = {"nan": np.nan, "huge": 1e30, "other": 1.0}[change]
    return read_only(X), read_only(y)


def norms_of_rounds(made: Executor, X: np.ndarray, y: np.ndarray, rounds: int = 3) -> np.ndarray:
    """Return every user's norm in each round, with bodies that move the same way whatever users say."""
    public = public_start(made.update)
    return np.array([made.norms(public * (1 + 0.1 * t), X, y, OFFSETS, t) for t in range(rounds)])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("shared", "pull", "cross_fit"), VARIANTS)
def test_a_users_state_reaches_nobody_else(form: str, shared: str, pull: float, cross_fit: bool) -> None:
    """Replace one user's rows: all others' updates stay as they were in every round, to the last bit."""
    others = np.arange(len(COUNTS)) != CHANGED
    before = norms_of_rounds(executor(form, shared, pull, cross_fit), *rows())
    for change in ("nan", "huge", "other"):
        after = norms_of_rounds(executor(form, shared, pull, cross_fit), *rows(change))
        assert np.array_equal(before[:, others], after[:, others])
        assert not np.array_equal(before[:, CHANGED], after[:, CHANGED])


@pytest.mark.parametrize("form", ["loop", "batch"])
@pytest.mark.parametrize("warm", [True, False])
def test_velocities_and_decay_are_the_users_own(form: str, warm: bool) -> None:
    """Momentum is state within a round: rows that are not finite, or huge, move nobody else's velocities."""
    moving = {"local_momentum": 0.9, "local_decay": 0.1, "head_momentum": 0.5, "head_decay": 0.2, "batch_rows": 3}
    others = np.arange(len(COUNTS)) != CHANGED
    before = norms_of_rounds(executor(form, warm=warm, **moving), *rows())
    for change in ("nan", "huge", "other"):
        after = norms_of_rounds(executor(form, warm=warm, **moving), *rows(change))
        assert np.array_equal(before[:, others], after[:, others])
        assert not np.array_equal(before[:, CHANGED], after[:, CHANGED])


@pytest.mark.parametrize("form", FORMS)
def test_state_that_everybody_shares_is_noticed(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutation: one key for all users, so that one's head is where the next one starts."""
    monkeypatch.setattr(executor_module, "key_of", lambda X, y: (0, 0, 0))
    others = np.arange(len(COUNTS)) != CHANGED
    before, after = (norms_of_rounds(executor(form), *rows(change)) for change in (None, "other"))
    assert not np.array_equal(before[:, others], after[:, others])


@pytest.mark.parametrize("form", FORMS)
def test_a_round_has_one_start_and_the_next_another(form: str) -> None:
    made, cold, (X, y) = executor(form), executor(form, warm=False), rows()
    public = public_start(made.update)
    first, again = (made.norms(public, X, y, OFFSETS, 0) for _ in range(2))
    second, second_again = (made.norms(public, X, y, OFFSETS, 1) for _ in range(2))
    assert np.array_equal(first, again)
    assert np.array_equal(second, second_again)
    np.testing.assert_allclose(first, cold.norms(public, X, y, OFFSETS, 0), rtol=1e-5)
    assert not np.allclose(first, second, rtol=1e-3)


@pytest.mark.parametrize("form", FORMS)
def test_rows_that_could_change_have_no_state(form: str) -> None:
    """Whoever could change the rows could have others answered from the state: users of a dry run leave none."""
    made, (X, y) = executor(form), (part.copy() for part in rows())
    public = public_start(made.update)
    assert np.array_equal(made.norms(public, X, y, OFFSETS, 0), made.norms(public, X, y, OFFSETS, 1))
    assert not made.home._places


@pytest.mark.parametrize("form", FORMS)
def test_both_forms_of_a_query_start_from_the_same_state(form: str) -> None:
    made, (X, y) = executor(form), rows()
    public = public_start(made.update)
    for number in range(2):
        query = BodyUpdate(public, number, made, normalised=True)
        total = query.block_sum(X, y, OFFSETS, 1.0)
        alone = sum(query.contribution(X[a:b], y[a:b]) for a, b in itertools.pairwise(OFFSETS))
        np.testing.assert_allclose(total, alone, atol=2e-6)


def test_a_head_that_is_not_finite_is_not_kept() -> None:
    made, (X, y) = executor("loop"), rows("huge")
    norms_of_rounds(made, X, y)
    assert torch.isfinite(made.home._after).all()


def test_momentum_and_decay_are_those_of_sgd() -> None:
    """Three local steps on body, then heads, against torch.optim.SGD: velocities start at zero in each round."""
    torch.manual_seed(1)
    body, head = nn.Linear(6, 5).double(), nn.Linear(5, 3).double()
    settings = {"local_steps": 3, "local_rate": 0.2, "local_momentum": 0.9, "local_decay": 0.05, "head_steps": 4}
    heads = {"head_rate": 0.3, "head_momentum": 0.8, "head_decay": 0.02, "cross_fit": False}
    training = LocalTraining(rows=9, **settings, **heads)  # type: ignore[arg-type]
    update = UserUpdate(body=Flat(body), head=Flat(head), training=training, classes=3)
    X, y = (part[OFFSETS[4] :] for part in rows())
    moved = Executor(update, device="cpu").one_update(public_start(update), X, y, 0)
    inputs, labels = torch.tensor(X).double(), torch.tensor(y).long()
    start = torch.cat([value.detach().flatten() for value in body.parameters()])
    for part, steps, options in (
        (head, 4, {"lr": 0.3, "momentum": 0.8, "weight_decay": 0.02}),
        (body, 3, {"lr": 0.2, "momentum": 0.9, "weight_decay": 0.05}),
    ):
        optimiser = torch.optim.SGD(part.parameters(), **options)  # type: ignore[arg-type]
        for _ in range(steps):
            optimiser.zero_grad()
            body.zero_grad()
            nn.functional.cross_entropy(head(body(inputs)), labels).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    expected = torch.cat([value.detach().flatten() for value in body.parameters()]) - start
    np.testing.assert_allclose(moved, expected.numpy(), atol=1e-9)
