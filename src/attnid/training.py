"""Training one cell: a block of seeds side by side, measured layer by layer and head by head."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnid.attention import attention
from attnid.cell import Cell
from attnid.checkpoint import Checkpoint, Checkpoints
from attnid.corpus import Corpus
from attnid.gpt import Architecture, Dropout, attention_inputs, generator, initial_parameters, logits, losses
from attnid.head_measures import StepMeasures, states, weight_measures, without_overlap
from attnid.optim import clip_gradients, learning_rate, make_optimizers, member_norms
from attnid.schema import Table
from attnid.symmetry import MOMENTS, PAIRS
from attnid.training_tables import EVALUATIONS, HEADS, PHASE_REBALANCED, PHASE_STEP, REBALANCES, STEPS, TRAINING

Arrays = dict[str, Tensor]
STEP_ONLY = tuple(column.name for column in HEADS.columns if column.nullable)


@dataclass
class StoppedError(Exception):
    """Training was asked to stop, and has after this step, with a checkpoint of it written or not."""

    step: int
    written: bool


@dataclass(frozen=True)
class Progress:
    """Where a training job is: the step just measured, all steps, the step it began after, the step's rows by table.

    `so_far` makes the frames of `TRAINING` of all steps until now.
    """

    step: int
    steps: int
    begun: int
    rows: Mapping[str, pd.DataFrame]
    so_far: Callable[[], dict[str, pd.DataFrame]]

    @property
    def loss(self) -> float:
        """Mean training loss of the members, nats a character."""
        return float(self.rows[STEPS.name]["train_loss"].mean())


@dataclass
class Records:
    """Rows of the training tables as they grow."""

    seeds: Sequence[int]
    rows: dict[str, list[pd.DataFrame]] = field(default_factory=lambda: {table.name: [] for table in TRAINING})

    def add(self, table: Table, step: int, columns: Arrays, *axes: str, **constant: str) -> None:
        """Rows of one step from arrays of one shape: members first, then the named axes."""
        shape = next(iter(columns.values())).shape
        index = np.indices(shape).reshape(len(shape), -1)
        places = {axis: index[number] for number, axis in enumerate(axes, start=1)}
        seed = np.asarray(self.seeds)[index[0]]
        values = {name: _numbers(array).ravel() for name, array in columns.items()}
        self.rows[table.name].append(pd.DataFrame({"seed": seed, "step": step, **places, **constant, **values}))

    def of_step(self, step: int) -> dict[str, pd.DataFrame]:
        """The rows of the step that was recorded last."""
        last = {
            name: [frame for frame in frames[-2:] if frame["step"].iloc[0] == step]
            for name, frames in self.rows.items()
        }
        return {name: pd.concat(frames, ignore_index=True) for name, frames in last.items() if frames}

    def frames(self) -> dict[str, pd.DataFrame]:
        """All rows of the tables that have any."""
        return {name: pd.concat(frames, ignore_index=True) for name, frames in self.rows.items() if frames}

    def tables(self, cell: Cell) -> dict[str, pd.DataFrame]:
        """The frames of `TRAINING` by name."""
        frames = self.frames()
        heads = frames[HEADS.name]
        frames[HEADS.name] = heads.assign(state=states(heads, cell.layer.qk_head_dim))
        return {
            table.name: frames[table.name].assign(cell=cell.id)[table.names] if table.name in frames else _empty(table)
            for table in TRAINING
        }


def architecture_of(cell: Cell, vocabulary_size: int) -> Architecture:
    """The model that a cell trains."""
    return Architecture(cell.layer, cell.n_layers, cell.context, vocabulary_size, cell.dropout)


def train(
    cell: Cell,
    corpus: Corpus,
    seeds: Sequence[int],
    device: torch.device,
    report: Callable[[Progress], None] = lambda progress: None,
    checkpoints: Checkpoints | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, pd.DataFrame]:
    """Train every seed of a cell side by side.

    Args:
        checkpoints: where to go on from and to leave checkpoints; the result is the same, byte for byte.
        stop: asked after every step; once it says yes, a checkpoint is left and StoppedError raised.

    Returns:
        The frames of `TRAINING`. A run that diverges goes on; its rows hold the values that are not finite.
    """
    trainer = Trainer(cell, corpus, seeds, device)
    tables = partial(trainer.records.tables, cell)
    done = 0
    if checkpoints is not None and (last := checkpoints.newest()):
        trainer.load(last)
        done = last.step
    for step in range(done + 1, cell.steps + 1):
        trainer.advance(step)
        stopping = step < cell.steps and stop()
        written = False
        if checkpoints is not None and (stopping or step == cell.steps or checkpoints.due()):
            written = checkpoints.save(trainer.state(step))
        if stopping:
            raise StoppedError(step, written)
        if trainer.measures(step):
            report(Progress(step, cell.steps, done, trainer.records.of_step(step), tables))
    return tables()


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


class Trainer:
    """The members of one training job: their weights, optimiser and generators, and what was measured so far."""

    def __init__(self, cell: Cell, corpus: Corpus, seeds: Sequence[int], device: torch.device) -> None:
        self.cell = cell
        self.device = device
        self.architecture = architecture_of(cell, corpus.vocabulary_size)
        dtype = torch.float64 if cell.precision == "float64" else torch.float32
        self.parameters = initial_parameters(self.architecture, seeds, dtype, device)
        self.optimizers = make_optimizers(cell, self.parameters)
        self.batches = _Batches(corpus.train, cell, seeds, "batches", device)
        validation = _Batches(corpus.validation, cell, seeds, "validation", device)
        self.validation = [validation.next() for _ in range(cell.eval_batches)]
        self.dropout = Dropout(cell.dropout, [generator(seed, "dropout", device) for seed in seeds])
        self.records = Records(list(seeds))
        self._losses = torch.compile(self._member_losses) if cell.compile else self._member_losses

    # ---------------------------------------------------------------- what happens at which step

    def measures(self, step: int) -> bool:
        """Whether a step is measured."""
        return step == 1 or step % self.cell.measure_every == 0 or self.rebalances(step)

    def rebalances(self, step: int) -> bool:
        """Whether a rebalancing, or the control's clearing of the state, follows a step."""
        return self.cell.rebalance != "none" and step % self.cell.rebalance_every == 0

    def evaluates(self, step: int) -> bool:
        """Whether a validation follows a step."""
        return step == 1 or step % self.cell.evaluate_every == 0

    def advance(self, step: int) -> None:
        """One optimiser step, measured, validated and followed by rebalancing where it is due."""
        lr = learning_rate(self.cell, step)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.zero_grad()
        tokens, targets = self.batches.next()
        loss = self._losses(tokens, targets, self.dropout)
        loss.sum().backward()
        if self.measures(step):
            self._measured_update(step, lr, loss.detach())
        else:
            clip_gradients(self.parameters.values(), self.cell.grad_clip)
            self._update()
        if self.evaluates(step):
            self._evaluate(step)
        if self.rebalances(step):
            self._rebalance(step, tokens)

    # ---------------------------------------------------------------- state

    def state(self, step: int) -> Checkpoint:
        """All that the steps after this one depend on, and the rows so far."""
        tensors = {f"parameter/{name}": tensor for name, tensor in self.parameters.items()}
        tensors |= {
            f"optimizer/{name}/{key}": value for name, state in self._optimizer_states() for key, value in state.items()
        }
        tensors |= {f"generator/{name}": own.get_state() for name, own in self._generators()}
        return Checkpoint(step, tensors, self.records.frames())

    @torch.no_grad()
    def load(self, checkpoint: Checkpoint) -> None:
        """Become what `state` described."""
        for name, tensor in self.parameters.items():
            tensor.copy_(checkpoint.tensors[f"parameter/{name}"])
        for name, state in self._optimizer_states():
            for full, value in checkpoint.tensors.items():
                prefix, _, key = full.rpartition("/")
                if prefix == f"optimizer/{name}":
                    state[key] = value.to("cpu" if key == "step" else self.device)
        for name, own in self._generators():
            own.set_state(checkpoint.tensors[f"generator/{name}"])
        for name, frame in checkpoint.frames.items():
            self.records.rows[name] = [frame]

    def _optimizer_states(self) -> Iterator[tuple[str, dict[str, Tensor]]]:
        """The optimiser's state of each parameter; every parameter has one optimiser."""
        for name, tensor in self.parameters.items():
            for optimizer in self.optimizers:
                if any(tensor is p for group in optimizer.param_groups for p in group["params"]):
                    yield name, optimizer.state[tensor]

    def _generators(self) -> Iterator[tuple[str, torch.Generator]]:
        for purpose, generators in (("batches", self.batches.generators), ("dropout", self.dropout.generators)):
            for member, own in enumerate(generators):
                yield f"{purpose}/{member}", own

    # ---------------------------------------------------------------- steps

    def _member_losses(self, tokens: Tensor, targets: Tensor, dropout: Callable[[Tensor], Tensor]) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.cell.precision == "bfloat16"):
            scores = logits(self.architecture, self.parameters, tokens, dropout)
        return losses(scores.float() if scores.dtype == torch.bfloat16 else scores, targets)

    def _attention(self) -> Arrays:
        """The attention parameters of all layers, shape (M, layers, ...)."""
        return {name: self.parameters[name].detach() for name in self.architecture.layer.parameter_shapes}

    @torch.no_grad()
    def _update(self) -> None:
        before = (
            {name: tensor.clone() for name, tensor in self._attention().items()} if self.cell.project != "none" else {}
        )
        for optimizer in self.optimizers:
            optimizer.step()
        if before:
            kept = without_overlap(self.cell.layer, before, self._attention(), self.cell.project.split("-"))
            for name, tensor in kept.items():
                self.parameters[name].copy_(tensor)

    @torch.no_grad()
    def _measured_update(self, step: int, lr: float, loss: Tensor) -> None:
        before = {name: tensor.clone() for name, tensor in self.parameters.items()}
        gradient = {name: grad for name, tensor in self.parameters.items() if (grad := tensor.grad) is not None}
        step_measures = StepMeasures(self.cell.layer, before)
        measured = step_measures.of_gradient(gradient)
        grad_norm, factor = clip_gradients(self.parameters.values(), self.cell.grad_clip)
        plain_step = (lr * factor.double()).square()[:, None, None]
        measured["drift_augmented_plain"] = plain_step * measured.pop("gradient_imbalance_augmented")
        self._update()
        measured |= step_measures.of_update(self.parameters) | step_measures.halves_of_update(self.parameters)
        measured |= weight_measures(self.cell.layer, self.parameters)
        self._record_heads(step, PHASE_STEP, measured)
        moved = member_norms(self.parameters[name].double() - old.double() for name, old in before.items())
        columns = {"lr": torch.full_like(moved, lr), "train_loss": loss, "grad_norm": grad_norm, "update_norm": moved}
        self.records.add(STEPS, step, columns)

    def _record_heads(self, step: int, phase: str, measured: Arrays) -> None:
        self.records.add(HEADS, step, measured, "layer", "head", phase=phase)

    @torch.no_grad()
    def _evaluate(self, step: int) -> None:
        each = [self._member_losses(x, y, lambda hidden: hidden) for x, y in self.validation]
        self.records.add(EVALUATIONS, step, {"val_loss": torch.stack(each).mean(0)})

    # ---------------------------------------------------------------- rebalancing

    @torch.no_grad()
    def _rebalance(self, step: int, tokens: Tensor) -> None:
        if self.cell.rebalance != "state":
            before = {name: tensor.clone().double() for name, tensor in self.parameters.items()}
            self._record_rebalance(step, tokens, before, left_alone=self._balance())
            weights = weight_measures(self.cell.layer, self.parameters)
            unmeasured = {name: torch.full_like(weights["beta"], torch.nan) for name in STEP_ONLY}
            self._record_heads(step, PHASE_REBALANCED, unmeasured | weights)
        if self.cell.moments == "clear":
            for optimizer in self.optimizers:
                optimizer.state.clear()

    def _balance(self) -> Tensor:
        """Rebalance all weights of full rank, and move the optimiser's moments along if asked.

        Returns:
            The number of products in each member and layer that are left as they were, shape (M, layers).
        """
        spec = self.cell.layer
        left_alone = []
        for pair in self.cell.rebalance.split("-"):
            weights = {name: tensor.double() for name, tensor in self._attention().items()}
            S, possible = PAIRS[pair].balance(spec, weights)
            left_alone.append((~possible).sum(-1))
            for name, tensor in PAIRS[pair].transform(spec, weights, S).items():
                self.parameters[name].copy_(tensor)
            if self.cell.moments == "transport":
                self._transport(partial(PAIRS[pair].transport, spec), S)
        return torch.stack(left_alone).sum(0)

    def _transport(self, move: Callable[[Arrays, Tensor, int], Arrays], S: Tensor) -> None:
        states = dict(self._optimizer_states())
        names = self.architecture.layer.parameter_shapes
        for key, power in MOMENTS.items():
            if any(key not in states[name] for name in names):
                continue
            moments = {name: states[name][key].double() for name in names}
            for name, moved in move(moments, S, power).items():
                states[name][key].copy_(moved)

    def _record_rebalance(self, step: int, tokens: Tensor, before: Arrays, left_alone: Tensor) -> None:
        spec = self.architecture.layer
        after = {name: tensor.double() for name, tensor in self._attention().items()}
        moved = _norms_per_layer([after[name] - before[name] for name in spec.parameter_shapes])
        length = _norms_per_layer([before[name] for name in spec.parameter_shapes])
        errors = []
        for layer, x in enumerate(attention_inputs(self.architecture, before, tokens)):
            old, new = (
                attention(spec, {name: weights[name][:, layer] for name in spec.parameter_shapes}, x)
                for weights in (before, after)
            )
            errors.append((new - old).flatten(1).norm(dim=1) / old.flatten(1).norm(dim=1))
        epsilon = torch.finfo(self.parameters["W_Q"].dtype).eps
        columns = {
            "output_error": torch.stack(errors, dim=1) / epsilon,
            "moved": moved / length,
            "left_alone": left_alone,
        }
        self.records.add(REBALANCES, step, columns, "layer")


def _numbers(array: Tensor) -> NDArray[Any]:
    """Floating-point numbers in float64, others as they are."""
    found = array.detach().cpu()
    numbers: NDArray[Any] = (found.double() if found.is_floating_point() else found).numpy()
    return numbers


def _norms_per_layer(tensors: Sequence[Tensor]) -> Tensor:
    """Norm over all tensors of each member and layer, shape (M, layers)."""
    result: Tensor = torch.stack([tensor.flatten(2).norm(dim=2) for tensor in tensors]).norm(dim=0)
    return result


def _empty(table: Table) -> pd.DataFrame:
    return pd.DataFrame({column.name: pd.Series(dtype=column.type.to_pandas_dtype()) for column in table.columns})
