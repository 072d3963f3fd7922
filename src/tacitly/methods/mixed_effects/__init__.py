"""Private mixed models: a public prior of the population, learned privately, and a personal posterior for each user."""

from tacitly.methods.options import (
    CLASSES,
    SCHEMA,
    TARGET_RANGE,
    classes_need_a_loss_for_classes,
    loss_option,
    with_target,
)
from tacitly.methods.registry import ENGINES, AuditTrial, Method, Parameters, Trial


def _coordinates(n_features: int, parameters: Parameters) -> int:
    """Return the length of the longest answer: a covariance with a diagonal, or the scores of all classes."""
    weights, classes = n_features + 1, len(parameters.get("classes") or (0, 1))
    return weights * (weights + 3) // 2 + n_features + classes * (weights + 1)


_LABELS = "a label is bounded, so that no user's scores, information and sizes all reach their clips at once"

METHOD = Method(
    estimator="estimator:MixedEffects",
    name="mixed-effects",
    default=True,
    options=(SCHEMA, TARGET_RANGE, loss_option("squared", "squared, logistic or poisson."), CLASSES),
    check=classes_need_a_loss_for_classes,
    rank=None,
    wire=(
        "advantage:Advantage",
        "heads:PosteriorHeads",
        "loss_heads:LossPosteriorHeads",
        "loss_queries:Evidences",
        "loss_queries:Level",
        "loss_queries:LossInformation",
        "loss_queries:LossInformationShares",
        "loss_queries:LossScore",
        "loss_queries:LossSizes",
        "loss_queries:LossSpread",
        "loss_queries:MeasuredLossScore",
        "loss_queries:OtherLaw",
        "posterior:Coordinates",
        "posterior:Prior",
        "posterior:Slopes",
        "queries:Information",
        "queries:InformationShares",
        "queries:MeasuredScore",
        "queries:Score",
        "unit_queries:Angles",
        "unit_queries:Magnitudes",
        "unit_queries:Shares",
        "variance_queries:LogVariances",
        "variance_queries:MeasuredSpread",
        "variance_queries:Spread",
        "variance_queries:Variances",
        "variance_queries:WithinVariance",
    ),
    engines=ENGINES,
    limits={"cuda": "yes; other losses than squared on the host"},
    coordinates=_coordinates,
    small=lambda d, rank, words: {"loss": words.get("loss", "squared")},
    plain_compiles=lambda words: words.get("loss", "squared") != "squared",
    data="a table with several rows per user, and a number, class or count to predict",
    result="population effects with standard errors, a personal model and intervals for every user",
    page="mixed-effects.md",
    simulated=with_target(any_loss=True),
    trials=(
        Trial("mixed effects", {}, tolerance=1e-7, adaptive=True),
        # Posteriors of classes that a plane parts are nearly flat, which would amplify rounding.
        Trial("mixed effects, classes", {"loss": "logistic"}, labels=2, noisy=True, tolerance=1e-5, adaptive=True),
        Trial("mixed effects, counts", {"loss": "poisson"}, labels=3, tolerance=1e-7, adaptive=True),
    ),
    audits=(
        AuditTrial("mixed effects", {}, title="MixedEffects"),
        AuditTrial(
            "mixed effects, logistic",
            {"loss": "logistic"},
            depth="brief",
            title="MixedEffects, logistic",
            reach=0.5,
            reason=_LABELS,
        ),
        AuditTrial(
            "mixed effects, words",
            {"loss": "logistic", "classes": ("no", "may", "yes")},
            depth="brief",
            reach=0.5,
            reason=_LABELS,
        ),
        AuditTrial("mixed effects, poisson", {"loss": "poisson"}, depth="long", reach=0.5, reason=_LABELS),
    ),
)
