"""Algorithms 1 and 2 as printed, knobs that would be ignored, and the warning before anything is spent."""

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
from tacitly import neural
from tacitly.neural.centaur.noise_warning import NoiseWarning, noise_to_signal

torch.set_num_threads(1)
PAPER = {"mode": "paper", "clip": 0.1}


def test_paper_mode_is_certified_and_moves_by_the_noisy_mean() -> None:
    fitted = model(**PAPER, rounds=1, step=0.5).fit(*data())
    assert fitted.certificate_.certified
    assert fitted.certificate_.epsilon <= 2.0
    value = model(**PAPER, epsilon=math.inf, rounds=1, step=0.5, noise="float")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value.fit(*data())
    moved = [after - before for after, before in zip(value.body_.parameters(), value.body.parameters(), strict=True)]
    length = float(torch.cat([part.detach().flatten() for part in moved]).norm())
    assert 0.0 < length <= 0.5 * 0.1  # in units of the mean of clipped updates, not of the clip


def test_heads_of_paper_mode_are_warm_fitted_by_steps_and_stay_out_of_the_model(tmp_path: Path) -> None:
    X, y, users = data(n=20)
    warm, cold = (model(**PAPER, rounds=3, head_steps=4, warm_heads=on, noise_seed=1) for on in (None, False))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scores = [each.fit(X, y, users).score(X, y, users) for each in (warm, cold)]
    assert not np.array_equal(warm.heads_, cold.heads_)
    assert min(scores) > 0.5
    assert "_at_home" not in vars(warm)
    tacitly.save(warm, tmp_path / "model")
    kept = {path.name for path in (tmp_path / "model").rglob("*") if path.is_file()}
    assert not any("home" in name or "warm" in name for name in kept)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"mode": "paper"}, "clips updates to a number"),
        ({**PAPER, "clip": "auto"}, "clips updates to a number"),
        ({**PAPER, "average": True}, "has no average"),
        ({**PAPER, "cross_fit": True}, "has no cross_fit"),
        ({**PAPER, "per_layer": True}, "has no per_layer"),
        ({**PAPER, "sampling_rate": 0.5}, "traces of the rounds in which"),
        ({"warm_heads": True, "sampling_rate": 0.5}, "traces of the rounds in which"),
        ({"warm_heads": True, "head_steps": 0}, "no effect"),
        ({"cross_fit": True, "head_steps": 0}, "no effect"),
        ({"clip_share": 0.2}, "clip='auto' only"),
        ({"local_momentum": 0.9}, "no effect on a single step"),
        ({"head_momentum": 1.0}, "head_momentum must lie"),
        ({"local_decay": -1.0}, "local_decay must be"),
        ({"mode": "printed"}, "mode must be"),
    ],
)
def test_what_would_be_ignored_raises(settings: dict[str, object], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        model(**settings).fit(*data())


@pytest.mark.parametrize("kind", [neural.FedAvg, neural.LocalHeads])
def test_methods_without_heads_in_rounds_refuse_warm_ones(kind: type[neural.Centaur]) -> None:
    body, head = neural.mlp(D, (4,), classes=2)
    with pytest.raises(ValueError, match="no effect"):
        kind(body, head, epsilon=1.0, warm_heads=True, device="cpu").fit(*data())


def test_a_head_that_no_round_fitted_is_personal_at_the_end() -> None:
    """A head that is not linear used to stay the public one with head_steps=0."""
    torch.manual_seed(0)
    body = neural.mlp(D, (6,), classes=2)[0].requires_grad_(True)
    head = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    X, y, users = data(n=12)
    fitted = neural.LocalHeads(body, head, epsilon=1.0, head_steps=0, device="cpu").fit(X, y, users)
    assert fitted.score(X, y, users) > 0.75


def test_noise_beyond_any_signal_is_said_before_anything_is_spent() -> None:
    """σ√p/(n√T) is public: 7·6 + 6 + 6·4 + 4 = 76 parameters, 60 users."""
    asked = model(epsilon=0.1)
    with pytest.warns(NoiseWarning, match="p = 76 learned parameters, n = 60 users"):
        asked.plan(tacitly.neural.Centaur._cohort(asked, *data()))
    with warnings.catch_warnings():
        warnings.simplefilter("error", NoiseWarning)
        model(epsilon=8.0).plan(tacitly.neural.Centaur._cohort(asked, *data()))
    assert noise_to_signal(10.0, 400, 100, 4) == 1.0


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        *(
            ({"head_steps": 0, name: 0.3}, f"{name} has no effect")
            for name in ("head_rate", "head_momentum", "head_decay")
        ),
        ({"batch_rows": 0}, "batch_rows must be a whole number, at least 1. Found 0"),
        ({"rounds": 2.5}, "rounds must be a whole number"),
        ({"head_steps": True}, "head_steps must be a whole number"),
        ({"threads": 0}, "threads must be a whole number"),
        ({"local_rate": "a"}, "local_rate must be a number"),
        ({"clip": 0.0}, "clip must be None, 'auto' or a number"),
        ({"clip": "norm"}, "clip must be None, 'auto' or a number"),
        ({"device": "tpu"}, "device must be"),
    ],
)
def test_numbers_that_cannot_be_are_named(settings: dict[str, object], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        model(**settings).fit(*data())


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        *((kind, {"head_steps": 3}) for kind in (neural.FedAvg, neural.MeanRegularised)),
        (neural.FedAvg, {"head_rate": 0.3}),
        (neural.MeanRegularised, {"cross_fit": True}),
        (neural.TwoHeads, {"cross_fit": True}),
    ],
)
def test_baselines_refuse_what_they_would_ignore(kind: type[neural.Centaur], settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="has no effect"):
        kind(*neural.mlp(D, (4,), classes=2), epsilon=1.0, device="cpu", **settings).fit(*data())  # type: ignore[arg-type]


def test_a_mean_regularised_network_may_be_kept_at_home() -> None:
    made = neural.MeanRegularised(*neural.mlp(D, (4,), classes=2), epsilon=9.0, device="cpu", rounds=1, warm_heads=True)
    assert made.fit(*data()).certificate_.certified


def test_a_head_of_one_output_is_not_for_classes() -> None:
    with pytest.raises(ValueError, match="one output per class, at least 2"):
        neural.Centaur(nn.Linear(D, 2), nn.Linear(2, 1), epsilon=1.0, device="cpu").fit(*data())
