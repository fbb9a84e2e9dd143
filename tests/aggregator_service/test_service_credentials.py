"""Who may call, and whom a caller believes to be the aggregator."""

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from fedrec.errors import RefusedError, SettingsError, UnreachableError
from fedrec.federation.protocol import Refusal
from fedrec.operations.certificates import KeyPair, issue, make_ca, pins
from fedrec.transport.aggregator_api import aggregator_pb2 as pb
from fedrec.transport.aggregator_api import methods
from fedrec.transport.aggregator_client import (
    RemoteReleaseEndpoint,
    RemoteReportEndpoint,
    Retry,
    healthy,
)
from fedrec.transport.channel import Access, open_channel
from fedrec_aggregator.credentials import Certificates
from tests.waiting import HANG_S

SHORT = Retry(patience_s=0.3, first_pause_s=0.05, deadline_s=HANG_S)


def code_of(call: Callable[[], Any]) -> str:
    with pytest.raises(RefusedError) as refusal:
        call()
    return refusal.value.code


def test_a_client_certificate_enrols_and_reports_and_nothing_else(
    start: Callable[..., Any], task: Any
) -> None:
    running = start()
    as_client = running.access("client", "hospital")
    assert RemoteReportEndpoint(as_client).enroll(task.tokens([1])) == 1
    endpoint = RemoteReleaseEndpoint(as_client)
    for call in (
        endpoint.enrolled,
        lambda: endpoint.open_run(task.run, task.plan),
        lambda: endpoint.open_round(task.opening()),
        lambda: endpoint.status(task.run, 0),
        lambda: endpoint.close(task.run, 0),
        lambda: endpoint.release(task.run, 0),
    ):
        assert code_of(call) == Refusal.FORBIDDEN


def test_a_server_certificate_neither_enrols_nor_reports(
    start: Callable[..., Any], task: Any
) -> None:
    running = start()
    endpoint = RemoteReportEndpoint(running.access("server", "server"))
    assert code_of(lambda: endpoint.enroll(task.tokens([1]))) == Refusal.FORBIDDEN
    assert code_of(lambda: endpoint.report(task.run, 0, task.batch([1]))) == Refusal.FORBIDDEN


def test_a_client_that_is_not_listed_is_refused_unless_any_client_may_come(
    start: Callable[..., Any], task: Any, tmp_path: Path
) -> None:
    assert (
        code_of(lambda: start().client("stranger").enroll(task.tokens([1]))) == Refusal.NOT_ENROLLED
    )
    open_to_all = start(any_client=True, state=str(tmp_path / "second"))
    assert open_to_all.client("stranger").enroll(task.tokens([1])) == 1


def test_a_certificate_of_another_authority_is_not_taken(
    start: Callable[..., Any], task: Any, certificates: Any, other_authority: Any
) -> None:
    running = start()
    foreign = {
        "certificate": other_authority.file("client-hospital.pem"),
        "key": other_authority.file("client-hospital-key.pem"),
    }
    access = certificates.access(running.address, "client-hospital", **foreign)
    assert (
        code_of(lambda: RemoteReportEndpoint(access).enroll(task.tokens([1]))) == Refusal.FORBIDDEN
    )


def test_a_caller_without_a_certificate_is_not_let_in(
    start: Callable[..., Any], task: Any, certificates: Any
) -> None:
    running = start()
    access = certificates.access(running.address, "client-hospital", certificate="", key="")
    assert (
        code_of(lambda: RemoteReportEndpoint(access).enroll(task.tokens([1]))) == Refusal.FORBIDDEN
    )


def test_nobody_gets_in_past_our_own_client_without_a_certificate(
    start: Callable[..., Any], certificates: Any
) -> None:
    running = start()
    roots = grpc.ssl_channel_credentials(Path(certificates.file("ca.pem")).read_bytes())
    with grpc.secure_channel(str(running.address), roots) as channel:
        call = channel.unary_unary(methods.ENROLL.path, methods.ENROLL.request.SerializeToString)
        with pytest.raises(grpc.RpcError) as failure:
            call(pb.EnrollRequest(), timeout=HANG_S)
    assert failure.value.code() is grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]


def test_an_aggregator_of_another_authority_is_refused(
    start: Callable[..., Any], task: Any, certificates: Any, other_authority: Any
) -> None:
    running = start()
    access = certificates.access(
        running.address, "client-hospital", ca=other_authority.file("ca.pem")
    )
    assert (
        code_of(lambda: RemoteReportEndpoint(access).enroll(task.tokens([1])))
        == Refusal.WRONG_CERTIFICATE
    )


@pytest.mark.parametrize("part", ["certificate", "public_key"])
@pytest.mark.parametrize("with_authority", [True, False])
def test_the_pinned_aggregator_is_believed(
    start: Callable[..., Any], task: Any, certificates: Any, part: str, with_authority: bool
) -> None:
    running = start()
    pin = getattr(pins(Path(certificates.file("aggregator.pem")).read_bytes()), part)
    changes = {"pin": pin} if with_authority else {"pin": pin, "ca": ""}
    access = certificates.access(running.address, "client-hospital", **changes)
    assert RemoteReportEndpoint(access).enroll(task.tokens([1])) == 1


@pytest.mark.parametrize("with_authority", [True, False])
def test_an_aggregator_with_another_certificate_than_the_pinned_is_refused(
    start: Callable[..., Any], task: Any, certificates: Any, with_authority: bool
) -> None:
    running = start()
    changes = {"pin": "0" * 64} if with_authority else {"pin": "0" * 64, "ca": ""}
    access = certificates.access(running.address, "client-hospital", **changes)
    assert (
        code_of(lambda: RemoteReportEndpoint(access).enroll(task.tokens([1])))
        == Refusal.WRONG_CERTIFICATE
    )
    assert running.client().enroll([]) == 0


def test_a_pinned_channel_trusts_no_other_certificate_of_the_same_authority(
    start: Callable[..., Any], certificates: Any, tmp_path: Path
) -> None:
    """Whoever shows the pinned certificate to our handshake and another one to gRPC gets
    nowhere."""
    pinned = start()
    impostor_tls = {
        "certificate": certificates.file("server.pem"),
        "key": certificates.file("server-key.pem"),
    }
    impostor = start(
        tls=impostor_tls | {"client_ca": certificates.file("ca.pem")},
        state=str(tmp_path / "impostor"),
    )
    pin = pins(Path(certificates.file("aggregator.pem")).read_bytes()).certificate
    access = certificates.access(pinned.address, "client-hospital", pin=pin)
    with pytest.MonkeyPatch.context() as patch:
        real = grpc.secure_channel
        patch.setattr(
            grpc, "secure_channel", lambda _address, *others: real(str(impostor.address), *others)
        )
        with open_channel(access) as channel:
            call = channel.unary_unary(
                methods.ENROLL.path, methods.ENROLL.request.SerializeToString
            )
            with pytest.raises(grpc.RpcError) as failure:
                call(pb.EnrollRequest(), timeout=HANG_S)
    assert failure.value.code() is grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]


def impersonated(certificates: Any, party: str) -> dict[str, str]:
    return {
        "certificate": certificates.file(f"{party}.pem"),
        "key": certificates.file(f"{party}-key.pem"),
    }


@pytest.mark.parametrize("endpoint", [RemoteReportEndpoint, RemoteReleaseEndpoint])
@pytest.mark.parametrize("party", ["server", "client-library"])
def test_a_listener_whose_certificate_does_not_say_aggregator_is_told_nothing(
    start: Callable[..., Any], task: Any, certificates: Any, party: str, endpoint: Any
) -> None:
    """The same authority, the same host: the server, or a client, in the aggregator's place."""
    impostor = start(
        tls=impersonated(certificates, party) | {"client_ca": certificates.file("ca.pem")}
    )
    access = certificates.access(
        impostor.address, "client-hospital" if endpoint is RemoteReportEndpoint else "server"
    )
    call = (
        (lambda: endpoint(access).enroll(task.tokens([1])))
        if endpoint is RemoteReportEndpoint
        else endpoint(access).enrolled
    )
    assert code_of(call) == Refusal.WRONG_CERTIFICATE
    assert impostor.owners() == {}


def test_a_pin_of_the_servers_key_does_not_make_it_an_aggregator(
    start: Callable[..., Any], task: Any, certificates: Any
) -> None:
    impostor = start(
        tls=impersonated(certificates, "server") | {"client_ca": certificates.file("ca.pem")}
    )
    pin = pins(Path(certificates.file("server.pem")).read_bytes()).public_key
    for ca in (certificates.file("ca.pem"), ""):
        access = certificates.access(impostor.address, "client-hospital", pin=pin, ca=ca)
        assert (
            code_of(lambda access=access: RemoteReportEndpoint(access).enroll(task.tokens([1])))
            == Refusal.WRONG_CERTIFICATE
        )


def test_a_channel_by_authority_trusts_only_the_certificate_that_was_examined(
    start: Callable[..., Any], certificates: Any, tmp_path: Path
) -> None:
    """Whoever shows the aggregator's certificate to our handshake and the server's to gRPC gets
    nowhere, without a pin too."""
    real, impostor = (
        start(),
        start(
            tls=impersonated(certificates, "server") | {"client_ca": certificates.file("ca.pem")},
            state=str(tmp_path / "impostor"),
        ),
    )
    access = certificates.access(real.address, "client-hospital")
    with pytest.MonkeyPatch.context() as patch:
        secure = grpc.secure_channel
        patch.setattr(
            grpc, "secure_channel", lambda _address, *others: secure(str(impostor.address), *others)
        )
        with open_channel(access) as channel:
            call = channel.unary_unary(
                methods.ENROLL.path, methods.ENROLL.request.SerializeToString
            )
            with pytest.raises(grpc.RpcError) as failure:
                call(pb.EnrollRequest(), timeout=HANG_S)
    assert failure.value.code() is grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]


def test_a_server_that_is_not_listed_opens_nothing_whatever_its_certificate(
    start: Callable[..., Any], task: Any, certificates: Any, tmp_path: Path
) -> None:
    running = start(servers=["trainer"])
    endpoint = running.server("server")
    for call in (
        endpoint.enrolled,
        lambda: endpoint.open_run(task.run, task.plan),
        lambda: endpoint.release(task.run, 0),
    ):
        assert code_of(call) == Refusal.FORBIDDEN
    assert start(state=str(tmp_path / "second")).server("server").enrolled() == 0


def test_a_name_is_bound_to_the_key_that_the_pins_say(
    start: Callable[..., Any], task: Any, certificates: Any, tmp_path: Path
) -> None:
    """The authority itself signs a second certificate for the hospital's name, and one for the
    server's."""
    known = {f"fedrec:{each}": public_key(certificates, file) for each, file in NAMED.items()}
    running = start(keys=known)
    assert running.client("hospital").enroll(task.tokens([1])) == 1
    assert running.server("server").enrolled() == 1
    ca = KeyPair(certificates.folder / "ca.pem", certificates.folder / "ca-key.pem")
    for role, name in (("client", "hospital"), ("server", "server")):
        (tmp_path / role).mkdir()
        forged = issue(KeyPair(copied(ca.certificate, tmp_path / role), ca.key), role, name, days=1)
        access = certificates.access(
            running.address, "", certificate=str(forged.certificate), key=str(forged.key)
        )
        call = (
            RemoteReportEndpoint(access).enroll
            if role == "client"
            else lambda _, access=access: RemoteReleaseEndpoint(access).enrolled()
        )
        assert code_of(lambda call=call: call([])) == Refusal.FORBIDDEN
    # listed, but of no known key
    assert code_of(lambda: running.client("library").enroll(task.tokens([2]))) == Refusal.FORBIDDEN


NAMED = {"client:hospital": "client-hospital.pem", "server:server": "server.pem"}


def public_key(certificates: Any, file: str) -> str:
    return pins(Path(certificates.file(file)).read_bytes()).public_key


def copied(path: Path, folder: Path) -> Path:
    (folder / path.name).write_bytes(path.read_bytes())
    return folder / path.name


@pytest.mark.parametrize(
    "second", ["fedrec:server:server", "fedrec:aggregator:aggregator", "fedrec:other:x"]
)
def test_a_certificate_of_two_roles_is_of_nobody(second: str) -> None:
    with pytest.raises(RefusedError) as refusal:
        Certificates({})({"peer_uri": [b"fedrec:client:hospital", second.encode()]}, {})
    assert refusal.value.code == Refusal.FORBIDDEN


def test_pins_leave_no_caller_unknown(settings: Callable[..., Any]) -> None:
    with pytest.raises(SettingsError, match="any_client"):
        settings(any_client=True, keys={"fedrec:client:hospital": "0" * 64})


def test_tokens_open_each_role_its_own_calls(
    start: Callable[..., Any], task: Any, certificates: Any, tmp_path: Path
) -> None:
    shown = {role: secrets.token_urlsafe(32) for role in ("client", "server")}
    entries = [
        {
            "role": "client",
            "name": "hospital",
            "sha256": hashlib.sha256(shown["client"].encode()).hexdigest(),
        },
        {
            "role": "server",
            "name": "trainer",
            "sha256": hashlib.sha256(shown["server"].encode()).hexdigest(),
        },
    ]
    running = start(tls=certificates.tls(mutual=False), tokens=entries, clients=[])
    access = {}
    for role, token in {**shown, "nobody": "guess"}.items():
        (tmp_path / role).write_text(f"{token}\n")
        access[role] = certificates.access(
            running.address, "", certificate="", key="", token=str(tmp_path / role)
        )
    assert RemoteReportEndpoint(access["client"]).enroll(task.tokens([1])) == 1
    assert RemoteReleaseEndpoint(access["server"]).enrolled() == 1
    assert code_of(RemoteReleaseEndpoint(access["client"]).enrolled) == Refusal.FORBIDDEN
    assert code_of(RemoteReleaseEndpoint(access["nobody"]).enrolled) == Refusal.FORBIDDEN
    assert (
        code_of(RemoteReleaseEndpoint(replace(access["server"], token="")).enrolled)
        == Refusal.FORBIDDEN
    )


def test_plain_connections_are_for_loopback_addresses_only(settings: Callable[..., Any]) -> None:
    with pytest.raises(SettingsError, match="loopback"):
        settings(tls={}, insecure=True, listen="0.0.0.0:0")
    with pytest.raises(SettingsError, match="readable"):
        Access("aggregator.example.org:50051", insecure=True)


def test_a_plain_caller_meets_no_tls_aggregator_and_the_other_way_round(
    start: Callable[..., Any], task: Any, tmp_path: Path
) -> None:
    with_tls, without = start(), start(tls={}, insecure=True, state=str(tmp_path / "second"))
    plain = Access(str(with_tls.address), name="hospital", insecure=True)
    secure = replace(with_tls.access("client", "hospital"), address=str(without.address))
    for access in (plain, secure):
        with pytest.raises(UnreachableError):
            RemoteReportEndpoint(access, retry=SHORT).enroll(task.tokens([1]))


def test_health_answers_anybody_who_gets_through_tls(
    start: Callable[..., Any], certificates: Any
) -> None:
    running = start()
    assert healthy(running.access("client", "stranger"))
    with (
        open_channel(running.access("client", "hospital")) as channel,
        pytest.raises(grpc.RpcError) as failure,
    ):
        next(channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=HANG_S))
    assert failure.value.code() is grpc.StatusCode.UNIMPLEMENTED  # type: ignore[attr-defined]


def test_nobody_there_is_unreachable_after_patience(certificates: Any, task: Any) -> None:
    import socket

    with socket.socket() as held:  # bound and not listening: nobody else takes the port meanwhile
        held.bind(("127.0.0.1", 0))
        access = Access(f"127.0.0.1:{held.getsockname()[1]}", ca=certificates.file("ca.pem"))
        pauses = list[float]()
        retry = replace(SHORT, patience_s=0.2, sleep=pauses.append)
        with pytest.raises(UnreachableError, match="no aggregator answers"):
            RemoteReportEndpoint(access, retry=replace(retry, clock=lambda: sum(pauses))).enroll(
                task.tokens([1])
            )
    assert pauses


def test_existing_certificates_are_never_overwritten(certificates: Any) -> None:
    with pytest.raises(SettingsError, match="there already"):
        make_ca(certificates.folder, days=1)
