"""The command line: attnid."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from attnid import __version__, config, plan
from attnid.errors import UserError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 0 on success, 2 on a user's mistake."""
    parser = argparse.ArgumentParser(prog="attnid", description="How many of an attention layer's parameters count.")
    parser.add_argument("--version", action="version", version=f"attnid {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")
    planning = commands.add_parser("plan", help="expected jobs, hours, memory and disk of a configuration")
    planning.add_argument("files", nargs="+", type=Path, help="config.yaml and the overlays on it, in order")
    planning.set_defaults(run=_plan)
    chosen = parser.parse_args(arguments)
    try:
        chosen.run(chosen)
    except UserError as error:
        print(f"attnid: {error}", file=sys.stderr)
        return 2
    return 0


def _plan(arguments: argparse.Namespace) -> None:
    settings = config.parse(_merged(arguments.files))
    expected = plan.plan(settings, plan.product_speed())
    cores = os.cpu_count() or 1
    print("\n".join(plan.sentences(expected, sorted({1, cores}))))


def _merged(files: Sequence[Path]) -> dict[str, Any]:
    """Configuration files laid over each other as Snakemake does it."""
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
