"""The estimator: certificate, resuming, participation, rounds."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import tacitly
from centaur_fits import D, data, model
from ledgers import published_values
from tacitly import neural
from tacitly.privacy.guarantee import Budget
from tacitly.privacy.ledger import Ledger

torch.set_num_threads(1)


def test_a_certified_run_spends_its_budget_and_no_more() -> None:
    fitted = model(clip="auto").fit(*data())
    assert fitted.certificate_.certified
    assert fitted.certificate_.epsilon == pytest.approx(2.0, rel=1e-6)
    assert fitted.certificate_.epsilon <= 2.0
    assert len(fitted.certificate_.releases) == 4
    # Fewer than one fit in a hundred scores below 0.7 (median 0.92), so four of seven do with probability below 1e-6.
    assert np.median([model(clip="auto").fit(*data()).score(*data()) for _ in range(7)]) > 0.7


def test_participation_by_coin_is_cheaper_and_certified() -> None:
    alone, sampled = model(rounds=2), model(rounds=2, sampling_rate=0.25)
    X, y, users = data()
    first = alone.fit(X, y, users).certificate_.releases[0].event
    second = sampled.fit(X, y, users).certificate_.releases[0].event
    assert second.sampling_rate == 0.25
    assert second.sigma < first.sigma
    assert sampled.certificate_.epsilon <= 2.0


def test_a_resumed_run_goes_on_with_the_same_ledger(tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    def kill(name: str) -> None:
        if name == "body update 2":
            raise Killed

    ceiling = Budget(epsilon=2.0, delta=1e-6)
    with Ledger(tmp_path / "ledger", ceiling=ceiling) as ledger, pytest.raises(Killed):
        model(ledger=ledger).fit(*data(), on_release=kill)
    with Ledger(tmp_path / "ledger", ceiling=ceiling) as ledger:
        before = list(published_values(ledger).values())
        assert len(before) == 2
        done = model(ledger=ledger).fit(*data())
        after = list(published_values(ledger).values())
        assert after[:2] == before
        assert len(after) == 3
        assert ledger.spent() == pytest.approx(2.0, rel=1e-6)
    assert done.certificate_.certified


def test_another_start_is_not_the_same_run(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger", ceiling=Budget(epsilon=4.0, delta=1e-6)) as ledger:
        first = model(ledger=ledger).fit(*data())
        first._run.abandon()
        other = model(ledger=ledger)
        with torch.no_grad():
            other.body[0].weight.add_(1.0)
        with pytest.raises(tacitly.privacy.ledger.LedgerMismatch):
            other.fit(*data())


def test_frozen_layers_cost_nothing_and_stay() -> None:
    torch.manual_seed(0)
    body, head = neural.mlp(D, (6, 4), classes=2)
    body[0].requires_grad_(False)
    before = body[0].weight.clone()
    fitted = neural.Centaur(body, head, epsilon=2.0, rounds=2, head_steps=1, device="cpu").fit(*data())
    assert fitted.certificate_.releases[0].coordinates == 6 * 4 + 4
    assert (fitted.body_[0][0].weight == before).all()


class Recorded(neural.Centaur):
    """Replaces every released sum with ones."""

    def _learn(self, federation, plan, setup):  # type: ignore[no-untyped-def]
        genuine = federation.release
        federation.release = lambda query, event, name: np.ones_like(genuine(query, event, name))
        return super()._learn(federation, plan, setup)


@pytest.mark.parametrize(("clip", "rate"), [(None, 1.0), (0.5, 1.0), (0.5, 0.25), (None, 0.25)])
def test_rounds_are_divided_by_the_clip_and_the_expected_number_of_users(clip: float | None, rate: float) -> None:
    torch.manual_seed(0)
    body, head = neural.mlp(D, (6, 4), classes=2)
    settings = {"rounds": 1, "step": 3.0, "average": False, "head_steps": 1, "device": "cpu"}
    fitted = Recorded(body, head, 2.0, clip=clip, sampling_rate=rate, **settings).fit(*data())  # type: ignore[arg-type]
    moved = fitted.body_[1][0].weight - body[0].weight
    np.testing.assert_allclose(moved.detach(), 3.0 / ((clip or 1.0) * rate * 60), rtol=1e-4)


def test_an_empty_round_is_still_divided_by_the_expected_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """No user is sampled: the released noise is divided by q·n, not by a count of zero."""
    monkeypatch.setattr("tacitly.privacy.noise.coins", lambda size, rate: np.zeros(size, dtype=bool))
    fitted = model(rounds=1, sampling_rate=0.25, average=False).fit(*data())
    moved = max(float(np.abs(value).max()) for value in fitted.public_arrays().values())
    assert math.isfinite(moved)
    assert fitted.certificate_.releases[0].state == "published"


@pytest.mark.parametrize("label", [2, -1, 7, 1e30, 0.4])
@pytest.mark.filterwarnings("ignore::tacitly.data.bad_rows.SideChannelWarning")
def test_a_label_that_is_no_class_is_refused_before_anything_is_released(label: float) -> None:
    X, y, users = data()
    wrong = y.astype(float)
    wrong[3] = label
    with Ledger(ceiling=Budget(epsilon=2.0, delta=1e-6)) as ledger:
        with pytest.raises(tacitly.DataError, match="class numbers from 0 to 1") as error:
            model(ledger=ledger, on_bad_rows="raise").fit(X, wrong, users)
        assert ledger.releases() == []
    assert f"{label:g}" not in str(error.value).replace("0 to 1", "").replace("1 of 720", "").replace("from 0", "")
    with pytest.raises(tacitly.DataError, match="class numbers"):
        model().fit(X, y, users).personalize(X[:4], wrong[:4])


def test_rows_that_overflow_in_the_public_part_raise_nothing() -> None:
    X, y, users = data()
    X[:12] = 1e38
    torch.manual_seed(0)
    body, head = neural.mlp(D, (6, 4), classes=2)
    with torch.no_grad():
        body[0].weight.mul_(10)
    body[0].requires_grad_(False)
    fitted = neural.Centaur(body, head, epsilon=2.0, rounds=1, head_steps=1, device="cpu").fit(X, y, users)
    assert np.isfinite(fitted.heads_).all()
    assert fitted.certificate_.certified


def test_a_head_that_cannot_be_fitted_is_the_public_one_and_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y, users = data()
    asked = model(rounds=1)

    def failing(rows: np.ndarray, targets: np.ndarray, features: object) -> object:
        if (rows == rows[0, 0]).all():
            raise RuntimeError("private")
        return genuine(rows, targets, features)

    genuine = asked._seen
    monkeypatch.setattr(asked, "_seen", failing)
    X[:12] = 0.125
    fitted = asked.fit(X, y, users)
    public = np.concatenate([v.detach().numpy().ravel() for v in fitted.public_head_.parameters()])
    np.testing.assert_allclose(fitted.heads_[0], public)
    assert not np.allclose(fitted.heads_[1], public)


def test_read_only_rows_raise_no_warning() -> None:
    cohort = tacitly.Cohort.from_arrays(*data(), dtype=np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.manual_seed(0)
        body, _ = neural.mlp(D, (6, 4), classes=2)
        head = nn.Sequential(nn.Linear(4, 2))
        neural.Centaur(body, head, epsilon=2.0, rounds=1, head_steps=1, device="cpu").fit(cohort)


@pytest.mark.parametrize(
    "settings",
    [{"sampling_rate": 0.0}, {"step": float("nan")}, {"clip": True}, {"local_rate": 0.0}, {"augment": "flip"}],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        model(**settings).fit(*data())
