"""Models of others before and after their weights move: the same function, and what is refused."""

import copy
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from found_models import FAMILIES, NAMES, OTHERS, draws, of_family, of_torch, randomised, runnable
from small_models import cheap_settings
from test_attention_variants import DoublePrecision, inputs_of
from torch import Tensor, nn

from attnid.attention import attention
from attnid.errors import UserError
from attnid.gram import gram
from attnid.head_measures import pairs
from attnid.layer import LayerSpec
from attnid.models.modules import find_attention
from attnid.models.moves import in_double, project_step, rebalance_, transform_, zero_dead_biases_
from attnid.symmetry import rotary_scaling, transform_query_key

SAME = 1e-10
ROTATED = ["Llama", "GPT-NeoX", "Phi", "GPT-J", "Falcon, groups", "gpt-oss"]
PLAIN = ["GPT-2", "BERT", "T5, encoder", "Whisper, decoder", "ViT", "torch", "nanoGPT"]


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.named_parameters()}


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, run: Any, number: int = 1) -> None:
    for _ in range(number):
        optimizer.zero_grad()
        run().square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("name", NAMES)
def test_a_rebalanced_model_computes_what_it_did(name: str) -> None:
    one = runnable(name)
    before, weights = one.output(), weights_of(one.model)
    rows = rebalance_(one.model)
    layers = find_attention(one.model)
    assert [(row.layer, row.pair) for row in rows] == [(layer.name, pair) for layer in layers for pair in ("qk", "vo")]
    assert one.change(before) < SAME
    for row in rows:
        assert (row.moved > 0.01) == (not row.reason), row
        assert row.left_alone == ()
    for layer in layers:
        own = in_double(layer)
        for pair in ("qk", "vo"):
            if not layer.fixed(pair):
                rotary = layer.spec.rotary_dim if pair == "qk" else 0
                both = pairs(layer.spec, own)[pair]
                assert both.imbalance(rotary).norm() < 1e-10 * gram(both.first).norm()
    moved = {name for name, tensor in one.model.named_parameters() if not torch.equal(tensor, weights[name])}
    assert moved <= {name for layer in layers for name in layer.tensor_names()}


@pytest.mark.parametrize("name", NAMES)
def test_views_are_the_models_own_weights(name: str) -> None:
    one = runnable(name)
    for layer in find_attention(one.model):
        shapes = {name: tuple(tensor.shape) for name, tensor in layer.parameters().items()}
        assert {name: shape for name, shape in shapes.items() if name in ("W_Q", "b_Q", "W_O")}.items() <= dict(
            layer.spec.parameter_shapes
        ).items()
        for parameter, view in layer.views().items():
            owner = layer.tensors[layer.slots[parameter].tensor]
            assert view.data_ptr() >= owner.data_ptr()
            assert view.untyped_storage().data_ptr() == owner.untyped_storage().data_ptr()
        before = weights_of(one.model)
        layer.write(layer.parameters())
        for key, tensor in one.model.named_parameters():  # gains that are stored less one are rounded
            torch.testing.assert_close(tensor, before[key], rtol=0, atol=1e-15 if "norm" in key else 0)
        before = weights_of(one.model)
        view = layer.views()["W_O"]
        view.add_(1.0)
        changed = {key for key, tensor in one.model.named_parameters() if not torch.equal(before[key], tensor)}
        assert changed == {layer.slots["W_O"].tensor}
        view.sub_(1.0)


def test_families_that_cannot_move_say_why() -> None:
    reasons = {
        name: {row.pair: row.reason for row in rebalance_(of_family(name).model)}
        for name in ("Qwen3", "OLMo 2", "Gemma 3", "DeepSeek V3", "Llama")
    }
    for name in ("Qwen3", "OLMo 2", "Gemma 3"):
        assert reasons[name] == {"qk": "queries and keys are normalised", "vo": ""}
    assert set(reasons["DeepSeek V3"].values()) == {"keys and values come from a normalised latent"}
    assert reasons["Llama"] == {"qk": "", "vo": ""}


@pytest.mark.parametrize("name", ["GPT-2", "Llama", "BERT", "Gemma 2", "T5, encoder"])
def test_in_single_precision_the_change_is_rounding(name: str) -> None:
    one = of_family(name)
    one.model.float()
    with torch.no_grad():
        before = one.run()
        rebalance_(one.model)
        after = one.run()
    assert before.dtype == torch.float32
    assert (after - before).abs().max() / before.abs().max() < 1e-4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_stay_in_their_format(dtype: torch.dtype) -> None:
    one = of_family("Llama, biases")
    one.model.to(dtype)
    rebalance_(one.model)
    assert {tensor.dtype for tensor in one.model.parameters()} == {dtype}
    rows = rebalance_(one.model)
    assert all(row.moved < 4 * torch.finfo(dtype).eps for row in rows)


@pytest.mark.parametrize("name", [*PLAIN, *ROTATED, "torch, all of these"])
def test_a_transformation_of_ones_own_leaves_the_function(name: str) -> None:
    one = runnable(name)
    before = one.output()
    for layer in find_attention(one.model):
        spec = layer.spec
        G, D, rotary = spec.n_kv_heads, spec.qk_head_dim, spec.rotary_dim
        S = torch.eye(D, dtype=torch.float64) + 0.3 * draws(G, D, D)
        if rotary:
            S[:, :rotary], S[:, :, :rotary] = 0, 0
            S[:, :rotary, :rotary] = rotary_scaling(draws(G, rotary // 2).abs() + 0.5, draws(G, rotary // 2, seed=3))
        assert transform_(layer, "qk", S) > 0.01
        C = spec.v_head_dim
        assert transform_(layer, "vo", torch.eye(C, dtype=torch.float64) + 0.3 * draws(G, C, C, seed=4)) > 0.01
    assert one.change(before) < SAME


@pytest.mark.parametrize("name", ROTATED)
def test_a_general_transformation_under_rope_changes_the_function_and_is_refused(name: str) -> None:
    one = of_family(name)
    before, weights = one.output(), weights_of(one.model)
    (layer,) = find_attention(one.model)
    D = layer.spec.qk_head_dim
    S = torch.eye(D, dtype=torch.float64) + 0.3 * draws(layer.spec.n_kv_heads, D, D)
    with pytest.raises(UserError, match="S does not commute with RoPE"):
        transform_(layer, "qk", S)
    assert all(torch.equal(weights[key], tensor) for key, tensor in one.model.named_parameters())
    layer.write(transform_query_key(layer.spec, in_double(layer), S))
    assert one.change(before) > 1e-3


@pytest.mark.parametrize("name", ["BERT", "GPT-2", "Qwen2", "torch"])
def test_weights_moved_without_their_biases_are_another_function(name: str) -> None:
    one = runnable(name)
    before = one.output()
    rebalance_(one.model)
    assert one.change(before) < SAME
    one = runnable(name)
    biases = {key: tensor for key, tensor in weights_of(one.model).items() if key.endswith("bias")}
    rebalance_(one.model)
    with torch.no_grad():
        for key, tensor in biases.items():
            one.model.get_parameter(key).copy_(tensor)
    assert one.change(before) > 1e-3


@pytest.mark.parametrize(
    ("name", "biases"),
    [
        ("BERT", {"b_K": "", "b_V": ""}),
        ("GPT-2", {"b_K": "", "b_V": ""}),
        ("torch", {"b_K": "", "b_V": ""}),
        ("Phi", {"b_K": "the 4 rotated rows act", "b_V": ""}),
        ("Whisper, decoder", {"b_V": ""}),
        ("Qwen2", {"b_K": "RoPE rotates it", "b_V": "attention weights do not sum to one, or there is no output bias"}),
        ("gpt-oss", {"b_K": "sinks, a soft cap or a norm make it act", "b_V": "attention weights do not sum to one"}),
        ("Gemma 2, biases", {"b_K": "sinks, a soft cap or a norm make it act", "b_V": ""}),
        ("torch, added token", {"b_K": "the added token has a key without it", "b_V": "attention weights do not sum"}),
        ("torch, zero token", {"b_K": "the added token has a key without it", "b_V": "attention weights do not sum"}),
    ],
)
def test_biases_on_which_nothing_depends_are_zeroed_and_no_others(name: str, biases: dict[str, str]) -> None:
    one = runnable(name)
    before = one.output()
    rows = zero_dead_biases_(one.model)
    assert {row.bias for row in rows} == set(biases)
    assert one.change(before) < SAME
    layers = {layer.name: layer for layer in find_attention(one.model)}
    for row in rows:
        assert row.reason.startswith(biases[row.bias]), row
        assert (row.reason == "") <= (biases[row.bias] == "")
        left = layers[row.layer].parameters()[row.bias]
        rotated = layers[row.layer].spec.rotary_dim if row.reason.startswith("the ") and name == "Phi" else 0
        assert row.norm > 0.1
        assert (left[..., rotated:].norm() == 0) == (row.reason == "" or rotated > 0)
    if biases.get("b_K"):
        layer = next(iter(layers.values()))
        layer.write({"b_K": torch.zeros_like(layer.parameters()["b_K"])})
        assert one.change(before) > 1e-4, "what the library refuses does change the function"


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "AdamW"])
@pytest.mark.parametrize("name", ["GPT-2", "Llama, biases", "torch, added token"])
def test_moments_move_along_or_are_cleared_or_kept(name: str, optimizer: str) -> None:
    settings = {"SGD": {"lr": 0.1, "momentum": 0.9}}.get(optimizer, {"lr": 1e-2})
    kinds = {}
    for state in ("transport", "clear", "keep"):
        one = runnable(name)
        chosen = getattr(torch.optim, optimizer)(one.model.parameters(), **settings)
        steps(one.model, chosen, one.run, 3)
        kept = copy.deepcopy(chosen.state_dict()["state"])
        before = one.output()
        rebalance_(one.model, chosen, state=state)  # type: ignore[arg-type]
        assert one.change(before) < SAME
        moved = {name for layer in find_attention(one.model) for name in layer.tensor_names()}
        kinds[state] = [len(kept), len(chosen.state), moved]
        if state == "keep":
            same = [
                torch.equal(kept[index][key], value)
                for index, own in chosen.state_dict()["state"].items()
                for key, value in own.items()
                if isinstance(value, Tensor)
            ]
            assert all(same)
        if state == "transport" and optimizer == "SGD":
            _gradients_agree(one.model, chosen)
        steps(one.model, chosen, one.run)
        assert torch.isfinite(one.output()).all()
    assert kinds["clear"][1] < kinds["keep"][1] == kinds["transport"][1]


def _gradients_agree(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """A transported momentum has no more part along the gauge than a gradient at the new weights would."""
    from attnid.measures import Gauge

    for layer in find_attention(model):
        moments = layer.over(
            {
                name: optimizer.state[tensor]["momentum_buffer"]
                for name, tensor in layer.tensors.items()
                if tensor in optimizer.state
            }
        )
        own = pairs(layer.spec, in_double(layer))["qk_augmented"]
        change = pairs(layer.spec, in_double(moments))["qk_augmented"]
        assert Gauge(own, layer.spec.rotary_dim).overlap(change).max() < 0.05


def test_one_gradient_as_momentum_is_transported_exactly() -> None:
    one = runnable("GPT-2")
    optimizer = torch.optim.SGD(one.model.parameters(), lr=0.0, momentum=0.9)
    with torch.enable_grad():
        steps(one.model, optimizer, one.run)
        rebalance_(one.model, optimizer)
        one.model.zero_grad()
        one.run().square().mean().backward()
    for layer in find_attention(one.model):
        for name in layer.tensor_names():
            parameter = layer.tensors[name]
            torch.testing.assert_close(optimizer.state[parameter]["momentum_buffer"], parameter.grad)


def test_what_cannot_be_transported_is_refused_before_anything_moves() -> None:
    one = runnable("GPT-2")
    optimizer = torch.optim.Adagrad(one.model.parameters(), lr=0.1)
    steps(one.model, optimizer, one.run)
    weights = weights_of(one.model)
    with pytest.raises(UserError, match=r"the optimiser keeps sum of .*, and how that moves is not known"):
        rebalance_(one.model, optimizer)
    assert all(torch.equal(weights[key], tensor) for key, tensor in one.model.named_parameters())
    rebalance_(one.model, optimizer, state="clear")


@pytest.mark.parametrize(
    "name", ["GPT-2", "Llama, biases", "BERT", "Whisper, decoder", "torch, all of these", "nanoGPT"]
)
def test_a_projected_step_has_no_part_along_the_gauge(name: str) -> None:
    from attnid.measures import Gauge

    one = runnable(name)
    optimizer = torch.optim.AdamW(one.model.parameters(), lr=1e-3)
    one.run().square().mean().backward()
    layers = find_attention(one.model)
    before = [in_double(layer) for layer in layers]
    with project_step(one.model):
        optimizer.step()
    shares = {True: [], False: []}
    for projected in (True, False):
        if not projected:
            for layer, old in zip(layers, before, strict=True):
                layer.write(old)
            optimizer.state.clear()
            optimizer.step()
        for layer, old in zip(layers, before, strict=True):
            for pair in ("qk_augmented", "vo_augmented"):
                was, now = pairs(layer.spec, old)[pair], pairs(layer.spec, in_double(layer))[pair]
                rotary = layer.spec.rotary_dim if pair.startswith("qk") else 0
                shares[projected].append(float(Gauge(was, rotary).overlap(now - was).max()))
    assert max(shares[True]) < 1e-18
    assert min(shares[False]) > 1e-3


def test_a_pair_with_a_frozen_weight_is_left_to_the_optimiser() -> None:
    one = runnable("BERT")
    (layer,) = find_attention(one.model)
    layer.tensors[layer.slots["W_K"].tensor].requires_grad_(False)
    twin = copy.deepcopy(one.model)
    for model, context in ((one.model, project_step(one.model)), (twin, nullcontext())):
        optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=1e-3)
        for weight in optimizer.param_groups[0]["params"]:
            weight.grad = draws(*weight.shape)
        with context:
            optimizer.step()
    projected, plain = (in_double(find_attention(model)[0]) for model in (one.model, twin))
    assert all(torch.equal(projected[name], plain[name]) for name in ("W_Q", "W_K", "b_Q", "b_K"))
    assert not torch.equal(projected["W_V"], plain["W_V"])


def test_every_optimiser_of_a_model_is_treated() -> None:
    one = runnable("GPT-2")
    named = dict(one.model.named_parameters())
    halves = [[tensor for name, tensor in named.items() if name.endswith(end)] for end in ("weight", "bias")]
    optimizers = [torch.optim.AdamW(half, lr=1e-3) for half in halves]
    one.run().square().mean().backward()
    for optimizer in optimizers:
        optimizer.step()
    kept = [len(optimizer.state) for optimizer in optimizers]
    rebalance_(one.model, optimizers, state="clear")
    assert [len(optimizer.state) for optimizer in optimizers] == [kept[0] - 2, kept[1] - 1]


@pytest.mark.parametrize("loss", ["overflow", "underflow"])
def test_a_pair_that_its_precision_cannot_hold_is_put_back(loss: str) -> None:
    one = of_family("Llama, biases")
    one.model.half()
    (layer,) = find_attention(one.model)
    views = layer.views()
    views["W_Q"].mul_(1e-6 if loss == "underflow" else 1e4)
    views["W_K"].mul_(1e-6 if loss == "underflow" else 1e-3)
    before = {name: tensor.clone() for name, tensor in layer.parameters().items()}
    S = torch.eye(layer.spec.qk_head_dim).expand(layer.spec.n_kv_heads, -1, -1)
    with pytest.raises(UserError, match="qk cannot move: float16 cannot hold what it would become"):
        transform_(layer, "qk", S * 1e5)
    assert all(torch.equal(tensor, before[name]) for name, tensor in layer.parameters().items())


@pytest.mark.parametrize(
    ("dtype", "condition", "held"),
    [
        (torch.float32, 10, True),
        (torch.float32, 1e5, False),
        (torch.float16, 1e3, False),
        (torch.bfloat16, 1e3, False),
    ],
)
def test_a_transformation_that_rounding_would_spoil_is_refused(
    dtype: torch.dtype, condition: float, held: bool
) -> None:
    one = of_torch()
    one.model.to(dtype)
    (layer,) = find_attention(one.model)
    U, _, V = torch.linalg.svd(draws(3, 4, 4))
    S = U @ torch.diag_embed(torch.logspace(0, -np.log10(condition), 4, dtype=torch.float64)) @ V
    weights = weights_of(one.model)
    if held:
        assert transform_(layer, "vo", S) > 0.1
    else:
        with pytest.raises(UserError, match=r"vo cannot move: b?float\d+ cannot hold what it would become"):
            transform_(layer, "vo", S)
        assert all(torch.equal(weights[name], tensor) for name, tensor in one.model.named_parameters())


@pytest.mark.parametrize("S", [np.eye(4), [[1.0]], None, torch.eye(4).to(torch.complex64), torch.eye(4).long()])
def test_a_transformation_is_a_real_tensor(S: Any) -> None:
    (layer,) = find_attention(of_torch().model)
    with pytest.raises(UserError, match="expected a torch tensor of real numbers with a fraction"):
        transform_(layer, "qk", S)


def test_a_value_bias_that_cannot_be_folded_stays() -> None:
    model = randomised(nn.MultiheadAttention(64, 2)).half()
    with torch.no_grad():
        model.in_proj_bias[128:] = 3000
        model.out_proj.weight.fill_(0.5)
    before = weights_of(model)
    reasons = {row.bias: row.reason for row in zero_dead_biases_(model)}
    assert reasons == {"b_K": "", "b_V": "float16 cannot hold the output bias that it would become"}
    assert torch.equal(model.out_proj.bias, before["out_proj.bias"])
    assert torch.equal(model.in_proj_bias[128:], before["in_proj_bias"][128:])


def test_weights_that_the_optimiser_does_not_have_are_not_projected() -> None:
    model = nn.MultiheadAttention(12, 3, kdim=7, vdim=9)
    optimizer = torch.optim.AdamW([model.q_proj_weight], lr=1e-2)
    before = weights_of(model)
    model.q_proj_weight.grad = draws(12, 12).float()
    with project_step(model):
        optimizer.step()
    changed = {name for name, tensor in model.named_parameters() if not torch.equal(before[name], tensor)}
    assert changed == {"q_proj_weight"}


def test_the_history_of_lbfgs_is_cleared() -> None:
    linear = nn.Linear(12, 12).double()
    one = of_torch()
    optimizer = torch.optim.LBFGS([*linear.parameters(), *one.model.parameters()])

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = linear(one.run()).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert optimizer.state[linear.weight]["old_dirs"]
    rebalance_(one.model, optimizer, state="clear")
    assert not optimizer.state


def test_zero_and_rank_deficient_heads_are_left_alone_and_named() -> None:
    one = runnable("GPT-2")
    (layer,) = find_attention(one.model)
    layer.views()["W_Q"][1] = 0
    layer.views()["W_V"][2, 0] = layer.views()["W_V"][2, 1]
    before = one.output()
    rows = rebalance_(one.model)
    assert [(row.pair, row.left_alone) for row in rows] == [("qk", (1,)), ("vo", (2,))]
    assert one.change(before) < SAME


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda model: rebalance_(model, pairs=["kq"]), "pairs holds 'kq'; allowed: qk, vo"),
        (lambda model: rebalance_(model, state="lose"), "state is 'lose'; allowed: transport, clear, keep"),
        (lambda model: transform_(find_attention(model)[0], "qk", torch.zeros(3, 4, 4)), "S is singular"),
        (lambda model: transform_(find_attention(model)[0], "qk", torch.eye(4)), r"S has shape \(4, 4\); expected"),
        (lambda model: transform_(model, "qk", torch.eye(4)), "Sequential is no attention layer"),
        (lambda model: rebalance_(model, model), "Sequential is no optimiser"),
        (lambda model: rebalance_(model, torch.optim.SGD([torch.zeros(3)])), "none of the attention weights"),
        (lambda model: rebalance_(model, torch.optim.LBFGS(model.parameters())), "the history of LBFGS"),
    ],
)
def test_a_mistake_is_one_sentence(call: Any, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        call(of_torch().model)


def test_a_found_layer_of_torch_is_the_layer_that_is_counted() -> None:
    one = of_torch()
    (layer,) = find_attention(one.model)
    x = draws(2, 5, 12)
    expected, _ = one.model[0](x, x, x, need_weights=False)
    assert layer.spec == LayerSpec.multi_head(12, 3, biases=True, causal=False)
    torch.testing.assert_close(attention(layer.spec, layer.parameters(), x), expected)


def test_every_kind_of_model_is_tried() -> None:
    assert len(FAMILIES) > 30
    assert set(OTHERS) < set(NAMES)


WITH_HEADS = {
    "GPT-2": "AutoModelForCausalLM",
    "BERT": "AutoModelForMaskedLM",
    "RoBERTa": "AutoModelForMaskedLM",
    "ViT": "AutoModelForImageClassification",
    "T5, encoder": "AutoModelForSeq2SeqLM",
    "Whisper, encoder": "AutoModelForSpeechSeq2Seq",
    "Llama": "AutoModelForCausalLM",
    "Mistral": "AutoModelForCausalLM",
    "Qwen2": "AutoModelForCausalLM",
    "Qwen3": "AutoModelForCausalLM",
    "Gemma 2": "AutoModelForCausalLM",
    "GPT-NeoX": "AutoModelForCausalLM",
    "Phi": "AutoModelForCausalLM",
    "Falcon, groups": "AutoModelForCausalLM",
    "gpt-oss": "AutoModelForCausalLM",
}


@pytest.mark.parametrize("name", WITH_HEADS)
def test_logits_of_a_whole_model_stay(name: str) -> None:
    case = FAMILIES[name]
    config = transformers.AutoConfig.for_model(case.model_type, **cheap_settings(case.model_type) | case.settings)
    options = {"attn_implementation": "eager", "experts_implementation": "eager"}
    make = getattr(transformers, WITH_HEADS[name]).from_config
    torch.manual_seed(0)
    model = make(config, dtype=torch.float64, **options).eval()
    given = inputs_of(case)
    with torch.no_grad(), DoublePrecision():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        before = model(**given).logits
        rows = rebalance_(model)
        after = model(**given).logits
    assert any(row.moved > 0.01 for row in rows)
    assert before.std() > 1e-3
    assert (after - before).abs().max() < SAME * before.abs().max()
    single = {key: value.float() if value.is_floating_point() else value for key, value in given.items()}
    model.float()
    with torch.no_grad():
        for layer in find_attention(model):
            layer.views()["W_V"].mul_(3)  # away from balance again
        before = model(**single).logits
        rows = rebalance_(model)
        after = model(**single).logits
    assert any(row.moved > 0.01 for row in rows)
    assert (after - before).abs().max() < 1e-4 * before.abs().max()
