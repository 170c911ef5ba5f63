"""Write environment.yml from requirements.lock: the same pins for conda's users."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEAD = """# Written by tools/environment.py from requirements.lock.
name: attnid
channels: [conda-forge]
dependencies:
  - python >=3.11
  - pip
  - pip:
"""


def environment(lock: str) -> str:
    """The text of environment.yml for the text of a lock file."""
    pins = [line for line in lock.splitlines() if line and not line.startswith("#")]
    return HEAD + "".join(f"      - {pin}\n" for pin in pins)


if __name__ == "__main__":
    (ROOT / "environment.yml").write_text(environment((ROOT / "requirements.lock").read_text()))
