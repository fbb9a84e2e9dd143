"""A light device sends the bytes of the full client, in little memory, and keeps the same
promises."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrec.certificates.statements import require_departed
from fedrec.errors import (
    BudgetExceededError,
    RefusedError,
    RunError,
    SettingsError,
    UnreachableError,
)
from fedrec.federation.protocol import Refusal, SignedStatement
from fedrec.federation.report_batches import (
    MAX_DEVICE_BYTES,
    Batch,
    batch_bytes,
    pack_reports,
    unpack_reports,
)
from fedrec.federation.reports import within_radius
from fedrec.federation.wire import pack_terms, question_digest, question_header, report_digest
from fedrec.in_process import Loopback
from fedrec.privacy.accounting import Ledger
from fedrec.privacy.accounting import delta_of as exact_delta_of
from fedrec.randomness import Streams
from fedrec_client.device import Device, History, Limit, Service
from fedrec_client.device.questions import delta_of, read_header, read_plan, read_terms
from fedrec_client.device.steps import STEPS, ReportPart, require_sound, silence
from fedrec_client.ledger import report_ids, user_tokens
from tests.device.worlds import InProcess, Intake, World, closed, listening, opened, world

__all__ = ["closed", "world"]


LIMIT = Limit(100.0, 1e-5)


def device(world: World, folder: Path, user: int, service: Any, limit: Limit = LIMIT) -> Device:
    return Device(folder, world.history(user), limit=limit, service=service, user=str(user))


def test_every_step_of_the_default_recipe_is_known(world: World) -> None:
    assert {question.step for question in world.questions} <= set(STEPS)


@pytest.mark.parametrize("quorum", [0, 40])
def test_a_light_device_sends_the_bytes_of_the_full_client(
    world: World, tmp_path: Path, quorum: int
) -> None:
    steps = world.prepared.steps
    users = [0, 1, 7, 150, 299]
    one_of_each = {question.step: number for number, question in enumerate(world.questions)}
    for number in one_of_each.values():
        invitation = world.invitation(number, quorum)
        question = invitation.question
        header = question_header(question, run=invitation.run, plan=invitation.plan.digest())
        digest = question_digest(header)
        for user in users:
            mine = device(world, tmp_path / f"{user}", user, InProcess(Intake(None)))
            secret = mine.ledger.secret
            tokens = user_tokens(secret, [str(user)])
            ids = report_ids(
                secret, tokens, run=invitation.run, round=question.round, digest=digest
            )
            reports = steps[question.step](question, world.data.users_subset(np.array([user])))
            expected = pack_reports(Batch(ids, tokens, reports), report_digest(digest, quorum))
            intake = Intake(None)
            intake.publish(world.terms, invitation)
            mine._service = InProcess(intake)

            assert (
                mine.answered(read_header(header), read_terms(pack_terms(world.terms)), quorum)
                == expected
            ), question.step
            unpack_reports(
                expected,
                question.blocks,
                report_digest(digest, quorum),
                max_users=1,
                max_events_per_user=10_000,
            )
            mine.ledger.close()


def test_a_person_without_ratings_is_counted_like_any_other(world: World, tmp_path: Path) -> None:
    held = opened(world, tmp_path, 0)
    nobody = Device(tmp_path / "me", History((), ()), limit=LIMIT, service=held.endpoint)
    assert nobody.take_part()
    assert held.aggregator.status(world.terms.run, 0).reported == 1


@pytest.mark.parametrize("changed", ["width", "rows"])
def test_blocks_of_another_shape_do_not_tell_the_server_on_whom_its_arrays_fail(
    world: World, tmp_path: Path, changed: str
) -> None:
    """Where arrays fail on one item only, whoever has it sends the empty report. That is of the
    announced shape: were the others' not, they alone would be turned away, and counted."""
    asked = world.questions[-1]
    release = asked.releases[0]
    user = 3
    other = {"width": release.blocks[0].width + 1, "rows": 1}[changed]
    first = replace(release.blocks[0], **{changed: other})
    releases = (replace(release, blocks=(first, *release.blocks[1:])), *asked.releases[1:])
    variance = np.array(asked.public["variance"])
    variance[world.data.items[world.data.user_ptr[user]]] = -1e30
    for number, public in enumerate((asked.public, {**asked.public, "variance": variance})):
        hostile = replace(asked, public=public, releases=releases)
        header = question_header(hostile, run=world.terms.run, plan=world.prepared.plan.digest())
        intake = Intake(None)
        intake.publish(world.terms, replace(world.invitation(0), question=hostile))
        mine = device(world, tmp_path / f"{number}", user, InProcess(intake))
        batch = mine.answered(read_header(header), read_terms(pack_terms(world.terms)), 0)
        taken = unpack_reports(
            batch, hostile.blocks, question_digest(header), max_users=1, max_events_per_user=10_000
        )
        assert len(taken.reports.items) == 0
        mine.ledger.close()


@pytest.mark.parametrize("size", [2.71e-162, 1.6e-162, 5e-324, 1e-130])
def test_a_report_is_within_its_radius_whatever_the_arrays(
    world: World, tmp_path: Path, size: float
) -> None:
    """An aggregator shortens a longer one, and counts it: numbers whose squares underflow on one item must
    not lengthen the report of whoever has it."""
    number = next(k for k, q in enumerate(world.questions) if q.step == "default/biases")
    asked = world.questions[number]
    user = 3
    omega = np.zeros(world.data.num_items)
    omega[world.data.items[world.data.user_ptr[user]]] = size
    hostile = replace(asked, public={**asked.public, "omega": omega, "kappa": np.array(1.0)})
    header = question_header(hostile, run=world.terms.run, plan=world.prepared.plan.digest())
    intake = Intake(None)
    intake.publish(world.terms, replace(world.invitation(number), question=hostile))
    mine = device(world, tmp_path, user, InProcess(intake))
    batch = mine.answered(read_header(header), read_terms(pack_terms(world.terms)), 0)
    taken = unpack_reports(
        batch, hostile.blocks, question_digest(header), max_users=1, max_events_per_user=10_000
    )
    assert within_radius(taken.reports, hostile.releases).all()
    mine.ledger.close()


def test_who_left_reports_no_more_over_http_and_a_folder_put_back_is_not_counted(
    world: World, tmp_path: Path
) -> None:
    there = opened(world, tmp_path, 0)
    with listening(there.intake) as address:
        mine = device(world, tmp_path / "mine", 3, Service(address))
        with pytest.raises(RefusedError, match="never knew"):
            device(world, tmp_path / "stranger", 4, Service(address)).forget()
        there.intake.withdraw()
        assert not mine.take_part()  # it enrols
        mine.ledger.close()
        shutil.copytree(tmp_path / "mine", tmp_path / "before")
        there.intake.publish(world.terms, world.invitation(0))
        mine = device(world, tmp_path / "mine", 3, Service(address))
        told = mine.forget()
        mine.ledger.close()
        mine = device(world, tmp_path / "mine", 3, Service(address))
        assert not mine.take_part()
        assert mine.forget() == told
        kept = json.loads((tmp_path / "mine" / f"{mine.token.hex()}.json").read_text())
        stated = require_departed(SignedStatement(**kept["statements"][0]), mine.token, pin="")
        assert set(stated.runs) == {world.terms.run}
        put_back = device(world, tmp_path / "before", 3, Service(address))
        with pytest.raises(RefusedError, match="left for good"):
            put_back.take_part()
        assert there.aggregator.collections()[0].reported == 0
        for one in (mine, put_back):
            one.ledger.close()


@pytest.mark.parametrize("longer", [1.0, 1.01])
def test_a_report_that_is_too_long_is_not_sent(world: World, longer: float) -> None:
    question = world.questions[0]
    release = question.releases[0]
    first = round(longer * release.radius / release.blocks[0].coefficient_step)
    parts = silence(release.blocks)
    one = ReportPart(np.array([first], np.int32), np.full((1, 1), 2**14, np.int32))
    spec = replace(release.blocks[0], vector_step=2.0**-14)
    alone = [replace(release, blocks=(spec, *release.blocks[1:]))]
    items = np.array([4], np.int32)
    if longer > 1:
        with pytest.raises(ValueError, match="larger than its radius"):
            require_sound(items, [one, *parts[1:]], alone)
    else:
        require_sound(items, [one, *parts[1:]], alone)


def test_a_question_that_fits_an_aggregator_for_a_person_without_its_items_alone_is_refused_for_all(
    world: World, tmp_path: Path
) -> None:
    """An empty report has just what an aggregator takes at most: with an item more it would be turned
    away, and the server would hear of one report less."""
    asked = world.questions[-1]
    release = asked.releases[0]
    empty = batch_bytes(asked.blocks, users=1, events=0)
    folds = release.blocks[0].folds + (MAX_DEVICE_BYTES - empty) // (2 * release.blocks[0].width)
    long = replace(release, blocks=(replace(release.blocks[0], folds=folds), *release.blocks[1:]))
    hostile = replace(asked, releases=(long, *asked.releases[1:]))
    assert batch_bytes(hostile.blocks, users=1, events=0) <= MAX_DEVICE_BYTES
    header = question_header(hostile, run=world.terms.run, plan=world.prepared.plan.digest())
    me = device(world, tmp_path / "me", 3, InProcess(Intake(None)))
    with pytest.raises(RefusedError, match="could have more than") as caught:
        me.answered(read_header(header), read_terms(pack_terms(world.terms)), 0)
    assert caught.value.code == Refusal.TOO_LARGE


def test_a_run_keeps_the_terms_of_its_first_round_also_when_the_device_starts_again(
    world: World, tmp_path: Path
) -> None:
    held = opened(world, tmp_path, 0)
    me = device(world, tmp_path / "me", 3, held.endpoint)
    assert me.take_part()
    me.ledger.close()
    intake = Intake(None)
    turned = replace(world.terms, items=world.terms.items[::-1])
    intake.publish(turned, world.invitation(1))
    again = device(world, tmp_path / "me", 3, InProcess(intake))
    with pytest.raises(RunError, match="under other terms"):
        again.take_part()
    assert len(again.ledger.entries) == 1


def test_a_ledger_that_pinned_no_terms_is_read_and_goes_on(world: World, tmp_path: Path) -> None:
    held = opened(world, tmp_path, 0)
    me = device(world, tmp_path / "me", 3, held.endpoint)
    folder = tmp_path / "me"
    content: list[object] = ["earlier", 0, "question", "plan", (0.25).hex()]
    head = hashlib.sha256(
        json.dumps([hashlib.sha256(b"fedrec device ledger 1").hexdigest(), *content]).encode()
    ).hexdigest()
    me.ledger.close()
    (folder / "ledger.jsonl").write_text(json.dumps([*content, head]) + "\n")
    again = device(world, folder, 3, held.endpoint)
    assert again.take_part()
    assert [(entry.run, bool(entry.terms)) for entry in again.ledger.entries] == [
        ("earlier", False),
        (world.terms.run, True),
    ]


def test_a_device_is_charged_and_counted_once_however_often_it_takes_part(
    world: World, tmp_path: Path
) -> None:
    held = opened(world, tmp_path, 0)
    me = device(world, tmp_path / "me", 3, held.endpoint)
    assert me.take_part()
    assert me.take_part()
    me.ledger.close()
    again = device(world, tmp_path / "me", 3, held.endpoint)
    assert again.take_part()
    assert len(again.ledger.entries) == 1
    assert held.aggregator.status(world.terms.run, 0).reported == 1


def test_items_that_the_catalogue_lacks_are_counted_for_the_person_alone(
    world: World, tmp_path: Path
) -> None:
    """It reports all the same, as one without ratings: a refusal would tell what the person has."""
    held = opened(world, tmp_path, 0)
    mine = world.history(3)
    me = device(world, tmp_path / "me", 3, held.endpoint)
    me._history = replace(mine, items=tuple(f"isbn-{item}" for item in mine.items))
    assert me.take_part()
    assert me.unknown == len(mine.items) > 0
    assert held.aggregator.status(world.terms.run, 0).reported == 1


def test_nothing_is_sent_past_the_persons_limit(world: World, tmp_path: Path) -> None:
    held = opened(world, tmp_path, 0)
    me = device(world, tmp_path / "me", 3, held.endpoint, Limit(1.0, 1e-5))
    with pytest.raises(BudgetExceededError, match="would pass epsilon 1"):
        me.take_part()
    assert held.aggregator.status(world.terms.run, 0).reported == 0
    assert not me.ledger.entries


def test_another_persons_pseudonym_cannot_be_taken(world: World, tmp_path: Path) -> None:
    held = opened(world, tmp_path, 0)
    me = device(world, tmp_path / "me", 3, held.endpoint)
    me.take_part()
    with pytest.raises(RefusedError, match="belongs to the client that enrolled it first"):
        held.intake.enroll(me.token, "another secret that is long enough")


def test_changed_content_is_refused_before_anything_is_charged(
    world: World, tmp_path: Path
) -> None:
    held = opened(world, tmp_path, 1)

    class Lying(InProcess):
        def content(self, sha256: str) -> bytes:
            found = super().content(sha256)
            return (
                found[:-1] + bytes([found[-1] ^ 1])
                if len(found) == 8 * len(world.terms.items)
                else found
            )

    me = device(world, tmp_path / "me", 3, Lying(held.intake))
    with pytest.raises(RefusedError, match="not the one that the question announces"):
        me.take_part()
    assert not me.ledger.entries


@pytest.mark.parametrize("quorum", [-1, True, 2**53, 1.5, "40"])
def test_a_quorum_that_is_no_number_of_users_is_refused_before_anything_is_charged(
    world: World, tmp_path: Path, quorum: object
) -> None:
    class Lying(InProcess):
        def round(self) -> dict[str, Any]:
            return super().round() | {"quorum": quorum}

    me = device(world, tmp_path / "me", 3, Lying(opened(world, tmp_path, 0).intake))
    with pytest.raises(RefusedError, match="a quorum is a number of users"):
        me.take_part()
    assert not me.ledger.entries


@pytest.mark.parametrize(
    "changed", [{"epsilon": math.nan}, {"delta": math.nan}, {"epsilon": -1.0}, {"delta": -1.0}]
)
def test_a_plan_whose_guarantee_is_no_guarantee_is_refused(
    world: World, changed: dict[str, float]
) -> None:
    told = json.loads(json.dumps(world.prepared.plan.content()))
    told["guarantee"] |= changed
    content = json.dumps(told, sort_keys=True).encode()
    with pytest.raises(RefusedError, match=r"is no guarantee|no number"):
        read_plan(content, hashlib.sha256(content).hexdigest())


def test_a_changed_ledger_is_noticed_and_a_torn_line_is_dropped(
    world: World, tmp_path: Path
) -> None:
    held = opened(world, tmp_path, 0)
    me = device(world, tmp_path / "me", 3, held.endpoint)
    me.take_part()
    with pytest.raises(RunError, match="in use"):
        device(world, tmp_path / "me", 3, held.endpoint)
    me.ledger.close()
    path = tmp_path / "me" / "ledger.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'["run", 1')
    torn = device(world, tmp_path / "me", 3, held.endpoint)
    assert len(torn.ledger.entries) == 1
    torn.ledger.close()
    path.write_bytes(whole.replace(b", 0, ", b", 7, "))
    with pytest.raises(RunError, match="damaged: entry 1"):
        device(world, tmp_path / "me", 3, held.endpoint)


@pytest.mark.parametrize("left", [None, 0, 16])
def test_a_secret_that_is_lost_or_cut_is_never_made_anew(
    left: int | None, world: World, tmp_path: Path
) -> None:
    held = opened(world, tmp_path, 0)
    me = device(world, tmp_path / "me", 3, held.endpoint)
    me.take_part()
    me.ledger.close()
    path = tmp_path / "me" / "secret"
    path.unlink() if left is None else path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(RunError, match="is missing or damaged"):
        device(world, tmp_path / "me", 3, held.endpoint)


@pytest.mark.parametrize("fault", ["half a line", "a line that is not synced"])
def test_a_full_disk_leaves_a_ledger_that_goes_on_when_there_is_room(
    fault: str, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = opened(world, tmp_path, 0)
    me = device(world, tmp_path / "me", 3, held.endpoint)
    write = os.write

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        if fault == "half a line":
            disk.setattr(os, "write", lambda file, line: write(file, line[: len(line) // 2]))
        else:
            disk.setattr(os, "fsync", full)
        with pytest.raises(RunError, match="cannot be written"):
            me.take_part()
    assert me.take_part()
    me.ledger.close()
    assert len(device(world, tmp_path / "me", 3, held.endpoint).ledger.entries) == 1


@pytest.mark.parametrize(
    ("mu", "epsilon"), [(0.3, 0.5), (1.0, 1.0), (1.0, 5.0), (4.0, 20.0), (0.01, 3.0), (30.0, 500.0)]
)
def test_the_devices_accountant_says_what_the_librarys_says(mu: float, epsilon: float) -> None:
    assert delta_of(mu, epsilon) == pytest.approx(exact_delta_of(mu, epsilon), rel=1e-9, abs=1e-300)


def test_over_http_devices_are_counted_and_what_they_fetch_may_be_cached(
    world: World, tmp_path: Path
) -> None:
    held = opened(world, tmp_path, 1)
    with listening(held.intake) as address:
        for user in range(3):
            assert device(world, tmp_path / f"{user}", user, Service(address)).take_part()
        from http.client import HTTPConnection

        line = HTTPConnection(address.removeprefix("http://"))
        line.request("GET", f"/v1/content/{json.loads(held.intake.source.told())['question']}")
        answer = line.getresponse()
        assert "immutable" in (answer.headers["Cache-Control"] or "")
        line.close()
        with pytest.raises(RefusedError, match="not admitted"):
            Service(address).enroll(b"0" * 16, "short")
        held.intake.withdraw()
        assert not device(world, tmp_path / "late", 9, Service(address)).take_part()
    assert held.aggregator.status(world.terms.run, world.questions[1].round).reported == 3
    with pytest.raises(UnreachableError):
        Service(address).round()
    with pytest.raises(SettingsError, match="no address"):
        Service("http://aggregator.example").round()


def test_the_sum_over_light_devices_is_the_sum_of_the_loopback(
    world: World, tmp_path: Path
) -> None:
    held = opened(world, tmp_path, 1)
    question = world.questions[1]
    users = 40
    for user in range(users):
        device(world, tmp_path / f"{user}", user, held.endpoint).take_part()
    status = held.aggregator.close(world.terms.run, question.round)
    assert status.reported == users
    some = world.data.users_subset(np.arange(users))
    expected = Loopback(
        some,
        world.prepared.steps,
        world.prepared.plan,
        Streams(1),
        Ledger(world.prepared.plan.guarantee),
    ).answer(question)
    from fedrec.federation.wire import pack_release

    assert held.aggregator.release(world.terms.run, question.round) == pack_release(expected)


def test_a_device_loads_numpy_and_nothing_heavy() -> None:
    script = (
        "import sys; import fedrec_client.device; "
        "heavy = {'numba', 'scipy', 'torch', 'flwr', 'grpc', 'pydantic', 'polars', "
        "'cryptography', 'safetensors'} & set(sys.modules); "
        "peak = next(line for line in open('/proc/self/status') if line.startswith('VmHWM')); "
        "print(sorted(heavy), int(peak.split()[1]) // 1024)"
    )
    # each of its threads takes memory of its own
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment
    ).stdout.split()
    assert found[0] == "[]"
    assert int(found[1]) < 60  # MB; measured 31
