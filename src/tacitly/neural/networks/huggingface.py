"""Public text encoders from Hugging Face folders: weights from a local file; no download, no code, no pickle.

A folder holds ``config.json`` and ``model.safetensors``, and usually a tokenizer. The network comes from the installed
``transformers`` (extra ``huggingface``), never from code in the folder. A row is a text's token numbers followed by
``PADDING``; its vector is the mean of the last hidden state over its tokens. The folder's contents are public: no
certificate covers what the network was trained on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from tacitly.extras import advice

PADDING = -1
"""Fills rows after the last token, independent of the network's own padding number. GPT-2 has none."""

_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_ADAPTER = "adapter_config.json"
_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json")
_LOCAL = {"local_files_only": True, "trust_remote_code": False}


class TextEncoder(nn.Module):
    """Rows of token numbers → one vector per row; made by :func:`huggingface_encoder`.

    Negative numbers and the network's own padding number are padding. Numbers above the vocabulary are replaced by its
    last token, so that no row can stop a GPU. A row that is not finite stays so, and a row without tokens gives zeros.
    """

    def __init__(self, network: nn.Module, vocabulary: int, length: int, padding: int | None) -> None:
        super().__init__()
        self.network, self.vocabulary, self.length = network, vocabulary, length
        self.padding = PADDING if padding is None else padding
        self.own_mask = False
        """Whether the attention mask (all positions except padding) is computed here, or by the network."""

    def forward(self, rows: Tensor) -> Tensor:
        """Return the mean over tokens of the last hidden state."""
        if rows.shape[1] > self.length:
            raise ValueError(
                f"rows have {rows.shape[1]} tokens, but the encoder was loaded for {self.length}: "
                f"huggingface_encoder(folder, length={rows.shape[1]})."
            )
        numbers = torch.nan_to_num(rows).clamp(PADDING, self.vocabulary - 1).round().long()
        known = (numbers >= 0) & (numbers != self.padding)
        numbers = torch.where(known, numbers, max(self.padding, 0))
        mask = known.long()
        if self.own_mask:  # networks check whether any row is padded, which cannot be batched over users
            far = torch.finfo(rows.dtype).min
            mask = torch.where(known, 0.0, far).to(rows.dtype)[:, None, None, :].expand(-1, 1, rows.shape[1], -1)
        hidden = self.network(input_ids=numbers, attention_mask=mask).last_hidden_state
        counted = known.unsqueeze(-1).to(hidden.dtype)
        mean: Tensor = (hidden * counted).sum(1) / counted.sum(1).clamp(min=1.0)
        return mean + (0.0 * rows).sum(1, keepdim=True)


class TokenTable(nn.Module):
    """A table of vectors; numbers out of range are replaced by the nearest, while ``nn.Embedding`` would stop a GPU."""

    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self.weight = table.weight

    def forward(self, numbers: Tensor) -> Tensor:
        """Return one vector per number."""
        return nn.functional.embedding(numbers.clamp(0, self.weight.shape[0] - 1), self.weight)


def huggingface_encoder(folder: str | Path, *, length: int = 64) -> TextEncoder:
    """Load the public network in a local folder, frozen, as a map from rows of token numbers to vectors.

    Rows have at most ``length`` tokens (:func:`huggingface_rows` makes them). Use the result in
    :class:`tacitly.neural.Features`, or with :func:`tacitly.neural.adapters` as the body of
    :class:`tacitly.neural.Centaur`, both with ``trust_custom_layers=True``: the layers are those of ``transformers``,
    which were not reviewed here. Linear layers keep their names, such as ``"query"`` (BERT) or ``"c_attn"`` (GPT-2).
    """
    path = _checked(folder, "config.json", ("config.json",))
    if not any((path / name).is_file() for name in _WEIGHTS):
        raise ValueError(
            f"{path} contains no model.safetensors. Weights in other files, such as pytorch_model.bin, are pickles, "
            "which run code when they are read: convert them on a machine that you trust, with save_pretrained."
        )
    _check_parts(path / _WEIGHTS[1])
    library = _transformers()
    config = library.AutoConfig.from_pretrained(path, **_LOCAL)
    _check_config(path, config)
    if getattr(config, "is_encoder_decoder", False) or getattr(config, "vocab_size", None) is None:
        raise ValueError(
            f"{path} must contain an encoder or decoder of text. Found a network of type {config.model_type}."
        )
    config.use_cache = False
    options = {"config": config, "use_safetensors": True, "dtype": torch.float32, "attn_implementation": "eager"}
    network, found = library.AutoModel.from_pretrained(path, output_loading_info=True, **options, **_LOCAL)
    if isinstance(getattr(network, "pooler", None), nn.Module):
        network.pooler = None  # its output is not used, so no change of it should be learned
    missing = sorted(name for name in found["missing_keys"] if not name.startswith("pooler."))
    if missing:
        raise ValueError(f"{path} lacks weights of its network: {', '.join(missing[:3])} ({len(missing)} in all).")
    vocabulary = network.get_input_embeddings().weight.shape[0]
    encoder = TextEncoder(network, vocabulary, length, getattr(config, "pad_token_id", None))
    encoder.requires_grad_(False).eval()
    _settle_mask(encoder, getattr(config, "max_position_embeddings", None))
    return encoder


def huggingface_rows(folder: str | Path, texts: Sequence[str], *, length: int = 64) -> npt.NDArray[np.float32]:
    """Turn texts into rows of ``length`` token numbers with the folder's tokenizer; longer texts are truncated.

    The tokenizer is public and fixed, so each row depends on its own text only.
    """
    path = _checked(folder, "a tokenizer (tokenizer.json)", _TOKENIZERS)
    if isinstance(texts, str):
        raise ValueError("texts must be a sequence of texts. Found one text: put it into a list.")
    if length < 1:
        raise ValueError(f"length must be at least 1. Found {length!r}.")
    tokenizer = _transformers().AutoTokenizer.from_pretrained(path, **_LOCAL)
    rows = np.full((len(texts), length), PADDING, dtype=np.float32)
    for row, text in zip(rows, texts, strict=True):
        numbers = tokenizer(text, truncation=True, max_length=length)["input_ids"]
        row[: len(numbers)] = numbers
    return rows


def _checked(folder: str | Path, what: str, names: Sequence[str]) -> Path:
    path = Path(folder)
    if not any((path / name).is_file() for name in names):
        raise ValueError(
            f"folder must be a local Hugging Face folder with {what}; nothing is downloaded. Found {path}."
        )
    return path


def _check_parts(index: Path) -> None:
    """Raise if an index of weights names anything but safetensors files in its folder: pickles, or other folders."""
    if not index.is_file():
        return
    try:
        parts = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
        plain = all(re.fullmatch(r"[\w.-]+\.safetensors", part) for part in parts)
    except (ValueError, KeyError, TypeError, AttributeError):
        plain = False
    if not plain:
        raise ValueError(f"{index} must name .safetensors files in its folder, and nothing else.")


def _check_config(path: Path, config: Any) -> None:
    """Raise if a folder names other weights than those that were checked, which transformers would read instead.

    ``transformers_weights`` may be an index of pickles, or of files in other folders; an adapter names its base.
    """
    other = [name for name in ("transformers_weights", "quantization_config") if getattr(config, name, None)]
    if other or (path / _ADAPTER).exists():
        found = ", ".join(other) or _ADAPTER
        raise ValueError(f"{path} must hold a plain network, whose weights are in {_WEIGHTS[0]}. Found {found}.")


def _transformers() -> Any:
    try:
        import transformers
    except ModuleNotFoundError as error:
        if (words := advice(error)) is None:
            raise
        raise ModuleNotFoundError(words, name=error.name) from None
    return transformers


def _settle_mask(encoder: TextEncoder, limit: int | None) -> None:
    """Replace layers by ones that can be adapted and batched; use our own mask if the vectors stay the same.

    This is the case for networks in which every token attends to all others. Others, such as GPT-2, compute the mask
    themselves.
    """
    rows = (torch.arange(2.0 * encoder.length) % encoder.vocabulary).reshape(2, encoder.length)
    rows[1, encoder.length // 2 + 1 :] = PADDING
    with torch.no_grad():
        try:
            expected = encoder(rows)
        except (IndexError, RuntimeError) as error:
            known = f"at most {limit}" if limit else "one that the network accepts"
            raise ValueError(f"length must be {known}. Found {encoder.length} ({error}).") from None
        _exchange_layers(encoder.network)
        encoder.own_mask = True
        encoder.own_mask = bool(
            torch.allclose(encoder(rows), expected, rtol=0.0, atol=1e-4 * float(expected.abs().max()))
        )


def _exchange_layers(network: nn.Module) -> None:
    from transformers.pytorch_utils import Conv1D

    for name, layer in list(network.named_modules()):
        exchanged: nn.Module
        if type(layer) is nn.Embedding:
            exchanged = TokenTable(layer)
        elif type(layer) is Conv1D:  # GPT-2's linear layer, which holds its weights transposed
            exchanged = nn.Linear(*layer.weight.shape).requires_grad_(False)
            exchanged.load_state_dict({"weight": layer.weight.T, "bias": layer.bias})
        else:
            continue
        owner, _, key = name.rpartition(".")
        setattr(network.get_submodule(owner), key, exchanged)
