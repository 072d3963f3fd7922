"""DP-RGrad (Zha 2024): a low-rank matrix from matrix completion, many related regressions or matrix covariates."""

from typing import Any

from tacitly.methods.options import MODE, whole_or_word
from tacitly.methods.registry import AuditTrial, Method, Option, Parameters, Trial

_SUMS = {"rank": 1, "shape": (2, 3), "steps": 3, "random_state": 0}
_TASKS = {"rank": 1, "shape": (3, 5), "design": "tasks", "steps": 2, "random_state": 0}
_OPPOSITE = "the angle between two users' corrections depends on the basis, and so on the noise of the run"


def _matrix(n_features: int, parameters: Parameters) -> int:
    """Return the number of entries of a full gradient or of the factors of a tangent step, whichever is larger."""
    rows, columns = (int(side) for side in parameters.get("shape") or (1, n_features))
    from tacitly.methods.trace_regression.start import MOST_DIRECTIONS

    rank = min(rows, columns, MOST_DIRECTIONS) if parameters["rank"] == "auto" else int(parameters["rank"])
    return max(rows * columns, (rows + columns) * (rank + 2))


def _small(n_features: int, rank: int, words: Parameters) -> Parameters:
    shapes = {"entries": (2, 2), "tasks": (2, n_features - 1), "rank-one": (1, n_features - 1)}
    return {"rank": 1, "shape": shapes.get(str(words.get("design")), (1, n_features)), "steps": 1, "random_state": 0}


def _of_rows(name: str, parameters: Parameters, **kind: Any) -> Trial:
    """Return a trial whose unit of privacy is the row, which nodes that add noise refuse."""
    return Trial(name, parameters, rows=True, refused="protect whole users", **kind)


METHOD = Method(
    estimator="estimator:TraceRegression",
    name="trace",
    command="trace",
    options=(
        Option(name="rank", kind=whole_or_word, help="Rank of the matrix, or auto."),
        Option(
            name="unit",
            default="observation",
            help="observation or user: whose data are protected.",
            required=True,
            compiles=True,
        ),
        Option(name="privacy", default="full", help="full, or labels: everything but the target is public."),
        Option(
            name="steps",
            kind=int,
            default=None,
            help="Noisy gradient steps; by default as many as the budget supports.",
        ),
        Option(name="max_observations", kind=int, default=None, help="For --unit user: most rows of a user."),
        Option(name="design", default="dense", compiles=True, exposed=False),
        Option(name="start", default="auto", compiles=True, exposed=False),
        MODE,
    ),
    # Public randomness (the start of power methods) must be the same when the command is run again to resume.
    fixed={"random_state": 0},
    wire=(
        "centering:LabelSum",
        "centering:ObservationSum",
        "curvature:StepEnergy",
        "designs:Centre",
        "designs:Design",
        "effects:EffectSum",
        "effects:Shifted",
        "queries:DesignEnergy",
        "queries:LabelledSum",
        "queries:Scales",
        "queries:TangentSum",
    ),
    limits={
        "ray": "yes; `privacy='labels'` and `max_observations` only for rows in this process",
        "flower": "unit user; unit observation if sites publish their numbers of rows",
        "node": "unit user",
    },
    coordinates=_matrix,
    small=_small,
    plain_compiles=lambda words: True,
    data="labels of matrices, of matrix entries (i, j), or of many related tasks",
    result="a low-rank matrix, private by observation, user or label",
    page="trace_regression.md",
    simulated=lambda shape: "it is for matrix covariates or ratings",
    trials=(
        _of_rows("trace of rows", _SUMS),
        _of_rows("trace of rows, powers", {"rank": 1, "shape": (2, 3), "start": "power", "random_state": 0}),
        Trial("trace of users", {**_SUMS, "unit": "user"}),
        Trial("trace of users, rank one", {**_TASKS, "shape": (3, 3), "design": "rank-one", "unit": "user"}),
        _of_rows("trace of rows, tasks", _TASKS, tasks=True),
        _of_rows("trace of rows, off centre", _SUMS, shifted=True, adaptive=True),
        _of_rows("trace of rows, tasks, off centre", _TASKS, tasks=True, shifted=True, adaptive=True),
        _of_rows(
            "trace of rows, as printed",
            {**_SUMS, "mode": "paper", "sensitivities": (1.0, 1.0, 1.0), "steps": 1},
            certified=False,
            tolerance=1e-5,  # unprotected sums have a clip of 2^30, and are rounded on its grid
        ),
    ),
    audits=(
        AuditTrial("trace regression", {"rank": 1, "shape": (2, 2)}, title="TraceRegression, observations"),
        AuditTrial(
            "trace regression, replace-one",
            {"rank": 1, "adjacency": "replace-one", "shape": (2, 2)},
            depth="long",
            reach=0.5,
            reason=_OPPOSITE,
        ),
        AuditTrial(
            "trace regression, users", {"rank": 1, "unit": "user", "shape": (2, 2)}, title="TraceRegression, users"
        ),
        AuditTrial("trace regression, rank one", {"rank": 1, "design": "rank-one", "shape": (2, 2)}, depth="brief"),
    ),
)
