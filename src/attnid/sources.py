"""Which files of the package a script depends on, so that an edit reruns just what it concerns."""

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parent


def closure(script: Path, *modules: str) -> list[Path]:
    """Files of the package that a script imports, directly or through others.

    A package that calls `import_modules` (`attnid.discovery`) brings all its modules.

    Args:
        script: a Python file; its imports are read, not run.
        modules: dotted names of modules that it loads by name, `attnid.figures.squad_table` for one.
    """
    found: set[Path] = set()
    waiting = [*_imports(script), *(path for module in modules for path in _files(module))]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting.extend(_imports(path))
    return sorted(found)


def _imports(path: Path) -> Iterator[Path]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names):
                modules = [alias.name for alias in names]
            case ast.ImportFrom(str(module), names):
                modules = [module, *(f"{module}.{alias.name}" for alias in names)]
            case ast.Call(ast.Name("import_modules")):
                yield from path.parent.glob("*.py")
                continue
            case _:
                continue
        for name in modules:
            yield from _files(name)


def _files(module: str) -> Iterator[Path]:
    """The file of a module of the package and those of the packages around it; none for other names."""
    root, *parts = module.split(".")
    if root != PACKAGE.name:
        return
    yield PACKAGE / "__init__.py"
    for depth in range(1, len(parts) + 1):
        path = PACKAGE.joinpath(*parts[:depth])
        if path.is_dir():
            yield path / "__init__.py"
        elif path.with_suffix(".py").is_file():
            yield path.with_suffix(".py")
