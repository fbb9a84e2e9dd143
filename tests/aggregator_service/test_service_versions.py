"""Callers and aggregators whose messages have other versions: adjacent ones work, others are told
who is to upgrade."""

from collections.abc import Callable
from typing import Any

import pytest

from fedrec.errors import RefusedError
from fedrec.federation.protocol import Refusal
from fedrec.federation.round_messages import PROTOCOL
from fedrec.transport import aggregator_client
from fedrec_aggregator import calls
from tests.aggregator_service.conftest import ONCE


def test_callers_of_adjacent_versions_are_served_and_others_refused_and_counted_nowhere(
    start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    aggregator = start()
    for version in (PROTOCOL - 1, PROTOCOL, PROTOCOL + 1):
        monkeypatch.setattr(aggregator_client, "PROTOCOL", version)
        with aggregator.client(retry=ONCE) as endpoint:
            assert endpoint.enroll([]) == 0
    monkeypatch.setattr(aggregator_client, "PROTOCOL", PROTOCOL + 2)
    with (
        aggregator.client(retry=ONCE) as endpoint,
        pytest.raises(RefusedError, match="client hospital speaks version 5") as failure,
    ):
        endpoint.enroll([bytes(16)])
    assert failure.value.code == Refusal.WRONG_PROTOCOL
    assert not aggregator.owners()


def test_an_aggregator_of_a_far_version_is_not_believed(
    start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    aggregator = start()
    monkeypatch.setattr(calls, "PROTOCOL", PROTOCOL + 2)
    with (
        aggregator.server(retry=ONCE) as endpoint,
        pytest.raises(RefusedError, match=r"the aggregator at .* speaks version 5") as failure,
    ):
        endpoint.enrolled()
    assert "Upgrade fedrec here" in failure.value.remedy
