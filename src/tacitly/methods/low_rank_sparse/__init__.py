"""AMHT-LRS (Pal et al. 2024): a shared basis plus a few personal coordinates per user."""

from typing import Any

from tacitly.methods.options import INTERCEPT, MODE, RANK, ROUNDS, count_fraction_or_word, largest_rank, with_target
from tacitly.methods.registry import ENGINES, AuditTrial, Method, Option, Parameters, Trial


def _normal_equations(n_features: int, parameters: Parameters) -> int:
    size = n_features * largest_rank(n_features, parameters)
    return size * (size + 1)


_CHECKED: dict[str, Any] = {"tolerance": 1e-7, "adaptive": True}

METHOD = Method(
    estimator="estimator:LowRankSparse",
    name="low-rank-sparse",
    options=(
        RANK,
        Option(
            name="sparsity",
            kind=count_fraction_or_word,
            default="auto",
            help="Personal coordinates of a user: a count, a fraction, or auto.",
            compiles=True,
        ),
        Option(
            name="shared_weight",
            kind=bool,
            default=False,
            help="With rank 1: one central model, sparsely fine-tuned by every user.",
            compiles=True,
        ),
        INTERCEPT,
        ROUNDS,
        Option(name="route", default="auto", compiles=True, exposed=False),
        Option(name="start", default="random", compiles=True, exposed=False),
        MODE,
    ),
    wire=(
        "as_printed:ClippedGram",
        "as_printed:ClippedRight",
        "as_printed:Clips",
        "as_printed:TargetMoment",
        "heads:SparseHeadWork",
        "heads:Sparsity",
        "queries:SparseEquations",
        "queries:SparseStep",
        "thresholds:PrintedSparseHeads",
        "thresholds:Thresholds",
    ),
    coordinates=_normal_equations,
    engines=ENGINES,
    limits={"cuda": "yes; `route='equations'` and `mode='paper'` on the host"},
    small=lambda d, rank, words: {"rank": rank, "rounds": 1, "sparsity": 1},
    plain_compiles=lambda words: True,
    data="users who share a model except for a few coefficients",
    result="a shared basis plus sparse personal weights",
    page="low_rank_sparse.md",
    simulated=with_target(rank=1, shared_weight=True, fit_intercept=True),
    trials=(
        Trial("sparse", {"rank": 2, "sparsity": 1, "rounds": 3, "fit_intercept": True}, **_CHECKED),
        Trial("sparse, chosen", {"rank": 2, "sparsity": "auto", "rounds": 2}, **_CHECKED),
        Trial(
            "sparse, equations",
            {"rank": 2, "sparsity": 1, "route": "equations", "rounds": 2},
            tolerance=1e-7,
            adaptive=True,
        ),
        Trial(
            "sparse, central",
            {"rank": 1, "sparsity": 1, "shared_weight": True, "rounds": 3},
            tolerance=1e-7,
            adaptive=True,
        ),
        Trial(
            "sparse, as printed",
            {"rank": 2, "sparsity": 1, "mode": "paper", "clips": (5, 5, 5, 2, 8), "start": "moments", "rounds": 2},
            tolerance=1e-4,  # the printed equations amplify rounding errors of the sums by a factor of ten million
        ),
    ),
    audits=(
        AuditTrial("low rank plus sparse", {"rank": 1, "sparsity": 1}, depth="brief", title="LowRankSparse"),
        AuditTrial(
            "low rank plus sparse, one weight",
            {"rank": 1, "sparsity": 1, "shared_weight": True},
            depth="long",
            title="LowRankSparse, one weight",
        ),
    ),
)
