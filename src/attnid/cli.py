"""The command line: attnid. What a command does not need, PyTorch above all, is not imported for it."""

import argparse
import difflib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from attnid import __version__
from attnid.architectures import architectures
from attnid.counting import count
from attnid.errors import UserError, validation_sentence
from attnid.layer import LayerSpec

LARGEST_RANK = 20_000
"""Parameters of a layer whose Jacobian still fits in memory."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 0 on success, 2 on a user's mistake."""
    chosen = _parser().parse_args(arguments)
    try:
        chosen.run(chosen)
    except UserError as error:
        print(f"attnid: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="attnid", description="How many of an attention layer's parameters count.")
    parser.add_argument("--version", action="version", version=f"attnid {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")

    counting = commands.add_parser("count", help="unidentified parameters of a layer, by source")
    counting.add_argument(
        "layer", nargs="?", help="a JSON file with the fields of LayerSpec, or a shipped model's name"
    )
    counting.add_argument("--list", action="store_true", help="name the shipped models")
    counting.add_argument(
        "--rank", choices=["float64"], help="measure the float64 rank of the layer's Jacobian as well"
    )
    counting.add_argument("--certify", action="store_true", help="prove the rank modulo a prime, from both sides")
    counting.add_argument("--json", action="store_true", help="print JSON")
    counting.set_defaults(run=_count)

    planning = commands.add_parser("plan", help="expected jobs, hours, memory and disk of a configuration")
    planning.add_argument("files", nargs="+", type=Path, help="config.yaml and the overlays on it, in order")
    planning.set_defaults(run=_plan)
    return parser


def _count(arguments: argparse.Namespace) -> None:
    if arguments.list:
        names = [model.model for model in architectures()]
        print(json.dumps(names, indent=1) if arguments.json else "\n".join(names))
        return
    if arguments.layer is None:
        raise UserError("count: no layer given; expected a JSON file, a shipped model's name, or --list")
    result = _counted(_layer(arguments.layer), arguments)
    print(json.dumps(result, indent=1) if arguments.json else "\n".join(_lines(result)))


def _counted(spec: LayerSpec, arguments: argparse.Namespace) -> dict[str, Any]:
    counted = count(spec)
    result: dict[str, Any] = {
        "parameters": counted.parameters,
        "identified": counted.identified,
        "unidentified": counted.unidentified,
        "identified_fraction": counted.identified_fraction,
        "sources": counted.sources,
    }
    if (arguments.rank or arguments.certify) and counted.parameters > LARGEST_RANK:
        raise UserError(
            f"count: a rank of {counted.parameters:,} parameters is out of reach; allowed: at most {LARGEST_RANK:,}"
        )
    if arguments.rank:
        from attnid.rank import UnclearRankError, layer_ranks

        try:
            rank = layer_ranks(spec).layer
        except UnclearRankError as error:
            raise UserError(f"count: {error}") from None
        result |= {"rank_float64": rank.rank, "gap": [rank.smallest_kept, rank.largest_dropped]}
    if arguments.certify:
        from attnid.exact import certify

        proof = certify(spec)
        result |= {"rank_exact_lower": proof.lower, "rank_exact_upper": proof.upper, "certified": proof.certified}
        result |= {"prime": proof.prime, "seed": proof.seed, "assumed": proof.failed or proof.assumed}
    return result


def _lines(result: dict[str, Any]) -> list[str]:
    flat = {name: value for name, value in result.items() if name != "sources"} | result["sources"]
    return [f"{name.replace('_', ' '):20} {_shown(value)}" for name, value in flat.items()]


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(f"{number:.1e}" for number in value)
    if isinstance(value, float):
        return f"{value:.4f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _layer(name: str) -> LayerSpec:
    path = Path(name)
    if path.suffix == ".json" or path.exists():
        return _layer_file(path)
    models = {model.model.lower(): model for model in architectures()}
    found = models.get(name.lower())
    if found is None:
        near = difflib.get_close_matches(name.lower(), models, n=3)
        hint = f"near it: {', '.join(models[key].model for key in near)}; " if near else ""
        raise UserError(f"count: {name!r} is neither a file nor a shipped model; {hint}all: attnid count --list")
    if found.spec is None:
        raise UserError(f"count: {found.model} has no closed form here yet, for its {' and '.join(found.unexpressed)}")
    return found.spec


def _layer_file(path: Path) -> LayerSpec:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); expected a JSON layer") from None
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error})") from None
    try:
        return LayerSpec.model_validate(fields)
    except ValidationError as error:
        raise UserError(validation_sentence(error, str(path), LayerSpec)) from None


def _plan(arguments: argparse.Namespace) -> None:
    from attnid import config, plan

    settings = config.parse(_merged(arguments.files))
    expected = plan.plan(settings, plan.product_speed())
    cores = os.cpu_count() or 1
    print("\n".join(plan.sentences(expected, sorted({1, cores}))))


def _merged(files: Sequence[Path]) -> dict[str, Any]:
    """Configuration files laid over each other as Snakemake does it."""
    import yaml

    merged: dict[str, Any] = {}
    for path in files:
        try:
            overlay = yaml.safe_load(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror}); expected a YAML configuration") from None
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise UserError(f"{path}: not YAML ({' '.join(str(error).split())})") from None
        if not isinstance(overlay, dict):
            raise UserError(f"{path}: holds no keys; expected a YAML configuration")
        lay_over(merged, overlay)
    return merged


def lay_over(below: dict[str, Any], above: dict[str, Any]) -> None:
    for key, value in above.items():
        if isinstance(value, dict) and isinstance(below.get(key), dict):
            lay_over(below[key], value)
        else:
            below[key] = value
