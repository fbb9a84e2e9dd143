from collections.abc import Callable

import pytest

from tests import waiting


@pytest.fixture
def until() -> Callable[..., None]:
    """Waits for a condition, and fails in its words where it never comes."""
    return waiting.until
