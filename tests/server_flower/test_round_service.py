"""Rounds over our own service: who is let in, what is sent to whom and again, and what a client may
use."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from fedrec.errors import RefusedError, SettingsError
from fedrec.federation.protocol import Answer, Refusal, Terms
from fedrec.federation.round_messages import KEY, PROTOCOL, RoundMessage
from fedrec.operations.certificates import pins, write_development_certificates
from fedrec.transport import rounds_client
from fedrec.transport.aggregator_api.methods import FRAME_BYTES
from fedrec.transport.channel import Access, open_channel
from fedrec.transport.rounds_api import rounds_pb2 as pb
from fedrec.transport.rounds_client import SERVICE, RoundsConnection, greet, packed, pieces
from fedrec_client.requests import answering
from fedrec_server import round_service
from fedrec_server.broadcast import ClientBroadcast
from fedrec_server.round_service import MOST_CONNECTIONS, RoundService, ServiceLimits, _Client
from fedrec_server.settings_tables import LinkTable
from tests.waiting import HANG_S, until

TERMS = Terms("run", "{}", "ratings", (1.0, 5.0), ("item",))


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    write_development_certificates(folder, clients=["library", "hospital", "archive"])
    return folder


def key_of(file: Path) -> str:
    return pins(file.read_bytes()).public_key


def table(keys: Path, **more: Any) -> LinkTable:
    own = {"certificate": str(keys / "server.pem"), "key": str(keys / "server-key.pem")}
    return LinkTable(client_ca=str(keys / "ca.pem"), **own, **more)


def access(keys: Path, address: str, holder: str = "client-library", **more: str) -> Access:
    own = {"certificate": str(keys / f"{holder}.pem"), "key": str(keys / f"{holder}-key.pem")}
    return Access(address, **{"ca": str(keys / "ca.pem"), **own, **more}, party="server")


@dataclass
class Site:
    """A client in a thread, which counts its messages."""

    name: str
    way: Access
    says: str = ""
    heard: list[RoundMessage] = field(default_factory=list)
    hold: threading.Event = field(default_factory=threading.Event)
    stop: threading.Event = field(default_factory=threading.Event)
    gone: Callable[[], bool] = lambda: True

    def answer(self, message: RoundMessage) -> RoundMessage:
        self.heard.append(message)
        if self.hold.is_set():
            until(lambda: not self.hold.is_set() or self.stop.is_set(), "the client goes on")
            until(self.gone, "its connection ends")
        return answering(Answer(self.says or self.name, len(self.heard)))

    def start(self) -> None:
        self.thread = threading.Thread(
            target=RoundsConnection(self.way).run, args=(self.answer, self.stop)
        )
        self.thread.start()

    def end(self) -> None:
        self.stop.set()
        self.thread.join(HANG_S)
        assert not self.thread.is_alive()


@contextmanager
def sites(keys: Path, service: RoundService, *names: str, **says: str) -> Iterator[list[Site]]:
    with ExitStack() as stack:
        made = [
            Site(name, access(keys, service.address, f"client-{name}"), says.get(name, ""))
            for name in names
        ]
        for site in made:
            site.start()
            stack.callback(site.end)
        until(lambda: len(service.nodes()) == len(names), "all are connected")
        yield made


def broadcast(service: RoundService, timeout_s: float = HANG_S) -> ClientBroadcast:
    return ClientBroadcast(service, timeout_s, poll_s=0.01)


def test_every_client_gets_each_message_once_at_once_and_is_who_its_certificate_names(
    keys: Path,
) -> None:
    with (
        RoundService(table(keys)) as service,
        sites(keys, service, "library", "hospital", hospital="library") as (library, hospital),
    ):
        clients = broadcast(service)
        for number in (1, 2, 3):
            answers = {answer.client: answer for answer in clients.join(TERMS)}
            assert answers["library"] == Answer("library", number)
            assert answers["hospital"].refusal == Refusal.FORBIDDEN  # it said another's name
        assert len(library.heard) == len(hospital.heard) == 3
        assert clients.connected == 2


def test_a_message_whose_answer_was_lost_is_sent_again_to_the_client_that_comes_back(
    keys: Path,
) -> None:
    with RoundService(table(keys)) as service:
        with sites(keys, service, "library") as (first,):
            first.gone = lambda: not service._clients["library"].connections  # its answer is lost
            first.hold.set()
            (name,) = service.send(["library"], RoundMessage({"terms": b"1"}, kind="join"), 60.0)
            until(lambda: first.heard, "the message arrives")
        assert service.nodes() == ["library"]  # away for a moment, and asked already
        with sites(keys, service, "library") as (second,):
            found = dict[str, Any]()
            until(lambda: found.update(service.replies([name])) or found, "its answer")
            assert second.heard == first.heard
            assert not list(service.replies([name]))


def test_a_client_that_stays_away_is_given_up(keys: Path) -> None:
    limits = ServiceLimits(away_s=0.2)
    with RoundService(table(keys), limits) as service:
        with sites(keys, service, "library") as (site,):
            site.gone = lambda: not service.nodes()  # its answer is lost
            site.hold.set()
            service.send(["library"], RoundMessage({}, kind="join"), 60.0)
            until(lambda: site.heard, "the message arrives")
        until(lambda: not service.nodes(), "it is counted no longer")
        assert [answer.refusal for _, answer in service.replies(["0"])] == ["unreachable"]  # type: ignore[union-attr]


def test_arrays_of_many_pieces_arrive_both_ways(keys: Path) -> None:
    data = bytes(range(256)) * 5_000
    with (
        RoundService(table(keys)) as service,
        sites(keys, service, "library") as (site,),
    ):
        site.answer = lambda message: RoundMessage(  # type: ignore[method-assign]
            {"answer": b"x", "n": 7}, {"twice": 2 * message.arrays["V"]}
        )
        site.stop.set()
        site.thread.join(HANG_S)
        site.stop.clear()
        site.start()
        (name,) = service.send(["library"], RoundMessage({}, {"V": data}, "ask"), 60.0)
        found = dict[str, Any]()
        until(lambda: found.update(service.replies([name])) or found, "its answer")
        assert found[name] == RoundMessage({"answer": b"x", "n": 7}, {"twice": 2 * data})


@pytest.mark.parametrize("holder", ["server", "aggregator"])
def test_who_is_no_client_is_refused(keys: Path, holder: str) -> None:
    with (
        RoundService(table(keys)) as service,
        pytest.raises(RefusedError) as found,
    ):
        greet(access(keys, service.address, holder), timeout_s=HANG_S)
    assert found.value.code == Refusal.FORBIDDEN


def test_who_shows_no_certificate_or_one_of_another_authority_is_not_heard(
    keys: Path, tmp_path: Path
) -> None:
    write_development_certificates(tmp_path, clients=["library"])
    with RoundService(table(keys)) as service:
        foreign = {
            "certificate": str(tmp_path / "client-library.pem"),
            "key": str(tmp_path / "client-library-key.pem"),
        }
        for own in (foreign, {"certificate": "", "key": ""}):
            with pytest.raises(RefusedError) as found:
                greet(access(keys, service.address, **own), timeout_s=HANG_S)
            assert found.value.code == Refusal.FORBIDDEN
        greet(access(keys, service.address), timeout_s=HANG_S)


def test_a_key_that_is_not_the_pinned_one_is_refused_and_pins_are_looked_at_before_every_message(
    keys: Path,
) -> None:
    known = {"library": key_of(keys / "client-hospital.pem")}
    with RoundService(table(keys, clients=known)) as service:
        for holder in ("client-library", "client-hospital"):
            with pytest.raises(RefusedError, match="not the one known"):
                greet(access(keys, service.address, holder), timeout_s=HANG_S)
        service._table.clients["library"] = key_of(keys / "client-library.pem")
        with sites(keys, service, "library") as (site,):
            assert [answer.client for answer in broadcast(service).join(TERMS)] == ["library"]
            service._table.clients["library"] = known["library"] + "0"
            service.send(["library"], RoundMessage({}, kind="join"), 60.0)
            client = service._clients["library"]
            until(lambda: not client.connections or len(site.heard) > 1, "it is turned away")
            assert len(site.heard) == 1


def test_a_client_sends_nothing_to_a_server_with_another_key_or_role(keys: Path) -> None:
    with RoundService(table(keys)) as service:
        pinned = access(keys, service.address, pin=key_of(keys / "aggregator.pem"))
        with pytest.raises(RefusedError, match="pinned is"):
            greet(pinned, timeout_s=HANG_S)
    own = {"certificate": "aggregator.pem", "key": "aggregator-key.pem", "client_ca": "ca.pem"}
    with (
        RoundService(
            LinkTable(**{name: str(keys / file) for name, file in own.items()})
        ) as service,
        pytest.raises(RefusedError, match="fedrec:server"),
    ):
        greet(access(keys, service.address), timeout_s=HANG_S)


# --- versions ---


@pytest.mark.parametrize("apart", [-2, 2])
def test_both_sides_of_a_connection_say_which_of_two_far_versions_is_older(
    keys: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, apart: int
) -> None:
    monkeypatch.setattr(rounds_client, "PROTOCOL", PROTOCOL + apart)
    with RoundService(table(keys)) as service:
        site = Site("library", access(keys, service.address, "client-library"))
        site.start()
        try:
            until(
                lambda: said_by(caplog, "another-version") >= {"rounds_client", "round_service"},
                "both say",
            )
        finally:
            site.end()  # or the service would wait for it where nobody says anything
    upgraded = "here" if apart > 0 else "there (client library)"
    lines = [record for record in caplog.records if record.getMessage() == "another-version"]
    assert len(lines) == 2  # once at each, however often it calls
    assert all(f"Upgrade fedrec {upgraded}" in record.fields["remedy"] for record in lines)  # type: ignore[attr-defined]
    assert not site.heard


def test_a_call_that_the_server_does_not_know_says_that_it_is_older(
    keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds_client, "SERVICE", "fedrec.rounds.v9.Rounds")
    with (
        RoundService(table(keys)) as service,
        pytest.raises(RefusedError, match="does not know this call: its fedrec is older") as caught,
    ):
        greet(access(keys, service.address), timeout_s=HANG_S)
    assert caught.value.code == Refusal.WRONG_PROTOCOL


def said_by(caplog: pytest.LogCaptureFixture, event: str) -> set[str]:
    return {
        record.name.rpartition(".")[2] for record in caplog.records if record.getMessage() == event
    }


# --- what a client may use ---


@contextmanager
def line(
    keys: Path, service: RoundService, holder: str = "client-library"
) -> Iterator[Callable[..., Any]]:
    """Opens connections of a client, with the pieces that it sends."""
    with open_channel(access(keys, service.address, holder)) as channel:
        yield lambda sent: channel.stream_stream(
            f"/{SERVICE}/Take", pb.Piece.SerializeToString, pb.Piece.FromString
        )(sent, timeout=HANG_S, metadata=((KEY, str(PROTOCOL)),))


ANSWER = packed(answering(Answer("library", 1)))
FULL = b"x" * FRAME_BYTES


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        ([pb.Piece(id="0", total_bytes=2**40, data=FULL)], "at most 1048576 bytes"),
        ([pb.Piece(id="0", total_bytes=2, data=b"xxx")], "not as long"),
        ([pb.Piece(id="0", total_bytes=2**20, data=FULL), pb.Piece()], "not as long"),
        ([pb.Piece(id="0", total_bytes=2**20, data=FULL[1:])], "not as long"),
        ([pb.Piece(id="0", total_bytes=2**20, data=FULL)], "breaks off"),
        ([pb.Piece(id="0", total_bytes=3, data=b"\xff\xff\xff")], "cannot be unpacked"),
    ],
)
def test_an_answer_that_is_too_long_or_garbled_ends_its_connection_and_is_a_refusal(
    keys: Path, sent: list[pb.Piece], words: str
) -> None:
    with (
        RoundService(table(keys), ServiceLimits(answer_bytes=2**20)) as service,
        line(keys, service) as opened,
    ):
        until(lambda: _asked(service, opened, iter([])), "it is connected")
        call = opened(iter(sent))
        with pytest.raises(grpc.RpcError) as found:
            list(call)
        assert words in found.value.details()
        ((_, answer),) = service.replies(["0"])
        assert isinstance(answer, Answer)
        assert answer.refusal in {Refusal.MALFORMED, Refusal.TOO_LARGE}


def _asked(service: RoundService, opened: Callable[..., Any], nothing: Iterator[pb.Piece]) -> bool:
    waiting = opened(nothing)
    until(lambda: service.nodes(), "it is connected")
    service.send(["library"], RoundMessage({}, kind="join"), 60.0)
    next(waiting)
    waiting.cancel()
    return True


@pytest.mark.parametrize("stalls", [True, False])
def test_an_answer_that_comes_slower_than_the_least_rate_is_ended(keys: Path, stalls: bool) -> None:
    over = threading.Event()

    def trickling() -> Iterator[pb.Piece]:
        yield pb.Piece(id="0", total_bytes=2**26, data=FULL)
        while not over.wait(HANG_S if stalls else 0.1):
            yield pb.Piece(data=FULL)

    with (
        RoundService(table(keys), ServiceLimits(piece_s=0.3, least_bytes_s=2**30)) as service,
        line(keys, service) as opened,
    ):
        until(lambda: _asked(service, opened, iter([])), "it is connected")
        with pytest.raises(grpc.RpcError) as found:
            list(opened(trickling()))
        assert found.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert service._arriving == 0
        over.set()


def test_an_answer_of_several_pieces_waits_for_its_place_among_all_that_arrive(keys: Path) -> None:
    with RoundService(table(keys), ServiceLimits(bytes=2**20)) as service:
        service._arriving = 2**20 - 10
        with sites(keys, service, "library") as (site,):
            site.says = "library" + "x" * FRAME_BYTES
            (name,) = service.send(["library"], RoundMessage({}, kind="join"), 60.0)
            until(lambda: site.heard, "the message arrives")
            time.sleep(0.3)
            assert not list(service.replies([name]))
            service._arriving = 0
            until(lambda: list(service.replies([name])), "the answer has its place")


def test_two_clients_with_large_answers_that_do_not_come_delay_nobody(keys: Path) -> None:
    """Each opens all its connections, announces the largest answer on each, and sends a piece of
    it: one has half the room, the other half of it, and a receipt needs none."""
    # no room is given back before the test ends
    limits = ServiceLimits(answer_bytes=2**20, bytes=2**21, piece_s=HANG_S)
    over = threading.Event()

    def stalling() -> Iterator[pb.Piece]:
        yield pb.Piece(id="0", total_bytes=2**20, data=FULL)
        over.wait(HANG_S)

    with (
        RoundService(table(keys), limits) as service,
        line(keys, service) as library,
        line(keys, service, "client-hospital") as hospital,
        sites(keys, service, "archive"),
    ):
        calls = [opened(stalling()) for opened in (library, hospital) * MOST_CONNECTIONS]
        until(lambda: len(service.nodes()) == 3, "all are connected")
        service.send(["library", "hospital"], RoundMessage({}, kind="join"), 60.0)
        until(lambda: service._arriving == limits.bytes, "the room is full")
        names = service.send(["archive"], RoundMessage({}, kind="join"), 60.0)
        found = dict[str, Any]()
        until(lambda: found.update(service.replies(names)) or found, "the archive's receipt")
        for call in calls[::2]:
            call.cancel()
        until(lambda: service._arriving == limits.answer_bytes, "its room is given back")
        over.set()


def test_a_client_sends_one_large_answer_at_a_time(keys: Path) -> None:
    limits = ServiceLimits(answer_bytes=2**20)
    over = threading.Event()

    def stalling() -> Iterator[pb.Piece]:
        yield pb.Piece(id="0", total_bytes=2**20, data=FULL)
        over.wait(HANG_S)

    with RoundService(table(keys), limits) as service, line(keys, service) as opened:
        calls = [opened(stalling()) for _ in range(MOST_CONNECTIONS)]
        until(lambda: service.nodes(), "it is connected")
        service.send(["library"], RoundMessage({}, kind="join"), 60.0)
        for call in calls:
            next(call)
        until(lambda: service._arriving, "one answer comes")
        time.sleep(0.3)
        assert service._arriving == 2**20
        over.set()


def test_nobody_answers_anothers_message_or_one_that_was_answered(keys: Path) -> None:
    with (
        RoundService(table(keys)) as service,
        sites(keys, service, "hospital") as (hospital,),
        line(keys, service) as opened,
    ):
        hospital.hold.set()
        (name,) = service.send(["hospital"], RoundMessage({}, kind="join"), 60.0)
        until(lambda: hospital.heard, "the message arrives")
        over = threading.Event()

        def meddling() -> Iterator[pb.Piece]:
            yield from pieces(name, ANSWER)
            over.wait(HANG_S)

        call = opened(meddling())
        until(lambda: len(service.nodes()) == 2, "it is connected")
        service.send(["library"], RoundMessage({}, kind="join"), 60.0)
        next(call)
        time.sleep(0.2)
        assert not list(service.replies([name]))
        over.set()
        hospital.hold.clear()
        until(lambda: list(service.replies([name])), "its own answer")


def test_an_answer_to_a_message_that_a_later_one_took_the_place_of_is_none(keys: Path) -> None:
    service = RoundService(table(keys))
    service._clients["library"] = _Client()
    names = [service.send(["library"], RoundMessage({}, kind="join"), 60.0)[0] for _ in range(2)]
    for name in names:
        service._received("library", name, Answer("", 0))
    assert [name for name, _ in service.replies(names)] == names[1:]


def test_a_client_has_few_connections(keys: Path) -> None:
    over = threading.Event()
    with RoundService(table(keys)) as service, line(keys, service) as opened:
        calls = [opened(iter(lambda: over.wait(HANG_S), True)) for _ in range(MOST_CONNECTIONS + 1)]
        until(lambda: sum(call.done() for call in calls) == 1, "one is turned away")
        assert service._clients["library"].connections == MOST_CONNECTIONS
        over.set()


def test_a_connection_that_waited_for_long_is_opened_anew_with_the_certificate_of_then(
    keys: Path,
) -> None:
    with (
        RoundService(table(keys), ServiceLimits(connection_s=0.2)) as service,
        sites(keys, service, "library") as (site,),
    ):
        time.sleep(1.0)
        until(lambda: service.nodes(), "it is back")
        assert [answer.client for answer in broadcast(service).join(TERMS)] == ["library"]
        assert len(site.heard) == 1


def test_clients_that_began_to_wait_together_do_not_come_back_together(
    keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand connections that ended in one moment, an hour after a round, were all away then."""
    waits = list[float]()

    def drawn(low: float, high: float) -> float:
        waits.append(random.Random(len(waits)).uniform(low, high))
        return waits[-1]

    monkeypatch.setattr(round_service, "uniform", drawn)
    with RoundService(table(keys)) as service, sites(keys, service, "library", "hospital"):
        broadcast(service).join(TERMS)
    assert len(set(waits)) == len(waits) >= 2
    assert all(0.5 <= wait <= 1 for wait in waits)


def test_without_tls_clients_are_believed_and_only_on_this_machine() -> None:
    with RoundService(LinkTable(insecure=True)) as service:
        way = Access(service.address, name="library", insecure=True, party="server")
        assert abs(greet(way, timeout_s=HANG_S) - time.time()) < HANG_S
        site = Site("library", way)
        site.start()
        until(lambda: service.nodes() == ["library"], "it is connected")
        site.end()
    with pytest.raises(SettingsError, match="without TLS"):
        RoundService(LinkTable(listen="0.0.0.0:0", insecure=True))


def test_an_address_that_is_taken_is_said_to_be_so() -> None:
    with (
        RoundService(LinkTable(insecure=True)) as service,
        pytest.raises(SettingsError, match="cannot be had"),
        RoundService(LinkTable(listen=service.address, insecure=True)),
    ):
        pass
