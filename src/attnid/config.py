"""The configuration of a run, checked before anything runs, and the training cells it stands for."""

import itertools
import os
from collections.abc import Iterable, Mapping
from math import isqrt
from typing import Annotated, Any, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from attnid import corpus, optimisers, paths
from attnid.cell import Cell, Device, Moments, Optimizer, Precision, Rebalance, Sides
from attnid.errors import UserError, listed, validation_sentence


def _no_truth_value(value: object) -> object:
    """Refuse true and false where a number is meant: Python would take them for 1 and 0."""
    if isinstance(value, bool):
        raise PydanticCustomError("number", "input should be a number")
    return value


def _within_float32(value: float) -> float:
    if value > 1e30:
        raise PydanticCustomError("bounded", "input should be at most 1e30, well within float32")
    return value


Int = Annotated[int, BeforeValidator(_no_truth_value)]
PositiveInt = Annotated[Int, Field(ge=1, le=10**9)]
FewInt = Annotated[Int, Field(ge=1, le=10**5)]
Float = Annotated[float, BeforeValidator(_no_truth_value)]
Probability = Annotated[Float, Field(ge=0, lt=1)]
Positive = Annotated[Float, Field(gt=0, allow_inf_nan=False), AfterValidator(_within_float32)]
NonNegative = Annotated[Float, Field(ge=0, allow_inf_nan=False), AfterValidator(_within_float32)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]*$", max_length=40)]


Value = TypeVar("Value")
Values = Annotated[list[Value], Field(min_length=1)]


class Section(BaseModel):
    """A part of the configuration: unknown keys are refused, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Model(Section):
    """The GPT that is trained: nanoGPT's, with all biases."""

    n_layers: FewInt = Field(description="transformer blocks")
    d_model: PositiveInt = Field(description="width of the model (E)")
    n_heads: PositiveInt = Field(description="attention heads of the base model (H); must divide d_model")
    context: Annotated[Int, Field(ge=2, le=10**9)] = Field(
        description="tokens in a training sequence; one token alone has nothing to attend to"
    )
    dropout: Probability = Field(description="dropout probability")
    n_kv_heads: PositiveInt | None = Field(
        default=None, description="key/value heads (G); must divide the heads; without it, one for every head"
    )
    rope: bool = Field(default=False, description="rotary positions in place of learned ones")


class Training(Section):
    """How every cell is trained and measured."""

    steps: PositiveInt = Field(description="optimiser steps")
    warmup_steps: Annotated[Int, Field(ge=0, le=10**9)] = Field(
        description="steps over which the learning rate rises linearly; the cosine decay follows"
    )
    lr_floor_fraction: Annotated[Float, Field(ge=0, le=1)] = Field(
        description="learning rate at the end of the cosine, as a fraction of its peak, where a case sets no lr_floor"
    )
    batch_size: FewInt = Field(description="sequences in a batch")
    decay_steps: PositiveInt | None = Field(
        default=None,
        description="step at which the cosine ends; without it, the last one. A run with more steps and the same "
        "decay_steps continues from the shorter one's checkpoint",
    )
    grad_clip: NonNegative = Field(
        description="largest norm of the whole gradient; a longer one is scaled down to it; 0 for no clipping"
    )
    adam_betas: tuple[Probability, Probability] = Field(description="decay rates of Adam's two moments")
    rebalance_every: PositiveInt = Field(description="steps between rebalancings, for the cases that rebalance")
    measure_every: PositiveInt = Field(description="steps between measurements; the first step is always measured")
    evaluate_every: PositiveInt = Field(description="steps between validations; a multiple of measure_every")
    eval_batches: FewInt = Field(description="fixed validation batches behind every validation loss")
    precision: Precision = Field(
        description="floating-point format; bfloat16 is that of the forward and backward pass, with float32 weights"
    )
    compile: bool = Field(default=False, description="compile the forward and backward pass (torch.compile)")
    seeds: FewInt = Field(description="runs of every cell, one a seed")
    first_seed: Annotated[Int, Field(ge=0, lt=2**31)] = Field(
        default=0, description="first seed; another machine may train others, for `attnid merge`"
    )
    seeds_per_job: PositiveInt = Field(description="seeds trained side by side by one job")

    @property
    def all_seeds(self) -> range:
        """The seeds of every cell."""
        return range(self.first_seed, self.first_seed + self.seeds)


class Case(Section):
    """An optimiser and what is done to it."""

    optimizer: Optimizer = Field(description="optimiser, such as sgd or adamw: a module of attnid.optimisers")
    lr: Positive = Field(description="peak learning rate")
    weight_decay: NonNegative = Field(default=0.0, description="weight decay, on matrices only")
    momentum: Probability = Field(default=0.0, description="momentum, of optimisers that take one")
    lr_floor: NonNegative | None = Field(
        default=None, description="learning rate at the end of the cosine; without it, lr x lr_floor_fraction"
    )
    grad_clip: NonNegative | None = Field(default=None, description="without it, the training's own")
    adam_betas: tuple[Probability, Probability] | None = Field(
        default=None, description="without it, the training's own"
    )
    rebalance: Rebalance = Field(
        default="none",
        description="every rebalance_every steps: nothing; rebalance query/key weights, or these and value/output "
        "weights; or only clear the optimiser's state (control)",
    )
    moments: Moments = Field(
        default="clear", description="the optimiser's state at a rebalancing: cleared, kept, or moved with the weights"
    )
    rebalance_every: PositiveInt | None = Field(default=None, description="without it, the training's own")
    project: Sides = Field(
        default="none",
        description="take the part along unidentified directions out of every step: of query/key weights, or of these "
        "and value/output weights",
    )

    def complaints(self) -> Iterable[tuple[str, str]]:
        """Keys that contradict others of the case, with what is wrong."""
        if self.lr_floor is not None and self.lr_floor > self.lr:
            yield "lr_floor", f"must be at most its lr = {self.lr}, not {self.lr_floor}"
        taken = optimisers.settings(self.optimizer)
        for key in ("momentum", "adam_betas"):
            if getattr(self, key) and key not in taken:
                takers = listed(optimisers.taking(key), "and")
                yield key, f"is for {takers}; {self.optimizer} takes {listed(taken or ['neither'], 'and')}"
        if self.rebalance in ("none", "state") and self.moments != "clear":
            yield "moments", f"is for cases that rebalance weights; rebalance is {self.rebalance}"
        if self.moments == "transport" and not optimisers.moments_move(self.optimizer):
            yield "moments", f"cannot be 'transport' for {self.optimizer}, whose state does not move with the weights"
        if self.rebalance == "none" and self.rebalance_every:
            yield "rebalance_every", "is for cases that rebalance; rebalance is none"


class Group(Section):
    """Cells that are compared: the listed cases, each with every combination of the listed values."""

    cases: Annotated[list[Name], Field(min_length=1)] = Field(description="names of cases")
    lr: Values[Positive] | None = Field(default=None, description="peak learning rates; without it, the case's own")
    n_heads: Values[PositiveInt] | None = Field(default=None, description="head counts; without it, the model's own")
    n_kv_heads: Values[PositiveInt] | None = Field(default=None, description="key/value heads; without it, the model's")
    rope: Values[bool] | None = Field(default=None, description="rotary positions or not; without it, the model's own")
    precision: Values[Precision] | None = Field(default=None, description="formats; without it, the training's own")
    rebalance_every: Values[PositiveInt] | None = Field(
        default=None, description="steps between rebalancings; without it, the case's own"
    )


class Analysis(Section):
    """The grid of layers whose Jacobian ranks are measured, and the invariances that are tried."""

    d_model: PositiveInt = Field(description="width of the layers that are compared over head counts")
    head_counts: Annotated[list[PositiveInt], Field(min_length=1)] = Field(description="must divide analysis.d_model")
    head_widths: Annotated[list[PositiveInt], Field(min_length=1)] = Field(description="widths of free heads")
    invariance_draws: FewInt = Field(description="random draws of every transformation")


class Config(Section):
    """Everything that decides a run's numbers, and the device they are computed on."""

    corpus: str = Field(description=corpus.allowed())
    device: Device = Field(description="where training runs: auto takes CUDA where there is one, else the CPU")
    tensorboard: bool = Field(default=False, description="whether training writes logs for TensorBoard as well")
    tables: str | None = Field(
        default=None,
        description="directory of tables made elsewhere: figures, claims and report are made from them alone",
    )
    partial: bool = Field(
        default=False,
        description="whether metrics, figures, claims and report are made from the training jobs that are done; the "
        "report names the others",
    )
    model: Model
    training: Training
    cases: Annotated[dict[Name, Case], Field(min_length=1)]
    groups: Annotated[dict[Name, Group], Field(min_length=1)]
    analysis: Analysis

    @property
    def settings(self) -> dict[str, Any]:
        """What decides a run's numbers, as JSON holds it."""
        return self.model_dump(mode="json", exclude={"device", "tensorboard", "tables", "partial"})

    @field_validator("groups", mode="before")
    @classmethod
    def _without_groups_left_out(cls, groups: object) -> object:
        """A group that an overlay sets to null is left out."""
        if not isinstance(groups, dict):
            return groups
        return {name: group for name, group in groups.items() if group is not None}

    @model_validator(mode="after")
    def _settings_fit_together(self) -> Self:
        for complaint in self._complaints():
            raise ValueError(complaint)
        return self

    def _complaints(self) -> Iterable[str]:
        model, training = self.model, self.training
        yield from _tables_complaints(self.tables)
        if self.tables and self.partial:
            yield "partial is about the training jobs of this run; tables names those of another, made elsewhere"
        if not corpus.exists(self.corpus):
            yield f"corpus must be {corpus.allowed()}; {self.corpus!r} is none of these"
        yield from _not_dividing("model.n_heads", [model.n_heads], "model.d_model", model.d_model)
        if model.n_kv_heads:
            yield from _not_dividing("model.n_kv_heads", [model.n_kv_heads], "model.n_heads", model.n_heads)
        yield from self._training_complaints(training)
        for name, case in self.cases.items():
            for key, complaint in case.complaints():
                yield f"cases.{name}.{key} {complaint}"
        for name, group in self.groups.items():
            yield from self._group_complaints(f"groups.{name}", group)
        analysis = self.analysis
        yield from _not_dividing("analysis.head_counts", analysis.head_counts, "analysis.d_model", analysis.d_model)

    def _training_complaints(self, training: Training) -> Iterable[str]:
        decay_steps = training.decay_steps or training.steps
        if training.warmup_steps >= decay_steps:
            key = "decay_steps" if training.decay_steps else "steps"
            yield f"training.warmup_steps must be less than training.{key} = {decay_steps}, not {training.warmup_steps}"
        for key in ("measure_every", "evaluate_every"):
            if getattr(training, key) > training.steps:
                yield f"training.{key} must be at most training.steps = {training.steps}, not {getattr(training, key)}"
        if training.evaluate_every % training.measure_every:
            yield (
                f"training.evaluate_every must be a multiple of training.measure_every = {training.measure_every}, "
                f"not {training.evaluate_every}"
            )
        if training.seeds_per_job > training.seeds:
            yield (
                f"training.seeds_per_job must be at most training.seeds = {training.seeds}, "
                f"not {training.seeds_per_job}"
            )

    def _group_complaints(self, where: str, group: Group) -> Iterable[str]:
        model = self.model
        for wanted in group.cases:
            if wanted not in self.cases:
                yield f"{where}.cases names {wanted!r}, which is none of the cases {', '.join(self.cases)}"
                return
            case = self.cases[wanted]
            if case.lr_floor is not None and group.lr and case.lr_floor > min(group.lr):
                yield f"{where}.lr must be at least cases.{wanted}.lr_floor = {case.lr_floor}, not {min(group.lr)}"
            if group.rebalance_every and case.rebalance == "none":
                yield f"{where}.rebalance_every is for cases that rebalance; cases.{wanted}.rebalance is none"
        yield from _not_dividing(f"{where}.n_heads", group.n_heads or [], "model.d_model", model.d_model)
        kv_heads = group.n_kv_heads or ([model.n_kv_heads] if model.n_kv_heads else [])
        for heads in group.n_heads or [model.n_heads]:
            key = f"{where}.n_kv_heads" if group.n_kv_heads else "model.n_kv_heads"
            yield from _not_dividing(key, kv_heads, "the head count", heads)
            if True in (group.rope or [model.rope]) and model.d_model // heads % 2:
                yield (
                    f"{where}: rope needs an even head width, and model.d_model = {model.d_model} with {heads} heads "
                    f"has {model.d_model // heads}"
                )


VARIED = ("lr", "n_heads", "n_kv_heads", "rope", "precision", "rebalance_every")
"""Settings that a group may vary; all others are the same in every cell of a case."""


def parse(settings: Mapping[str, Any]) -> Config:
    """Check a configuration. Raises UserError naming the first key that is wrong, its value and what is allowed."""
    try:
        config = Config.model_validate(settings)
    except ValidationError as error:
        raise UserError(validation_sentence(error, "configuration", Config)) from None
    _require_distinct_names(config)
    return config


def grouped_cells(config: Config) -> dict[str, list[Cell]]:
    """The cells of every group, in the configuration's order, each once."""
    return {
        name: list({cell.id: cell for cell in _group_cells(config, group)}.values())
        for name, group in config.groups.items()
    }


def cells(config: Config) -> dict[str, Cell]:
    """All cells by id, each once however many groups hold it."""
    return {cell.id: cell for group in grouped_cells(config).values() for cell in group}


def _require_distinct_names(config: Config) -> None:
    """Refuse two cells whose names are the same by chance: one would stand for both."""
    named: dict[str, Cell] = {}
    for cell in (cell for group in config.groups.values() for cell in _group_cells(config, group)):
        known = named.setdefault(cell.id, cell)
        for key, value in cell:
            if value != getattr(known, key):
                raise UserError(
                    f"configuration: two cells, with {key} {getattr(known, key)} and {value}, have the same name "
                    f"{cell.id}, whose last six digits agree by chance; expected a slightly different value of one"
                )


def seed_blocks(seeds: range, per_job: int, trained: Iterable[tuple[int, int]] = ()) -> list[tuple[int, int]]:
    """Split seeds into blocks (first, last), one job each.

    Blocks that are already trained stay as they are where they fit, so that more seeds train nothing again.
    """
    last_of = {first: last for first, last in sorted(trained) if first >= seeds.start and last < seeds.stop}
    blocks, first = [], seeds.start
    while first < seeds.stop:
        later_starts = [start for start in last_of if start > first]
        last = last_of.get(first, min([first + per_job, seeds.stop, *later_starts]) - 1)
        blocks.append((first, last))
        first = last + 1
    return blocks


def _group_cells(config: Config, group: Group) -> Iterable[Cell]:
    axes: dict[str, list[Any]] = {axis: values for axis in VARIED if (values := getattr(group, axis))}
    for name in group.cases:
        for values in itertools.product(*axes.values()):
            yield _cell(config, name, dict(zip(axes, values, strict=True)))


def _cell(config: Config, name: str, varied: dict[str, Any]) -> Cell:
    """A case, with what the group varies in place of the case's, the model's and the training's own settings."""
    case, model, training = config.cases[name], config.model, config.training
    settings = model.model_dump() | training.model_dump() | case.model_dump(exclude_none=True) | varied
    floor = settings["lr"] * training.lr_floor_fraction if case.lr_floor is None else case.lr_floor
    derived = {
        "case": name,
        "corpus": corpus.label(config.corpus),
        "lr_floor": floor,
        "n_kv_heads": settings["n_kv_heads"] or settings["n_heads"],
        "decay_steps": training.decay_steps or training.steps,
        "rebalance_every": settings["rebalance_every"] if case.rebalance != "none" else 0,
    }
    return Cell.model_validate({key: value for key, value in (settings | derived).items() if key in Cell.model_fields})


def _tables_complaints(tables: str | None) -> Iterable[str]:
    if tables is None:
        return
    if not os.path.isdir(os.path.join(tables, "metrics")):
        yield f"tables must be a directory of results with metrics/ and analysis/ in it; {tables!r} is none"
    if {"{", "}"} & set(tables):
        yield f"tables must be a path without braces, which Snakemake reads as wildcards, not {tables!r}"
    if os.path.realpath(tables) == os.path.realpath(paths.RESULTS):
        yield f"tables must be made elsewhere; {tables!r} is where this run writes its own, read without this key"


def _not_dividing(key: str, counts: list[int], width_key: str, width: int) -> Iterable[str]:
    for number in counts:
        if width % number:
            small = [divisor for divisor in range(1, isqrt(width) + 1) if width % divisor == 0]
            allowed = ", ".join(map(str, sorted({*small, *(width // divisor for divisor in small)})))
            yield f"{key} must divide {width_key} = {width} ({allowed}), not {number}"
