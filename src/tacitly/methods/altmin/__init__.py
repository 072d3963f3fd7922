"""Private alternating minimisation (Jain et al. 2021)."""

from dataclasses import replace

from tacitly.methods.options import RANK, ROUNDS
from tacitly.methods.registry import AuditTrial, Method, Parameters, Trial


def _normal_equations(n_features: int, parameters: Parameters) -> int:
    """Numbers in the normal equations of the basis: half a symmetric matrix, and the right-hand side."""
    size = n_features * int(parameters["rank"])
    return size * (size + 3) // 2


METHOD = Method(
    package=__name__,
    estimator="estimator:PrivateAltMin",
    name="altmin",
    summary="a shared basis by noisy normal equations; for comparison with fedrep",
    data="the same, few features",
    result="a shared basis, and a head per user, by alternating minimisation",
    paper="Private alternating minimisation (Jain et al. 2021)",
    page="private-fedrep.md",
    options=(RANK, replace(ROUNDS, default=2, help="Noisy solutions for the basis.")),
    wire=("algorithm:NormalEquations",),
    coordinates=_normal_equations,
    trials=(Trial(name="altmin", parameters={"rank": 2}),),
    audits=(AuditTrial(name="altmin", parameters={"rank": 1}, title="PrivateAltMin"),),
)
