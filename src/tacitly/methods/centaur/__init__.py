"""CENTAUR (Shen et al. 2023): a shared basis from secretly sampled users, one head per user."""

from tacitly.methods.options import INTERCEPT, MODE, RANK, ROUNDS, with_target
from tacitly.methods.registry import AuditTrial, Method, Option, Trial

METHOD = Method(
    estimator="estimator:Centaur",
    name="centaur",
    options=(
        RANK,
        INTERCEPT,
        Option(
            name="sampling_rate",
            kind=float,
            default=1.0,
            help="Probability with which a user takes part in a release, drawn secretly.",
        ),
        ROUNDS,
        Option(name="start", default="auto", compiles=True, exposed=False),
        MODE,
    ),
    # The start of a power method is public, and a resumed run must have the same start.
    fixed={"random_state": 0},
    wire=("queries:PowerVote", "as_printed:HeadGradient", "as_printed:PowerStatistic"),
    limits={"node": "`sampling_rate=1` only: nodes see who answers"},
    small=lambda d, rank, words: {"rank": rank, "rounds": 1},
    data="users who are sampled anew, and secretly, in every round",
    result="a shared basis, one head per user",
    page="centaur.md#linear-models",
    simulated=with_target(rank="auto", fit_intercept=True),
    trials=(
        Trial("centaur", {"rank": 2, "rounds": 3, "random_state": 0}, tolerance=1e-7, adaptive=True),
        Trial(
            "centaur, intercepts",
            {"rank": 2, "rounds": 2, "fit_intercept": True, "random_state": 0},
            tolerance=1e-7,
            adaptive=True,
        ),
        Trial(
            "centaur, power start",
            {"rank": 2, "rounds": 2, "start": "power", "power_steps": 2, "copies": 2, "random_state": 0},
            tolerance=1e-7,
            adaptive=True,
        ),
    ),
    audits=(
        AuditTrial("centaur", {"rank": 1}, title="Centaur"),
        AuditTrial("centaur, power start", {"rank": 1, "start": "power", "copies": 2, "power_steps": 2}, depth="long"),
        AuditTrial(
            "centaur, power start at its defaults",
            {"rank": 1, "start": "power"},
            depth="long",
            title="Centaur, power start",
        ),
    ),
)
