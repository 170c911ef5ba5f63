"""Models with attention layers that others wrote, small, with random weights, and what they compute."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from test_attention_variants import CASES, DoublePrecision, inputs_of, model_of
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

FAMILIES = {name: case for name, case in CASES.items() if case.unread is None}


@dataclass
class Runnable:
    """A model and what it computes: float64 throughout, whatever the code asks for."""

    model: nn.Module
    run: Callable[[], Tensor]

    def output(self) -> Tensor:
        with DoublePrecision(), torch.no_grad():
            return self.run()

    def change(self, before: Tensor) -> float:
        """Largest difference to an earlier output, relative to its largest entry."""
        return float((self.output() - before).abs().max() / before.abs().max())


def of_family(name: str) -> Runnable:
    case = FAMILIES[name]
    with DoublePrecision(), torch.no_grad():
        model = model_of(case)
    return Runnable(model, lambda: model(**inputs_of(case)).last_hidden_state)


def draws(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def randomised(model: nn.Module) -> Any:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.5, generator=generator)
    return model


def of_torch(**options: Any) -> Runnable:
    kdim, vdim = options.get("kdim") or 12, options.get("vdim") or 12
    module = randomised(nn.MultiheadAttention(12, 3, batch_first=True, dtype=torch.float64, **options))
    query, key, value = draws(2, 5, 12), draws(2, 6, kdim, seed=1), draws(2, 6, vdim, seed=2)
    return Runnable(nn.Sequential(module), lambda: module(query, key, value, need_weights=False)[0])


class NanoGptAttention(nn.Module):
    """Causal self-attention with one matrix for queries, keys and values."""

    def __init__(self, width: int, heads: int, *, bias: bool) -> None:
        super().__init__()
        self.c_attn = nn.Linear(width, 3 * width, bias=bias)
        self.c_proj = nn.Linear(width, width, bias=bias)
        self.resid_dropout = nn.Dropout(0.0)
        self.n_head = heads

    def forward(self, x: Tensor) -> Tensor:
        heads = [part.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for part in self.c_attn(x).chunk(3, dim=-1)]
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        return self.resid_dropout(self.c_proj(mixed.transpose(1, 2).flatten(2)))


class MinGptAttention(nn.Module):
    """The same with matrices of their own."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.proj = (nn.Linear(width, width) for _ in range(4))
        self.n_head = heads

    def forward(self, x: Tensor) -> Tensor:
        parts = (self.query(x), self.key(x), self.value(x))
        heads = [part.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for part in parts]
        return self.proj(F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))


def of_nano_gpt(*, bias: bool) -> Runnable:
    model = randomised(nn.Sequential(NanoGptAttention(12, 3, bias=bias), MinGptAttention(12, 2)).double())
    return Runnable(model, lambda: model(draws(2, 5, 12)))


OTHERS: dict[str, Callable[[], Runnable]] = {
    "torch": of_torch,
    "torch, no biases": lambda: of_torch(bias=False),
    "torch, added token": lambda: of_torch(add_bias_kv=True),
    "torch, zero token": lambda: of_torch(add_zero_attn=True),
    "torch, other widths": lambda: of_torch(kdim=7, vdim=9),
    "torch, all of these": lambda: of_torch(kdim=7, vdim=9, add_bias_kv=True, add_zero_attn=True),
    "nanoGPT": lambda: of_nano_gpt(bias=True),
    "nanoGPT, no biases": lambda: of_nano_gpt(bias=False),
}


def runnable(name: str) -> Runnable:
    return OTHERS[name]() if name in OTHERS else of_family(name)


NAMES = [*FAMILIES, *OTHERS]
