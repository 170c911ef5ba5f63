from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from attnid.gpt import (
    Architecture,
    Dropout,
    attention_inputs,
    generator,
    initial_parameters,
    is_matrix,
    logits,
    losses,
)
from attnid.layer import LayerSpec

SMALL = Architecture(LayerSpec.multi_head(24, 3, biases=True), n_layers=2, context=10, vocabulary_size=13)
CPU = torch.device("cpu")


def noisy(architecture: Architecture, members: int) -> dict[str, torch.Tensor]:
    """Parameters with nothing at its special initial value."""
    parameters = initial_parameters(architecture, range(members), torch.float64, CPU)
    draws = torch.Generator().manual_seed(5)
    return {
        name: tensor.detach() + 0.2 * torch.randn(tensor.shape, generator=draws, dtype=torch.float64)
        for name, tensor in parameters.items()
    }


def tokens(architecture: Architecture, members: int) -> torch.Tensor:
    draws = torch.Generator().manual_seed(6)
    return torch.randint(architecture.vocabulary_size, (members, 4, architecture.context), generator=draws)


def to_gpt2(architecture: Architecture, member: dict[str, torch.Tensor]) -> GPT2LMHeadModel:
    E = architecture.layer.d_model
    config = GPT2Config(
        vocab_size=architecture.vocabulary_size,
        n_positions=architecture.context,
        n_embd=E,
        n_layer=architecture.n_layers,
        n_head=architecture.layer.n_heads,
        activation_function="gelu",
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    model = GPT2LMHeadModel(config).double().eval()
    state = {
        "wte.weight": member["token_embedding"],
        "wpe.weight": member["position_embedding"],
        "ln_f.weight": member["final_norm_weight"],
        "ln_f.bias": member["final_norm_bias"],
    }
    for layer in range(architecture.n_layers):
        block = {name: member[name][layer] for name in architecture.block_shapes}
        projections = [block[name].reshape(E, E).T for name in ("W_Q", "W_K", "W_V")]
        state |= {
            f"h.{layer}.ln_1.weight": block["attention_norm_weight"],
            f"h.{layer}.ln_1.bias": block["attention_norm_bias"],
            f"h.{layer}.attn.c_attn.weight": torch.cat(projections, dim=1),
            f"h.{layer}.attn.c_attn.bias": torch.cat([block[name].flatten() for name in ("b_Q", "b_K", "b_V")]),
            f"h.{layer}.attn.c_proj.weight": block["W_O"].permute(0, 2, 1).reshape(E, E),
            f"h.{layer}.attn.c_proj.bias": block["b_O"],
            f"h.{layer}.ln_2.weight": block["mlp_norm_weight"],
            f"h.{layer}.ln_2.bias": block["mlp_norm_bias"],
            f"h.{layer}.mlp.c_fc.weight": block["W_up"].T,
            f"h.{layer}.mlp.c_fc.bias": block["b_up"],
            f"h.{layer}.mlp.c_proj.weight": block["W_down"].T,
            f"h.{layer}.mlp.c_proj.bias": block["b_down"],
        }
    model.transformer.load_state_dict(state)
    model.lm_head.weight = model.transformer.wte.weight
    return model


def test_logits_are_those_of_gpt2_in_transformers() -> None:
    parameters, text = noisy(SMALL, 2), tokens(SMALL, 2)
    ours = logits(SMALL, parameters, text)
    for member in range(2):
        model = to_gpt2(SMALL, {name: tensor[member] for name, tensor in parameters.items()})
        with torch.no_grad():
            theirs = model(text[member]).logits
        assert (ours[member] - theirs).abs().max().item() < 1e-10


def test_losses_are_mean_cross_entropies() -> None:
    scores = torch.tensor([[[[2.0, 0.0]], [[0.0, 1.0]]]], dtype=torch.float64)
    expected = (np.log(1 + np.exp(-2)) + np.log(1 + np.exp(1))) / 2
    assert losses(scores, torch.tensor([[[0], [0]]])).item() == pytest.approx(expected)


def test_members_do_not_mix() -> None:
    parameters, text = noisy(SMALL, 3), tokens(SMALL, 3)
    together = logits(SMALL, parameters, text)
    for member in range(3):
        alone = logits(SMALL, {name: tensor[member, None] for name, tensor in parameters.items()}, text[member, None])
        assert torch.allclose(together[member], alone[0], rtol=1e-12, atol=1e-12)


def test_initialisation_is_nanogpts() -> None:
    wide = Architecture(LayerSpec.multi_head(128, 4, biases=True), n_layers=3, context=64, vocabulary_size=65)
    parameters = initial_parameters(wide, [0], torch.float32, CPU)
    for name, tensor in parameters.items():
        if name in ("W_O", "W_down"):
            assert tensor.std().item() == pytest.approx(0.02 / 6**0.5, rel=0.03)
        elif is_matrix(name):
            assert tensor.std().item() == pytest.approx(0.02, rel=0.05)
        else:
            assert (tensor == (1 if name.endswith("_weight") else 0)).all()
    assert wide.parameters == 65 * 128 + 64 * 128 + 3 * (12 * 128**2 + 13 * 128) + 2 * 128


def test_the_same_seed_gives_the_same_weights_alone_or_among_others_and_for_any_head_count() -> None:
    alone = initial_parameters(SMALL, [7], torch.float32, CPU)
    among = initial_parameters(SMALL, [3, 7], torch.float32, CPU)
    single_head = initial_parameters(
        replace(SMALL, layer=LayerSpec.multi_head(24, 1, biases=True)), [7], torch.float64, CPU
    )
    for name, tensor in alone.items():
        assert torch.equal(tensor[0], among[name][1])
        if name != "W_O":
            assert torch.equal(tensor.double().flatten(), single_head[name].flatten())


def test_dropout_draws_for_each_member_apart() -> None:
    x = torch.ones(2, 400, 50)
    both = Dropout(0.2, [generator(0, "dropout"), generator(1, "dropout")])(x)
    second = Dropout(0.2, [generator(1, "dropout")])(x[:1])
    assert torch.equal(both[1], second[0])
    assert not torch.equal(both[0], both[1])
    assert set(both.unique().tolist()) == {0.0, 1.25}
    assert (both == 0).float().mean().item() == pytest.approx(0.2, abs=0.01)


def test_attention_inputs_are_what_the_layers_see() -> None:
    """The first layer's input is the normalised embedding, by hand."""
    parameters, text = noisy(SMALL, 1), tokens(SMALL, 1)
    first = attention_inputs(SMALL, parameters, text)[0]
    x = parameters["token_embedding"][0][text[0]] + parameters["position_embedding"][0]
    expected = torch.nn.functional.layer_norm(
        x, (24,), parameters["attention_norm_weight"][0, 0], parameters["attention_norm_bias"][0, 0]
    )
    assert torch.allclose(first[0], expected, atol=1e-12)
