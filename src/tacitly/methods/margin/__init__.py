"""Private FedRep, Algorithm 3 (Snedeker et al. 2025): a basis for two classes, chosen by margins under pure ε."""

from tacitly.methods.options import CLASSES, INTERCEPT, MODE, RANK, classes_need_a_loss_for_classes, loss_option
from tacitly.methods.registry import AuditTrial, Method, Trial

_LISTED = 200_000  # candidates that a choice may have at most
_CHOICE = "adds up losses"

METHOD = Method(
    estimator="estimator:MarginClassifier",
    name="margin",
    delta=0.0,
    options=(RANK, INTERCEPT, loss_option("hinge", "hinge or logistic: how heads are fitted."), CLASSES, MODE),
    fixed={"random_state": 0},
    check=classes_need_a_loss_for_classes,
    selects=True,
    wire=("queries:MarginLosses",),
    limits={"node": "no: a choice needs one party that adds up losses"},
    coordinates=lambda d, parameters: max(_LISTED, int(parameters.get("candidates", 0))),
    small=lambda d, rank, words: {"rank": rank, "dimension": 2 * rank, "candidates": 4, "choices": 1, "radius": 0.5},
    plain_compiles=lambda words: True,
    data="two classes, and a guarantee with δ = 0",
    result="a shared basis chosen under pure ε, one head per user",
    page="classification.md",
    simulated=lambda shape: "it is for two classes and a guarantee with δ = 0",
    trials=(
        Trial("margin, cover", {"rank": 1, "mode": "cover", "dimension": 2}, labels=2, refused=_CHOICE),
        Trial(
            "margin, search",
            {"rank": 2, "mode": "search", "dimension": 4, "choices": 3, "candidates": 40, "heads": "second half"},
            labels=2,
            refused=_CHOICE,
        ),
        Trial(
            "margin, gradient",
            {"rank": 2, "mode": "gradient", "dimension": 4, "fit_intercept": True, "delta": 1e-6},
            labels=2,
            refused=_CHOICE,
        ),
    ),
    audits=(
        AuditTrial("margin", {"rank": 1}, title="MarginClassifier"),
        # A canary that every candidate fits, or none, changes all probabilities alike. To show the whole ε, hardly any
        # candidate may fit the canary; under replace-one another such canary replaces it. How close canaries come to
        # this depends on the few candidates.
        AuditTrial(
            "margin, search",
            {"rank": 1, "mode": "search", "choices": 4, "candidates": 16},
            reach=0.5,
            reason="how close a canary comes to ε depends on the few candidates",
        ),
        AuditTrial(
            "margin, replace-one",
            {"rank": 1, "mode": "random", "candidates": 16, "adjacency": "replace-one"},
            reach=0.3,
            reason="how close two canaries come to ε depends on the few candidates",
        ),
        AuditTrial("margin, gradient", {"rank": 1, "delta": 1e-6, "mode": "gradient"}, depth="brief"),
        AuditTrial("margin, projected", {"rank": 1, "delta": 1e-6, "mode": "gradient", "dimension": 2}, depth="brief"),
    ),
)
