import json
import math
from dataclasses import replace
from itertools import chain, repeat
from typing import Any

import numpy as np
import pytest

from fedrec.cli.doctor.machine import Doubt, items_known
from fedrec.data.interactions import Interactions
from fedrec.errors import RefusedError, UnreachableError
from fedrec.federation.messages import Reports
from fedrec.federation.protocol import Answer, LedgerGrowth, LedgerHead, OwnLedger, Refusal, grown
from fedrec.federation.report_batches import select_users
from fedrec.federation.reports import within_radius
from fedrec.privacy.accounting import mu_for
from fedrec.privacy.calibration import among_three
from fedrec.privacy.guarantee import Guarantee
from fedrec_client.refusals import FAILED
from fedrec_client.run_record import NO_ITEM, unknown_of
from tests.descriptors import none_left

PUBLISHED = ("recipe=published", "model.dimension=3", "model.steps=2", "model.encoder=id")
RUNS: dict[str, dict[str, Any]] = {
    "default": {},
    "default, no features": {"features": False, "overrides": ("privacy.epsilon=20",)},
    "default, clicks": {"kind": "clicks"},
    "published": {"overrides": PUBLISHED},
    "published, clicks": {"overrides": PUBLISHED, "kind": "clicks"},
    "published, resampled": {
        "overrides": (
            *PUBLISHED,
            "model.resamples=2",
            "model.example_share=0.5",
            "model.max_items_per_user=5",
        )
    },
}
GENEROUS = Guarantee(100.0, 1e-5)


@pytest.mark.parametrize("which", RUNS)
def test_what_leaves_in_every_round_of_every_recipe_is_what_the_same_users_report_in_one_process(
    make_run, make_site, which: str
) -> None:
    arguments = dict(RUNS[which])
    run = make_run(*arguments.pop("overrides", ()), **arguments)
    site = make_site(run.users, limit=GENEROUS, options={"users_per_batch": 7})
    site.participant.join(run.terms)
    for question in run.questions():
        assert site.participant.answer(run.invitation(question)) == Answer("site", 30, accepted=30)
        sent = [batch.reports for batch in run.decoded(question, site.endpoint.batches)]
        assert [reports.num_users for reports in sent] == [7, 7, 7, 7, 2]
        expected = run.prepared.steps[question.step](question, run.events)
        assert flat(sent, question) == flat([expected], question)
        assert all(within_radius(reports, question.releases).all() for reports in sent)


def flat(reports: list[Reports], question: Any) -> list[bytes]:
    """Every column of some reports put together."""
    parts = [
        [reports_.items for reports_ in reports],
        [np.diff(reports_.user_ptr) for reports_ in reports],
    ]
    for b in range(len(question.blocks)):
        parts += [
            [r.blocks[b].coefficients for r in reports],
            [r.blocks[b].vectors for r in reports],
        ]
    return [np.concatenate(part).tobytes() for part in parts]


def test_an_aggregator_whose_ledger_went_back_gets_no_user_no_charge_and_no_report(
    site, run
) -> None:
    """Over runs and restarts: what was seen in one run is remembered in the next."""
    heads = {number: grown(LedgerHead(), ["aa"] * number) for number in range(9)}
    now = [6]

    def grow(since: LedgerHead, own: OwnLedger) -> LedgerGrowth:
        if since != heads.get(since.number) or since.number > now[0]:
            raise RefusedError(
                Refusal.STALE_LEDGER.value,
                "the aggregator's ledger does not hold what was seen",
                "Restore it.",
            )
        return LedgerGrowth(heads[now[0]], ("aa",) * (now[0] - since.number))

    site.endpoint.grow = grow
    assert not site.participant.join(run.terms).refusal
    site.restart()
    now[0] = 5
    enrolled = set(site.endpoint.enrolled)
    before = site.participant.ledger.entries
    assert site.participant.join(run.terms).refusal == Refusal.STALE_LEDGER
    assert site.participant.join(replace(run.terms, run="run-2")).refusal == Refusal.STALE_LEDGER
    assert (
        site.participant.answer(run.invitation(run.questions()[0])).refusal == Refusal.STALE_LEDGER
    )
    assert (site.endpoint.enrolled, site.endpoint.batches, site.participant.ledger.entries) == (
        enrolled,
        [],
        before,
    )
    now[0] = 7
    assert not site.participant.join(run.terms).refusal
    site.participant.ledger.keep_ledger_head(LedgerHead())  # as --new-aggregator-ledger does
    now[0] = 1
    assert not site.participant.join(run.terms).refusal


def test_the_aggregator_is_told_how_many_entries_this_clients_ledger_has(site, run) -> None:
    told = list[OwnLedger]()
    site.endpoint.grow = lambda since, own: (told.append(own), LedgerGrowth(since))[1]
    site.participant.join(run.terms)
    for question in run.questions()[:2]:
        site.participant.answer(run.invitation(question))
    site.participant.join(run.terms)
    # before each charge, and before its reports leave
    assert [own.number for own in told] == [0, 0, 1, 1, 2, 2]
    assert told[-1].heads == tuple(entry.head for entry in site.participant.ledger.entries)


def test_a_ledger_put_back_by_one_entry_is_refused_whenever_the_client_was_killed(
    make_site, run, tmp_path
) -> None:
    """Killed before the aggregator is told of a charge, no report of it has left."""
    known = [0]
    first, second = run.questions()[:2]
    site = make_site(run.users)
    ledger = tmp_path / "site" / "ledger.sqlite"
    killed = [False]

    def grow(since: LedgerHead, own: OwnLedger) -> LedgerGrowth:
        charged = own.number
        if killed[0] and charged > known[0]:
            raise UnreachableError("no answer", "Send it again.")
        if charged < known[0]:
            raise RefusedError(Refusal.STALE_LEDGER.value, "it had more", "Restore it.")
        known[0] = charged
        return LedgerGrowth(since)

    site.endpoint.grow = grow
    site.participant.join(run.terms)
    old = ledger.read_bytes(), ledger.with_suffix(".head.json").exists()
    killed[0] = True
    assert site.participant.answer(run.invitation(first)).refusal
    assert site.endpoint.batches == []
    killed[0] = False
    assert not site.participant.answer(run.invitation(first)).refusal
    assert site.endpoint.batches
    before = len(site.endpoint.batches)
    site.participant.ledger.close()
    ledger.write_bytes(old[0])
    ledger.with_suffix(".head.json").unlink(missing_ok=True)
    site.start()
    for attempt in (
        lambda: site.participant.answer(run.invitation(second)),
        lambda: site.participant.join(replace(run.terms, run="run-2")),
    ):
        assert attempt().refusal == Refusal.STALE_LEDGER
    assert len(site.endpoint.batches) == before
    assert site.participant.ledger.entries == ()


@pytest.mark.parametrize(("users", "refusal"), [(30, Refusal.UNKNOWN_ITEM), (19, "")])
def test_many_users_none_of_whose_items_is_in_the_catalogue_are_not_charged(
    make_site, run, users: int, refusal: str
) -> None:
    """Of few the refusal would tell what they have: they take part with empty reports."""
    others = replace(
        run.users,
        events=run.users.events.users_subset(np.arange(users)),
        user_ids=run.users.user_ids[:users],
    )
    renamed = replace(others, item_ids=tuple(f"isbn-{item}" for item in others.item_ids))
    site = make_site(renamed)
    asked = run.invitation(run.questions()[0])
    assert site.participant.join(run.terms).refusal == refusal
    answer = site.participant.answer(asked)
    assert bool(answer.refusal) == bool(refusal)
    assert len(site.participant.ledger.entries) == (0 if refusal else 1)
    events = len(renamed.events)
    assert unknown_of(site.folder) == (events, events)


def test_a_server_learns_by_one_catalogue_alone_whether_a_site_has_an_item_of_it(
    make_site, run
) -> None:
    """After one refusal the next catalogue is refused whatever it holds, also after a restart,
    until somebody at the site takes the note away."""
    others = tuple(f"isbn-{item}" for item in run.terms.items)
    site = make_site(run.users)
    strange = replace(run.terms, run="strange", items=others)
    assert site.participant.join(strange).refusal == Refusal.UNKNOWN_ITEM
    for restarted in (False, True):
        if restarted:
            site.restart()
        assert site.participant.join(run.terms) == replace(
            site.participant.join(strange), client=site.participant.name
        )
    (site.folder / NO_ITEM).unlink()
    assert not site.participant.join(run.terms).refusal


def test_items_that_the_catalogue_lacks_are_counted_and_said(make_site, run, caplog) -> None:
    renamed = replace(run.users, item_ids=("isbn-1", *run.users.item_ids[1:]))
    site = make_site(renamed)
    with caplog.at_level("WARNING"):
        assert not site.participant.join(run.terms).refusal
    unknown = int((renamed.events.items == 0).sum())
    assert 0 < unknown < len(renamed.events)
    assert unknown_of(site.folder) == (unknown, len(renamed.events))
    (line,) = [line for line in caplog.records if line.getMessage() == "items-unknown"]
    assert line.fields["unknown_events"] == unknown  # type: ignore[attr-defined]
    said = items_known(site.folder)
    assert isinstance(said, Doubt)
    assert f"{unknown:,} of" in said.words


def test_joining_enrols_a_pseudonym_for_every_user_and_again_the_same_ones(site, run) -> None:
    assert site.participant.join(run.terms) == Answer("site", 30)
    first = set(site.endpoint.enrolled)
    assert len(first) == 30
    assert {len(token) for token in first} == {16}
    site.restart()
    site.participant.join(run.terms)
    assert site.endpoint.enrolled == first


def test_another_site_gives_the_same_users_other_pseudonyms(make_site, run) -> None:
    one = make_site(run.users, "one")
    other = make_site(run.users, "other")
    for each in (one, other):
        each.participant.join(run.terms)
    assert not one.endpoint.enrolled & other.endpoint.enrolled


def test_the_same_invitation_again_sends_the_same_bytes_and_is_charged_once(site, run) -> None:
    site.participant.join(run.terms)
    invitation = run.invitation(run.questions()[0])
    first = site.participant.answer(invitation)
    site.restart()
    assert site.participant.answer(invitation) == first == Answer("site", 30, accepted=30)
    assert site.endpoint.batches[0] == site.endpoint.batches[1]
    assert len(site.participant.ledger.entries) == 1


@pytest.mark.parametrize("arrived", [0, 1, 3])
def test_killed_between_charge_and_last_batch_a_client_resends_what_is_missing_and_is_charged_once(
    make_site, run, arrived: int
) -> None:
    site = make_site(run.users, options={"users_per_batch": 8})
    site.participant.join(run.terms)
    invitation = run.invitation(run.questions()[0])
    site.endpoint.lost = chain(repeat(False, arrived), repeat(True))
    answer = site.participant.answer(invitation)
    assert (answer.refusal, answer.accepted) == ("unreachable", 8 * arrived)
    assert len(site.participant.ledger.entries) == 1
    site.endpoint.lost = None
    site.restart()
    assert site.participant.answer(invitation).accepted == 30
    assert len(site.endpoint.counted) == 30
    assert len(site.participant.ledger.entries) == 1


def test_nothing_leaves_before_the_charge_is_durable(site, run, monkeypatch) -> None:
    site.participant.join(run.terms)
    charged_when_sent = []
    report = site.endpoint.report
    site.endpoint.report = lambda *message: (
        charged_when_sent.append(len(site.participant.ledger.entries)) or report(*message)
    )
    for question in run.questions()[:2]:
        site.participant.answer(run.invitation(question))
    assert charged_when_sent == [1, 2]


def test_a_ledger_that_cannot_be_written_keeps_everything_at_home(site, run) -> None:
    site.participant.join(run.terms)
    site.participant.ledger._db.close()
    answer = site.participant.answer(run.invitation(run.questions()[0]))
    assert answer.refusal == "failed"
    assert not site.endpoint.batches


def test_a_run_it_does_not_know_is_refused_and_answered_after_joining(site, run) -> None:
    invitation = run.invitation(run.questions()[0])
    assert site.participant.answer(invitation).refusal == Refusal.RUN_UNKNOWN
    site.participant.join(run.terms)
    site.restart()
    assert site.participant.answer(invitation).accepted == 30


def test_another_question_in_the_same_round_is_refused_and_sends_nothing(site, run) -> None:
    site.participant.join(run.terms)
    question = run.questions()[0]
    site.participant.answer(run.invitation(question))
    sent = len(site.endpoint.batches)
    other = replace(question, public={**question.public, "mean_energy": np.array(0.5)})
    assert site.participant.answer(run.invitation(other)).refusal == Refusal.ALREADY_REPORTED
    assert len(site.endpoint.batches) == sent


def test_a_release_asked_for_again_in_a_later_round_is_refused(site, run) -> None:
    site.participant.join(run.terms)
    question = run.questions()[0]
    site.participant.answer(run.invitation(question))
    assert (
        site.participant.answer(run.invitation(replace(question, round=7))).refusal
        == Refusal.WRONG_QUESTION
    )


def test_a_plan_that_changes_during_a_run_is_refused(site, run, make_run) -> None:
    site.participant.join(run.terms)
    first, second = run.questions()[:2]
    site.participant.answer(run.invitation(first))
    weaker = replace(
        run.prepared.plan,
        guarantee=Guarantee(4.0, 1e-5),
        releases=make_run("privacy.epsilon=4").prepared.plan.releases,
    )
    assert (
        site.participant.answer(replace(run.invitation(second), plan=weaker)).refusal
        == Refusal.WRONG_PLAN
    )


def test_terms_that_change_during_a_run_are_refused_and_the_first_ones_kept(site, run) -> None:
    site.participant.join(run.terms)
    assert (
        site.participant.join(replace(run.terms, items=run.terms.items[::-1])).refusal
        == Refusal.WRONG_PLAN
    )
    question = run.questions()[0]
    assert site.participant.answer(run.invitation(question)).accepted == 30
    expected = run.prepared.steps[question.step](question, run.events)
    assert flat(
        [batch.reports for batch in run.decoded(question, site.endpoint.batches)], question
    ) == flat([expected], question)


def test_terms_that_cannot_be_read_now_are_not_taken_for_none(site, run) -> None:
    """Otherwise others would take their place, and people would be looked up again in mid-run."""
    participant = site.participant
    assert participant._notes.terms(run.terms.run) is None
    participant.join(run.terms)
    with none_left():
        with pytest.raises(OSError):
            participant._notes.terms(run.terms.run)
        assert participant.join(run.terms).refusal == FAILED
    assert not participant.join(run.terms).refusal


def test_a_plan_too_weak_for_the_limit_is_refused_before_its_first_round(make_site, run) -> None:
    site = make_site(run.users, limit=Guarantee(4.99, 1e-5))
    site.participant.join(run.terms)
    answer = site.participant.answer(run.invitation(run.questions()[0]))
    assert (answer.refusal, answer.accepted) == (Refusal.BUDGET, 0)
    assert not site.endpoint.batches
    assert not site.participant.ledger.entries


def test_the_limit_holds_over_all_runs_together(make_site, make_run) -> None:
    one, other = (make_run("privacy.epsilon=3", name=name) for name in ("one", "other"))
    site = make_site(one.users, limit=Guarantee(4.5, 1e-5))
    for run in (one, other):
        site.participant.join(run.terms)
    assert {
        site.participant.answer(one.invitation(question)).refusal for question in one.questions()
    } == {""}
    site.restart()
    # sqrt(2) of mu is well below 4.5
    assert site.participant.answer(other.invitation(other.questions()[0])).refusal == ""
    third = make_run("privacy.epsilon=3", name="third")
    site.participant.join(third.terms)
    assert site.participant.answer(third.invitation(third.questions()[0])).refusal == Refusal.BUDGET


def test_a_plan_per_example_or_without_a_proof_is_refused(site, run, make_run) -> None:
    site.participant.join(run.terms)
    question = run.questions()[0]
    plan = run.prepared.plan
    per_example = replace(plan, guarantee=replace(plan.guarantee, unit="example"))
    doubtful = replace(plan, guarantee=replace(plan.guarantee, established=False))
    # its noise is for shares: one aggregator must not get a report for it
    three = among_three(plan, calibrated_for="one-corrupt")
    for refused in (per_example, doubtful, three):
        assert (
            site.participant.answer(replace(run.invitation(question), plan=refused)).refusal
            == Refusal.WRONG_PLAN
        )
    examples = make_run(*PUBLISHED, "privacy.unit=example", name="examples")
    assert site.participant.join(examples.terms).refusal == Refusal.WRONG_PLAN
    assert not site.endpoint.batches


def test_a_plan_that_spends_more_than_it_says_is_refused(site, run) -> None:
    site.participant.join(run.terms)
    plan = run.prepared.plan
    lie = replace(
        plan, releases=tuple(replace(release, mu=2 * release.mu) for release in plan.releases)
    )
    assert (
        site.participant.answer(replace(run.invitation(run.questions()[0]), plan=lie)).refusal
        == Refusal.WRONG_PLAN
    )


def test_a_run_without_privacy_needs_an_infinite_limit(make_site, make_run) -> None:
    run = make_run("privacy.epsilon=inf")
    strict = make_site(run.users, "strict")
    willing = make_site(run.users, "willing", limit=Guarantee(math.inf, 1e-5))
    for site in (strict, willing):
        site.participant.join(run.terms)
    invitation = run.invitation(run.questions()[0])
    assert strict.participant.answer(invitation).refusal == Refusal.BUDGET
    assert willing.participant.answer(invitation).accepted == 30


def test_a_run_about_another_kind_of_data_is_refused(site, make_run) -> None:
    assert site.participant.join(make_run(kind="clicks", name="clicks").terms).refusal == "unsuited"


@pytest.mark.parametrize("name", ["../../x", "/etc/x", "", "a/b", "x" * 121, ".hidden"])
def test_a_run_whose_name_leads_out_of_the_folder_is_refused(site, run, name: str) -> None:
    assert site.participant.join(replace(run.terms, run=name)).refusal == Refusal.MALFORMED
    assert (
        site.participant.answer(replace(run.invitation(run.questions()[0]), run=name)).refusal
        == Refusal.MALFORMED
    )


@pytest.mark.parametrize(
    "change",
    [
        {"recipe": "{}]"},
        {"recipe": '{"recipe": "other"}'},
        {"value_range": (1.0, math.nan)},
        {"items": ()},
        {"items": ("a", "a")},
    ],
)
def test_terms_that_are_none_are_refused(site, run, change: dict[str, Any]) -> None:
    answer = site.participant.join(replace(run.terms, **change))
    assert answer.refusal in {Refusal.MALFORMED, Refusal.TOO_LARGE, "unsuited"}
    assert not site.endpoint.enrolled


def test_an_aggregator_that_does_not_answer_an_enrolment_is_an_answer(site, run) -> None:
    def silent(tokens: Any) -> int:
        raise UnreachableError("no answer", "Send it again.")

    site.endpoint.enroll = silent
    assert site.participant.join(run.terms).refusal == "unreachable"


@pytest.mark.parametrize("code", [Refusal.NOT_ENROLLED, Refusal.WRONG_CERTIFICATE])
def test_an_aggregator_that_refuses_leaves_its_words_with_the_client(
    site, run, code: Refusal
) -> None:
    def refuse(*request: Any) -> Any:
        raise RefusedError(
            code.value, "words for the client alone", "Ask the aggregator's operator."
        )

    site.participant.join(run.terms)
    site.endpoint.enroll = site.endpoint.report = refuse
    for answer in (
        site.participant.join(run.terms),
        site.participant.answer(run.invitation(run.questions()[0])),
    ):
        assert answer.refusal == code
        assert "words" not in answer.cause


def test_a_round_that_is_over_is_not_sent_the_rest(make_site, run) -> None:
    site = make_site(run.users, options={"users_per_batch": 4})
    site.participant.join(run.terms)
    site.endpoint.turned_away = lambda batch: Refusal.ROUND_CLOSED
    answer = site.participant.answer(run.invitation(run.questions()[0]))
    assert answer == Answer("site", 30, rejected={"round-closed": 30})
    assert len(site.endpoint.batches) == 1


def test_a_site_of_which_nobody_is_known_is_warned_sends_one_batch_and_is_enrolled_by_the_next_run(
    make_site, make_run, caplog: pytest.LogCaptureFixture
) -> None:
    """As where the aggregator did not list the site when the run began."""
    first = make_run()
    site = make_site(first.users, options={"users_per_batch": 4}, limit=Guarantee(20.0, 1e-5))
    listed = site.endpoint.enroll

    def refuse(tokens: Any) -> int:
        raise RefusedError(Refusal.NOT_ENROLLED.value, "not listed", "Ask the operator.")

    site.endpoint.enroll = refuse
    assert site.participant.join(first.terms).refusal == Refusal.NOT_ENROLLED
    site.endpoint.enroll = listed
    site.endpoint.turned_away = lambda batch: (
        None if site.endpoint.enrolled else Refusal.NOT_ENROLLED
    )
    answer = site.participant.answer(first.invitation(first.questions()[0]))
    assert answer == Answer("site", 30, rejected={"not-enrolled": 30})
    assert len(site.endpoint.batches) == 1
    [warning] = [line for line in caplog.records if line.message == "nobody-accepted"]
    assert warning.levelname == "WARNING"
    assert "next training enrols them" in warning.fields["remedy"]  # type: ignore[attr-defined]
    second = make_run(name="run-2")
    assert site.participant.join(second.terms).refusal == ""
    answer = site.participant.answer(second.invitation(second.questions()[0]))
    assert (answer.accepted, answer.rejected) == (30, {})
    assert sum(line.message == "nobody-accepted" for line in caplog.records) == 1


def test_a_user_too_large_for_the_aggregator_costs_the_others_nothing(site, run) -> None:
    site.participant.join(run.terms)
    longest = int(np.diff(run.events.user_ptr).max())
    too_many = int(np.sum(np.diff(run.events.user_ptr) == longest))

    def greedy(batch: bytes) -> Refusal | None:
        users = int.from_bytes(batch[36:40], "little")
        lengths = np.frombuffer(batch, "<u4", users, 44 + 32 * users)
        return Refusal.TOO_LARGE if lengths.max() == longest else None

    site.endpoint.turned_away = greedy
    assert site.participant.answer(run.invitation(run.questions()[0])) == Answer(
        "site", 30, 30 - too_many, {"too-large": too_many}
    )


def test_what_is_kept_of_a_round_is_what_left(make_site, run) -> None:
    site = make_site(run.users, options={"users_per_batch": 16, "keep_sent": True})
    site.participant.join(run.terms)
    question = run.questions()[0]
    site.participant.answer(run.invitation(question))
    folder = site.folder / "sent" / "run-1"
    assert [
        (folder / f"round-000-00{n}.frr").read_bytes() for n in range(2)
    ] == site.endpoint.batches
    note = json.loads((folder / "round-000.json").read_text())
    assert note["digest"] == run.digest(question)
    assert note["header"]["step"] == "default/counts"
    assert note["receipt"] == {"accepted": 30, "rejected": {}}
    assert note["bytes_sent"] == sum(map(len, site.endpoint.batches))


@pytest.mark.parametrize("epsilon", [1, 20])
def test_a_client_of_143_ratings_sends_at_most_4_kilobytes_in_every_round_of_a_movielens_sized_run(
    make_run, make_site, epsilon
) -> None:
    rng = np.random.default_rng(1)
    users = 20
    items = 3_706
    chosen = np.concatenate(
        [np.sort(rng.choice(items, 143, replace=False)) for _ in range(users)]
    ).astype(np.int32)
    ratings = rng.integers(1, 6, len(chosen)).astype(np.float32)
    events = Interactions(np.arange(users + 1) * 143, chosen, ratings, items, (1.0, 5.0))
    run = replace(
        make_run(f"privacy.epsilon={epsilon}", features=False), events=events, population=6_040
    )
    site = make_site(
        replace(run.users, events=events.users_subset(np.array([0])), user_ids=("user 0",)),
        limit=GENEROUS,
    )
    site.participant.join(run.terms)
    questions = run.questions()
    for question in questions:
        assert site.participant.answer(run.invitation(question)).accepted == 1
    assert len(site.endpoint.batches) == len(questions) >= 4
    assert max(map(len, site.endpoint.batches)) <= 4_096


def test_a_user_of_10_000_ratings_reports_in_one_message(make_run, make_site) -> None:
    items = 12_000
    events = Interactions(
        np.array([0, 10_000]),
        np.arange(10_000, dtype=np.int32),
        np.full(10_000, 4, np.float32),
        items,
        (1.0, 5.0),
    )
    run = replace(make_run(*PUBLISHED), events=events)
    site = make_site(run.users)
    site.participant.join(run.terms)
    assert [
        site.participant.answer(run.invitation(question)).accepted for question in run.questions()
    ] == [1, 1, 1]
    assert len(site.endpoint.batches) == 3


def test_what_a_user_reports_does_not_depend_on_the_others(make_run, make_site, run) -> None:
    lonely = replace(
        run.users, events=run.events.users_subset(np.array([11])), user_ids=("user 11",)
    )
    site = make_site(run.users, limit=GENEROUS)
    alone = make_site(lonely, "alone", limit=GENEROUS)
    for one in (site, alone):
        one.participant.join(run.terms)
    for question in run.questions():
        for one in (site, alone):
            one.participant.answer(run.invitation(question))
        among, single = (run.decoded(question, one.endpoint.batches)[0] for one in (site, alone))
        kept = np.arange(30) == 11
        mine = select_users(among, kept, question.blocks).reports
        assert flat([mine], question) == flat([single.reports], question)


def test_a_site_with_a_limit_of_its_own_is_heard_and_charged_so_much_and_no_more(
    make_run, make_site
) -> None:
    """Each coefficient is its weight of the plain report's, cut towards zero; the ledger holds the
    announced limit, not the run's."""
    run = make_run(*PUBLISHED, "privacy.personal_epsilons={1=0.5,5=0.5}")
    site = make_site(run.users, limit=GENEROUS, options={"personal_epsilon": 2.0})
    plain = make_site(run.users, "plain", limit=GENEROUS)
    for each in (site, plain):
        each.participant.join(run.terms)
    share = mu_for(1.0, 1e-5) / mu_for(5.0, 1e-5)
    for question in run.questions():
        for each in (site, plain):
            assert each.participant.answer(run.invitation(question)).accepted == 30
        heard, whole = (
            run.decoded(question, each.endpoint.batches)[0].reports for each in (site, plain)
        )
        for ours, theirs in zip(heard.blocks, whole.blocks, strict=True):
            np.testing.assert_array_equal(ours.coefficients, np.trunc(theirs.coefficients * share))
    assert site.participant.ledger.epsilon == pytest.approx(1.0, rel=1e-6)
    assert plain.participant.ledger.epsilon == pytest.approx(5.0, rel=1e-6)


def test_a_site_with_a_limit_of_its_own_refuses_a_run_that_announces_none_as_small(
    make_run, make_site
) -> None:
    for overrides in ((), ("privacy.personal_epsilons={3=0.5,5=0.5}",)):
        run = make_run(*PUBLISHED, *overrides)
        site = make_site(
            run.users, f"site-{len(overrides)}", limit=GENEROUS, options={"personal_epsilon": 2.0}
        )
        assert site.participant.join(run.terms).refusal == Refusal.BUDGET
        assert not site.endpoint.enrolled
        assert not site.participant.ledger.entries


def test_a_limit_of_ones_own_is_not_passed_by_a_run_of_a_small_epsilon_at_a_large_delta(
    make_run, make_site
) -> None:
    """At delta .1 noise of epsilon 5 is of epsilon .8 or so: the limit is one at the site's own
    delta."""
    promised = ("privacy.delta=0.1", "privacy.allow_large_delta=true")
    for number, limits in enumerate(("", '{"0.5"=0.5,"0.8"=0.5}')):
        announced = (f"privacy.personal_epsilons={limits}",) if limits else ()
        run = make_run(*PUBLISHED, "privacy.epsilon=0.8", *promised, *announced)
        told, site = (
            make_site(run.users, f"{at}-{number}", limit=GENEROUS, options={"personal_epsilon": 1})
            for at in ("told", "site")
        )
        refused = told.participant.join(run.terms)
        assert refused.refusal == Refusal.BUDGET
        assert "at delta 0.1" in refused.cause
        # and where terms say another thing than the plan
        honest = make_run(*PUBLISHED, "privacy.epsilon=0.8", *announced)
        assert not site.participant.join(replace(honest.terms, run=run.terms.run)).refusal
        answer = site.participant.answer(run.invitation(run.questions()[0]))
        assert (answer.refusal, answer.accepted) == (Refusal.BUDGET, 0)
        assert not site.participant.ledger.entries
