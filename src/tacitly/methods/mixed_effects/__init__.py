"""Linear mixed models: the population is a private prior, every user a posterior; any units, text, missing cells."""

from tacitly.methods.options import SCHEMA, TARGET_RANGE
from tacitly.methods.registry import AuditTrial, Method, Trial

METHOD = Method(
    estimator="estimator:MixedEffects",
    name="mixed-effects",
    default=True,
    options=(SCHEMA, TARGET_RANGE),
    rank=None,
    wire=(
        "heads:PosteriorHeads",
        "posterior:Coordinates",
        "posterior:Prior",
        "queries:Coverage",
        "queries:Information",
        "queries:LogVariances",
        "queries:MeasuredScore",
        "queries:MeasuredSpread",
        "queries:Score",
        "queries:Spread",
        "queries:Variances",
        "queries:WithinVariance",
        "units:Angles",
        "units:Magnitudes",
        "units:Shares",
    ),
    coordinates=lambda d, parameters: (d + 1) * (d + 4) // 2 + d,
    small=lambda d, rank, words: {},
    data="rows by user with a number to predict, as tables come",
    result="population effects with standard errors, a personal model and intervals for every user",
    page="mixed-effects.md",
    trials=(Trial("mixed effects", {}, tolerance=1e-7, adaptive=True),),
    audits=(AuditTrial("mixed effects", {}, title="MixedEffects"),),
)
