"""Private FedRep (Snedeker et al. 2025): a shared basis by clipped gradients, one head per user; any loss."""

from tacitly.methods.options import (
    CLASSES,
    INTERCEPT,
    MODE,
    RANK,
    ROUNDS,
    classes_need_a_loss_for_classes,
    loss_option,
    with_target,
)
from tacitly.methods.registry import ENGINES, AuditTrial, Method, Trial

METHOD = Method(
    estimator="estimator:PrivateFedRep",
    name="fedrep",
    options=(RANK, INTERCEPT, loss_option("squared", "squared, logistic, hinge or poisson."), CLASSES, ROUNDS, MODE),
    check=classes_need_a_loss_for_classes,
    wire=(
        "queries:BasisStep",
        "as_printed:BasisGradient",
        "as_printed:PairStatistic",
        "as_printed:PaperHeads",
        "queries:LossStep",
    ),
    engines=ENGINES,
    limits={
        "cuda": "yes; `mode='paper'` on the host",
        "node": "`sampling_rate=1` only: nodes see who answers",
    },
    small=lambda d, rank, words: {"rank": rank, "rounds": 1},
    plain_compiles=lambda words: words.get("loss", "squared") != "squared",
    data="a table with many columns whose effects lie in a few common directions",
    result="a shared basis, one head per user",
    page="private-fedrep.md",
    simulated=with_target(any_loss=True, rank="auto", fit_intercept=True),
    trials=(
        Trial("fedrep", {"rank": 2, "rounds": 4}, tolerance=1e-7, adaptive=True),
        Trial("fedrep, auto", {"rank": "auto", "rounds": 3}, tolerance=1e-7, adaptive=True),
        Trial("fedrep, intercepts", {"rank": 2, "rounds": 3, "fit_intercept": True}, tolerance=1e-7, adaptive=True),
        Trial("fedrep, as printed", {"rank": 2, "mode": "paper"}, certified=False),
        Trial("logistic", {"rank": 2, "rounds": 3, "loss": "logistic", "fit_intercept": True}, labels=2),
        Trial("three classes", {"rank": 2, "rounds": 2, "loss": "logistic", "classes": (0, 1, 2)}, labels=3),
        Trial("hinge", {"rank": 2, "rounds": 2, "loss": "hinge"}, labels=2),
        Trial("poisson", {"rank": 2, "rounds": 2, "loss": "poisson"}, labels=3),
    ),
    audits=(
        AuditTrial("fedrep", {"rank": 1}, title="PrivateFedRep"),
        AuditTrial(
            "fedrep, replace-one",
            {"rank": 1, "adjacency": "replace-one"},
            depth="brief",
            title="PrivateFedRep, replace-one",
            reach=0.5,
            reason="the angle between two users' corrections depends on the basis, and so on the noise of the run",
        ),
        AuditTrial(
            "fedrep, centred", {"rank": 1, "fit_intercept": True}, depth="brief", title="PrivateFedRep, intercepts"
        ),
        AuditTrial("fedrep, logistic", {"rank": 1, "loss": "logistic"}, depth="brief", title="PrivateFedRep, logistic"),
        AuditTrial(
            "fedrep, words",
            {"rank": 1, "loss": "logistic", "classes": ("no", "may", "yes"), "rounds": 3},
            depth="brief",
        ),
        AuditTrial("fedrep, poisson", {"rank": 1, "loss": "poisson", "rounds": 2}, depth="long"),
    ),
)
