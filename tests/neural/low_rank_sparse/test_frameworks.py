"""The paper's four frameworks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

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
