"""The paper's four frameworks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import tacitly
from tacitly import neural

torch.set_num_threads(1)


# Table 2: users, hidden layers; single, full, representation and prompt learning; 1 and 20 % (all in the benchmark).
PRINTED = {
    "MovieLens": (241, (50, 50), [5151, 1241391, 5392, 19701], [17924, 253863]),
    "Jester": (100, (50,), [2601, 260100, 2701, 10101], []),
}


@pytest.mark.parametrize("name", PRINTED)
def test_numbers_are_counted_as_the_paper_counts_them(name: str) -> None:
    n, hidden, four, sparse_ones = PRINTED[name]
    X, y = np.zeros((n, 50)), np.zeros(n)
    settings = {"hidden": hidden, "rounds": 1, "head_steps": 1, "final_steps": 1, "rows_per_user": 2}
    models = [neural.single_model(8.0, **settings), neural.full_fine_tuning(8.0, **settings)]
    models += [neural.representation_learning(1, 8.0, **settings)]
    models += [neural.LowRankSparse(1, share, 8.0, **settings) for share in (0.01, 0.2) if sparse_ones]
    counts = [fitted.fit(X, y, np.arange(n)).n_parameters() for fitted in models]
    prompt = neural.PromptLearning(8.0, **settings).fit(X, y, np.arange(n)).n_parameters()
    assert [*counts[:3], prompt] == four
    assert counts[3:] == sparse_ones


@pytest.mark.parametrize(
    "make",
    [
        lambda: neural.PromptLearning(math.inf, hidden=(8,), rounds=1),
        lambda: neural.LowRankSparse(1, 2, math.inf, hidden=(8,), rounds=1),
        lambda: neural.LowRankSparse(1, 2, math.inf, module=torch.nn.Linear(6, 1), rounds=1),
    ],
    ids=["prompts", "compiled", "module"],
)
def test_a_personal_part_is_the_same_to_the_last_bit_however_many_rows_others_have(make: Callable[[], Any]) -> None:
    """It told its user how many rows those have with whom it was computed."""
    rng, counts = np.random.default_rng(0), np.random.default_rng(1).integers(5, 20, size=60)
    users = np.repeat(np.arange(60), counts)
    X, y = rng.normal(size=(len(users), 6)), rng.normal(size=len(users))
    with pytest.warns(tacitly.UncertifiedWarning):
        model = make().fit(X, y, users)
    offsets = np.append(0, np.cumsum(counts))
    alone = model._own_parts(X, y, offsets)
    for more in (1, 4, 40):
        rows, targets = (np.concatenate([np.repeat(part[:1], more, axis=0), part]) for part in (X, y))
        among = model._own_parts(rows, targets, np.append(0, offsets[1:] + more))
        np.testing.assert_array_equal(among[1:], alone[1:])
