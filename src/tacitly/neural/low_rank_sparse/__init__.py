"""AMHT-LRS (Pal et al. 2024): a shared network plus a sparse personal part of its weights per user."""

from typing import Any

from tacitly.methods.registry import AuditTrial, Method

_SMALL: dict[str, Any] = {
    "rank": 1,
    "sparsity": 2,
    "hidden": (3,),
    "rounds": 2,
    "head_steps": 1,
    "final_steps": 1,
    "rows_per_user": 8,
    "device": "cpu",
}

METHOD = Method(
    estimator="estimator:LowRankSparse",
    name="neural-low-rank-sparse",
    engines=("local",),
    command=None,
    relatives=("frameworks:PromptLearning",),
    data="a number to predict that is not linear in the features",
    result="a shared network, sparse personal parts",
    page="low_rank_sparse.md#networks",
    audits=(
        AuditTrial("neural low rank plus sparse", _SMALL, depth="brief", title="neural.LowRankSparse, 2 rounds"),
        AuditTrial(
            "neural low rank plus sparse, clip found privately", {**_SMALL, "clip": "auto", "rounds": 1}, depth="long"
        ),
    ),
)
