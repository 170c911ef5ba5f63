"""The configuration of a run, checked before anything runs, and the training cells it stands for."""

import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping
from math import isqrt
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from attnid import corpus
from attnid.errors import UserError, validation_sentence
from attnid.layer import LayerSpec


def _no_truth_value(value: object) -> object:
    """Refuse true and false where a number is meant: Python would take them for 1 and 0."""
    if isinstance(value, bool):
        raise PydanticCustomError("number", "input should be a number")
    return value


Int = Annotated[int, BeforeValidator(_no_truth_value)]
PositiveInt = Annotated[Int, Field(ge=1)]
Float = Annotated[float, BeforeValidator(_no_truth_value)]
Probability = Annotated[Float, Field(ge=0, lt=1)]
Positive = Annotated[Float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[Float, Field(ge=0, allow_inf_nan=False)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]*$", max_length=40)]
Precision = Literal["float32", "float64"]
Device = Literal["auto", "cpu", "cuda"]


class Section(BaseModel):
    """A part of the configuration: unknown keys are refused, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Model(Section):
    """The GPT that is trained: nanoGPT's, with all biases."""

    n_layers: PositiveInt = Field(description="transformer blocks")
    d_model: PositiveInt = Field(description="width of the model (E)")
    n_heads: PositiveInt = Field(description="attention heads of the base model (H); must divide d_model")
    context: Annotated[Int, Field(ge=2)] = Field(
        description="tokens in a training sequence; one token alone has nothing to attend to"
    )
    dropout: Probability = Field(description="dropout probability")


class Training(Section):
    """How every cell is trained and measured."""

    steps: PositiveInt = Field(description="optimiser steps")
    warmup_steps: Annotated[Int, Field(ge=0)] = Field(
        description="steps over which the learning rate rises linearly; the cosine decay follows"
    )
    lr_floor_fraction: Annotated[Float, Field(ge=0, le=1)] = Field(
        description="learning rate at the end of the cosine, as a fraction of its peak, where a case sets no lr_floor"
    )
    batch_size: PositiveInt = Field(description="sequences in a batch")
    grad_clip: Positive = Field(description="largest norm of the whole gradient; a longer one is scaled down to it")
    adam_betas: tuple[Probability, Probability] = Field(description="decay rates of Adam's two moments")
    rebalance_every: PositiveInt = Field(description="steps between rebalancings, for the cases that rebalance")
    measure_every: PositiveInt = Field(description="steps between measurements; the first step is always measured")
    eval_batches: PositiveInt = Field(description="fixed validation batches behind every validation loss")
    precision: Precision = Field(description="floating-point format of the weights")
    seeds: PositiveInt = Field(description="runs of every cell: seeds 0 to seeds - 1")
    seeds_per_job: PositiveInt = Field(description="seeds trained side by side by one job")


class Case(Section):
    """An optimiser and what is done to it."""

    optimizer: Literal["sgd", "adamw"] = Field(description="sgd (plain, no momentum) or adamw")
    lr: Positive = Field(description="peak learning rate")
    weight_decay: NonNegative = Field(default=0.0, description="weight decay, on matrices only")
    lr_floor: NonNegative | None = Field(
        default=None, description="learning rate at the end of the cosine; without it, lr x lr_floor_fraction"
    )
    rebalance: Literal["none", "weights", "state"] = Field(
        default="none",
        description="every rebalance_every steps: nothing; rebalance the weights and clear the optimiser's state; or "
        "clear the state alone (control)",
    )


class Group(Section):
    """Cells that are compared: the listed cases, each with every combination of the listed values."""

    cases: Annotated[list[Name], Field(min_length=1)] = Field(description="names of cases")
    lr: list[Positive] | None = Field(default=None, description="peak learning rates; without it, the case's own")
    n_heads: list[PositiveInt] | None = Field(default=None, description="head counts; without it, the model's own")
    precision: list[Precision] | None = Field(default=None, description="formats; without it, the training's own")


class Analysis(Section):
    """The grid of layers whose Jacobian ranks are measured, and the invariances that are tried."""

    d_model: PositiveInt = Field(description="width of the layers that are compared over head counts")
    head_counts: Annotated[list[PositiveInt], Field(min_length=1)] = Field(description="must divide analysis.d_model")
    head_widths: Annotated[list[PositiveInt], Field(min_length=1)] = Field(description="widths of free heads")
    invariance_draws: PositiveInt = Field(description="random draws of every transformation")


class Config(Section):
    """Everything that decides a run's numbers, and the device they are computed on."""

    corpus: str = Field(description=corpus.allowed())
    device: Device = Field(description="where training runs: auto takes CUDA where there is one, else the CPU")
    model: Model
    training: Training
    cases: Annotated[dict[Name, Case], Field(min_length=1)]
    groups: Annotated[dict[Name, Group], Field(min_length=1)]
    analysis: Analysis

    @model_validator(mode="after")
    def _settings_fit_together(self) -> Self:
        for complaint in self._complaints():
            raise ValueError(complaint)
        return self

    def _complaints(self) -> Iterable[str]:
        model, training = self.model, self.training
        if not corpus.exists(self.corpus):
            yield f"corpus must be {corpus.allowed()}; {self.corpus!r} is none of these"
        yield from _not_dividing("model.n_heads", [model.n_heads], "model.d_model", model.d_model)
        if training.warmup_steps >= training.steps:
            yield (
                f"training.warmup_steps must be less than training.steps = {training.steps}, "
                f"not {training.warmup_steps}"
            )
        if training.measure_every > training.steps:
            yield (
                f"training.measure_every must be at most training.steps = {training.steps}, "
                f"not {training.measure_every}"
            )
        if training.seeds_per_job > training.seeds:
            yield (
                f"training.seeds_per_job must be at most training.seeds = {training.seeds}, "
                f"not {training.seeds_per_job}"
            )
        for name, case in self.cases.items():
            if case.lr_floor is not None and case.lr_floor > case.lr:
                yield f"cases.{name}.lr_floor must be at most its lr = {case.lr}, not {case.lr_floor}"
        for name, group in self.groups.items():
            unknown = [wanted for wanted in group.cases if wanted not in self.cases]
            if unknown:
                yield f"groups.{name}.cases names {unknown[0]!r}, which is none of the cases {', '.join(self.cases)}"
            yield from _not_dividing(f"groups.{name}.n_heads", group.n_heads or [], "model.d_model", model.d_model)
            for wanted in group.cases:
                floor = self.cases[wanted].lr_floor if wanted in self.cases else None
                if floor is not None and group.lr and floor > min(group.lr):
                    yield f"groups.{name}.lr must be at least cases.{wanted}.lr_floor = {floor}, not {min(group.lr)}"
        analysis = self.analysis
        yield from _not_dividing("analysis.head_counts", analysis.head_counts, "analysis.d_model", analysis.d_model)


class Cell(Section):
    """The settings of one training cell: all that changes its numbers, except the seed."""

    case: str
    optimizer: Literal["sgd", "adamw"]
    lr: float
    lr_floor: float
    weight_decay: float
    rebalance: Literal["none", "weights", "state"]
    rebalance_every: int
    precision: Precision
    corpus: str
    n_layers: int
    d_model: int
    n_heads: int
    context: int
    dropout: float
    steps: int
    warmup_steps: int
    batch_size: int
    grad_clip: float
    adam_betas: tuple[float, float]
    measure_every: int
    eval_batches: int

    @property
    def layer(self) -> LayerSpec:
        """The attention layer of the cell's model."""
        return LayerSpec.multi_head(self.d_model, self.n_heads, biases=True)

    @property
    def hash(self) -> str:
        """Six digits that change with any setting but the case's name."""
        settings = self.model_dump(mode="json", exclude={"case"})
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:6]

    @property
    def id(self) -> str:
        """Readable name: case, what a group may vary, and the hash."""
        parts = [self.case, f"lr{self.lr:g}".replace("+", ""), f"h{self.n_heads}"]
        if self.precision != "float32":
            parts.append(self.precision)
        return "_".join([*parts, self.hash])


def parse(settings: Mapping[str, Any]) -> Config:
    """Check a configuration. Raises UserError naming the first key that is wrong, its value and what is allowed."""
    try:
        return Config.model_validate(settings)
    except ValidationError as error:
        raise UserError(validation_sentence(error, "configuration", Config)) from None


def grouped_cells(config: Config) -> dict[str, list[Cell]]:
    """The cells of every group, in the configuration's order, each once."""
    return {
        name: list({cell.id: cell for cell in _group_cells(config, group)}.values())
        for name, group in config.groups.items()
    }


def cells(config: Config) -> dict[str, Cell]:
    """All cells by id, each once however many groups hold it."""
    return {cell.id: cell for group in grouped_cells(config).values() for cell in group}


def seed_blocks(seeds: int, per_job: int, trained: Iterable[tuple[int, int]] = ()) -> list[tuple[int, int]]:
    """Split seeds 0 to seeds - 1 into blocks (first, last), one job each.

    Blocks that are already trained stay as they are where they fit, so that more seeds train nothing again.
    """
    last_of = {first: last for first, last in sorted(trained) if last < seeds}
    blocks, first = [], 0
    while first < seeds:
        later_starts = [start for start in last_of if start > first]
        last = last_of.get(first, min([first + per_job, seeds, *later_starts]) - 1)
        blocks.append((first, last))
        first = last + 1
    return blocks


def _group_cells(config: Config, group: Group) -> Iterable[Cell]:
    for name in group.cases:
        case = config.cases[name]
        for lr, n_heads, precision in itertools.product(
            group.lr or [case.lr],
            group.n_heads or [config.model.n_heads],
            group.precision or [config.training.precision],
        ):
            yield _cell(config, name, lr, n_heads, precision)


def _cell(config: Config, name: str, lr: float, n_heads: int, precision: Precision) -> Cell:
    case, model, training = config.cases[name], config.model, config.training
    rebalances = case.rebalance != "none"
    return Cell(
        case=name,
        optimizer=case.optimizer,
        lr=lr,
        lr_floor=lr * training.lr_floor_fraction if case.lr_floor is None else case.lr_floor,
        weight_decay=case.weight_decay,
        rebalance=case.rebalance,
        rebalance_every=training.rebalance_every if rebalances else 0,
        precision=precision,
        corpus=corpus.label(config.corpus),
        n_heads=n_heads,
        **model.model_dump(exclude={"n_heads"}),
        **training.model_dump(
            include={
                "steps",
                "warmup_steps",
                "batch_size",
                "grad_clip",
                "adam_betas",
                "measure_every",
                "eval_batches",
            }
        ),
    )


def _not_dividing(key: str, counts: list[int], width_key: str, width: int) -> Iterable[str]:
    for number in counts:
        if width % number:
            small = [divisor for divisor in range(1, isqrt(width) + 1) if width % divisor == 0]
            allowed = ", ".join(map(str, sorted({*small, *(width // divisor for divisor in small)})))
            yield f"{key} must divide {width_key} = {width} ({allowed}), not {number}"
