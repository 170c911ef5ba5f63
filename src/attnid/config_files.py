"""Configuration files read safely: plain YAML, every key once, no more of it than a file says on its face."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from attnid.errors import UserError
from attnid.files import read_small

MOST_VALUES = 10_000
"""Values of a file once its aliases are written out."""
TEMPLATE = "__use_yte__"
"""The key by which Snakemake takes a configuration file for a template, and runs the Python in it."""


def load(paths: Iterable[Path]) -> dict[str, Any]:
    """Configuration files laid over each other in their order, as Snakemake does it.

    Raises UserError naming the first that is missing, damaged, or not plain YAML with keys at the top.
    """
    merged: dict[str, Any] = {}
    for path in paths:
        lay_over(merged, read(path))
    return merged


def read(path: Path) -> dict[str, Any]:
    """One configuration file. Raises UserError as `load` does."""
    try:
        text = read_small(path, "a YAML configuration").decode("utf-8")
        loader = yaml.SafeLoader(text)
        tree = loader.get_single_node()
        if tree is None:
            raise UserError(f"{path}: holds no keys; expected a YAML configuration")
        _require_plain(tree, path)
        found = loader.construct_document(tree)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: not YAML ({' '.join(str(error).split())})") from None
    if not isinstance(found, dict):
        raise UserError(f"{path}: holds no keys; expected a YAML configuration")
    return found


def lay_over(below: dict[str, Any], above: dict[str, Any]) -> None:
    """Put the values of one configuration in place of another's, key by key."""
    for key, value in above.items():
        if isinstance(value, dict) and isinstance(below.get(key), dict):
            lay_over(below[key], value)
        else:
            below[key] = value


def _require_plain(tree: yaml.Node, path: Path) -> None:
    sizes: dict[yaml.Node, int] = {}
    if _values(tree, sizes, path) > MOST_VALUES:
        raise UserError(f"{path}: more than {MOST_VALUES} values, aliases written out; expected a YAML configuration")


def _values(node: yaml.Node, sizes: dict[yaml.Node, int], path: Path) -> int:
    """Values below a node; those of a node that several aliases name are counted each time, and walked once."""
    if node in sizes:
        return sizes[node]
    sizes[node] = MOST_VALUES + 1  # what an alias to a node around it would hold
    children: list[yaml.Node] = []
    if isinstance(node, yaml.MappingNode):
        _require_distinct(node, path)
        children = [child for pair in node.value for child in pair]
    elif isinstance(node, yaml.SequenceNode):
        children = node.value
    sizes[node] = 1 + sum(_values(child, sizes, path) for child in children)
    return sizes[node]


def _require_distinct(node: yaml.MappingNode, path: Path) -> None:
    keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
    for key in keys:
        if keys.count(key) > 1:
            line = node.start_mark.line + 1
            raise UserError(f"{path}: {key} stands twice in the section from line {line}; expected every key once")
        if key == TEMPLATE:
            raise UserError(f"{path}: {key} makes Snakemake run Python in it; expected plain YAML")
