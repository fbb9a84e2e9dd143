"""Settings of every test: hypothesis draws the same examples each time, and real data is found or skipped with a reason."""

import os
import tempfile
from pathlib import Path

os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="fedrec-tests-")  # budgets of data sets must not end in the developer's own
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # two workers share two cores; before anything imports numpy

import pytest
from hypothesis import settings

settings.register_profile("fedrec", deadline=None, derandomize=True)
settings.load_profile("fedrec")


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data sets, which are never part of the project."""
    folder = os.environ.get("FEDREC_DATA", "")
    if not folder:
        pytest.skip("real data: set FEDREC_DATA to a folder with ml-1m, ml-100k, implicit and mind-sample")
    return Path(folder)
