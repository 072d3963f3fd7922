"""Private alternating minimisation (Jain et al. 2021): a shared basis by noisy normal equations; for comparison."""

from dataclasses import replace

from tacitly.methods.options import RANK, ROUNDS, largest_rank
from tacitly.methods.registry import AuditTrial, Method, Parameters, Trial


def _normal_equations(n_features: int, parameters: Parameters) -> int:
    """Numbers in the normal equations of the basis: half a symmetric matrix, and the right-hand side."""
    size = n_features * largest_rank(n_features, parameters)
    return size * (size + 3) // 2


METHOD = Method(
    estimator="estimator:PrivateAltMin",
    name="altmin",
    baseline=True,
    options=(RANK, replace(ROUNDS, default=2, help="Noisy solutions for the basis.")),
    wire=("queries:NormalEquations",),
    coordinates=_normal_equations,
    data="the same as for `PrivateFedRep`, as a baseline",
    result="a shared basis by alternating minimisation",
    page="private-fedrep.md",
    simulated=lambda shape: "it is a baseline for comparison, and has no intercepts",
    trials=(Trial("altmin", {"rank": 2}, tolerance=1e-7, adaptive=True),),
    audits=(AuditTrial("altmin", {"rank": 1}, depth="brief", title="PrivateAltMin"),),
)
