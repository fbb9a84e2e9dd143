"""Versions of the messages side by side: messages_v1.json keeps bytes as fedrec wrote them before
messages had a version, which no version has changed since."""

import base64
import json
from pathlib import Path

import numpy as np
import pytest

from fedrec.errors import RefusedError
from fedrec.federation.coding import announced, decoded, deflated, inflated
from fedrec.federation.messages import Question, Release, ReleaseSpec
from fedrec.federation.protocol import Invitation, Opening, Phase, Refusal, RoundStatus
from fedrec.federation.report_batches import pack_reports, unpack_reports
from fedrec.federation.reports import block
from fedrec.federation.round_messages import PROTOCOL, spoken
from fedrec.federation.wire import (
    pack_answer,
    pack_invitation,
    pack_release,
    pack_terms,
    question_digest,
    read_answer,
    read_header,
    read_invitation,
    read_terms,
    unpack_release,
)
from fedrec.news.messages import Ask, news_recipe, pack_ask, read_ask, scenario_of
from fedrec.recipes import client_recipe
from fedrec.settings import Scenario, load
from fedrec.transport.aggregator_api import aggregator_pb2 as pb
from fedrec.transport.aggregator_api import methods
from fedrec.transport.serving_api import serving_pb2 as serving
from tests.federation.test_wire import ANSWER, ITEMS, MEAN, PLAN, TERMS, WIDTH

OLD = json.loads((Path(__file__).parent / "messages_v1.json").read_text())
PUBLIC = {"V": np.arange(10, dtype=np.float32).reshape(5, 2), "total": np.array(3, np.int64)}
LATER = {"V": PUBLIC["V"] + 1, "total": np.array(4, np.int64)}
STATISTICS = ReleaseSpec(
    "statistics",
    tuple(
        block(n, form, rows=ITEMS, width=WIDTH)
        for n, form in (("gram", "outer"), ("moment", "linear"))
    ),
)  # type: ignore[arg-type]
SPECS = (*STATISTICS.blocks, *MEAN.blocks)
RELEASE = Release(
    {"gram": np.full((ITEMS, 3), 0.1), "moment": np.zeros((ITEMS, WIDTH)), "mean": np.ones((1, 1))},
    {"gram": 0.3, "moment": 0.3, "mean": 1e-9},
)
QUESTION = Question(4, "statistics", PUBLIC, (STATISTICS, MEAN))


def old(name: str, table: str = "") -> bytes:
    return base64.b64decode((OLD[table] if table else OLD)[name])


@pytest.mark.parametrize(
    ("ours", "theirs", "agreed"),
    [
        (2, None, 1),
        (2, "", 1),
        (2, 1, 1),
        (2, "1", 1),
        (2, 2, 2),
        (2, "2", 2),
        (2, 3, 2),
        (5, "4", 4),
        (5, 6, 5),
        (1, 2, 1),
    ],
)
def test_adjacent_versions_speak_the_lower_one(ours: int, theirs: object, agreed: int) -> None:
    assert spoken(theirs, who="somebody", ours=ours) == agreed


@pytest.mark.parametrize(
    ("ours", "theirs", "whom"),
    [
        (3, None, "there (the server)"),
        (3, 1, "there (the server)"),
        (2, 4, "here"),
        (2, "77", "here"),
    ],
)
def test_versions_further_apart_are_refused_with_who_is_to_upgrade(
    ours: int, theirs: object, whom: str
) -> None:
    with pytest.raises(RefusedError, match="the server speaks version") as failure:
        spoken(theirs, who="the server", ours=ours)
    assert failure.value.code == Refusal.WRONG_PROTOCOL
    assert f"Upgrade fedrec {whom}" in failure.value.remedy


@pytest.mark.parametrize(
    "said", [0, -1, True, 1.0, "two", "٢", "2 ", [2], {}, 10**6, "9" * 400, b"2"]
)
def test_what_is_no_version_is_refused(said: object) -> None:
    with pytest.raises(RefusedError, match="which is not a version") as failure:
        spoken(said, who="a client")
    assert failure.value.code == Refusal.WRONG_PROTOCOL


def test_messages_of_version_1_are_read_and_mean_what_they_meant() -> None:
    assert (
        read_terms(old("terms"))
        == read_terms(inflated(old("terms deflated"), max_bytes=2**16))
        == TERMS
    )
    assert read_answer(old("answer")) == ANSWER
    first = decoded(
        read_header(old("header")).arrays(),
        {n: base64.b64decode(c) for n, c in OLD["arrays"].items()},
        {},
        max_bytes=2**16,
    )
    invitation = read_invitation(old("header"), old("plan"), first)
    assert (invitation.run, invitation.plan) == ("run-1", PLAN)
    assert all(
        np.array_equal(invitation.question.public[name], array) for name, array in PUBLIC.items()
    )
    later = read_header(
        pack_invitation(
            Invitation("run-1", PLAN, Question(5, "statistics", LATER, (STATISTICS, MEAN)))
        )[0]
    ).arrays()
    held = {announced(array): array for array in first.values()}
    found = decoded(
        later,
        {name: base64.b64decode(content) for name, content in OLD["differences"].items()},
        held,
        max_bytes=2**16,
    )
    assert all(np.array_equal(found[name], array) for name, array in LATER.items())
    batch = unpack_reports(
        old("reports"), SPECS, OLD["digest"], max_users=10, max_events_per_user=10
    )
    assert (batch.reports.num_users, batch.reports.items.tolist()) == (2, [0, 3, 1])
    released = unpack_release(old("release"), (STATISTICS, MEAN))
    assert {name: array.tolist() for name, array in released.values.items()} == {
        n: a.tolist() for n, a in RELEASE.values.items()
    }
    assert read_ask(old("ask of news"), {}) == Ask(
        "run-1", 1, 40, {"hospital": 0, "library": 25}, {}
    )


def test_version_2_writes_the_bytes_of_version_1_so_that_it_is_read_there_and_every_digest_is_the_same() -> None:  # fmt: skip
    """Version 1 refuses a field that it does not know, so nothing may be added to these; what is
    new travels beside them."""
    header, plan = pack_invitation(Invitation("run-1", PLAN, QUESTION))
    assert (header, plan) == (old("header"), old("plan"))
    assert (question_digest(header), PLAN.digest()) == (OLD["digest"], OLD["plan digest"])
    assert pack_terms(TERMS) == old("terms")
    assert inflated(deflated(old("terms")), max_bytes=2**16) == old("terms")
    assert pack_answer(ANSWER) == old("answer")
    batch = unpack_reports(
        old("reports"), SPECS, OLD["digest"], max_users=10, max_events_per_user=10
    )
    assert pack_reports(batch, OLD["digest"]) == old("reports")
    assert pack_release(RELEASE) == old("release")
    assert pack_ask(Ask("run-1", 1, 40, {"hospital": 0, "library": 25}, {})) == old("ask of news")


def test_clients_of_version_1_know_every_key_of_the_recipe_that_they_are_sent() -> None:
    """They refuse a key that they do not know: a new one of [model] or [privacy] must be left out
    of `client_recipe` at its default."""
    assert client_recipe(Scenario()) == OLD["recipe"]


def test_calls_of_version_1_to_the_aggregator_are_read_and_its_answers_hold_what_version_1_looks_for() -> None:  # fmt: skip
    opening = Opening("run-1", 4, old("header"), OLD["digest"], 60.0, "ab" * 32)
    asked = pb.OpenRoundRequest.FromString(old("OpenRound", "grpc"))
    assert {
        name: getattr(asked, name)
        for name in ("run", "round", "header", "digest", "timeout_s", "ledger_head")
    } == {
        name: getattr(opening, name)
        for name in ("run", "round", "header", "digest", "timeout_s", "ledger_head")
    }
    assert list(pb.EnrollRequest.FromString(old("Enroll", "grpc")).tokens) == [
        bytes(16),
        bytes(range(16)),
    ]
    growth = pb.GetGrowthRequest.FromString(old("GetGrowth", "grpc"))
    assert (growth.number, growth.head, growth.charged) == (3, "cd" * 32, 2)
    assert methods.read_plan(pb.OpenRunRequest.FromString(old("OpenRun", "grpc")).plan) == PLAN
    status = RoundStatus(
        "run-1",
        4,
        OLD["digest"],
        Phase.RELEASED,
        1,
        9,
        8,
        1,
        {"replayed": 2},
        0.0,
        "ef" * 32,
        "ab" * 32,
    )
    assert methods.read_status(pb.RoundStatus.FromString(old("RoundStatus", "grpc"))) == status
    assert methods.status_message(status).SerializeToString(deterministic=True) == old(
        "RoundStatus", "grpc"
    )


def test_serving_reads_a_question_of_version_1_and_only_adds_to_its_answers() -> None:
    asked = serving.RecommendRequest.FromString(old("Recommend", "serving"))
    assert (asked.version, list(asked.coefficients), asked.k, asked.categories) == (
        2**63 + 5,
        [0.5, -1.25],
        10,
        5,
    )
    assert asked.SerializeToString() == old("Recommend", "serving")
    assert serving.RecommendReply.FromString(old("reply", "serving")).SerializeToString() == old(
        "reply", "serving"
    )
    said = serving.ModelPiece(
        version=2**63 + 5, total_bytes=3, data=b"abc", protocol=PROTOCOL
    ).SerializeToString()
    assert said.startswith(old("piece", "serving"))
    assert serving.ModelPiece.FromString(old("piece", "serving")).protocol == 0


SENT_IN_VERSION_2 = {
    "privacy": {"accountant", "allow_large_delta", "delta", "epsilon", "noise", "unit"},
    "news": {
        "basis", "clip", "entity_vectors", "epochs", "history", "language_model", "learning_rate",
        "max_user_epsilon", "model", "no_click", "open_categories", "padding", "rounds",
        "serving_epsilons", "topics", "users_per_round", "variant", "word_vectors",
    },
}  # fmt: skip


def test_a_recipe_has_no_key_that_a_client_of_this_version_may_lack_unless_a_run_needs_it() -> None:
    """A client refuses a key that it does not know: one that came later is sent where it decides
    something, and nowhere else."""
    planted = ["recipe=privaterec", "news.variant=additive", "data.format=planted-news"]
    sent = json.loads(news_recipe(load(None, [*planted, "privacy.unit=click"])))
    assert {name: set(sent[name]) for name in SENT_IN_VERSION_2} == SENT_IN_VERSION_2
    needed = ["news.variant=local", "privacy.unit=click", "news.attention_noise=laplace"]
    sent = json.loads(news_recipe(load(None, [*planted, *needed])))
    assert set(sent["news"]) == SENT_IN_VERSION_2["news"] | {"attention_noise"}
    assert scenario_of(json.dumps(sent)).news.attention_noise == "laplace"
