"""Pages for readers: where their templates lie, and how numbers stand in them."""

from numbers import Integral, Real
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pandas as pd
import yaml
from pandas.api.types import is_numeric_dtype

TEMPLATES = Path(__file__).parent / "data" / "pages"


def template(name: str) -> jinja2.Template:
    """A page's template; what it is given is escaped, and a name that it lacks is an error."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": number,
        "exact": exact,
        "duration": duration,
        "listed": listed,
        "columns": _columns,
        "rows": _rows,
        "yaml": _yaml,
    }
    return environment.get_template(name)


def number(value: Any) -> str:
    """A value for a reader: four significant digits for a measured number, a dash for a missing one."""
    if value is None or value is pd.NA or (isinstance(value, float) and pd.isna(value)):
        return "–"
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, str) or not isinstance(value, Real):
        return str(value)
    return f"{value}" if isinstance(value, Integral) else f"{float(value):.4g}"


def exact(value: Real) -> str:
    """A number to its last digit, for a machine; nothing for a missing one."""
    return "" if pd.isna(float(value)) else str(value)


def duration(seconds: float) -> str:
    """Seconds as hours, minutes and seconds."""
    hours, rest = divmod(round(seconds), 3600)
    minutes, left = divmod(rest, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {left} s" if minutes else f"{left} s"


def listed(value: Any) -> list[Any]:
    """A value as a list; of one entry where it is none."""
    return list(value) if isinstance(value, list | tuple | range) else [value]


def _columns(frame: pd.DataFrame) -> list[tuple[str, bool]]:
    """Names of a frame's columns, and whether they hold numbers."""
    return [(str(name), is_numeric_dtype(frame[name])) for name in frame.columns]


def _rows(frame: pd.DataFrame) -> list[tuple[Any, ...]]:
    return list(frame.astype(object).itertuples(index=False, name=None))


def _yaml(value: Any) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
