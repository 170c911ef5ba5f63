"""The yardstick of the training bench: one run by a plain loop in the manner of nanoGPT, without any measures."""

from math import sqrt

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from attnid.cell import Cell
from attnid.optim import learning_rate


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.p = heads, dropout
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm_1(x)).chunk(3, -1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.p if self.training else 0.0)
        x = x + self.drop(self.proj(mixed.transpose(1, 2).flatten(2)))
        return x + self.drop(self.down(F.gelu(self.up(self.norm_2(x)))))


class PlainGPT(nn.Module):
    def __init__(self, cell: Cell, vocabulary: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, cell.d_model), nn.Embedding(cell.context, cell.d_model)
        self.drop = nn.Dropout(cell.dropout)
        self.blocks = nn.ModuleList(Block(cell.d_model, cell.n_heads, cell.dropout) for _ in range(cell.n_layers))
        self.norm = nn.LayerNorm(cell.d_model)
        for name, p in self.named_parameters():
            if p.ndim == 2:
                std = 0.02 / sqrt(2 * cell.n_layers) if name.endswith(("proj.weight", "down.weight")) else 0.02
                nn.init.normal_(p, std=std)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.drop(self.tokens(x) + self.places.weight[: x.shape[1]])
        for block in self.blocks:
            h = block(h)
        return F.cross_entropy((self.norm(h) @ self.tokens.weight.T).flatten(0, 1), y.flatten())


def train_plain(cell: Cell, data: NDArray, vocabulary: int, seed: int, steps: int) -> float:
    """Train one run for some steps; returns the last loss."""
    torch.manual_seed(seed)
    model = PlainGPT(cell, vocabulary)
    decayed = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": cell.weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=cell.lr, betas=cell.adam_betas)
    text = torch.from_numpy(data)
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(cell, step)
        starts = torch.randint(len(text) - cell.context, (cell.batch_size,))
        x = torch.stack([text[start : start + cell.context] for start in starts])
        y = torch.stack([text[start + 1 : start + 1 + cell.context] for start in starts])
        loss = model(x, y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), cell.grad_clip)
        optimizer.step()
    return loss.item()
