"""A private recommender: item effects, factors and popularity are shared and private, tastes stay with their users."""

from tacitly.methods.registry import AuditTrial, Method, Trial

_SMALL = {"items": tuple(range(8)), "rating_range": (-3.0, 3.0)}

METHOD = Method(
    estimator="estimator:Recommender",
    name="recommender",
    command=None,
    rank=None,
    wire=(
        "choices:ChoiceMoments",
        "heads:RatingHeads",
        "posterior:Catalogue",
        "posterior:WeightPrior",
        "queries:ItemSums",
        "queries:LoadingSums",
        "queries:PairMoments",
        "queries:PriorStep",
        "queries:TasteMoment",
        "tastes:Tastes",
    ),
    small=lambda d, rank, words: {**_SMALL, "item_features": tuple((float(j % 2),) for j in range(8))},
    plain_compiles=lambda parameters: True,
    data="ratings or plays of items by users, and a public catalogue",
    result="item effects, factors and popularity; personal predictions and recommendations",
    page="recommender.md",
    simulated=lambda shape: "it is for ratings of items",
    trials=(Trial("recommender", {**_SMALL, "random_state": 0}, tolerance=1e-6),),
    audits=(AuditTrial("recommender", _SMALL, title="Recommender"),),
)
