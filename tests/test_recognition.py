"""Which modules are attention layers, which of them cannot move, and what is said about the others."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from found_models import MinGptAttention, NanoGptAttention, of_family, of_torch, randomised
from small_models import cheap_settings
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.utils import parametrizations, prune

from attnid.errors import UserError
from attnid.models.meter import OverlapMeter
from attnid.models.modules import find_attention
from attnid.models.moves import rebalance_, zero_dead_biases_


def mingpt(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return randomised(MinGptAttention(12, 2).double())


def obstacles(model: nn.Module) -> list[str]:
    """Why each layer stays, once it is certain that it does, and all of it."""
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    rows = rebalance_(model)
    zero_dead_biases_(model)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert all(row.moved == 0 for row in rows)
    return [row.reason for row in rows if row.pair == "qk"]


def test_a_module_used_twice_is_one_layer() -> None:
    block = mingpt()
    assert [layer.name for layer in find_attention(nn.Sequential(block, nn.Identity(), block))] == ["0"]


def test_layers_that_share_a_projection_stay() -> None:
    one, other = mingpt(), mingpt(1)
    other.key = one.key
    assert obstacles(nn.Sequential(one, other)) == [
        "1.key.weight is 0.key.weight as well",
        "0.key.weight is 1.key.weight as well",
    ]


def test_weights_that_something_beside_attention_uses_stay() -> None:
    model = nn.Sequential(mingpt(), nn.Linear(12, 12).double())
    model[1].weight = model[0].value.weight
    assert obstacles(model) == ["1.weight is 0.value.weight as well"]


@pytest.mark.parametrize("other", [nn.MultiheadAttention(12, 6), nn.MultiheadAttention(12, 3, add_zero_attn=True)])
def test_weights_that_another_kind_of_layer_uses_as_well_stay(other: nn.MultiheadAttention) -> None:
    one = randomised(nn.MultiheadAttention(12, 3))
    other.in_proj_weight, other.in_proj_bias = one.in_proj_weight, one.in_proj_bias
    other.out_proj.weight, other.out_proj.bias = one.out_proj.weight, one.out_proj.bias
    reasons = obstacles(nn.Sequential(one, other))
    assert reasons == ["1.in_proj_weight is 0.in_proj_weight as well", "0.in_proj_weight is 1.in_proj_weight as well"]


def test_memory_that_is_shared_in_part_is_seen() -> None:
    attention, linear = randomised(nn.MultiheadAttention(12, 3)), nn.Linear(12, 12)
    linear.weight = nn.Parameter(attention.in_proj_weight.detach()[24:])
    assert obstacles(nn.Sequential(attention, linear)) == ["1.weight shares memory with 0.in_proj_weight"]
    attention = randomised(nn.MultiheadAttention(12, 3))
    holder = nn.Module()
    holder.attention = attention
    holder.register_buffer("copy", attention.out_proj.weight.detach())
    assert obstacles(holder) == ["copy is attention.out_proj.weight as well"]


def test_queries_that_are_the_keys_stay() -> None:
    model = mingpt()
    model.query.weight = model.key.weight
    assert obstacles(nn.Sequential(model)) == ["0.key.weight and 0.query.weight are one tensor"]


def test_a_hook_or_a_foreign_class_between_the_weights_keeps_them() -> None:
    class Scaled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    llama = of_family("Llama").model
    llama.layers[0].self_attn.q_proj.register_forward_hook(lambda module, given, output: output)
    assert obstacles(llama) == ["a hook on layers.0.self_attn.q_proj may see or change what lies between the weights"]
    llama = of_family("Llama").model
    llama.layers[0].self_attn.k_proj.__class__ = Scaled
    assert obstacles(llama) == ["layers.0.self_attn.k_proj is a Scaled, which may do more than multiply"]


def test_a_forward_pass_that_was_replaced_keeps_the_weights() -> None:
    for path, reason in (
        (
            "layers.0.self_attn.v_proj",
            "the forward pass of layers.0.self_attn.v_proj was replaced, and may do more than",
        ),
        ("layers.0.self_attn", "its forward pass was replaced, and may compute something else"),
    ):
        llama = of_family("Llama").model
        module = llama.get_submodule(path)
        module.forward = module.forward
        (found,) = obstacles(llama)
        assert found.startswith(reason)


def test_a_quantised_projection_keeps_the_weights_and_their_biases() -> None:
    bert = of_family("BERT").model
    dense = bert.encoder.layer[0].attention.output.dense
    dense.__class__ = type("FP8Linear", (nn.Linear,), {"__module__": "transformers.integrations.finegrained_fp8"})
    assert obstacles(bert) == ["encoder.layer.0.attention.output.dense is a FP8Linear, which may do more than multiply"]


def test_a_foreign_attention_class_in_a_known_model_stays() -> None:
    llama = of_family("Llama").model
    attention = llama.layers[0].self_attn
    attention.__class__ = type("TanhAttention", (type(attention),), {})
    assert obstacles(llama) == ["TanhAttention is a class of its own, which may compute something else"]


class Normed(NanoGptAttention):
    """Queries and keys are normalised, as some that derive from nanoGPT do."""

    def __init__(self) -> None:
        super().__init__(12, 3, bias=True)
        self.q_norm = nn.LayerNorm(4)


class Sloped(NanoGptAttention):
    """A buffer that is no causal mask."""

    def __init__(self) -> None:
        super().__init__(12, 3, bias=True)
        self.register_buffer("slopes", torch.ones(3))


class Rotated(MinGptAttention):
    """Something beside the residual goes in."""

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        return super().forward(x) * angles


@pytest.mark.parametrize(
    "model", [nn.Linear(3, 3), Normed(), Sloped(), Rotated(12, 2)], ids=lambda model: type(model).__name__
)
def test_what_may_be_something_else_is_not_recognised(model: nn.Module) -> None:
    with pytest.raises(UserError, match=r"no attention layers are recognised; known: torch\.nn"):
        find_attention(model)


def test_a_subclass_of_torchs_attention_is_left_out_with_a_warning() -> None:
    class Mine(nn.MultiheadAttention):
        pass

    model = nn.Sequential(nn.MultiheadAttention(12, 3), Mine(12, 3))
    with pytest.warns(UserWarning, match="1 is left out: Mine may do something else"):
        assert [layer.name for layer in find_attention(model)] == ["0"]


def test_a_model_of_another_type_is_named() -> None:
    config = transformers.AutoConfig.for_model("bloom", hidden_size=12, n_head=2, n_layer=1, vocab_size=8)
    with pytest.raises(UserError, match="recognised; found models of type bloom; known"):
        find_attention(transformers.AutoModel.from_config(config))


@pytest.mark.parametrize("wrap", [torch.compile, checkpoint_wrapper], ids=["compiled", "checkpointed"])
@pytest.mark.parametrize("family", ["Llama", "GPT-2"])
def test_wrapped_models_are_the_models_inside(wrap: Callable[[nn.Module], nn.Module], family: str) -> None:
    one = of_family(family)
    plain = [layer.spec for layer in find_attention(one.model)]
    before = one.output()
    for wrapped in (wrap(one.model), nn.ModuleDict({"policy": wrap(one.model)})):
        assert [layer.spec for layer in find_attention(wrapped)] == plain
    blocks = one.model.layers if family == "Llama" else one.model.h
    block, blocks[0] = blocks[0], wrap(blocks[0])
    assert [layer.spec for layer in find_attention(one.model)] == plain
    assert all(row.moved > 0.01 for row in rebalance_(one.model))
    blocks[0] = block
    assert one.change(before) < 1e-10


def test_weights_that_are_replaced_are_followed() -> None:
    one = of_torch()
    meter = OverlapMeter(one.model)
    (layer,) = find_attention(one.model)
    other = {name: 2 * tensor for name, tensor in one.model.state_dict().items()}
    one.model.load_state_dict(other, assign=True)
    torch.testing.assert_close(layer.parameters()["W_O"].flatten(1).norm(), other["0.out_proj.weight"].norm())
    with meter:
        pass
    (row,) = meter.frame().query("head == 0").to_dict("records")
    queries_and_keys = other["0.in_proj_weight"].detach().unflatten(0, (3, 3, 4))[:2, 0]
    assert row["trace"] == pytest.approx(float(queries_and_keys.square().sum()))


def adapted(model: Any) -> None:
    """As PEFT wraps a projection."""
    wrapper = nn.Module()
    wrapper.base_layer = model.layers[0].self_attn.q_proj
    model.layers[0].self_attn.q_proj = wrapper


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (adapted, r"q_proj\.weight is missing; adapters wrap its projections: merge them first"),
        (
            lambda model: parametrizations.weight_norm(model.layers[0].self_attn.k_proj),
            "k_proj.weight is missing; some weights are parametrized or pruned: make that permanent first",
        ),
        (
            lambda model: prune.l1_unstructured(model.layers[0].self_attn.v_proj, "weight", 3),
            "v_proj.weight is missing; some weights are parametrized or pruned: make that permanent first",
        ),
        (
            lambda model: setattr(model, "layers", model.layers[:0]),
            r"has 1 layers of self attention by its configuration, and layers\.0\.self_attn is not among its tensors; "
            "expected the whole model",
        ),
        (
            lambda model: setattr(model.layers[0].self_attn, "q_proj", nn.Linear(5, 5)),
            r"layers\.0\.self_attn\.q_proj\.weight has shape \(5, 5\); by the config",
        ),
    ],
)
def test_a_model_that_is_not_as_its_configuration_says_is_refused(spoil: Any, sentence: str) -> None:
    model = of_family("Llama").model
    spoil(model)
    with pytest.raises(UserError, match=sentence):
        find_attention(model)


def test_parametrized_and_pruned_modules_of_others_are_refused() -> None:
    for spoil in (parametrizations.weight_norm, lambda module: prune.l1_unstructured(module, "weight", 3)):
        model = nn.Sequential(mingpt())
        spoil(model[0].query)
        with pytest.raises(UserError, match=r"recognised|0\.query\.weight is no parameter of its own"):
            find_attention(model)


def test_learned_prompts_are_refused() -> None:
    model = of_family("Llama").model
    wrapper = nn.Module()
    wrapper.base = model
    wrapper.active_peft_config = type("Config", (), {"is_prompt_learning": True})()
    with pytest.raises(UserError, match="its prompts add keys and values that would not move along"):
        find_attention(wrapper)


@pytest.mark.parametrize(
    ("name", "half"),
    [("T5EncoderModel", "encoder"), ("WhisperForAudioClassification", "encoder"), ("WhisperForCausalLM", "decoder")],
)
def test_half_of_a_model_is_known_by_its_class(name: str, half: str) -> None:
    kind = "t5" if name.startswith("T5") else "whisper"
    sizes = {"d_model": 12, "d_kv": 3, "num_heads": 2, "num_layers": 2} if kind == "t5" else {}
    config = transformers.AutoConfig.for_model(kind, **cheap_settings(kind) | sizes)
    model = getattr(transformers, name)(config)
    layers = find_attention(model)
    assert layers
    assert {layer.name for layer in layers} <= {path for path, _ in model.named_modules()}
    assert {"encoder" in layer.name.split(".") for layer in layers} == {half == "encoder"}


def test_a_model_that_reads_images_has_two_kinds() -> None:
    """The pooling head of Gemma 3's vision tower is torch's own attention."""
    layers = {layer.name: layer for layer in find_attention(of_family("Gemma 3 with images").model)}
    assert list(layers) == ["language_model.layers.0.self_attn", "vision_tower.head.attention"]
    assert layers["vision_tower.head.attention"].spec.qk_norm == "none"


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ([], "a list holds no attention layers; expected a model or layers found in one"),
        ({"W_Q": torch.zeros(3)}, "a dict holds no attention layers"),
        ([nn.Linear(3, 3)], "a list holds no attention layers"),
        (None, "a NoneType holds no attention layers"),
        (nn.Sequential(nn.MultiheadAttention(12, 3, device="meta")), "0: its weights are on the meta device"),
    ],
)
def test_what_holds_no_weights_is_refused(model: Any, sentence: str) -> None:
    for use in (rebalance_, OverlapMeter, zero_dead_biases_):
        with pytest.raises(UserError, match=sentence):
            use(model)
    if not isinstance(model, nn.Module):
        with pytest.raises(UserError, match=r"is no torch\.nn\.Module; expected a whole model"):
            find_attention(model)


def test_a_weight_that_is_gone_is_named() -> None:
    one = of_torch()
    meter = OverlapMeter(one.model)
    one.model[0].out_proj = nn.Sequential(one.model[0].out_proj)
    with pytest.raises(UserError, match=r"0\.out_proj\.weight is no longer a parameter of the model"), meter:
        pass


def test_a_copy_of_a_model_has_its_own_layers() -> None:
    one = of_torch()
    twin = copy.deepcopy(one.model)
    before = one.output()
    rebalance_(twin)
    assert one.change(before) == 0
    assert not torch.equal(twin[0].in_proj_weight, one.model[0].in_proj_weight)
