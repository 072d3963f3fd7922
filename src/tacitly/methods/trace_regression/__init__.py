"""DP-RGrad (Zha 2024): private low-rank trace regression."""

from tacitly.methods.options import MODE
from tacitly.methods.registry import AuditTrial, Method, Option, Parameters, Trial

_ROWS = "guard whole users"
_OPPOSITE = "how opposite two users' corrections are depends on the basis, and so on the noise of the run"


def _matrix(n_features: int, parameters: Parameters) -> int:
    """Numbers in a full gradient, or in the factors of a tangent step, whichever are more."""
    rows, columns = (int(side) for side in parameters.get("shape") or (1, n_features))
    return max(rows * columns, (rows + columns) * (int(parameters["rank"]) + 2))


def _small(n_features: int, rank: int, words: Parameters) -> Parameters:
    shapes = {"entries": (2, 2), "tasks": (2, n_features - 1), "rank-one": (1, n_features - 1)}
    return {"rank": 1, "shape": shapes.get(str(words.get("design")), (1, n_features)), "steps": 1, "random_state": 0}


METHOD = Method(
    package=__name__,
    estimator="estimator:TraceRegression",
    name="trace",
    command="trace",
    summary="one low-rank matrix: matrix completion, many related regressions, matrix covariates",
    data="matrix covariates, ratings (row, column), or many related regressions",
    result="a low-rank matrix, private in observations, users or labels",
    paper="DP-RGrad (Zha 2024)",
    page="trace_regression.md",
    options=(
        Option(name="rank", kind=int, help="Rank of the matrix."),
        Option(
            name="unit",
            default="observation",
            help="observation or user: whose data are protected.",
            required=True,
            compiles=True,
        ),
        Option(name="privacy", default="full", help="full, or labels: everything but the target is public."),
        Option(name="steps", kind=int, default=8, help="Noisy gradient steps."),
        Option(name="max_observations", kind=int, default=None, help="For --unit user: most rows of a user."),
        Option(name="design", default="dense", compiles=True, exposed=False),
        Option(name="start", default="auto", compiles=True, exposed=False),
        MODE,
    ),
    # Public randomness (where power methods start) must be the same when the command is run again to resume.
    fixed={"random_state": 0},
    wire=(
        "centering:LabelSum",
        "centering:ObservationSum",
        "curvature:StepEnergy",
        "designs:Centre",
        "designs:Design",
        "queries:DesignEnergy",
        "queries:LabelledSum",
        "queries:Scales",
        "queries:TangentSum",
    ),
    limits={
        "ray": "`privacy='labels'` and `max_observations` only for rows in this process",
        "flower": "unit user; unit observation if sites publish their numbers of rows",
        "node": "unit user",
    },
    coordinates=_matrix,
    small=_small,
    plain_compiles=lambda words: True,
    trials=(
        Trial(
            name="trace of rows",
            parameters={"rank": 1, "shape": (2, 3), "steps": 3, "random_state": 0},
            rows=True,
            refused=_ROWS,
        ),
        Trial(
            name="trace of rows, powers",
            parameters={"rank": 1, "shape": (2, 3), "start": "power", "random_state": 0},
            rows=True,
            refused=_ROWS,
        ),
        Trial(
            name="trace of users",
            parameters={"rank": 1, "shape": (2, 3), "unit": "user", "steps": 3, "random_state": 0},
        ),
        Trial(
            name="trace of users, rank one",
            parameters={
                "rank": 1,
                "shape": (3, 3),
                "design": "rank-one",
                "unit": "user",
                "steps": 2,
                "random_state": 0,
            },
        ),
        Trial(
            name="trace of rows, tasks",
            parameters={"rank": 1, "shape": (3, 5), "design": "tasks", "steps": 2, "random_state": 0},
            tasks=True,
            rows=True,
            refused=_ROWS,
        ),
        Trial(
            name="trace of rows, off centre",
            parameters={"rank": 1, "shape": (2, 3), "steps": 3, "random_state": 0},
            shifted=True,
            rows=True,
            refused=_ROWS,
        ),
        Trial(
            name="trace of rows, tasks, off centre",
            parameters={"rank": 1, "shape": (3, 5), "design": "tasks", "steps": 2, "random_state": 0},
            tasks=True,
            shifted=True,
            rows=True,
            refused=_ROWS,
        ),
        Trial(
            name="trace of rows, as printed",
            parameters={
                "rank": 1,
                "shape": (2, 3),
                "mode": "paper",
                "sensitivities": (1.0, 1.0, 1.0),
                "steps": 1,
                "random_state": 0,
            },
            rows=True,
            refused=_ROWS,
            certified=False,
            tolerance=1e-5,  # unprotected sums have a clip of 2^30, and are rounded on its grid
        ),
    ),
    audits=(
        AuditTrial(
            name="trace regression",
            parameters={"rank": 1, "shape": (2, 2)},
            title="TraceRegression, observations",
        ),
        AuditTrial(
            name="trace regression, replace-one",
            parameters={"rank": 1, "adjacency": "replace-one", "shape": (2, 2)},
            reach=0.5,
            reason=_OPPOSITE,
        ),
        AuditTrial(
            name="trace regression, users",
            parameters={"rank": 1, "unit": "user", "shape": (2, 2)},
            title="TraceRegression, users",
        ),
        AuditTrial(
            name="trace regression, rank one",
            parameters={"rank": 1, "design": "rank-one", "shape": (2, 2)},
            depth="brief",
        ),
    ),
)
