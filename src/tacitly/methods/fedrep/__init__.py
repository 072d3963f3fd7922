"""Private FedRep (Snedeker et al. 2025): a shared basis, one head per user."""

from tacitly.methods.options import CLASSES, INTERCEPT, MODE, RANK, ROUNDS, classes_need_a_loss_for_classes
from tacitly.methods.registry import AuditTrial, Method, Option, Trial

METHOD = Method(
    package=__name__,
    estimator="estimator:PrivateFedRep",
    name="fedrep",
    default=True,
    summary="a shared basis by clipped gradients, one head per user; numbers, classes or counts",
    data="rows per user with a number, a class or a count to predict",
    result="a shared basis, and a head per user",
    paper="Private FedRep (Snedeker et al. 2025)",
    page="private-fedrep.md",
    options=(
        RANK,
        INTERCEPT,
        Option(name="loss", default="squared", help="squared, logistic, hinge or poisson.", compiles=True),
        CLASSES,
        ROUNDS,
        MODE,
    ),
    check=classes_need_a_loss_for_classes,
    wire=(
        "algorithm:BasisStep",
        "as_printed:BasisGradient",
        "as_printed:PairStatistic",
        "as_printed:PaperHeads",
        "loss_step:LossStep",
    ),
    small=lambda d, rank, words: {"rank": rank, "rounds": 1},
    plain_compiles=lambda words: words.get("loss", "squared") != "squared",
    trials=(
        Trial(name="fedrep", parameters={"rank": 2, "rounds": 4}),
        Trial(name="fedrep, intercepts", parameters={"rank": 2, "rounds": 3, "fit_intercept": True}),
        Trial(name="fedrep, as printed", parameters={"rank": 2, "mode": "paper"}, certified=False),
        Trial(
            name="logistic",
            parameters={"rank": 2, "rounds": 3, "loss": "logistic", "fit_intercept": True},
            labels=2,
        ),
        Trial(
            name="three classes",
            parameters={"rank": 2, "rounds": 2, "loss": "logistic", "classes": (0, 1, 2)},
            labels=3,
        ),
        Trial(name="hinge", parameters={"rank": 2, "rounds": 2, "loss": "hinge"}, labels=2),
        Trial(name="poisson", parameters={"rank": 2, "rounds": 2, "loss": "poisson"}, labels=3),
    ),
    audits=(
        AuditTrial(name="fedrep", parameters={"rank": 1}, title="PrivateFedRep"),
        AuditTrial(
            name="fedrep, replace-one",
            parameters={"rank": 1, "adjacency": "replace-one"},
            title="PrivateFedRep, replace-one",
            reach=0.5,
            reason="how opposite two users' corrections are depends on the basis, and so on the noise of the run",
        ),
        AuditTrial(
            name="fedrep, centred",
            parameters={"rank": 1, "fit_intercept": True},
            title="PrivateFedRep, intercepts",
        ),
        AuditTrial(
            name="fedrep, logistic",
            parameters={"rank": 1, "loss": "logistic"},
            title="PrivateFedRep, logistic",
        ),
        AuditTrial(
            name="fedrep, words",
            parameters={"rank": 1, "loss": "logistic", "classes": ("no", "may", "yes")},
            depth="brief",
        ),
        AuditTrial(name="fedrep, poisson", parameters={"rank": 1, "loss": "poisson", "rounds": 2}, depth="brief"),
    ),
)
