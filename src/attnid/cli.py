"""The command line: attnid. What a command does not need, PyTorch above all, is not imported for it."""

import argparse
import contextlib
import difflib
import io
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from attnid import __version__
from attnid.architectures import Architecture, architectures
from attnid.attention_layers import AttentionLayers
from attnid.counting import NoClosedFormError, count
from attnid.errors import UserError, printable, validation_sentence
from attnid.files import read_small
from attnid.layer import LayerSpec, layer_name, numel

CHECKPOINT = "a .safetensors file, the index of several, or a directory with either"
LONGEST_SENTENCE = 2_000
LARGEST_RANK = 20_000
"""Parameters of a layer whose Jacobian still fits in memory."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 0 on success, 1 where `diff` or `compare` finds one, 2 on a user's mistake."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        "".join(given).encode()
    except UnicodeEncodeError:
        return _complain(f"{' '.join(given)!a}: not UTF-8; expected arguments and paths in UTF-8")
    chosen = _parser().parse_args(given)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return _run(chosen)
    except UserError as error:
        return _complain(str(error))
    except KeyboardInterrupt:
        return 130


def _run(chosen: argparse.Namespace) -> int:
    """Print what a command has to say, once it is all there. Raises UserError where it cannot be written."""
    text = "\n".join(chosen.run(chosen))
    if chosen.run is not _watch:  # whose colours are its own
        text = printable(text)
    if sys.stdout is None:
        raise UserError("the output is closed; expected somewhere to write to")
    try:
        print(text, flush=True)
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise UserError(f"the output cannot be written ({error.strerror})") from None
    return int(getattr(chosen, "status", 0))


def _complain(sentence: str) -> int:
    with contextlib.suppress(OSError):
        print(f"attnid: {printable(_cut(' '.join(sentence.split())))}", file=sys.stderr, flush=True)
    return 2


def _cut(sentence: str) -> str:
    """A sentence without the middle of what is very long in it."""
    half = LONGEST_SENTENCE // 2
    return sentence if len(sentence) <= LONGEST_SENTENCE else f"{sentence[:half]} ... {sentence[-half:]}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="attnid", description="How many of an attention layer's parameters count.")
    parser.add_argument("--version", action="version", version=f"attnid {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")

    counting = commands.add_parser("count", help="unidentified parameters of a layer, by source")
    counting.add_argument(
        "layer",
        nargs="?",
        help="a JSON file with the fields of LayerSpec, a Hugging Face config.json, or a shipped model's name",
    )
    counting.add_argument("--list", action="store_true", help="name the shipped models")
    counting.add_argument("--block", action="store_true", help="count a model's layers with the norm before them")
    counting.add_argument(
        "--rank", choices=["float64"], help="measure the float64 rank of the layer's Jacobian as well"
    )
    counting.add_argument("--certify", action="store_true", help="prove the rank modulo a prime, from both sides")
    counting.add_argument("--seed", type=_seed, default=0, help="of the random weights and inputs of a rank")
    counting.add_argument("--json", action="store_true", help="print JSON")
    counting.set_defaults(run=_count)

    merging = commands.add_parser("merge", help="put the training results of two machines together")
    for name, text in (("first", "a results directory"), ("second", "another one"), ("merged", "the one to make")):
        merging.add_argument(name, type=Path, help=text)
    merging.set_defaults(run=_merge)

    contrasting = commands.add_parser(
        "compare", help="verdicts and numbers that differ between two runs; status 1 if any"
    )
    for name in ("first", "second"):
        contrasting.add_argument(name, type=Path, help="a results directory")
    contrasting.add_argument("--all", action="store_true", help="list what agrees as well")
    contrasting.add_argument("--json", action="store_true", help="print JSON")
    contrasting.add_argument("--page", type=Path, help="write all of it to an .html file")
    contrasting.set_defaults(run=_compare)

    inspecting = commands.add_parser("inspect", help="attention weights of a checkpoint, layer by layer")
    inspecting.add_argument("model", type=Path, help=CHECKPOINT)
    inspecting.add_argument("--json", action="store_true", help="print JSON, with every head")
    inspecting.add_argument("--table", type=Path, help="write every head to a Parquet file")
    inspecting.add_argument("--figure", type=Path, help="draw every head to a .pdf or .png file")
    inspecting.set_defaults(run=_inspect)

    rebalancing = commands.add_parser("rebalance", help="write a checkpoint with balanced weights, the same function")
    rebalancing.add_argument("model", type=Path, help=CHECKPOINT)
    rebalancing.add_argument("balanced", type=Path, help="the one to make: a file for a file, else a directory")
    rebalancing.set_defaults(run=_rebalance)

    comparing = commands.add_parser(
        "diff", help="whether two checkpoints are one function up to the symmetries; status 1 if not"
    )
    for name in ("first", "second"):
        comparing.add_argument(name, type=Path, help=CHECKPOINT)
    comparing.add_argument("--json", action="store_true", help="print JSON")
    comparing.set_defaults(run=_diff)
    for command in (inspecting, rebalancing, comparing):
        command.add_argument("--config", type=Path, help="config.json of the model, where it does not lie beside it")

    for name, run, text in (
        ("check", _check, "say whether a configuration holds"),
        ("plan", _plan, "expected jobs, hours, memory and disk of a configuration"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("files", nargs="+", type=Path, help="config.yaml and the overlays on it, in order")
        command.set_defaults(run=run)

    watching = commands.add_parser("watch", help="show a run while it trains: jobs, losses, rho, time left")
    watching.add_argument(
        "files", nargs="*", type=Path, help="config.yaml and the overlays on it, in order; without any, config.yaml"
    )
    watching.add_argument("--results", type=Path, default=Path("results"), help="directory of the run's results")
    watching.add_argument("--once", action="store_true", help="show the run as it is, and end")
    watching.set_defaults(run=_watch)
    return parser


def _seed(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) < 2**63):
        raise argparse.ArgumentTypeError(f"{text!r} is not a seed; allowed: whole numbers from 0 to 2^63 - 1")
    return int(text)


def _count(arguments: argparse.Namespace) -> list[str]:
    if arguments.list:
        if arguments.layer is not None:
            raise UserError(f"count: --list takes no layer, found {arguments.layer!r}")
        names = [model.model for model in architectures()]
        return [json.dumps(names, indent=1)] if arguments.json else names
    if arguments.layer is None:
        raise UserError("count: no layer given; expected a JSON file, a shipped model's name, or --list")
    kinds = _layers(arguments.layer)
    if arguments.block and isinstance(kinds, LayerSpec):
        raise UserError("count: --block is for models; a layer file has pre_norm for the norm before the layer")
    result = _counted(kinds, arguments) if isinstance(kinds, LayerSpec) else _counted_model(kinds, arguments)
    return [json.dumps(result, indent=1)] if arguments.json else _lines(result)


def _counted_model(kinds: Sequence[AttentionLayers], arguments: argparse.Namespace) -> dict[str, Any]:
    """Each kind of layer, the first of them also at the top, and all layers together."""
    layers: list[dict[str, Any]] = []
    for kind in kinds:
        spec = kind.spec if arguments.block else kind.spec.alone
        layers.append({"role": kind.role, "number": kind.number} | _counted(spec, arguments))
    totals: dict[str, Any] = {
        name: sum(layer["number"] * layer[name] for layer in layers)
        for name in ("parameters", "identified", "unidentified")
        if all(layer[name] is not None for layer in layers)
    }
    if "identified" in totals:
        totals["identified_fraction"] = totals["identified"] / totals["parameters"]
    return layers[0] | {"layers": layers, "model": totals}


def _counted(spec: LayerSpec, arguments: argparse.Namespace) -> dict[str, Any]:
    parameters = numel(spec.parameter_shapes)
    result: dict[str, Any] = {"layer": layer_name(spec), "parameters": parameters} | _closed_form(spec)
    if arguments.rank or arguments.certify:
        _refuse_what_does_not_fit(spec)
    if arguments.rank:
        from attnid.rank import UnclearRankError, layer_ranks

        try:
            rank = layer_ranks(spec, arguments.seed).layer
        except UnclearRankError as error:
            raise UserError(f"count: {error}") from None
        result |= {"rank_float64": rank.rank, "gap": [rank.smallest_kept, rank.largest_dropped]}
    if arguments.certify:
        from attnid.exact import certify

        proof = certify(spec, arguments.seed)
        result |= {"rank_exact_lower": proof.layer.lower, "rank_exact_upper": proof.layer.upper}
        result |= {"certified": proof.certified, "prime": proof.prime, "seed": proof.seed}
        failed = proof.failed or ("" if proof.certified else "the two bounds do not meet")
        result |= {"assumed": proof.assumed, "failed": failed}
    _require_agreement(spec, result)
    return result


def _require_agreement(spec: LayerSpec, result: dict[str, Any]) -> None:
    """Refuse to print numbers that contradict each other: the closed form, a measured and a proved rank."""
    certified = [result["rank_exact_lower"]] if result.get("certified") else []
    ranks = {*certified, *(result[name] for name in ("identified", "rank_float64") if result.get(name) is not None)}
    if len(ranks) > 1:
        raise UserError(
            f"count: the layer {layer_name(spec)} has {result['identified']} identified parameters by its closed form, "
            f"{result.get('rank_float64', 'no')} by float64 rank and {result.get('rank_exact_lower', 'no')} by proof: "
            "float64 mistakes such a layer, or this is an error of attnid"
        )


def _refuse_what_does_not_fit(spec: LayerSpec) -> None:
    parameters = numel(spec.parameter_shapes)
    if parameters > LARGEST_RANK:
        raise UserError(
            f"count: a rank of {parameters:,} parameters is out of reach; allowed: at most {LARGEST_RANK:,}"
        )
    from attnid.rank import MOST_NUMBERS, numbers_held

    if numbers_held(spec) > MOST_NUMBERS:
        raise UserError(
            f"count: a rank that holds {numbers_held(spec):,} numbers at a time is out of reach; allowed: at most "
            f"{MOST_NUMBERS:,}, fewer with smaller sizes or a smaller relative_distance"
        )


def _closed_form(spec: LayerSpec) -> dict[str, Any]:
    try:
        counted = count(spec)
    except NoClosedFormError as error:
        unknown = dict.fromkeys(("identified", "unidentified", "identified_fraction"))
        return unknown | {"sources": {}, "no_closed_form": f"{error}; --rank float64 measures, --certify bounds it"}
    return {
        "identified": counted.identified,
        "unidentified": counted.unidentified,
        "identified_fraction": counted.identified_fraction,
        "sources": counted.sources,
    }


def _lines(result: dict[str, Any]) -> list[str]:
    """A result in lines for a reader: sources that are zero and conditions that hold are left out."""
    lines = []
    for layer in result.get("layers", [result]):
        if "role" in layer:
            lines.append(f"{layer['number']} x {layer['role']}, each:")
        named = {name: value for name, value in layer.items() if name not in ("role", "number", "sources", "failed")}
        named |= {name: value for name, value in layer["sources"].items() if value}
        if layer.get("failed"):
            named["failed"] = layer["failed"]
        lines += [*_table(named), ""]
    if "model" in result:
        return [*lines, "all attention layers:", *_table(result["model"])]
    return lines[:-1]


def _table(named: dict[str, Any]) -> list[str]:
    return [f"{name.replace('_', ' '):20} {_shown(value)}" for name, value in named.items()]


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(f"{number:.1e}" for number in value)
    if isinstance(value, float):
        return f"{value:.4f}"
    if value is None:
        return "unknown"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _layers(name: str) -> LayerSpec | Sequence[AttentionLayers]:
    """One layer of a layer file; all kinds of layers of a model."""
    if name.endswith(".json") or os.path.isfile(name):
        return _file(Path(name))
    models: dict[str, Architecture] = {}
    for model in architectures():
        models |= {model.model.lower(): model, model.model.split(" (")[0].lower(): model}
    found = models.get(name.lower())
    if found is None:
        near = difflib.get_close_matches(name.lower(), models, n=3)
        hint = f"near it: {', '.join(dict.fromkeys(models[key].model for key in near))}; " if near else ""
        raise UserError(f"count: {name!r} is neither a file nor a shipped model; {hint}all: attnid count --list")
    return found.layers


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"{next(key for key in keys if keys.count(key) > 1)} stands in it twice")
    return fields


def _file(path: Path) -> LayerSpec | Sequence[AttentionLayers]:
    try:
        text = read_small(path, "a JSON layer").decode("utf-8-sig")
        fields = json.loads(text, object_pairs_hook=_each_key_once)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not a JSON object of distinct keys ({error})") from None
    if isinstance(fields, dict) and "model_type" in fields:
        from attnid.huggingface import attention_layers

        return attention_layers(fields, str(path))
    try:
        return LayerSpec.from_fields(fields)
    except ValidationError as error:
        raise UserError(validation_sentence(error, str(path), LayerSpec)) from None


def _merge(arguments: argparse.Namespace) -> list[str]:
    from attnid.merge import merge

    _end_cleanly_when_asked()
    return merge(arguments.first, arguments.second, arguments.merged)


def _compare(arguments: argparse.Namespace) -> list[str]:
    from attnid.comparison_command import compare_results, save

    found = compare_results(arguments.first, arguments.second)
    if arguments.page is not None:
        save(found.page(), arguments.page)
    arguments.status = 1 if found.comparison.differs else 0
    return [json.dumps(found.as_json(arguments.all), indent=1)] if arguments.json else found.lines(arguments.all)


def _inspect(arguments: argparse.Namespace) -> list[str]:
    from attnid.models.commands import inspect

    found = inspect(arguments.model, arguments.config, arguments.table, arguments.figure)
    return [json.dumps(found.as_json(), indent=1)] if arguments.json else found.lines()


def _rebalance(arguments: argparse.Namespace) -> list[str]:
    from attnid.models.commands import rebalance

    _end_cleanly_when_asked()
    return rebalance(arguments.model, arguments.balanced, arguments.config)


def _diff(arguments: argparse.Namespace) -> list[str]:
    from attnid.models.commands import diff

    found = diff(arguments.first, arguments.second, arguments.config)
    arguments.status = 0 if found.same else 1
    return [json.dumps(found.as_json(), indent=1)] if arguments.json else found.lines()


def _end_cleanly_when_asked() -> None:
    """Let SIGTERM end the command as an exception does, so that what is half made is removed."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def _check(arguments: argparse.Namespace) -> list[str]:
    from attnid import config, config_files, corpus

    settings = config.parse(config_files.load(arguments.files))
    corpus.check(settings.corpus, settings.model.context)
    unused = sorted(set(settings.cases) - {case for group in settings.groups.values() for case in group.cases})
    hint = f"; in no group, and not trained: {', '.join(unused)}" if unused else ""
    return [f"{', '.join(map(str, arguments.files))}: {len(config.cells(settings))} training cells{hint}"]


def _plan(arguments: argparse.Namespace) -> list[str]:
    from attnid import config, config_files, plan

    settings = config.parse(config_files.load(arguments.files))
    expected = plan.plan(settings, plan.product_speed())
    cores = os.cpu_count() or 1
    return plan.sentences(expected, sorted({1, cores}))


def _watch(arguments: argparse.Namespace) -> list[str]:
    from attnid import config, config_files, paths, screen, watch

    settings = config.parse(config_files.load(arguments.files or [Path("config.yaml")]))
    if arguments.results != paths.RESULTS and not os.path.isdir(arguments.results):
        raise UserError(f"watch: {arguments.results} is no directory; expected the results of a run")
    return screen.watch(watch.Watcher(settings, arguments.results), arguments.once)
