"""Training one cell: a block of seeds side by side, measured layer by layer and head by head."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnid import tables
from attnid.attention import attention
from attnid.config import Cell, Device
from attnid.corpus import Corpus
from attnid.errors import UserError
from attnid.gpt import Architecture, Dropout, attention_inputs, generator, initial_parameters, logits, losses
from attnid.measures import Gauge, Pair, augment, drift, imbalance_rate
from attnid.optim import clip_gradients, learning_rate, make_optimizer, member_norms
from attnid.symmetry import rebalance_query_key

Arrays = dict[str, Tensor]
STEP_ONLY = tuple(column.name for column in tables.HEADS.columns if column.nullable)


@dataclass(frozen=True)
class Progress:
    """Where a training job is: the step just measured, all steps, and the mean training loss of its members."""

    step: int
    steps: int
    loss: float


@dataclass
class Records:
    """Rows of the three training tables as they grow."""

    cell: str
    seeds: Sequence[int]
    steps: list[pd.DataFrame] = field(default_factory=list)
    heads: list[pd.DataFrame] = field(default_factory=list)
    rebalances: list[pd.DataFrame] = field(default_factory=list)

    def frame(self, step: int, columns: Arrays, *axes: str) -> pd.DataFrame:
        """Rows of one step from arrays of one shape: members first, then the named axes."""
        shape = next(iter(columns.values())).shape
        index = np.indices(shape).reshape(len(shape), -1)
        places = {axis: index[number] for number, axis in enumerate(axes, start=1)}
        seed = np.asarray(self.seeds)[index[0]]
        values = {name: array.detach().double().cpu().numpy().ravel() for name, array in columns.items()}
        return pd.DataFrame({"cell": self.cell, "seed": seed, "step": step, **places, **values})

    def tables(self) -> dict[str, pd.DataFrame]:
        """The frames of `tables.STEPS`, `tables.HEADS` and `tables.REBALANCES`."""
        return {
            "steps": _stacked(tables.STEPS, self.steps),
            "heads": _stacked(tables.HEADS, self.heads),
            "rebalances": _stacked(tables.REBALANCES, self.rebalances),
        }


def choose_device(wanted: Device) -> torch.device:
    """The device to train on. Raises UserError where CUDA is asked for and there is none."""
    available = torch.cuda.is_available()
    if wanted == "cuda" and not available:
        raise UserError("configuration: device is 'cuda', but no CUDA device was found; allowed here: auto, cpu")
    return torch.device("cuda" if available and wanted != "cpu" else "cpu")


def architecture_of(cell: Cell, vocabulary_size: int) -> Architecture:
    """The model that a cell trains."""
    return Architecture(cell.layer, cell.n_layers, cell.context, vocabulary_size, cell.dropout)


def train(
    cell: Cell,
    corpus: Corpus,
    seeds: Sequence[int],
    device: torch.device,
    report: Callable[[Progress], None] = lambda progress: None,
) -> dict[str, pd.DataFrame]:
    """Train every seed of a cell side by side.

    Returns:
        The frames of `tables.STEPS`, `tables.HEADS` and `tables.REBALANCES`. A run that diverges goes on; its rows
        hold the values that are not finite.
    """
    trainer = _Trainer(cell, corpus, seeds, device)
    for step in range(1, cell.steps + 1):
        loss = trainer.advance(step)
        if trainer.measures(step):
            report(Progress(step, cell.steps, loss.mean().item()))
    return trainer.records.tables()


class _Batches:
    """Random sequences for each member, from its own generator."""

    def __init__(
        self, data: NDArray[np.int64], cell: Cell, seeds: Sequence[int], purpose: str, device: torch.device
    ) -> None:
        self.data = torch.from_numpy(data)
        self.size = cell.batch_size
        self.window = torch.arange(cell.context + 1)
        self.generators = [generator(seed, purpose) for seed in seeds]
        self.device = device

    def next(self) -> tuple[Tensor, Tensor]:
        """Characters and the characters that follow them, shape (M, B, L) each."""
        last = len(self.data) - len(self.window)
        starts = torch.stack([torch.randint(last + 1, (self.size,), generator=own) for own in self.generators])
        text = self.data[starts.unsqueeze(-1) + self.window].to(self.device)
        return text[..., :-1], text[..., 1:]


class _Trainer:
    def __init__(self, cell: Cell, corpus: Corpus, seeds: Sequence[int], device: torch.device) -> None:
        self.cell = cell
        self.architecture = architecture_of(cell, corpus.vocabulary_size)
        self.parameters = initial_parameters(self.architecture, seeds, getattr(torch, cell.precision), device)
        self.optimizer = make_optimizer(cell, self.parameters)
        self.batches = _Batches(corpus.train, cell, seeds, "batches", device)
        validation = _Batches(corpus.validation, cell, seeds, "validation", device)
        self.validation = [validation.next() for _ in range(cell.eval_batches)]
        self.dropout = Dropout(cell.dropout, [generator(seed, "dropout", device) for seed in seeds])
        self.records = Records(cell.id, list(seeds))

    def measures(self, step: int) -> bool:
        return step == 1 or step % self.cell.measure_every == 0 or self.rebalances(step)

    def rebalances(self, step: int) -> bool:
        return self.cell.rebalance != "none" and step % self.cell.rebalance_every == 0

    def advance(self, step: int) -> Tensor:
        """One optimiser step, measured and followed by rebalancing where it is due; returns the members' losses."""
        lr = learning_rate(self.cell, step)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        tokens, targets = self.batches.next()
        loss = losses(logits(self.architecture, self.parameters, tokens, self.dropout), targets)
        self.optimizer.zero_grad()
        loss.sum().backward()
        if self.measures(step):
            self._measured_update(step, lr, loss.detach())
        else:
            clip_gradients(self.parameters.values(), self.cell.grad_clip)
            self.optimizer.step()
        if self.rebalances(step):
            self._rebalance(step, tokens)
        return loss.detach()

    def _attention(self) -> Arrays:
        """The attention parameters of all layers, shape (M, layers, ...)."""
        return {name: self.parameters[name].detach() for name in self.architecture.layer.parameter_shapes}

    @torch.no_grad()
    def _measured_update(self, step: int, lr: float, loss: Tensor) -> None:
        before = {name: tensor.clone() for name, tensor in self.parameters.items()}
        gradient = {name: grad for name, tensor in self.parameters.items() if (grad := tensor.grad) is not None}
        step_measures = StepMeasures(before)
        measured = step_measures.of_gradient(gradient)
        grad_norm = clip_gradients(self.parameters.values(), self.cell.grad_clip)
        self.optimizer.step()
        measured |= step_measures.of_update(self.parameters) | weight_measures(self.parameters)
        self._record_heads(step, tables.PHASE_STEP, measured)
        self.records.steps.append(
            self.records.frame(
                step,
                {
                    "lr": torch.full_like(loss, lr, dtype=torch.float64),
                    "train_loss": loss,
                    "val_loss": self._validation_loss(),
                    "grad_norm": grad_norm,
                    "update_norm": member_norms(
                        self.parameters[name].double() - old.double() for name, old in before.items()
                    ),
                },
            )
        )

    def _record_heads(self, step: int, phase: str, measured: Arrays) -> None:
        self.records.heads.append(self.records.frame(step, measured, "layer", "head").assign(phase=phase))

    def _validation_loss(self) -> Tensor:
        each = [losses(logits(self.architecture, self.parameters, x), y) for x, y in self.validation]
        return torch.stack(each).mean(0)

    @torch.no_grad()
    def _rebalance(self, step: int, tokens: Tensor) -> None:
        if self.cell.rebalance == "weights":
            before = {name: tensor.clone().double() for name, tensor in self.parameters.items()}
            finite = member_norms(before.values()).isfinite()
            old = {name: tensor[finite] for name, tensor in self._attention().items()}
            for name, tensor in rebalance_query_key(self.cell.layer, old).items():
                self.parameters[name][finite] = tensor
            self._record_rebalance(step, tokens, before)
            weights = weight_measures(self.parameters)
            unmeasured = {name: torch.full_like(weights["beta"], torch.nan) for name in STEP_ONLY}
            self._record_heads(step, tables.PHASE_REBALANCED, unmeasured | weights)
        self.optimizer.state.clear()

    def _record_rebalance(self, step: int, tokens: Tensor, before: Arrays) -> None:
        spec = self.architecture.layer
        after = {name: tensor.double() for name, tensor in self._attention().items()}
        moved = member_norms_per_layer([after[name] - before[name] for name in spec.query_key_shapes])
        length = member_norms_per_layer([before[name] for name in spec.query_key_shapes])
        errors = []
        for layer, x in enumerate(attention_inputs(self.architecture, before, tokens)):
            old, new = (
                attention(spec, {name: weights[name][:, layer] for name in spec.parameter_shapes}, x)
                for weights in (before, after)
            )
            errors.append((new - old).flatten(1).norm(dim=1) / old.flatten(1).norm(dim=1))
        epsilon = torch.finfo(getattr(torch, self.cell.precision)).eps
        columns = {"output_error": torch.stack(errors, dim=1) / epsilon, "moved": moved / length}
        self.records.rebalances.append(self.records.frame(step, columns, "layer"))


class StepMeasures:
    """Measures of one step from weights of shape (M, layers, heads, ...): of its gradient, then of its update."""

    def __init__(self, before: Arrays) -> None:
        self.before = {name: before[name].double() for name in ATTENTION_PARAMETERS}
        self.gauges = {name: Gauge.at(pair) for name, pair in pairs(self.before).items()}

    def of_gradient(self, gradient: Arrays) -> Arrays:
        """rho of the plain gradient, the imbalance's rate of change along it, and the biases' gradient norms."""
        changes = pairs({name: gradient[name].double() for name in ATTENTION_PARAMETERS})
        bare, augmented = self.gauges["qk"].pair, self.gauges["qk_augmented"].pair
        return {
            **{f"rho_{name}_gradient": self.gauges[name].overlap(change) for name, change in changes.items()},
            "imbalance_rate": imbalance_rate(bare, changes["qk"]),
            "imbalance_rate_augmented": imbalance_rate(augmented, changes["qk_augmented"]),
            "grad_norm_query_bias": gradient["b_Q"].double().norm(dim=-1),
            "grad_norm_key_bias": gradient["b_K"].double().norm(dim=-1),
        }

    def of_update(self, after: Arrays) -> Arrays:
        """rho, length and drift of the change from the weights before to those after."""
        new = pairs({name: after[name].double() for name in ATTENTION_PARAMETERS})
        changes = {name: pair - self.gauges[name].pair for name, pair in new.items()}
        return {
            **{f"rho_{name}": self.gauges[name].overlap(change) for name, change in changes.items()},
            "update_norm": changes["qk"].squared_norm().sqrt(),
            "drift": drift(self.gauges["qk"].pair, new["qk"]),
            "drift_augmented": drift(self.gauges["qk_augmented"].pair, new["qk_augmented"]),
        }


ATTENTION_PARAMETERS = ("W_Q", "W_K", "b_Q", "b_K", "W_V", "W_O", "b_V")


def pairs(parameters: Arrays) -> dict[str, Pair]:
    """The two products of every head, bare and with the biases that move along."""
    W_Q, W_K, b_Q, b_K, W_V, W_O, b_V = (parameters[name] for name in ATTENTION_PARAMETERS)
    return {
        "qk": Pair(W_Q, W_K),
        "qk_augmented": Pair(augment(W_Q, b_Q), augment(W_K, b_K)),
        "vo": Pair(W_V, W_O.mT),
        "vo_augmented": Pair(augment(W_V, b_V), W_O.mT),
    }


def weight_measures(parameters: Arrays) -> Arrays:
    """beta, tau, mu and what belongs to them, of weights of shape (M, layers, heads, ...)."""
    weights = pairs({name: parameters[name].detach().double() for name in ATTENTION_PARAMETERS})
    gauge = Gauge.at(weights["qk"])
    imbalance, augmented = weights["qk"].imbalance(), weights["qk_augmented"].imbalance()
    (smallest_q, smallest_k), (largest_q, largest_k) = gauge.smallest, gauge.largest
    return {
        "beta": torch.linalg.matrix_norm(imbalance),
        "beta_augmented": torch.linalg.matrix_norm(augmented),
        "tau": _trace(imbalance),
        "tau_augmented": _trace(augmented),
        "trace": weights["qk"].squared_norm(),
        "mu": smallest_q + smallest_k,
        "smallest_q": smallest_q / largest_q,
        "smallest_k": smallest_k / largest_k,
    }


def member_norms_per_layer(tensors: Sequence[Tensor]) -> Tensor:
    """Norm over all tensors of each member and layer, shape (M, layers)."""
    result: Tensor = torch.stack([tensor.flatten(2).norm(dim=2) for tensor in tensors]).norm(dim=0)
    return result


def _trace(matrix: Tensor) -> Tensor:
    return matrix.diagonal(dim1=-2, dim2=-1).sum(-1)


def _stacked(table: tables.Table, frames: list[pd.DataFrame]) -> pd.DataFrame:
    if frames:
        return pd.concat(frames, ignore_index=True)[table.names]
    return pd.DataFrame({column.name: pd.Series(dtype=column.type.to_pandas_dtype()) for column in table.columns})
