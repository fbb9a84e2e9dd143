"""Settings of the tests of research: those of fedrec's own tests."""

from tests.conftest import real_data

__all__ = ["real_data"]
