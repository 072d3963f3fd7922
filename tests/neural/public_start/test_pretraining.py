"""Pretraining on synthetic images."""

from __future__ import annotations

import torch

from tacitly import neural

torch.set_num_threads(1)


def test_a_public_start_leaves_the_common_generator_alone() -> None:
    body, _ = neural.lenet(widths=(2, 2, 4, 2))
    before = torch.get_rng_state()
    neural.contrast(body, steps=1, batch=4, scenes=8)
    assert torch.equal(before, torch.get_rng_state())
