"""The layers that a network may consist of: layers that store nothing about the rows they process.

A contribution must be a function of its own user's rows (:mod:`tacitly.federation.base`), and what is published must
not contain any user's values. A module is code and can store its inputs anywhere, so no dry run can prove that it does
not. The layers in ``KNOWN`` were reviewed: in evaluation mode they are functions of their input. Other layers run only
if the caller vouches for them (``trust_custom_layers=True``), and the certificate lists them as not covered. On a GPU
they are batched over users if a trial on synthetic users finds that no update depends on other users
(:mod:`tacitly.neural.engine.rehearsal`); otherwise, and on a CPU, every user gets a copy of the modules.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.modules import module as torch_modules
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import is_parametrized

from tacitly.neural.networks.adapters import LowRankAdapter
from tacitly.neural.networks.architectures import FlatToImage, InRange, LinearWithSkip
from tacitly.neural.networks.blocks import MeanOverPositions, Residual, SelfAttention, Tokens

KNOWN: frozenset[type[nn.Module]] = frozenset(
    {
        *(nn.Sequential, nn.Identity, nn.Flatten, nn.Unflatten, FlatToImage, InRange, LinearWithSkip),
        *(Residual, SelfAttention, Tokens, MeanOverPositions, LowRankAdapter),
        *(nn.Linear, nn.Conv1d, nn.Conv2d, nn.Embedding, nn.Upsample),
        *(nn.ReLU, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.ELU),
        *(nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d),
        *(nn.LayerNorm, nn.GroupNorm, nn.BatchNorm1d, nn.BatchNorm2d, nn.Dropout, nn.Dropout1d, nn.Dropout2d),
    }
)
"""Exactly these classes, because a subclass may do more."""

_HOOKS = tuple(name for name in vars(nn.Module()) if name.endswith("_hooks"))
_ADVICE = (
    "Use known layers (Linear, Conv2d, ReLU, GroupNorm ...; see docs/centaur.md), or set trust_custom_layers=True to "
    "vouch that your layers keep nothing between calls and that a row's output depends on that row alone."
)


def custom_layers_note(names: tuple[str, ...]) -> str:
    """Return what a certificate does not cover if the caller vouched for custom layers."""
    return (
        f"custom layers ({', '.join(names)}): that they keep nothing between calls, and that a row's output depends "
        "on that row alone, was vouched for by the caller (trust_custom_layers) and not checked"
    )


def custom_layers(*modules: nn.Module) -> tuple[str, ...]:
    """Return the class names of custom layers: unknown ones, and known ones that were modified.

    >>> custom_layers(nn.Linear(2, 2), nn.Sequential(nn.PReLU()))
    ('PReLU',)
    """
    custom = [layer for module in modules for layer in module.modules() if _why_custom(layer) is not None]
    return tuple(sorted({type(layer).__name__ for layer in custom}))


def check_layers(body: nn.Module, head: nn.Module, *, cuda: bool = False, trust_custom_layers: bool = False) -> None:
    """Raise an error that names the layer if it could store its inputs, or cannot be trained or published.

    >>> check_layers(nn.Sequential(nn.Linear(3, 2), nn.ReLU()), nn.Linear(2, 2))
    """
    if torch_modules._has_any_global_hook():  # type: ignore[no-untyped-call]
        raise ValueError("a global module hook is registered in this process; it could read users' rows. Remove it.")
    for where, layer in _named(body, head):
        _check_layer(where, layer)
        if cuda and isinstance(layer, nn.Embedding | nn.EmbeddingBag):
            raise ValueError(f"{where}: a category out of range stops the whole GPU. Use device='cpu'.")
        if not trust_custom_layers and (reason := _why_custom(layer)) is not None:
            raise ValueError(f"{where} {reason}. {_ADVICE}")
    _check_parameters(body, head)


def evaluation_copy(module: nn.Module) -> nn.Module:
    """Return a copy of a module in evaluation mode whose known layers do not overwrite their input."""
    copied = copy.deepcopy(module).eval()
    for layer in copied.modules():
        if type(layer) in KNOWN and getattr(layer, "inplace", False):
            setattr(layer, "inplace", False)  # noqa: B010 (an attribute of some classes only)
    return copied


def _named(body: nn.Module, head: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for part, module in (("body", body), ("head", head)):
        for name, layer in module.named_modules():
            yield label(part, name, layer), layer


def label(part: str, name: str, layer: nn.Module) -> str:
    """Return the name of a layer in messages: its class and its place in body or head.

    >>> label("body", "1", nn.ReLU())
    'ReLU (body.1)'
    """
    return f"{type(layer).__name__} ({part}{'.' if name else ''}{name})"


def _why_custom(layer: nn.Module) -> str | None:
    """Return why a layer is not one of the reviewed layers, or None if it is."""
    if type(layer) not in KNOWN:
        return "is not a layer that is known to keep nothing of the rows it sees"
    for name, value in vars(layer).items():
        if callable(getattr(type(layer), name, None)) or (name == "_compiled_call_impl" and value is not None):
            return f"has its own {name}"
        if isinstance(value, torch.Tensor):
            return f"holds a tensor that is neither a parameter nor a buffer ({name})"
    return None


def _check_layer(where: str, layer: nn.Module) -> None:
    """Raise for problems that trust cannot remove: the layer would be published, or would change with the rows."""
    if any(value is not None and is_lazy(value) for value in [*layer._parameters.values(), *layer._buffers.values()]):
        raise ValueError(f"{where} does not know its size yet. Run it on a synthetic row first.")
    if is_parametrized(layer):
        raise ValueError(f"{where} computes its weights in every call (a parametrization). Remove it.")
    for name in _HOOKS:
        if getattr(layer, name):
            raise ValueError(f"{where} has a hook ({name.strip('_')}), which would see users' rows. Remove it.")
    if type(layer).get_extra_state is not nn.Module.get_extra_state:
        raise ValueError(f"{where} has a get_extra_state, whose output would be published unchecked. Remove it.")
    if isinstance(layer, _BatchNorm) and (layer.training or layer.running_mean is None):
        raise ValueError(
            f"{where} mixes users: use GroupNorm, or call eval() on it, so that its statistics are constants."
        )
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.max_norm is not None:
        raise ValueError(f"{where} writes into its table on lookup. Use max_norm=None.")
    for name, value in [*layer._parameters.items(), *layer._buffers.items()]:
        if value is None:
            continue
        if type(value) not in (nn.Parameter, torch.Tensor):
            raise ValueError(f"{where} has a {name} of type {type(value).__name__}. Use plain tensors.")
        if value.is_floating_point() and value.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"{where} has numbers of type {value.dtype}. Use float32 or float64.")
        if value.is_complex():
            raise ValueError(f"{where} has complex numbers. Use float32 or float64.")


def _check_parameters(body: nn.Module, head: nn.Module) -> None:
    """Raise if a parameter is used twice, if there are two number types, or if a head has no trainable parameters."""
    seen: dict[int, str] = {}
    types: dict[torch.dtype, str] = {}
    for part, module in (("body", body), ("head", head)):
        for name, value in module.named_parameters(remove_duplicate=False):
            where = f"{part}.{name}"
            if id(value) in seen:
                raise ValueError(
                    f"{where} is the same parameter as {seen[id(value)]}: tied weights are not supported. Use separate "
                    "parameters."
                )
            seen[id(value)] = where
            types.setdefault(value.dtype, where)
    if len(types) > 1:
        found = ", ".join(f"{dtype} ({where})" for dtype, where in types.items())
        raise ValueError(f"body and head must have numbers of one type. Found {found}.")
    if not any(value.requires_grad for value in head.parameters()):
        raise ValueError("the head has no trainable parameters: there is nothing for a user to fit.")
