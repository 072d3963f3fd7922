"""FedPower (Guo et al. 2021): the top components of all rows: private SVD and PCA."""

from tacitly.methods.options import MODE, whole_or_word
from tacitly.methods.registry import ENGINES, AuditTrial, Method, Option, Trial

_ROWS = "protect whole users"

METHOD = Method(
    estimator="estimator:FedPower",
    name="svd",
    command="svd",
    rank="n_components",
    options=(
        Option(name="n_components", kind=whole_or_word, flag="--rank", help="Number of components, or 'auto'."),
        Option(
            name="unit", default="auto", help="row or user: whose data are protected.", required=True, compiles=True
        ),
        Option(name="center", kind=bool, default=False, help="Subtract a private mean, paid from the budget (PCA)."),
        Option(name="route", default="auto", help="auto, gram, power, device or local-noise.", compiles=True),
        Option(name="trust", default="central", help="central, or local: every user adds the noise."),
        MODE,
    ),
    wire=("gram:CentreVote", "gram:GramAgain", "gram:ShiftedGram", "power:DeviceStep", "power:PowerStep"),
    engines=ENGINES,
    limits={
        "cuda": "unit row, dense rows; others on the host",
        "ray": "yes, sparse rows too",
        "flower": "unit user; unit row if sites publish their numbers of rows; dense rows; not `trust='local'`, "
        "not `mode='paper'`",
        "node": "unit user; not in turns, not sampled",
    },
    small=lambda d, rank, words: {"n_components": rank},
    data="rows without a target",
    result="SVD and PCA, private by row or by user",
    page="fedpower.md",
    simulated=lambda shape: (
        "it is for rows without a target"
        if shape["target"]
        else {"n_components": shape["directions"], "unit": "user", "random_state": 0}
    ),
    trials=(
        # The second measurement is divided by gaps of the first, which magnifies the grid's rounding.
        Trial("gram", {"n_components": 2, "route": "gram", "center": True}, tolerance=1e-8),
        Trial(
            "gram of rows",
            {"n_components": 2, "unit": "row", "route": "gram"},
            rows=True,
            refused=_ROWS,
            tolerance=1e-8,
        ),
        Trial("power", {"n_components": 2, "route": "power", "rounds": 3, "random_state": 0}),
        Trial(
            "power, in turns",
            {"n_components": 2, "route": "power", "rounds": 2, "participants": 40, "random_state": 0},
            refused="participants and sampling_rate need trust 'central'",
        ),
        Trial("device", {"n_components": 2, "route": "device", "local_steps": 2, "rounds": 3, "random_state": 0}),
        Trial(
            "local noise",
            {
                "n_components": 2,
                "unit": "row",
                "route": "local-noise",
                "trust": "local",
                "local_steps": 2,
                "rounds": 1,
                "random_state": 0,
            },
            rows=True,
            one_by_one=True,
        ),
    ),
    audits=(
        AuditTrial("fedpower, rows", {"n_components": 1, "unit": "row"}, title="FedPower, rows"),
        AuditTrial("fedpower, users", {"n_components": 1, "unit": "user"}, title="FedPower, users"),
        AuditTrial(
            "fedpower, power", {"n_components": 1, "unit": "row", "route": "power"}, title="FedPower, power route"
        ),
    ),
)
