"""Dashboard and alert rules name what the parties export, and nothing else; what they export is
named as Prometheus asks."""

import json
import logging
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import yaml
from prometheus_client import Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from fedrec.federation.protocol import Refusal
from fedrec.operations import machine
from fedrec.operations.certificates import write_development_certificates
from fedrec.operations.machine import watch_machine
from fedrec.operations.metrics import OUTCOMES, Metrics
from fedrec.operations.monitoring import ALERTS, DASHBOARD
from fedrec.operations.party_state import Awaited, Doing
from fedrec.operations.renewal import renew
from fedrec_server.serving.batcher import ServingCounts
from fedrec_server.serving.refusals import Code
from tests.waiting import HANG_S

FIRING = Path(__file__).with_name("alerts_test.yaml")
NAME = re.compile(r"\bfedrec_[a-z_]+\b")


def exposition() -> str:
    """What all parties export once everything has happened."""
    texts = list[bytes]()
    for party in ("aggregator", "server", "client"):
        metrics = Metrics(party, "1")
        metrics.reports(accepted=1, rejected={Refusal.REPLAYED.value: 1, "not-enrolled": 1})
        metrics.moved(bytes_in=1, bytes_out=1)
        metrics.budget(spent=1.0, left=1.0)
        metrics.evaluated({"value": 0.2, "low": 0.1, "high": 0.3, "behind_first": -0.1})
        for phase in OUTCOMES.get(party, ("released", "short", "failed")):
            metrics.decided(phase, took_s=1.0)
        for code in Refusal:
            metrics.refused(code.value)
        metrics.state.enrolled(1)
        metrics.state.clients(connected=lambda: 1.0, joined=1, absent=1)
        metrics.state.round(1, "run-1")
        metrics.state.quorum(needed=1, there=1)
        watch_machine(metrics.registry, state=Path(), certificates=["missing.pem"])
        machine.ClockWatch(metrics.registry, logging.getLogger(__name__))
        with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            (Path(folder) / "cgroup").write_text("0::/fedrec.service\n")
            (Path(folder) / "fedrec.service").mkdir()
            (Path(folder) / "fedrec.service" / "memory.max").write_text("4294967296\n")
            patch.setattr(machine, "_CGROUP", Path(folder) / "cgroup")
            patch.setattr(machine, "_CGROUPS", Path(folder))
            texts.append(generate_latest(metrics.registry))
    counts = ServingCounts("1")
    counts.answered("grpc", 0.1)
    counts.batch(1)
    counts.sent(1)
    counts.swapped("loaded", 1)
    for reason in Code:
        counts.refused(reason.value)
    return b"".join([*texts, generate_latest(counts.registry)]).decode()


# the client library adds a gauge `_created` to each counter and histogram, which nobody draws
FAMILIES: list[Metric] = [
    family
    for family in text_string_to_metric_families(exposition())
    if not family.name.endswith("_created")
]
SAMPLES = {sample.name for family in FAMILIES for sample in family.samples}
RULES = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def expressions() -> Iterator[str]:
    yield from (rule["expr"] for rule in RULES)
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        yield from (target["expr"] for target in panel["targets"])


@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_every_metric_and_label_of_an_expression_is_exported(expression: str) -> None:
    names = set(NAME.findall(expression))
    assert names or expression.startswith("up")
    assert names <= SAMPLES
    for name, matchers in re.findall(r"(fedrec_[a-z_]+)\{([^}]*)\}", expression):
        labels = [
            sample.labels for family in FAMILIES for sample in family.samples if sample.name == name
        ]
        for label, value in re.findall(r'(\w+)="([^"]*)"', matchers):
            assert label == "job" or value in {found.get(label) for found in labels}
    assert expression.count("(") == expression.count(")")


def test_the_dashboard_shows_everything_that_is_exported() -> None:
    shown = {
        re.sub(r"_(bucket|count|sum)$", "", name)
        for expression in expressions()
        for name in NAME.findall(expression)
    }
    exported = {family.name + ("_total" if family.type == "counter" else "") for family in FAMILIES}
    assert exported <= shown


def test_what_is_exported_is_named_as_prometheus_asks() -> None:
    """prometheus.io/docs/practices/naming: a prefix, base units, `_total` for counters and only for
    them, help for each."""
    for family in FAMILIES:
        assert re.fullmatch(r"fedrec(_[a-z]+)+", family.name), family.name
        assert family.documentation
        assert not re.search(r"_(ms|milliseconds|minutes|hours|kb|mb|percent)\b", family.name)
        assert (family.type == "counter") == any(
            sample.name.endswith("_total") for sample in family.samples
        )
        assert not family.name.endswith(("_count", "_sum", "_bucket"))
        for sample in family.samples:
            assert set(sample.labels) <= {
                "party",
                "version",
                "result",
                "reason",
                "direction",
                "phase",
                "state",
                "protocol",
                "le",
                "part",
            }


def test_phases_and_reasons_are_the_closed_sets() -> None:
    for name, label, closed in (
        ("fedrec_phase", "phase", Doing),
        ("fedrec_waiting", "reason", Awaited),
    ):
        found = {
            sample.labels[label]
            for family in FAMILIES
            if family.name == name
            for sample in family.samples
        }
        assert found == {each.value for each in closed}


def test_what_an_operator_is_promised_an_alert_for_has_one() -> None:
    watched = " ".join(rule["expr"] for rule in RULES)
    for name in (
        "fedrec_certificate_expires_timestamp_seconds",
        "fedrec_disk_free_bytes",
        "fedrec_memory_bytes",
        "fedrec_memory_limit_bytes",
        "fedrec_query_seconds_bucket",
        'fedrec_requests_refused_total{reason="busy"}',
        'fedrec_requests_refused_total{reason=~"forbidden|wrong-certificate"}',
        'fedrec_reports_rejected_total{reason="not-enrolled"}',
        'fedrec_waiting{reason="operator"}',
    ):
        assert name in watched, name


def test_reasons_that_alert_are_exported_as_0_before_they_happen() -> None:
    """Prometheus sees no increase in a counter that begins with its first event."""
    new = [Metrics("aggregator", "1").registry, ServingCounts("1").registry]
    known = {
        (sample.name, sample.labels.get("reason"))
        for registry in new
        for family in registry.collect()
        for sample in family.samples
    }
    for rule in RULES:
        for name, reasons in re.findall(r'(fedrec_\w+_total)\{reason=~?"([^"]+)"\}', rule["expr"]):
            assert {(name, reason) for reason in reasons.split("|")} <= known


def test_the_certificate_that_expires_first_is_told_and_a_missing_one_counts_as_expired(
    tmp_path: Path,
) -> None:
    write_development_certificates(tmp_path, clients=["a"], days=30)
    renew(tmp_path, "server", days=3)

    def left_s(*names: str) -> float:
        registry = Metrics("server", "1").registry
        paths = [tmp_path / f"{name}.pem" for name in names]
        watch_machine(registry, state=tmp_path, certificates=paths)
        found = registry.get_sample_value("fedrec_certificate_expires_timestamp_seconds")
        assert found is not None
        return found - time.time()

    day_s = 86_400.0
    assert 29 * day_s < left_s("ca", "aggregator") <= 30 * day_s
    assert 2 * day_s < left_s("ca", "server") <= 3 * day_s
    assert left_s("ca", "gone") <= 0.0


def test_every_alert_says_what_happened_and_what_to_do() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert re.fullmatch(r"Fedrec[A-Za-z]+", rule["alert"])
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]


def test_every_alert_is_seen_to_fire_by_the_rules_own_test() -> None:
    fired = {
        sample["labels"].split('"')[1]
        for group in yaml.safe_load(FIRING.read_text())["tests"]
        for at in group["promql_expr_test"]
        for sample in at["exp_samples"]
    }
    assert fired == {rule["alert"] for rule in RULES}


@pytest.mark.slow
def test_promtool_takes_rules_and_metrics_and_sees_alerts_fire_when_they_should() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not on the path")
    for kind, path in (("check", ALERTS), ("test", FIRING)):
        subprocess.run([promtool, kind, "rules", str(path)], check=True, timeout=HANG_S)
    one = generate_latest(Metrics("server", "1").registry)
    subprocess.run([promtool, "check", "metrics"], input=one, check=True, timeout=HANG_S)
