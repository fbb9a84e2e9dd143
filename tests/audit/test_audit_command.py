import json
from dataclasses import replace

import pytest

from fedrec.auditing import command
from fedrec.auditing.command import QUICK, Audit, run
from fedrec.auditing.finding import Finding
from fedrec.privacy.guarantee import Guarantee
from fedrec.settings import load

NEWS = [
    "recipe=privaterec",
    "news.variant=additive",
    "data.format=planted-news",
    "data.preset=small",
    "privacy.unit=click",
    "privacy.epsilon=5",
]
KEYS = {
    "attack",
    "variant",
    "claimed_epsilon",
    "measured_epsilon",
    "confidence",
    "unit",
    "neighbours",
    "delta",
    "verdict",
    "by",
}


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a bound from so many draws can catch is shown of each attack, in the other files."""
    monkeypatch.setattr(command, "QUICK", replace(QUICK, draws=1_000))


@pytest.mark.parametrize(
    ("overrides", "code"),
    [
        pytest.param(["data.preset=small"], 0, marks=pytest.mark.slow),
        (["data.preset=small", "data.kind=clicks"], 0),
        (["data.preset=small", "recipe=published", "privacy.unit=example"], 5),
        (NEWS, 0),
        pytest.param([*NEWS, "news.variant=local"], 0, marks=pytest.mark.slow),
        ([*NEWS, "news.variant=printed"], 5),
        ([*NEWS, "news.variant=central", "privacy.unit=user", "news.rounds=2"], 0),
        pytest.param([*NEWS, "news.variant=dp-fedrec"], 0, marks=pytest.mark.slow),
        ([*NEWS, "news.variant=centralized", "privacy.epsilon=inf"], 0),
    ],
)
def test_the_exit_code_is_zero_only_where_no_bound_exceeds_its_claim(
    overrides: list[str], code: int
) -> None:
    audit = run(load(None, overrides), quick=True)
    assert audit.exit_code == code
    assert audit.findings
    for row in json.loads(json.dumps(audit.rows(), allow_nan=False)):
        assert row.keys() >= KEYS
    assert max(map(len, audit.table().split("\n\n")[0].splitlines())) <= 80


@pytest.mark.slow
def test_the_same_audit_twice_says_the_same() -> None:
    scenario = load(None, NEWS)
    assert run(scenario, quick=True).rows() == run(scenario, quick=True).rows()


def test_one_finding_that_exceeds_its_claim_fails_the_audit() -> None:
    good = Finding("a", "v", Guarantee(2.0, 1e-5), 1.9, "region", 0.999)
    bad = Finding("b", "v", Guarantee(2.0, 1e-5), 2.1, "gaussian", 0.999, note="why")
    assert (Audit((good,)).exit_code, Audit((good, bad)).exit_code) == (0, 5)
    assert "EXCEEDED: b: why" in Audit((good, bad)).table()
    assert good.tightness == pytest.approx(0.95)
