"""A run that reads the committed tables of a smoke run, in a directory of its own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import verify
from settings import ROOT

TABLES = ROOT / "reference" / "smoke"
NO_NETWORK = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")


class RunFromTables:
    """A copy of the project's workflow and article, with the results of `snakemake --config tables=...`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        verify.copy_workflow(root)
        shutil.copytree(ROOT / "docs" / "article", root / "docs" / "article")
        self.snakemake("--cores", "2")

    def snakemake(self, *arguments: str, path: str = os.environ["PATH"], status: int = 0) -> str:
        """Run Snakemake, without a network; its output."""
        result = subprocess.run(
            [sys.executable, "-m", "snakemake", "--config", f"tables={TABLES}", *arguments],
            cwd=self.root,
            env=os.environ | NO_NETWORK | {"PATH": path},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        assert result.returncode == status, result.stdout[-5000:]
        return result.stdout
