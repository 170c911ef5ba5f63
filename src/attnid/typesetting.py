"""Make a PDF of an article that takes its numbers, tables and figures from the results of a run."""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from attnid.errors import UserError

PROGRAMS = ("latexmk", "pdflatex")
FIGURE = re.compile(r"\\includegraphics(?:\[[^]]*\])?\{figures/(\w+)\}")


def require_tex() -> None:
    """Raise UserError where a program that makes the PDF is missing."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        raise UserError(
            f"article: {' and '.join(missing)} not found; expected a TeX installation, "
            "on Debian: apt install latexmk texlive-latex-recommended texlive-fonts-recommended"
        )


def figures(text: str) -> list[str]:
    """Names of the figures that an article includes, in order, each once."""
    return list(dict.fromkeys(FIGURE.findall(text)))


def typeset(article: Path, results: Path, pdf: Path) -> None:
    r"""Write the PDF of an article whose \input and \includegraphics name files below a directory of results.

    Raises UserError with TeX's first complaint where it does not make one.
    """
    require_tex()
    paths = os.pathsep.join([str(article.parent.resolve()), str(results.resolve()), ""])
    with tempfile.TemporaryDirectory() as place:
        command = ["latexmk", "-pdf", "-norc", "-interaction=nonstopmode", "-halt-on-error", "-jobname=article"]
        result = subprocess.run(
            [*command, str(article.resolve())],
            cwd=place,
            env=os.environ | {"TEXINPUTS": paths, "SOURCE_DATE_EPOCH": "0", "FORCE_SOURCE_DATE": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        made = Path(place) / "article.pdf"
        if result.returncode != 0 or not made.exists():
            raise UserError(f"{article}: TeX makes no PDF of it: {_complaint(result.stdout)}")
        partial = pdf.with_name(f".{pdf.name}.partial")
        shutil.copyfile(made, partial)
        partial.replace(pdf)


def _complaint(output: str) -> str:
    """TeX's first error, with the line that it names."""
    found = re.search(r"^! (.*?)\n(?:.*\n)*?(l\.\d+.*)", output, re.MULTILINE)
    return " ".join(found.groups()) if found else output.strip()[-300:]
