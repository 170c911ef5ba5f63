"""Modules that are found in their package rather than listed."""

import ast
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any


def names(package: str) -> tuple[str, ...]:
    """Names of the modules in a package, in alphabetical order; none is imported."""
    return tuple(sorted(module.name for module in iter_modules(import_module(package).__path__)))


def import_modules(package: str) -> None:
    """Import every module of a package; `attnid.sources` knows by this call that the package depends on them all."""
    for name in names(package):
        import_module(f"{package}.{name}")


def constants(file: Path) -> dict[str, Any]:
    """Constants that a module states at its top level as plain literals, by name; read, so nothing is imported."""
    found = {}
    for statement in ast.parse(file.read_text(encoding="utf-8")).body:
        match statement:
            case ast.Assign(targets=[ast.Name(name)], value=value):
                try:
                    found[name] = ast.literal_eval(value)
                except ValueError:
                    continue
    return found
