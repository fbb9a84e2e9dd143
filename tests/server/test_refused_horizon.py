"""What keeps no stream of a year refuses one by name, before anything is read or written."""

from __future__ import annotations

from typing import Any, cast

import pytest

from fedrec.auditing.command import run as audit
from fedrec.errors import SettingsError
from fedrec.run.job import RuntimeChoice
from fedrec.run.ratings import Ratings
from fedrec.settings import validated


def test_runtimes_and_audit_refuse_a_horizon() -> None:
    scenario = validated({"recipe": "dp-item-item", "privacy": {"horizon": 4}}, source="test")
    for runtime in ("parties", "processes", "partitions"):
        with pytest.raises(SettingsError, match=rf"privacy\.horizon: .* --runtime {runtime}"):
            Ratings.require_carried(scenario, RuntimeChoice(cast(Any, runtime)))
    with pytest.raises(SettingsError, match=r"privacy\.horizon: no attack"):
        audit(scenario)
