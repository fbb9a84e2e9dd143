"""The page's device sends the bytes of the light Python client, and of the full one, and keeps the
same promises; under node, skipped where there is none."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrec.federation.messages import BlockSpec, Question, ReleaseSpec
from fedrec.federation.report_batches import Batch, pack_reports, unpack_reports
from fedrec.federation.reports import within_radius
from fedrec.federation.wire import (
    described,
    pack_release,
    pack_terms,
    question_digest,
    question_header,
    report_digest,
)
from fedrec.in_process import Loopback
from fedrec.privacy.accounting import Ledger
from fedrec.randomness import Streams
from fedrec_client.ledger import report_ids, user_tokens
from tests.device.worlds import World, closed, listening, opened, world
from tests.page.conftest import Node, node

__all__ = ["closed", "node", "world"]

LIMIT = {"epsilon": 100.0, "delta": 1e-5}
SECRET = bytes(range(32))


def case(world: World, number: int, user: int, *, quorum: int = 0, **more: Any) -> dict[str, Any]:
    """A round as the driver reads it, and a person."""
    files, told = described(world.terms, world.invitation(number, quorum))
    kept = {digest: base64.b64encode(content).decode() for digest, content in files.items()}
    history = world.history(user)
    found = {
        "files": kept,
        "told": json.loads(told),
        "user": str(user),
        "ratings": list(zip(history.items, history.values, strict=True)),
        "limit": LIMIT,
        "secret": SECRET.hex(),
    }
    return found | more


def changed(found: dict[str, Any], content: bytes, words: str) -> dict[str, Any]:
    """The same with other content in the place of that whose digest is told under `words`."""
    digest = hashlib.sha256(content).hexdigest()
    files = found["files"] | {digest: base64.b64encode(content).decode()}
    return found | {"files": files, "told": found["told"] | {words: digest}}


def told_file(found: dict[str, Any], words: str) -> dict[str, Any]:
    content = base64.b64decode(found["files"][found["told"][words]])
    return dict(json.loads(content))


def full_clients_batch(world: World, number: int, user: int, quorum: int) -> bytes:
    invitation = world.invitation(number, quorum)
    question = invitation.question
    digest = question_digest(
        question_header(question, run=invitation.run, plan=invitation.plan.digest())
    )
    tokens = user_tokens(SECRET, [str(user)])
    ids = report_ids(SECRET, tokens, run=invitation.run, round=question.round, digest=digest)
    own = world.data.users_subset(np.array([user]))
    reports = world.prepared.steps[question.step](question, own)
    return pack_reports(Batch(ids, tokens, reports), report_digest(digest, quorum))


@pytest.mark.parametrize("quorum", [0, 40])
def test_the_page_sends_the_bytes_of_the_full_client_in_every_step(
    node: Node, world: World, quorum: int
) -> None:
    one_of_each = {question.step: number for number, question in enumerate(world.questions)}
    asked = [(number, user) for number in one_of_each.values() for user in (0, 1, 7, 150, 299)]
    answers = node("devices", cases=[case(world, n, u, quorum=quorum) for n, u in asked])
    for (number, user), answer in zip(asked, answers, strict=True):
        expected = full_clients_batch(world, number, user, quorum)
        assert "refused" not in answer, answer
        assert base64.b64decode(answer["posted"][0]) == expected, world.questions[number].step
        assert answer["sent"] == {"bytes": len(expected), "charged": True}
        assert answer["enrolled"] == [user_tokens(SECRET, [str(user)])[0].tobytes().hex()]


def test_a_round_is_charged_once_and_the_same_report_is_sent_again(
    node: Node, world: World
) -> None:
    first = case(world, 0, 3, storage="mine")
    replaced = case(world, 1, 3, storage="mine", replies=[{"not-enrolled": 1}])
    counted = case(world, 1, 3, storage="mine", replies=[{"already-reported": 1}])
    once, again, other, known = node("devices", cases=[first, first, replaced, counted])
    assert (once["charged"], again["charged"], other["charged"], known["charged"]) == (1, 1, 2, 2)
    charged = [answer["sent"]["charged"] for answer in (once, again, other, known)]
    assert charged == [True, False, True, False]
    assert once["posted"] == again["posted"]
    assert len(other["posted"]) == 2 == len(other["enrolled"])  # the aggregator was replaced


def test_two_tabs_that_take_part_at_once_are_charged_once_and_lose_nothing(
    node: Node, world: World
) -> None:
    (found,) = node("devices", cases=[case(world, 0, 3, secret=None, tabs=2)])
    assert found["charged"] == 1
    assert sorted(sent["charged"] for sent in found["sent"]) == [False, True]
    one, other = found["posted"]  # both under the one secret that was kept
    assert one == other


def test_a_run_keeps_the_terms_of_its_first_round(node: Node, world: World) -> None:
    turned = pack_terms(replace(world.terms, items=world.terms.items[::-1]))
    first = case(world, 0, 3, storage="mine")
    other = changed(case(world, 1, 3, storage="mine"), turned, "terms")
    begun, refused, honest = node(
        "devices", cases=[first, other, case(world, 1, 3, storage="mine")]
    )
    assert begun["sent"]["charged"]
    assert honest["sent"]["charged"]
    assert "under other terms" in refused["refused"]
    assert (refused["charged"], refused["posted"]) == (1, [])


def test_a_person_without_ratings_and_hostile_arrays_look_like_any_other(
    node: Node, world: World
) -> None:
    nobody = case(world, 1, 3, ratings=[])
    last = case(world, len(world.questions) - 1, 3)
    hostile = hostile_variance(last)
    other = other_block(last)
    silent, *answered = node("devices", cases=[nobody, hostile, other, hostile_variance(other)])
    assert [len(each["posted"]) for each in (silent, *answered)] == [1] * 4
    assert [each["charged"] for each in (silent, *answered)] == [1] * 4
    sent = [base64.b64decode(each["posted"][0]) for each in answered]
    assert [int.from_bytes(batch[76:80], "little") for batch in sent] == [0] * 3
    # not told apart by which of them an aggregator turns away
    assert len(sent[1]) == len(sent[2])


def test_numbers_whose_squares_underflow_lengthen_nobodys_report(node: Node, world: World) -> None:
    number = next(k for k, q in enumerate(world.questions) if q.step == "default/biases")
    question = world.questions[number]
    found = case(world, number, 3)
    omega = np.zeros(world.data.num_items)
    omega[world.data.items[world.data.user_ptr[3]]] = 2.71e-162
    (answer,) = node("devices", cases=[with_array(found, "omega", omega)])
    batch = base64.b64decode(answer["posted"][0])
    taken = unpack_reports(
        batch, question.blocks, batch[4:36].hex(), max_users=1, max_events_per_user=10_000
    )
    assert within_radius(taken.reports, question.releases).all()


def other_block(found: dict[str, Any]) -> dict[str, Any]:
    """A block of one row, where the step's report has a coefficient for each item."""
    header = told_file(found, "question")
    header["releases"][0]["blocks"][0]["rows"] = 1
    return changed(found, json.dumps(header).encode(), "question")


def hostile_variance(found: dict[str, Any]) -> dict[str, Any]:
    """Noise of a rating below zero: no system that a person solves is then positive definite."""
    array = told_file(found, "question")["public"]["variance"]
    return with_array(found, "variance", np.full(array["shape"], -1e9, np.dtype(array["dtype"])))


def with_array(found: dict[str, Any], name: str, values: np.ndarray) -> dict[str, Any]:
    """The question with another public array."""
    header = told_file(found, "question")
    array = header["public"][name]
    content = values.astype(np.dtype(array["dtype"])).tobytes()
    digest = hashlib.sha256(content).hexdigest()
    files = found["files"] | {digest: base64.b64encode(content).decode()}
    header["public"][name] = array | {"sha256": digest}
    return changed(found | {"files": files}, json.dumps(header).encode(), "question")


def test_nothing_is_sent_past_the_limit_or_where_the_ledger_is_damaged(
    node: Node, world: World
) -> None:
    mine = case(world, 0, 3, storage="mine")
    poor = case(world, 0, 3, limit={"epsilon": 1.0, "delta": 1e-5})
    broken = mine | {"lose": ['"round":0', '"round":7']}
    lost = mine | {"storage": "lost"}
    without = lost | {"lose": [SECRET.hex(), ""]}
    cases = [poor, mine, broken, lost, without]
    past, _, damaged, _, anonymous = node("devices", cases=cases)
    assert (anonymous["code"], anonymous["posted"]) == ("LedgerError", [])
    assert (past["code"], past["charged"], past["posted"]) == ("BudgetError", 0, [])
    assert (damaged["code"], damaged["posted"]) == ("LedgerError", [])


def lies(world: World) -> dict[str, dict[str, Any]]:
    """Rounds that no device may answer, by the code of the refusal and what is wrong."""
    honest = case(world, 1, 3)
    plan_digest = told_file(honest, "question")["plan"]
    array = told_file(honest, "question")["public"]["omega"]["sha256"]
    torn = bytearray(base64.b64decode(honest["files"][array]))
    torn[-1] ^= 1
    other = base64.b64encode(bytes(torn)).decode()

    def header(**what: Any) -> dict[str, Any]:
        return changed(
            honest, json.dumps(told_file(honest, "question") | what).encode(), "question"
        )

    def plan(**what: Any) -> dict[str, Any]:
        content = json.loads(base64.b64decode(honest["files"][plan_digest])) | what
        named = json.dumps(content, sort_keys=True).encode()
        digest = hashlib.sha256(named).hexdigest()
        found = header(plan=digest)
        return found | {"files": found["files"] | {digest: base64.b64encode(named).decode()}}

    told = told_file(honest, "question")
    guarantee = world.prepared.plan.content()["guarantee"]
    wide = json.loads(json.dumps(told["releases"]))
    wide[0]["blocks"][0]["rows"] = 2
    long = json.loads(json.dumps(told["releases"]))
    long[0]["blocks"][0]["folds"] = 2**20 // (2 * long[0]["blocks"][0]["width"])
    return {
        "wrong-question: array": honest | {"files": honest["files"] | {array: other}},
        "wrong-question: run": header(run="another"),
        "wrong-question: plan": header(plan="0" * 64),
        "wrong-plan: sum": plan(guarantee=guarantee | {"epsilon": 0.5}),
        "wrong-plan: unit": plan(guarantee=guarantee | {"unit": "click"}),
        "wrong-plan: none": plan(guarantee=guarantee | {"epsilon": -1.0}),
        "wrong-plan: three": plan(aggregation="three-party"),
        "wrong-plan: release": plan(releases=[]),
        "malformed: step": header(step="default/other"),
        "malformed: rows": header(releases=wide),
        "too-large: folds": header(releases=long),
        "malformed: sizes": header(round=1.5),
        "malformed: quorum": honest | {"told": honest["told"] | {"quorum": -1}},
        "malformed: header": changed(honest, b"[]", "question"),
    }


def test_what_a_device_may_not_answer_is_refused_before_anything_is_charged(
    node: Node, world: World
) -> None:
    cases = lies(world)
    for name, answer in zip(cases, node("devices", cases=list(cases.values())), strict=True):
        assert answer.get("code") == name.split(":")[0], (name, answer)
        assert (answer["charged"], answer["posted"]) == (0, []), name


def test_over_http_the_sum_of_browsers_is_the_sum_of_the_loopback(
    node: Node, world: World, tmp_path: Path
) -> None:
    held = opened(world, tmp_path, 1)
    number = 1
    users = 12
    people = [
        {
            "user": str(user),
            "ratings": case(world, number, user)["ratings"],
            "secret": hashlib.sha256(str(user).encode()).hexdigest(),
        }
        for user in range(users)
    ]
    with listening(held.intake) as address:
        visits = node("visits", address=f"{address}/", people=people, limit=LIMIT)
        assert node("visits", address="http://127.0.0.1:9/", people=[], limit=LIMIT) == []
    guarantee = world.prepared.plan.guarantee
    for offer, first, again in visits:
        assert math.isclose(offer["epsilon"], guarantee.epsilon)
        assert (first["charged"], again["charged"]) == (True, False)
    run = world.terms.run
    round = world.questions[number].round
    assert held.aggregator.close(run, round).reported == users
    some = world.data.users_subset(np.arange(users))
    plan = world.prepared.plan
    link = Loopback(some, world.prepared.steps, plan, Streams(1), Ledger(guarantee))
    expected = pack_release(link.answer(world.questions[number]))
    assert held.aggregator.release(run, round) == expected


def test_people_with_more_ratings_than_features_are_solved_the_same(
    node: Node, world: World
) -> None:
    """No question of the small world has so few features: some are taken out of one."""
    number = next(n for n, q in enumerate(world.questions) if q.step == "default/step")
    whole = world.questions[number]
    width = int(whole.public["width"])
    listed = np.arange(0, len(world.terms.items), 40)
    few = {"phi": np.ascontiguousarray(np.asarray(whole.public["phi"])[:, :width])}
    block = BlockSpec("pairs", "outer", 1, len(listed), 2.0**-13, 2.0**-11)
    tastes = {"items": listed.astype(np.int64), **dict(whole.public), **few}
    questions = (
        replace(whole, public={**whole.public, **few}),
        Question(
            whole.round, "default/tastes", tastes, (ReleaseSpec(whole.releases[0].name, (block,)),)
        ),
    )
    ratings = np.diff(world.data.user_ptr)
    users = [int(user) for user in np.argsort(ratings)[[0, 100, 200, 298, 299]]]
    assert ratings[users[0]] < width < ratings[users[-1]]
    for question in questions:
        own = replace(world, questions=(question,))
        answers = node("devices", cases=[case(own, 0, user) for user in users])
        for user, answer in zip(users, answers, strict=True):
            expected = full_clients_batch(own, 0, user, 0)
            assert base64.b64decode(answer["posted"][0]) == expected, (question.step, user)
