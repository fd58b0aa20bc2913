"""The star of a module of tests, put back as it was prepared for each of them."""

from pathlib import Path

import pytest

from tests.schema.stars import Star


@pytest.fixture
def star(prepared: tuple[Star, Path]) -> Star:
    """Return the prepared star as it was."""
    prepared[0].load(prepared[1])
    return prepared[0]
