"""Tests are small and may share a machine: torch keeps to one thread, which is then many times faster."""

from collections.abc import Iterator

import browser
import playwright.sync_api
import pytest
import torch
from run_from_tables import RunFromTables

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def chromium() -> Iterator[playwright.sync_api.Browser]:
    """One browser for the tests of a module."""
    with browser.launched() as launched:
        yield launched


@pytest.fixture(scope="session")
def run_from_tables(tmp_path_factory: pytest.TempPathFactory) -> RunFromTables:
    """One run for the tests that need what it makes of tables, and change nothing of it."""
    return RunFromTables(tmp_path_factory.mktemp("checkout"))
