"""CENTAUR (Shen et al. 2023): a network's body shared by all users, one private head per user."""

from typing import Any

from tacitly.methods.registry import AuditTrial, Method


def audit_network(features: int = 4, **settings: Any) -> dict[str, Any]:
    """Return a small network with fixed weights, and few rounds: a fit at the defaults takes a second."""
    import torch

    from tacitly.neural.networks.architectures import mlp

    body, head = mlp(features, (3,), classes=2)
    for value in (*body.parameters(), *head.parameters()):
        value.data = (torch.arange(value.numel()).cos() / 2).reshape(value.shape)
    small = {"rounds": 2, "head_steps": 1, "rows_per_user": 8, "device": "cpu"}
    return {"body": body, "head": head, **small, **settings}


METHOD = Method(
    estimator="estimator:Centaur",
    name="neural-centaur",
    data="images, or anything a network reads",
    command=None,
    result="a shared network, one personal head per user",
    page="centaur.md",
    rank=None,
    relatives=("baselines:FedAvg", "baselines:LocalHeads", "baselines:MeanRegularised", "baselines:TwoHeads"),
    engines=("local",),
    audits=(
        AuditTrial("neural centaur", audit_network, depth="brief", title="neural.Centaur, 2 rounds"),
        AuditTrial(
            "neural centaur, clip found privately",
            lambda: audit_network(clip="auto", head_steps=0, rounds=1),
            depth="brief",
        ),
        AuditTrial(
            "neural centaur, warm heads and momentum",
            lambda: audit_network(warm_heads=True, local_steps=2, local_momentum=0.9, head_decay=0.01),
            depth="long",
            title="neural.Centaur, warm heads",
        ),
    ),
)
