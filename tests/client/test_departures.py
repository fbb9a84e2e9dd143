"""People who leave: nothing of theirs is reported or counted from the next round on, whoever lies
and whatever is interrupted or put back, and what is stated of it is true."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedrec.certificates.statements import require_departed
from fedrec.errors import RefusedError, RunError, UnreachableError
from fedrec.federation.protocol import (
    DEPARTURE,
    STATEMENT,
    LedgerGrowth,
    LedgerHead,
    OwnLedger,
    Phase,
    Refusal,
    SignedStatement,
    signed_bytes,
)
from fedrec.operations.certificates import pins, signer_of, write_development_certificates
from fedrec.operations.signatures import sign
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Streams
from fedrec.storage import write_json
from fedrec_aggregator.core import Aggregator, Limits
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_client.forgetting import kept
from fedrec_client.ledger import user_tokens
from fedrec_client.three_way import ThreeWay
from tests.client.conftest import Endpoint
from tests.client.test_with_the_aggregator import opened

LEAVES = 7
NAME = f"user {LEAVES}"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    write_development_certificates(folder, clients=["hospital"])
    return folder


@pytest.fixture
def aggregator(tmp_path: Path, keys: Path) -> Iterator[Aggregator]:
    made = made_on(tmp_path / "aggregator", keys)
    yield made
    made.ledger.close()


def made_on(folder: Path, keys: Path) -> Aggregator:
    ledger = ReleaseLedger(folder, limit=None, clock=lambda: 1e9)
    made = Aggregator(ledger, Limits(min_cohort=5), noise=Streams(1), clock=lambda: 1e9)
    made.signer = keys / "aggregator.pem", keys / "aggregator-key.pem"
    return made


class Recording:
    """An endpoint that keeps what is handed in; it does not answer calls of these names."""

    def __init__(self, endpoint: Any) -> None:
        self.endpoint = endpoint
        self.batches = list[bytes]()
        self.dead = set[str]()

    def __getattr__(self, name: str) -> Any:
        if name in self.dead:
            raise UnreachableError("no answer", "Go on.")
        return getattr(self.endpoint, name)

    def report(self, run: str, round: int, batch: bytes) -> Any:
        self.batches.append(batch)
        return self.endpoint.report(run, round, batch)


def begun(run: Any, make_site: Any, aggregator: Aggregator) -> Any:
    """A site whose first round is released and whose second is open."""
    endpoint = Recording(aggregator.client_endpoint("site"))
    site = make_site(run.users, endpoint=endpoint, limit=Guarantee(50.0, 1e-5))
    site.participant.join(run.terms)
    aggregator.open_run(run.name, run.prepared.plan)
    first, second, *_ = run.questions()
    opened(aggregator, run, first)
    assert site.participant.answer(run.invitation(first)).accepted == 30
    assert aggregator.close(run.name, first.round).phase is Phase.RELEASED
    opened(aggregator, run, second)
    return site


def token_of(site: Any) -> bytes:
    return user_tokens(site.participant.ledger.secret, [NAME])[0].tobytes()


def test_who_left_is_in_no_later_round_and_the_others_report_the_same(
    run: Any, make_site: Any, aggregator: Aggregator
) -> None:
    site = begun(run, make_site, aggregator)
    spent = site.participant.ledger.epsilon
    token = token_of(site)
    site.participant.forget(NAME)
    second = run.questions()[1]
    assert site.participant.answer(run.invitation(second)).accepted == 29
    assert aggregator.close(run.name, second.round).reported == 29
    assert aggregator.enrolled() == 29
    assert site.participant.ledger.epsilon > spent  # hers is kept, and counts as the others' does
    entire = make_site(run.users, "entire", limit=Guarantee(50.0, 1e-5))
    shutil.copy(site.folder / "ledger.sqlite", entire.folder / "kept")
    entire.participant.ledger._secret = site.participant.ledger.secret
    entire.participant._take(run.users)
    entire.participant.join(run.terms)
    entire.participant.answer(run.invitation(second))
    (with_her,) = run.decoded(second, entire.endpoint.batches)
    (without,) = run.decoded(second, site.endpoint.batches)
    stay = np.array([one.tobytes() != token for one in with_her.tokens])
    assert not any(one.tobytes() == token for one in without.tokens)
    assert np.array_equal(with_her.tokens[stay], without.tokens)
    assert np.array_equal(with_her.ids[stay], without.ids)
    ends = with_her.reports.user_ptr
    events = np.repeat(stay, np.diff(ends))
    assert np.array_equal(with_her.reports.items[events], without.reports.items)
    for mine, theirs in zip(with_her.reports.blocks, without.reports.blocks, strict=True):
        of = events if len(mine.coefficients) == len(events) else stay
        assert np.array_equal(mine.coefficients[of], theirs.coefficients)
        rows = np.repeat(stay, len(mine.vectors) // 30)
        assert np.array_equal(mine.vectors[rows], theirs.vectors)


@pytest.mark.parametrize("dead", ["growth", "forget"])
def test_an_interrupted_departure_holds_from_its_first_step_and_is_finished_by_the_same_command(
    run: Any, make_site: Any, aggregator: Aggregator, dead: str
) -> None:
    site = begun(run, make_site, aggregator)
    site.endpoint.dead = {dead}
    with pytest.raises(UnreachableError):
        site.participant.forget(NAME)
    site.restart()
    site.endpoint.dead = set()
    second = run.questions()[1]
    site.participant.join(run.terms)
    assert site.participant.answer(run.invitation(second)).accepted == 29
    assert not any(token_of(site) in batch for batch in site.endpoint.batches[1:])
    (once,) = site.participant.forget(NAME)
    site.restart()
    assert site.participant.forget(NAME)[0].statement == once.statement
    assert len(site.participant.ledger.entries) == 3  # two rounds and one who left


def test_who_is_asked_again_by_a_lying_client_is_not_counted(
    run: Any, make_site: Any, aggregator: Aggregator, keys: Path
) -> None:
    site = begun(run, make_site, aggregator)
    token = token_of(site)
    endpoint = aggregator.client_endpoint("site")
    with pytest.raises(RefusedError, match="another client's"):
        aggregator.client_endpoint("stranger").forget(token)
    with pytest.raises(RefusedError) as unknown:
        endpoint.forget(b"nobody knows her")
    assert unknown.value.code == Refusal.NOT_ENROLLED
    second = run.questions()[1]
    liar = make_site(run.users, "liar", limit=Guarantee(50.0, 1e-5))
    liar.participant.ledger._secret = site.participant.ledger.secret
    liar.participant._take(run.users)
    liar.participant.join(run.terms)
    liar.participant.answer(run.invitation(second))
    site.participant.forget(NAME)
    receipt = endpoint.report(run.name, second.round, liar.endpoint.batches[-1])
    assert (receipt.accepted, dict(receipt.rejected)) == (29, {Refusal.NOT_ENROLLED: 1})
    for _ in range(2):
        assert aggregator.enrolled() == 29
        with pytest.raises(RefusedError, match="left for good"):
            endpoint.enroll([token])
        with pytest.raises(RefusedError, match="another client's"):
            aggregator.client_endpoint("stranger").forget(token)
        aggregator.ledger.close()
        aggregator = made_on(aggregator.ledger.folder, keys)  # as after a kill
        endpoint = aggregator.client_endpoint("site")
    aggregator.ledger.close()


def test_a_backup_from_before_the_departure_is_refused_on_either_side(
    run: Any, make_site: Any, aggregator: Aggregator, keys: Path, tmp_path: Path
) -> None:
    site = begun(run, make_site, aggregator)
    site.participant.ledger.close()
    shutil.copytree(site.folder, tmp_path / "before")
    site.start()
    aggregator.ledger.close()
    shutil.copytree(aggregator.ledger.folder, tmp_path / "aggregator-before")
    current = made_on(aggregator.ledger.folder, keys)
    site.endpoint.endpoint = current.client_endpoint("site")
    site.participant.forget(NAME)
    second = run.invitation(run.questions()[1])
    old = make_site(run.users, "../before", endpoint=site.endpoint, limit=Guarantee(50.0, 1e-5))
    assert old.participant.join(run.terms).refusal == Refusal.STALE_LEDGER
    current.ledger.close()
    put_back = made_on(tmp_path / "aggregator-before", keys)
    site.endpoint.endpoint = put_back.client_endpoint("site")
    assert site.participant.answer(second).refusal == Refusal.STALE_LEDGER
    put_back.ledger.close()


def test_the_statement_bounds_every_release_that_may_hold_a_report_and_no_other(
    run: Any, make_site: Any, aggregator: Aggregator, keys: Path
) -> None:
    site = begun(run, make_site, aggregator)
    pin = signer_of((keys / "aggregator.pem").read_bytes())[1]
    (told,) = site.participant.forget(NAME)
    stated = require_departed(told, token_of(site), pin=pin)
    # the run is unfinished: an open round may hold her, and its whole plan counts
    whole = float(np.sqrt(sum(one.mu**2 for one in run.prepared.plan.releases)))
    assert stated.runs == {run.name: pytest.approx(whole)}
    assert f"epsilon {run.prepared.plan.guarantee.epsilon:.4g}" in stated.words
    second = run.questions()[1]
    site.participant.answer(run.invitation(second))
    aggregator.close(run.name, second.round)
    (again,) = site.participant.forget(NAME)
    assert again.statement == told.statement  # what is released later changes nothing
    (other,) = site.participant.forget("user 8")  # between two rounds: what is charged counts
    charged = [run.prepared.plan[r.name].mu for q in run.questions()[:2] for r in q.releases]
    later = require_departed(
        other, user_tokens(site.participant.ledger.secret, ["user 8"])[0].tobytes(), pin=pin
    )
    assert later.runs == {run.name: pytest.approx(float(np.hypot.reduce(charged)))}
    assert later.number > stated.number


def test_forged_statements_do_not_hold(
    run: Any, make_site: Any, aggregator: Aggregator, keys: Path
) -> None:
    site = begun(run, make_site, aggregator)
    token = token_of(site)
    pin = signer_of((keys / "aggregator.pem").read_bytes())[1]
    (told,) = site.participant.forget(NAME)
    certificate = pins((keys / "aggregator.pem").read_bytes()).certificate
    for known in (pin, certificate, ""):
        assert require_departed(told, token, pin=known).pin == pin
    content = json.loads(told.statement)
    own = keys / "client-hospital-key.pem"
    less = json.dumps(content | {"runs": {}}, sort_keys=True, separators=(",", ":"))
    by_her_client = SignedStatement(
        less,
        sign(own, signed_bytes(less, DEPARTURE)).hex(),
        (keys / "client-hospital.pem").read_text(),
    )
    of_a_run = sign(keys / "aggregator-key.pem", signed_bytes(told.statement, STATEMENT)).hex()
    for forged in (
        replace(told, statement=less),
        by_her_client,
        replace(by_her_client, certificate=told.certificate),
        replace(told, signature=of_a_run),
        replace(told, signature="", certificate=""),
        replace(told, signature="no digits"),
        replace(told, certificate="none"),
        replace(told, statement="{}"),
        SignedStatement(""),
    ):
        with pytest.raises(RunError, match="does not hold"):
            require_departed(forged, token, pin=pin)
    with pytest.raises(RunError, match="does not hold"):
        require_departed(told, b"0" * 16, pin=pin)
    path = site.folder / f"{token.hex()}.json"
    write_json(path, {"statements": [vars(told)]})
    tables = (SimpleNamespace(pin=pin), SimpleNamespace(pin="ab" * 32))
    right, wrong = (SimpleNamespace(aggregators=(), aggregator=one) for one in tables)
    assert kept(right, path)[0].pin == pin  # type: ignore[arg-type]
    with pytest.raises(RunError, match="does not hold"):
        kept(wrong, path)  # type: ignore[arg-type]


@pytest.mark.parametrize("first_dead", [0, 1, 2])
def test_each_of_three_aggregators_knows_of_the_entry_before_one_is_asked_to_forget(
    run: Any, make_site: Any, first_dead: int
) -> None:
    """So that a client that was interrupted, and put back to before the entry, is refused by each
    of the three, also by those that were not asked yet."""

    @dataclass
    class Place(Endpoint):
        dead: bool = False
        told: list[OwnLedger] = field(default_factory=list)

        def growth(self, since: LedgerHead, own: OwnLedger) -> LedgerGrowth:
            self.told.append(own)
            return LedgerGrowth(since)

        def forget(self, token: bytes) -> SignedStatement:
            if self.dead:
                raise UnreachableError("no answer", "Go on.")
            return SignedStatement(token.hex())

    places = [Place(dead=place == first_dead) for place in range(3)]
    endpoint = ThreeWay(places, (b"a", b"b", b"c"))  # type: ignore[arg-type]  # no rounds here
    site = make_site(run.users, endpoint=endpoint, limit=Guarantee(50.0, 1e-5))
    before = site.participant.ledger.told
    with pytest.raises(UnreachableError):
        site.participant.forget(NAME)
    after = site.participant.ledger.told
    assert after != before
    assert [place.told for place in places] == [[after]] * 3
    places[first_dead].dead = False
    assert len(site.participant.forget(NAME)) == 3
    assert [place.told[-1] for place in places] == [after] * 3
