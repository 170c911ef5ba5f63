"""nanoGPT's GPT with all biases, as many members side by side as there are seeds.

Every parameter is one tensor with the members first, then (for what a block holds) the layers, so that all members
train in one batched product and all layers and heads are measured in one. Members never mix.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from attnid.attention import attention
from attnid.layer import LayerSpec, numel

INIT_STD = 0.02
LAYER_NORM_EPSILON = 1e-5


@dataclass(frozen=True)
class Architecture:
    """Sizes of the model: attention layer, blocks, tokens in a sequence, characters, dropout probability."""

    layer: LayerSpec
    n_layers: int
    context: int
    vocabulary_size: int
    dropout: float = 0.0

    @property
    def block_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of one block's parameters."""
        E = self.layer.d_model
        return {
            "attention_norm_weight": (E,),
            "attention_norm_bias": (E,),
            **self.layer.parameter_shapes,
            "mlp_norm_weight": (E,),
            "mlp_norm_bias": (E,),
            "W_up": (4 * E, E),
            "b_up": (4 * E,),
            "W_down": (E, 4 * E),
            "b_down": (E,),
        }

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of one member's parameters; the output projection is the token embedding, RoPE needs no other one."""
        E = self.layer.d_model
        return {
            "token_embedding": (self.vocabulary_size, E),
            **({} if self.layer.rotary_dim else {"position_embedding": (self.context, E)}),
            **{name: (self.n_layers, *shape) for name, shape in self.block_shapes.items()},
            "final_norm_weight": (E,),
            "final_norm_bias": (E,),
        }

    @property
    def parameters(self) -> int:
        """Parameters of one member."""
        return numel(self.shapes)


def generator(seed: int, purpose: str, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator of its own for each seed and purpose."""
    digest = hashlib.sha256(f"{purpose}/{seed}".encode()).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def is_matrix(name: str) -> bool:
    """Whether a parameter is a weight matrix or an embedding: what weight decay applies to."""
    return name.startswith("W_") or name.endswith("_embedding")


def initial_parameters(
    architecture: Architecture, seeds: Sequence[int], dtype: torch.dtype, device: torch.device
) -> dict[str, Tensor]:
    """nanoGPT's initialisation, one member a seed; drawn in float32 whatever `dtype` is, so formats can be compared."""
    members = [_initial_member(architecture, generator(seed, "weights")) for seed in seeds]
    return {
        name: torch.stack([member[name] for member in members]).to(device, dtype).requires_grad_()
        for name in architecture.shapes
    }


def _initial_member(architecture: Architecture, draws: torch.Generator) -> dict[str, Tensor]:
    return {name: _initial(architecture, name, shape, draws) for name, shape in architecture.shapes.items()}


def _initial(architecture: Architecture, name: str, shape: tuple[int, ...], draws: torch.Generator) -> Tensor:
    if name in ("W_O", "W_down"):
        return torch.randn(shape, generator=draws) * (INIT_STD / sqrt(2 * architecture.n_layers))
    if is_matrix(name):
        return torch.randn(shape, generator=draws) * INIT_STD
    return torch.ones(shape) if name.endswith("_weight") else torch.zeros(shape)


class Dropout:
    """Dropout with a generator for each member, so that a member's masks do not depend on the others."""

    def __init__(self, probability: float, generators: Sequence[torch.Generator]) -> None:
        self.probability = probability
        self.generators = generators

    def __call__(self, x: Tensor) -> Tensor:
        """Zero entries of x, shape (M, ...), and scale the rest."""
        if self.probability == 0:
            return x
        draws = [torch.rand(x.shape[1:], generator=own, device=x.device) for own in self.generators]
        return x * (torch.stack(draws) >= self.probability).to(x.dtype) / (1 - self.probability)


def logits(
    architecture: Architecture,
    parameters: dict[str, Tensor],
    tokens: Tensor,
    dropout: Callable[[Tensor], Tensor] = lambda x: x,
) -> Tensor:
    """Logits of the next character, shape (M, B, L, V).

    Args:
        parameters: tensors of shape (M,) + `architecture.shapes[name]`.
        tokens: character numbers, shape (M, B, L), L at most the context.
        dropout: applied where nanoGPT applies it.
    """
    x = dropout(_embed(parameters, tokens))
    for block in _blocks(architecture, parameters):
        normed = _norm(x, block["attention_norm_weight"], block["attention_norm_bias"])
        x = x + dropout(attention(architecture.layer, block, normed, dropout))
        normed = _norm(x, block["mlp_norm_weight"], block["mlp_norm_bias"])
        x = x + dropout(_mlp(block, normed))
    x = _norm(x, parameters["final_norm_weight"], parameters["final_norm_bias"])
    return _linear(x, parameters["token_embedding"])


def losses(scores: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of each member in nats a character: (M, B, L, V) and (M, B, L) give (M,)."""
    each = F.cross_entropy(scores.flatten(0, 2), targets.flatten(), reduction="none")
    return each.view(scores.shape[0], -1).mean(1)


def attention_inputs(architecture: Architecture, parameters: dict[str, Tensor], tokens: Tensor) -> list[Tensor]:
    """What each attention layer sees for a batch, without dropout: a list over layers of (M, B, L, E)."""
    x = _embed(parameters, tokens)
    inputs = []
    for block in _blocks(architecture, parameters):
        inputs.append(_norm(x, block["attention_norm_weight"], block["attention_norm_bias"]))
        x = x + attention(architecture.layer, block, inputs[-1])
        x = x + _mlp(block, _norm(x, block["mlp_norm_weight"], block["mlp_norm_bias"]))
    return inputs


def _blocks(architecture: Architecture, parameters: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """Each block's parameters, shape (M, ...)."""
    layers = {name: parameters[name].unbind(1) for name in architecture.block_shapes}
    return [{name: tensors[layer] for name, tensors in layers.items()} for layer in range(architecture.n_layers)]


def _embed(parameters: dict[str, Tensor], tokens: Tensor) -> Tensor:
    table = parameters["token_embedding"]
    members, size, width = table.shape
    offsets = torch.arange(0, members * size, size, device=tokens.device).view(-1, 1, 1)
    embedded = F.embedding(tokens + offsets, table.view(members * size, width))
    if "position_embedding" not in parameters:
        return embedded
    return embedded + parameters["position_embedding"][:, None, : tokens.shape[-1]]


def _norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    normed = F.layer_norm(x, x.shape[-1:], eps=LAYER_NORM_EPSILON)
    return normed * weight[:, None, None] + bias[:, None, None]


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """(M, B, L, I) and (M, O, I) give (M, B, L, O)."""
    rows = x.flatten(1, 2)
    out = rows @ weight.mT if bias is None else torch.baddbmm(bias.unsqueeze(1), rows, weight.mT)
    result: Tensor = out.unflatten(1, x.shape[1:3])
    return result


def _mlp(block: dict[str, Tensor], x: Tensor) -> Tensor:
    hidden = F.gelu(_linear(x, block["W_up"], block["b_up"]))
    return _linear(hidden, block["W_down"], block["b_down"])
