"""Public text encoders from folders that are made on the spot: local, frozen, one row at a time."""

from __future__ import annotations

import json
import shutil
import socket
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import nn

import tacitly
from tacitly import neural
from tacitly.neural.engine.executor import Executor
from tacitly.neural.engine.flat import Flat
from tacitly.neural.engine.local_training import LocalTraining
from tacitly.neural.engine.rehearsal import check_rows_apart, rehearse
from tacitly.neural.engine.update import UserUpdate, public_start

torch.set_num_threads(1)
WORDS = [f"word{number}" for number in range(40)]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
LENGTH = 6


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("asked the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture(scope="module", params=["bert", "gpt2"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved("bert", tmp_path_factory.mktemp("bert"))


def saved(kind: str, path: Path) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {word: number for number, word in enumerate([*SPECIAL, *WORDS])}
    torch.manual_seed(0)
    if kind == "bert":
        sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
        config: Any = transformers.BertConfig(vocab_size=len(vocabulary), max_position_embeddings=16, **sizes)
        network: Any = transformers.BertModel(config)
    else:
        config = transformers.GPT2Config(
            vocab_size=len(vocabulary), n_embd=32, n_layer=2, n_head=2, n_positions=16, bos_token_id=2, eos_token_id=3
        )
        network = transformers.GPT2Model(config)
    for value in network.parameters():  # the usual start is so small that every text would look alike
        if value.ndim == 2:
            value.data.mul_(8.0)
    network.save_pretrained(path)
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]").save_pretrained(path)
    return path


def texts_by_user(users: int, each: int) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Made-up texts: a first word of the first or second half, which is the label, among other words."""
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=users * each)
    texts = []
    for label in labels:
        half = rng.choice(WORDS[:5] if label else WORDS[5:10], size=3)
        texts.append(" ".join([*half, *rng.choice(WORDS[10:], size=rng.integers(3))]))
    return texts, labels, np.arange(users * each) // each


def test_a_row_is_the_mean_over_its_tokens_of_what_the_network_itself_returns(folder: Path) -> None:
    texts = ["word1 word2 word3", "word4", "word1 word2 word3 word4 word5 word6 word7"]
    rows = neural.huggingface_rows(folder, texts, length=LENGTH)
    assert rows[0].tolist() == [5, 6, 7, -1, -1, -1]
    encoder = neural.huggingface_encoder(folder, length=LENGTH)
    assert not any(value.requires_grad for value in encoder.parameters())
    assert not encoder.training
    public = transformers.AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        found = encoder(torch.from_numpy(rows))
        for row, vector in zip(rows, found, strict=True):
            own = torch.from_numpy(row[row >= 0]).long()[None]
            torch.testing.assert_close(vector, public(input_ids=own).last_hidden_state[0].mean(0), rtol=1e-4, atol=1e-5)


def test_no_row_stops_the_encoder_and_a_row_does_not_depend_on_others(folder: Path) -> None:
    encoder = neural.huggingface_encoder(folder, length=LENGTH)
    rows = torch.tensor([[5.0] * 6, [1e30, -1e30, 0.0, 3.0, 99.0, -1.0], [-1.0] * 6, [float("nan")] * 6])
    with torch.no_grad():
        found = encoder(rows)
        again = encoder(torch.cat([rows[:1], rows[:3]]))
    assert found[:3].isfinite().all()
    assert found[3].isnan().all()
    assert not found[2].any()
    assert torch.equal(found[0], again[0])
    assert torch.equal(found[0], again[1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_rows_apart(encoder, LENGTH)


def test_features_of_texts_are_columns_for_other_methods(bert: Path) -> None:
    texts, labels, users = texts_by_user(300, 8)
    encoder = neural.huggingface_encoder(bert, length=LENGTH)
    features = neural.Features(encoder, trust_custom_layers=True, device="cpu")
    columns = features(neural.huggingface_rows(bert, texts, length=LENGTH))
    assert columns.shape == (2400, 32)
    model = tacitly.PrivateFedRep(rank=2, epsilon=8.0, loss="logistic", classes=(0, 1)).fit(columns, labels, users)
    assert model.certificate_.certified
    assert model.score(columns, labels, users) > 0.7


def test_users_learn_adapters_together(folder: Path) -> None:
    texts, labels, users = texts_by_user(12, 4)
    rows = neural.huggingface_rows(folder, texts, length=LENGTH)
    layer = "query" if "bert" in folder.name else "c_attn"
    body = neural.adapters(neural.huggingface_encoder(folder, length=LENGTH), rank=1, targets=[layer])
    learned = 2 * ((32 + 32) if layer == "query" else (32 + 96))
    settings = {"rounds": 2, "head_steps": 1, "device": "cpu", "rows_per_user": 4, "trust_custom_layers": True}
    model = neural.Centaur(body, nn.Linear(32, 2), epsilon=8.0, **settings).fit(rows, labels, users)
    assert {release.coordinates for release in model.certificate_.releases} == {learned}
    assert "trust_custom_layers" in str(model.certificate_)
    moved = [value for name, value in model.body_.state_dict().items() if name.endswith("up.weight")]
    assert len(moved) == 2
    assert all(value.abs().sum() > 0 for value in moved)
    assert model.predict(rows, users).shape == labels.shape


def test_batched_users_get_what_each_gets_alone_and_the_trial_passes(folder: Path) -> None:
    rows, labels = np.random.default_rng(0).integers(-1, 44, size=(20, LENGTH)), np.arange(20) // 2 % 2
    body = neural.adapters(neural.huggingface_encoder(folder, length=LENGTH), rank=1, targets=["value", "c_attn"])
    training, results = LocalTraining(head_steps=2, local_steps=2, rows=6), []
    for batched in (False, True):
        torch.manual_seed(0)
        update = UserUpdate(body=Flat(body), head=Flat(nn.Linear(32, 2)), training=training, classes=2)
        executor = Executor(update, device="cpu", chunk=4)
        executor.batched = batched
        rehearse(executor, public_start(update), LENGTH, users=4)
        given = rows.astype(np.float32), labels.astype(np.float32), np.array([0, 5, 11, 14, 20])
        results.append(executor.clipped_sum(public_start(update), *given, 1.0, 0, normalised=True))
    np.testing.assert_allclose(results[0], results[1], atol=1e-4)
    assert np.abs(results[0]).max() > 0.1


def test_a_network_that_cannot_be_batched_fails_in_the_trial_and_runs_one_user_at_a_time(bert: Path) -> None:
    """With its own mask BERT asks whether any row is padded; on a GPU ``fit`` then warns and loops over users."""
    encoder = neural.huggingface_encoder(bert, length=LENGTH)
    assert encoder.own_mask
    encoder.own_mask = False
    body = neural.adapters(encoder, rank=1, targets=["value"])
    training = LocalTraining(head_steps=1, rows=4)
    update = UserUpdate(body=Flat(body), head=Flat(nn.Linear(32, 2)), training=training, classes=2)
    executor = Executor(update, device="cpu", chunk=4)
    rehearse(executor, public_start(update), LENGTH, users=4)
    executor.batched = True
    with pytest.raises(RuntimeError, match="data-dependent control flow"):
        rehearse(executor, public_start(update), LENGTH, users=4)


def test_folders_that_cannot_be_used_are_refused_in_words(bert: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must be a local Hugging Face folder.*nothing is downloaded"):
        neural.huggingface_encoder("bert-base-uncased")
    (tmp_path / "config.json").write_text((bert / "config.json").read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "pytorch_model.bin").write_bytes(b"a pickle that nobody opens")
    with pytest.raises(ValueError, match=r"no model.safetensors.*pickles, which run code"):
        neural.huggingface_encoder(tmp_path)
    with pytest.raises(ValueError, match="with a tokenizer"):
        neural.huggingface_rows(tmp_path, ["word1"])
    with pytest.raises(ValueError, match=r"length must be at most 16\. Found 17"):
        neural.huggingface_encoder(bert, length=17)
    with pytest.raises(ValueError, match=r"rows have 7 tokens.*length=7"):
        neural.huggingface_encoder(bert, length=LENGTH)(torch.zeros(1, 7))
    with pytest.raises(ValueError, match="Found one text"):
        neural.huggingface_rows(bert, "word1")


def test_weights_that_are_not_there_are_not_made_up(bert: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(bert / "model.safetensors")
    del weights["encoder.layer.1.output.dense.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text((bert / "config.json").read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(ValueError, match=r"lacks weights.*encoder.layer.1.output.dense.weight \(1 in all\)"):
        neural.huggingface_encoder(tmp_path)


def test_a_missing_library_is_one_sentence(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModuleNotFoundError, match=r"need transformers: pip install 'tacitly\[huggingface\]'"):
        neural.huggingface_encoder(bert)


@pytest.mark.parametrize("part", ["pytorch_model.bin", "../other/model.safetensors", "/etc/x.safetensors", 7])
def test_an_index_names_no_pickles_and_no_other_folders(bert: Path, tmp_path: Path, part: Any) -> None:
    (tmp_path / "config.json").write_text((bert / "config.json").read_text())
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": {"w": part}}))
    with pytest.raises(ValueError, match="files in its folder, and nothing else"):
        neural.huggingface_encoder(tmp_path, length=LENGTH)


@pytest.mark.parametrize("part", ["weights.bin", "../other/model.safetensors"])
def test_a_configuration_names_no_other_weights(bert: Path, tmp_path: Path, part: str) -> None:
    shutil.copytree(bert, tmp_path / "encoder")
    (tmp_path / "other").mkdir()
    for path in (tmp_path / "encoder" / "weights.bin", tmp_path / "other" / "model.safetensors"):
        path.write_bytes((bert / "model.safetensors").read_bytes())
    config = json.loads((bert / "config.json").read_text())
    (tmp_path / "encoder" / "config.json").write_text(
        json.dumps(config | {"transformers_weights": "x.safetensors.index.json"})
    )
    (tmp_path / "encoder" / "x.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": {"w": part}})
    )
    with pytest.raises(ValueError, match=r"plain network.*Found transformers_weights"):
        neural.huggingface_encoder(tmp_path / "encoder", length=LENGTH)


def test_an_adapter_is_not_loaded_onto_the_network_that_it_names(bert: Path, tmp_path: Path) -> None:
    shutil.copytree(bert, tmp_path, dirs_exist_ok=True)
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "../other"}))
    with pytest.raises(ValueError, match=r"plain network.*Found adapter_config.json"):
        neural.huggingface_encoder(tmp_path, length=LENGTH)
