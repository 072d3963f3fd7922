"""Nothing of one user may stay in a module, and nothing of any user may be published in it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from small_networks import TRAPS, D, M, Trap, body_with, data, model
from tacitly import neural
from tacitly.neural.engine.layers import check_layers

torch.set_num_threads(1)


def test_batch_normalisation_is_refused_by_name_unless_it_is_a_constant() -> None:
    with pytest.raises(ValueError, match=r"BatchNorm1d \(body.1\) mixes users: use GroupNorm"):
        model(body_with(nn.BatchNorm1d(5))).fit(*data())
    with pytest.raises(ValueError, match="mixes users"):
        model(body_with(nn.BatchNorm1d(5, track_running_stats=False).eval())).fit(*data())
    fitted = model(body_with(nn.BatchNorm1d(5)).eval()).fit(*data())
    published = [value for value in fitted.body_.state_dict().items() if "running" in value[0] or "num" in value[0]]
    assert [float(value.sum()) for _, value in published] == [0.0, 5.0, 0.0]


@pytest.mark.parametrize("kind", [neural.Centaur, neural.FedAvg, neural.LocalHeads])
@pytest.mark.parametrize("place", TRAPS)
def test_nothing_of_a_user_stays_in_a_layer_that_the_user_vouched_for(place: str, kind: type[neural.Centaur]) -> None:
    """Rows that trigger the trap change no other user's head or prediction, and nothing of them is published."""
    X, y, users = data()
    torch.manual_seed(0)
    body, head = TRAPS[place](), nn.Linear(4, 2)
    if place == "behind what is learned":
        with torch.no_grad():
            body[0].weight.copy_(2.0 * torch.eye(D))
    trap = next(layer for layer in body if isinstance(layer, Trap))
    with pytest.raises(ValueError, match=r"Trap \(body\.\d\) is not a layer that is known"):
        kind(body, head, epsilon=2.0, device="cpu").fit(X, y, users)
    found = []
    for size in (1.0, 38.5 if place != "first" else 77.0):
        mine = X.copy()
        mine[:M] = size
        asked = kind(
            body,
            head,
            epsilon=2.0,
            rounds=1,
            step=1e-9,
            device="cpu",
            rows_per_user=M,
            trust_custom_layers=True,
        )
        fitted = asked.fit(mine, y, users)
        heads, before = fitted.heads_[1:], {k: v.copy() for k, v in fitted.public_arrays().items()}
        guesses = fitted.predict(mine, users)[M:]
        after = fitted.public_arrays()
        assert all((before[name] == after[name]).all() for name in before)
        assert all(float(v) == 0.0 for k, v in fitted.body_.state_dict().items() if k.endswith("seen"))
        assert (float(trap.seen), trap._count) == (0.0, 0.0)
        assert "custom layers (Trap)" in str(fitted.certificate_)
        found.append((heads, guesses))
    np.testing.assert_allclose(found[0][0], found[1][0], atol=1e-4)
    assert (found[0][1] == found[1][1]).all()


class Subclass(nn.Linear):
    """A subclass of a known layer, which may do more."""


def with_hook(kind: str) -> nn.Module:
    layer = nn.Linear(5, 5)
    getattr(layer, kind)(lambda *_: None)
    return layer


def with_forward() -> nn.Module:
    layer = nn.Linear(5, 5)
    layer.forward = lambda x: x  # type: ignore[method-assign]
    return layer


class ExtraState(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x

    def get_extra_state(self) -> object:
        return {"rows": 1}


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(5, 5), nn.Linear(5, 5)
        self.two.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("layer", "words", "vouched"),
    [
        (Subclass(5, 5), r"Subclass \(body.1\) is not a layer that is known", True),
        (torch.nn.utils.parametrizations.weight_norm(nn.Linear(5, 5)), "a parametrization", False),
        (with_forward(), r"Linear \(body.1\) has its own forward", True),
        (with_hook("register_forward_hook"), r"Linear \(body.1\) has a hook \(forward_hooks\)", False),
        (with_hook("register_forward_pre_hook"), "has a hook", False),
        (with_hook("register_full_backward_hook"), "has a hook", False),
        (with_hook("register_state_dict_post_hook"), "has a hook", False),
        (torch.nn.utils.spectral_norm(nn.Linear(5, 5)), "has a hook", False),
        (nn.LazyLinear(5), r"LazyLinear \(body.1\) does not know its size", False),
        (nn.Embedding(5, 5, max_norm=1.0), "writes into its table", False),
        (ExtraState(), r"ExtraState \(body.1\) has a get_extra_state", False),
        (Tied(), "body.1.two.weight is the same parameter as body.1.one.weight", False),
        (nn.Linear(5, 5).bfloat16(), r"Linear \(body.1\) has numbers of type torch.bfloat16", False),
        (nn.Linear(5, 5).double(), "numbers of one type", False),
    ],
    ids=lambda value: "",
)
@pytest.mark.parametrize("kind", [neural.Centaur, neural.LocalHeads])
def test_what_could_keep_rows_is_refused_by_name(
    layer: nn.Module, words: str, vouched: bool, kind: type[neural.Centaur]
) -> None:
    custom = isinstance(layer, ExtraState | Tied)  # refused as custom layers first, unless vouched for
    with pytest.raises(ValueError, match="body.1" if custom else words):
        kind(body_with(layer), nn.Linear(4, 2), epsilon=1.0, device="cpu").fit(*data())
    if vouched:
        check_layers(body_with(layer), nn.Linear(4, 2), trust_custom_layers=True)
        return
    with pytest.raises(ValueError, match=words):
        kind(body_with(layer), nn.Linear(4, 2), epsilon=1.0, device="cpu", trust_custom_layers=True).fit(*data())


def test_a_head_with_nothing_to_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="the head has no trainable parameters"):
        model(body_with(), nn.Linear(4, 2).requires_grad_(False)).fit(*data())
