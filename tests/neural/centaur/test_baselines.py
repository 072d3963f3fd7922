"""Baselines on the same engine and budget."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import tacitly
from centaur_fits import D, data
from tacitly import neural

torch.set_num_threads(1)


@pytest.mark.parametrize("kind", [neural.FedAvg, neural.MeanRegularised, neural.TwoHeads, neural.LocalHeads])
def test_baselines_run_on_the_same_engine(kind: type[neural.Centaur]) -> None:
    torch.manual_seed(0)
    body, head = neural.mlp(D, (6, 4), classes=2)
    fitted = kind(body, head, epsilon=8.0, rounds=2, device="cpu").fit(*data())
    assert fitted.score(*data()) > 0.55


def test_the_mean_regulariser_has_a_gradient() -> None:
    X, y, users = data(n=20)
    bodies = []
    for pull in (0.0, 1000.0):
        torch.manual_seed(0)
        body, head = neural.mlp(D, (6, 4), classes=2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fitted = neural.MeanRegularised(
                body, head, epsilon=math.inf, rounds=1, local_steps=4, local_rate=1e-4, clip=1e6, step=1e6, device="cpu"
            )
            fitted.pull = pull
            fitted.fit(X, y, users)
        bodies.append(fitted.public_arrays())
    moved = max(float(np.abs(bodies[0][name] - bodies[1][name]).max()) for name in bodies[0])
    assert moved > 1e-7


def test_heads_alone_are_certified_at_nothing_and_saved(tmp_path: Path) -> None:
    body, head = neural.mlp(D, (6, 4), classes=2)
    fitted = neural.LocalHeads(body.requires_grad_(False), head, epsilon=1.0, device="cpu").fit(*data())
    assert fitted.certificate_.epsilon == 0.0
    assert fitted.certificate_.releases == ()
    again = tacitly.load(tacitly.save(fitted, tmp_path / "model"), body=body, head=head)
    assert (again.predict(data()[0], data()[2]) == fitted.predict(data()[0], data()[2])).all()


def test_another_pull_is_another_run(tmp_path: Path) -> None:
    body, head = neural.mlp(D, (6, 4), classes=2)
    configs = []
    for pull in (1.0, 2.0):
        asked = neural.MeanRegularised(body, head, epsilon=2.0)
        asked.pull = pull
        configs.append(asked._public_config({"n_features": D}))
    assert configs[0] != configs[1]
