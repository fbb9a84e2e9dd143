"""A year of weekly models under one guarantee, with real parties in one process: what people have
told, what it costs, and what a server, a backup or a lost file can do."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load
from scipy import stats

from fedrec.certificates import verifying
from fedrec.certificates.verifying import verify
from fedrec.data.interactions import Interactions
from fedrec.errors import PrivacyError, RefusedError, RunError, UnreachableError
from fedrec.federation.messages import Question
from fedrec.federation.protocol import Opening, Phase, Refusal
from fedrec.federation.releases import noise_stds, require_week
from fedrec.federation.reports import ExactSums
from fedrec.federation.wire import question_digest, question_header
from fedrec.ledgers.chain import HeadFile
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import SystemStreams
from fedrec.storage import Checkpoints, release_file
from fedrec_aggregator.chain import RoundReleased
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_client import delivery
from fedrec_client.ledger import ClientLedger, read_entries
from fedrec_client.store import LocalUsers

World = Any
NewWorld = Callable[..., Any]
T, USERS, ITEMS = 4, 40, 24
WEEK = 100


def year(seed: int = 1) -> Interactions:
    """Clicks at times of T weeks: of the first person every week, of the second in the first alone,
    of the third in the last."""
    rng = np.random.default_rng(seed)
    rows = [(0, j, j % T * WEEK) for j in range(12)]
    rows += [(1, j, 0) for j in range(5)] + [(2, j, (T - 1) * WEEK) for j in range(5)]
    for k in range(3, USERS):
        for j in rng.permutation(np.arange(k % 2, ITEMS, 2))[:8]:
            rows.append((k, int(j), int(rng.integers(T * WEEK))))
    k, j, t = np.array(rows).T
    return Interactions.from_columns(
        k, j, None, num_users=USERS, num_items=ITEMS, value_range=(0.0, 1.0), kind="clicks", times=t
    )


@pytest.fixture
def stream(new_world: NewWorld) -> Callable[..., World]:
    """A world whose sites hold in week t what was clicked until then."""

    def make(name: str = "world", *, seed: int = 1, **options: Any) -> World:
        epsilon = options.pop("epsilon", 5.0)
        world = new_world("stream", data=year(seed), name=name, **options)
        privacy = world.scenario.privacy.model_copy(update={"epsilon": epsilon})
        world.scenario = world.scenario.model_copy(update={"privacy": privacy})
        world.week = 1
        for site in world.sites:
            whole = site.participant.users

            def now(whole: LocalUsers = whole) -> LocalUsers:
                times = whole.events.times
                return replace(whole, events=whole.events.select(times < world.week * WEEK))

            site.participant._renew = now
        return world

    return make


def weeks(world: World, until: int = T, **options: Any) -> Any:
    """Train up to a week; the trainings."""
    options["horizon"] = T
    share = options.pop("min_share", 0.8)
    world.min_share = share
    trainings = world.trainings(again=True, **options)
    while (
        trainings.runs.last is None or trainings.runs.last.week < until or trainings.runs.last.open
    ):
        last = trainings.runs.last
        world.week = 1 if last is None else last.week + (0 if last.open else 1)
        world.train(trainings=trainings)
        trainings = world.trainings(again=True, **options)
    return trainings


def listen(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps what each site made for each question, person by person, in real units."""
    answered = delivery.answered
    world.told = list[tuple[int, Question, np.ndarray]]()

    def listening(question: Any, step: Any, mine: Any, users: Any, **more: Any) -> Any:
        found = []
        for k in range(len(users)):
            sums = ExactSums(question.blocks)
            sums.add(answered(question, step, mine, users[k : k + 1], **more))
            found.append(sums.blocks[0] * question.blocks[0].step)
        world.told.append((int(mine.user_words[0]), question, np.array(found)))
        return answered(question, step, mine, users, **more)

    monkeypatch.setattr(delivery, "answered", listening)
    world.invitations = dict[int, Any]()
    ask = world.clients.ask

    def asking(invitation: Any) -> Any:
        world.invitations[invitation.question.round] = invitation
        return ask(invitation)

    monkeypatch.setattr(world.clients, "ask", asking)


def of_sites(world: World, name: str) -> dict[int, np.ndarray]:
    """By site, (answers, users, rows, columns) of all that it made for a release."""
    found = dict[int, list[np.ndarray]]()
    for site, question, reports in world.told:
        if question.releases[0].name == name:
            found.setdefault(site, []).append(reports)
    return {site: np.array(reports) for site, reports in found.items()}


def require_bound(made: np.ndarray, words: str = "") -> None:
    """Each row of a person in one report, and squared norms that sum to 1 at most."""
    assert (np.square(made).sum(axis=(0, 2, 3)) <= 1).all(), words
    assert (made != 0).any(axis=3).sum(axis=0).max() <= 1, words


def test_a_year_of_weeks_costs_what_its_first_week_costs_and_every_certificate_says_so(
    stream: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = stream(noise=SystemStreams(), aggregator_limit=5.0, client_limit=5.0)
    spent = list[tuple[float, float]]()
    for week in range(1, T + 1):
        trainings = weeks(world, week)
        ledger = world.sites[0].participant.ledger
        spent.append((world.endpoint.ledger.spends().epsilon, ledger.epsilon))
        found = verify(world.folder / "server" / "model")
        assert (found.rounds, found.price.gdp) == (2 * week, pytest.approx(5.0, rel=1e-6))
        assert f"week 1 to {week} of {T}" in found.stream
    assert spent == [pytest.approx((5.0, 5.0), rel=1e-6)] * T
    entries = trainings.runs.entries
    assert [run.week for run in entries] == [1, 2, 3, 4]
    assert {run.asks for run in entries} == {entries[0].run}
    assert {run.total for run in entries} == {entries[0].guarantee}
    with monkeypatch.context() as patch:  # of a stream that was charged for more noise
        patch.setattr(verifying, "noise_stds", lambda *of: dict.fromkeys(noise_stds(*of), 1e6))
        with pytest.raises(RunError, match="less noise than its stream was charged for"):
            verify(world.folder / "server" / "model")
    # the year is over: a standing server trains no more, and another stream finds no budget
    standing = world.trainings(every_s=1.0, horizon=T)
    world.time.sleep(10)
    assert not standing._begun()
    with pytest.raises(RefusedError, match="does not fit"):
        world.trainings(again=True, horizon=T)._begun()


def test_without_noise_the_model_is_of_every_row_once_and_a_persons_year_has_norm_one(
    stream: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = stream(client_limit=math.inf, epsilon=math.inf, aggregator_limit=math.inf)
    listen(world, monkeypatch)
    trainings = weeks(world)
    state = Checkpoints(trainings.folder / "checkpoints").latest()
    assert state is not None
    for name in ("counts", "tastes"):
        D = np.concatenate(list(of_sites(world, name).values()), axis=1)
        assert D.shape[:2] == (T, USERS)
        np.testing.assert_allclose(state[f"sum.{name}"], D.sum(axis=(0, 1)), atol=1e-10)
        require_bound(D)
        assert (D != 0).any(axis=3).sum() == len(year())
        if name == "counts":
            used = np.square(D).sum(axis=(2, 3))
            steps = np.diff((np.arange(T + 1) / T) ** 0.5)
            assert used[:, 0] == pytest.approx(steps, rel=1e-2)
            assert used[:, 1] == pytest.approx([steps[0], 0, 0, 0], rel=1e-2)
            assert used[:, 2] == pytest.approx([0, 0, 0, 1], rel=1e-2)


def changed(world: World, week: int, rng: np.random.Generator) -> None:
    """What people hold from now on: clicks go, come back, and get other times."""
    for site in world.sites:
        whole = site.participant.users
        events = site.whole.events
        kept = rng.random(len(events)) < 0.6
        times = rng.integers(T * WEEK, size=len(events))
        site.held = replace(whole, events=replace(events, times=times).select(kept))
        site.participant._renew = lambda site=site: site.held


def require_held(world: World, since: int) -> None:
    """That nobody's pairs since then are of a click that is gone."""
    held = dict[int, np.ndarray]()
    for site in world.sites:
        if site.participant._known is not None:
            mine = site.participant._known[1]
            rows = np.zeros((mine.num_users, mine.num_items), bool)
            rows[mine.users, mine.items] = True
            held[int(mine.user_words[0])] = rows
    for site, question, made in world.told[since:]:
        if question.releases[0].name == "tastes" and site in held:
            items = question.public["items"]
            told = (made != 0).any(axis=1)[:, : len(items)]
            assert not (told & ~held[site][:, items]).any()


@pytest.mark.parametrize("seed", range(3))
def test_clicks_that_go_and_come_back_and_weeks_without_an_answer_pass_no_bound(
    stream: Callable[..., World], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    world = stream(seed=seed)
    listen(world, monkeypatch)
    rng = np.random.default_rng(seed)
    for site in world.sites:
        site.whole = site.participant.users
    absent = world.sites[seed]
    for week in range(1, T + 1):
        changed(world, week, rng)
        absent.refusal = "unreachable" if week in {1, 3} else ""
        world.sites[seed - 1].participant._known = None  # its worker begins anew
        since = len(world.told)
        weeks(world, week, min_share=0.1)
        require_held(world, since)
    for name in ("counts", "tastes"):
        made = of_sites(world, name)
        assert sorted(map(len, made.values())) == [T - 2, T, T]
        for reports in made.values():
            require_bound(reports)
            assert np.square(reports).sum() > 1


def hostile(question: Question, week: int) -> list[tuple[str, Question]]:
    """What a server may ask in the place of a question of the second week's pairs."""
    public = dict(question.public)
    spec = question.releases[0]

    def of(**more: Any) -> Question:
        return replace(question, public={**public, **more})

    def released(**more: Any) -> Question:
        return replace(question, releases=(replace(spec, **more),))

    fewer = {"items": public["items"][::-1][:2]}
    return [
        ("items dropped, whose weeks were used", of(**fewer)),
        ("an earlier week", of(week=np.array(1))),
        ("the last week", of(week=np.array(T))),
        ("a longer year", of(horizon=np.array(1))),
        ("a shorter radius", released(radius=0.1)),
        ("another week of the release", released(week=week + 1)),
        ("no week", released(week=0)),
        ("a step without a year", replace(question, step="clicks/tastes")),
        ("a step of another release", replace(question, step="stream/counts")),
        ("rows of its own", of(since=np.full(ITEMS, week))),
        ("edges of its own", of(edges=np.arange(ITEMS))),
        ("what the device knows", of(known=np.full(ITEMS, week))),
    ]


@pytest.mark.parametrize("case", range(12))
def test_whatever_a_server_asks_no_persons_year_passes_norm_one(
    stream: Callable[..., World], monkeypatch: pytest.MonkeyPatch, case: int
) -> None:
    world = stream()
    listen(world, monkeypatch)
    site = world.sites[0]
    answer = site.participant.answer
    weeks(world, 1, min_share=0.3)
    trainings = world.trainings(again=True, horizon=T)
    world.week = 2
    pairs = list[Any]()

    def cheated(invitation: Any) -> Any:
        if invitation.question.round == 3:
            words, question = hostile(invitation.question, 2)[case]
            invitation = replace(invitation, question=question)
            pairs.append((words, answer(invitation)))
            return pairs[-1][1]
        return answer(invitation)

    monkeypatch.setattr(site.participant, "answer", cheated)
    world.train(trainings=trainings)
    monkeypatch.setattr(site.participant, "answer", answer)
    weeks(world, min_share=0.3)
    words, first = pairs[0]
    assert first.refusal or sum(first.rejected.values()) == first.users, words
    for made in of_sites(world, "tastes").values():
        require_bound(made, words)


def opening(
    world: World, round: int, *, change: Callable[[Question], Question] | None = None
) -> Any:
    """The opening of a round of the stream as its server would send it, or as another would."""
    question = world.invitations[round].question
    question = change(question) if change else question
    plan = world.plan
    run = next(iter(world.endpoint.ledger._rows.plans))
    header = question_header(question, run=run, plan=plan.digest())
    quorum = world.invitations[round].quorum
    return Opening(run, round, header, question_digest(header), 100.0, quorum=quorum)


def code(world: World, asked: Any) -> str:
    with pytest.raises(RefusedError) as refused:
        world.endpoint.open_round(asked)
    return str(refused.value.code)


def test_a_week_is_released_once_in_its_order_and_on_the_grid_of_the_first(
    stream: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = stream(noise=SystemStreams())
    listen(world, monkeypatch)
    weeks(world, 2)
    before = {k: world.endpoint.ledger.content(opening(world, k).run, k) for k in range(4)}
    # another question of a released week, of which another cohort would report
    assert code(world, opening(world, 2, change=lambda q: replace(q, step="stream/none"))) == (
        Refusal.WRONG_QUESTION
    )
    world.endpoint.ledger.close()
    world.start_aggregator()

    def as_round(round: int, **more: Any) -> Callable[[Question], Question]:
        return lambda q: replace(q, round=round, releases=(replace(q.releases[0], **more),))

    def asks(round: int, name: str, **more: Any) -> Any:
        changed = opening(world, round % 2, change=as_round(round, **more))
        return replace(changed, round=round)

    counts = {"week": 3}
    assert code(world, asks(6, "counts", week=4)) == Refusal.WRONG_QUESTION  # week 3 is not over
    assert code(world, asks(4, "counts", week=2)) == Refusal.WRONG_QUESTION
    assert code(world, asks(4, "counts", week=T + 1)) == Refusal.WRONG_QUESTION
    assert code(world, asks(4, "counts", week=0)) == Refusal.WRONG_QUESTION
    assert code(world, asks(4, "counts", **counts, radius=0.5)) == Refusal.WRONG_QUESTION
    coarser = (replace(world.told[0][1].blocks[0], vector_step=0.5),)
    assert code(world, asks(4, "counts", **counts, blocks=coarser)) == Refusal.WRONG_QUESTION
    # in the first week of a stream no week before says otherwise
    with pytest.raises(PrivacyError, match="of radius 1"):
        require_week(as_round(0, radius=0.5)(world.invitations[0].question), world.plan)
    assert before == {k: world.endpoint.ledger.content(opening(world, k).run, k) for k in range(4)}
    assert world.endpoint.open_round(asks(4, "counts", **counts)).phase is Phase.OPEN


def test_a_crash_before_a_week_is_published_draws_other_noise_and_the_next_week_follows_from_it(
    stream: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = stream(noise=SystemStreams())
    listen(world, monkeypatch)
    weeks(world, 1)
    made = list[bytes]()
    store, publish = ReleaseLedger.store, ReleaseLedger.publish

    def storing(ledger: ReleaseLedger, run: str, round: int, content: bytes) -> str:
        made.append(content)
        return store(ledger, run, round, content)

    def crashing(ledger: ReleaseLedger, status: Any, sha256: str, **more: Any) -> None:
        if len(made) == 1:
            raise RunError("the process ends here", "Start it again.")
        publish(ledger, status, sha256, **more)

    monkeypatch.setattr(ReleaseLedger, "store", storing)
    monkeypatch.setattr(ReleaseLedger, "publish", crashing)
    with pytest.raises(RunError, match="ends here"):
        weeks(world, 2)
    world.start_aggregator()
    trainings = weeks(world)
    # the same reports, and two noises of one week
    assert not np.array_equal(load(made[0])["counts"], load(made[1])["counts"])
    assert verify(trainings.folder / "model").rounds == 2 * T
    C = np.array([math.comb(2 * k, k) / 4**k for k in range(T)])
    for name in ("counts", "tastes"):
        w = noise_of(trainings, world, name)
        # what is drawn for each week, by its own convolution: |c_k| is rounded to 2^-6 there
        z = np.array([sum(C[k] * w[t - k] for k in range(t + 1)) for t in range(T)])
        told = np.ravel(z) / noise_stds(world.asked[name], world.plan)[name]
        assert stats.kstest(told, "norm").pvalue > 1e-4
        assert abs(np.corrcoef(z.reshape(T, -1)) - np.eye(T)).max() < 5 / math.sqrt(z[0].size)
        if name == "tastes":  # 96 numbers of counts are too few to tell 3/2 apart
            for wrong in (2 / 3, 3 / 2):
                assert stats.kstest(told * wrong, "norm").pvalue < 1e-9


def noise_of(trainings: Any, world: World, name: str) -> np.ndarray:
    """(weeks, rows, columns) what the aggregator added to the sum of all reports of each week."""
    world.asked = {q.releases[0].name: q for _, q, _ in world.told}
    exact = dict[int, np.ndarray]()
    seen = set[tuple[int, int]]()
    for site, question, reports in world.told:
        if question.releases[0].name == name and (site, question.round) not in seen:
            seen.add((site, question.round))
            exact[question.round] = exact.get(question.round, 0) + reports.sum(axis=0)
    return np.array(
        [
            load(release_file(trainings.folder, round).read_bytes())[name] - exact[round]
            for round in sorted(exact)
        ]
    )


@pytest.mark.parametrize("back", [1, 5])
def test_a_ledger_that_was_put_back_by_entries_goes_on_with_nobody(
    stream: Callable[..., World], monkeypatch: pytest.MonkeyPatch, back: int
) -> None:
    world = stream(noise=SystemStreams())
    listen(world, monkeypatch)
    folder = world.folder / "aggregator"
    kept = list[tuple[int, Path]]()
    append = ReleaseLedger._append

    def keeping(ledger: ReleaseLedger, entries: Any, **more: Any) -> None:
        append(ledger, entries, **more)
        number = len(ledger.links())
        copy = world.folder / f"backup-{number}.sqlite"
        shutil.copy(folder / "ledger.sqlite", copy)
        kept.append((number, copy))

    monkeypatch.setattr(ReleaseLedger, "_append", keeping)
    weeks(world, 3)
    last = kept[-1][0]
    older = max(number for number, _ in kept if number <= last - back)
    world.endpoint.ledger.close()
    shutil.copy(dict(kept)[older], folder / "ledger.sqlite")
    world.start_aggregator()
    with pytest.raises((RefusedError, UnreachableError)) as refused:
        weeks(world)
    assert "ledger" in str(refused.value)
    # a server that keeps quiet about what it has seen, and asks the week again, of fewer people
    links = world.endpoint.ledger.links()
    again = sum(isinstance(link.entry, RoundReleased) for link in links)
    assert world.endpoint.open_round(opening(world, again)).phase is Phase.OPEN
    refusals = {site.participant.answer(world.invitations[again]).refusal for site in world.sites}
    if back > 1:
        assert refusals == {Refusal.STALE_LEDGER}
        return
    # the newest release alone: clients have not seen it; the same sum has other noise
    run = opening(world, again).run
    world.endpoint.close(run, again)
    first, second = (
        load(content)["tastes"]
        for content in (
            release_file(world.trainings().folder, again).read_bytes(),
            world.endpoint.ledger.content(run, again),
        )
    )
    least = noise_stds(world.invitations[again].question, world.plan)["tastes"]
    assert np.std(first - second) > least


def test_a_client_whose_folder_was_put_back_and_one_in_other_hands_are_refused(
    stream: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = stream()
    listen(world, monkeypatch)
    site = world.sites[0]
    path = world.folder / "site-0" / "ledger.sqlite"
    weeks(world, 2)
    copy = world.folder / "older.sqlite"
    shutil.copy(path, copy)
    weeks(world, 3)
    site.participant.ledger.close()
    shutil.copy(copy, path)
    for head in path.parent.glob("*head*"):
        head.unlink()
    number = len(read_entries(path))
    assert number == 4
    HeadFile(path).write(number, read_entries(path)[-1].head)
    site.participant.ledger = ClientLedger(path, limit=Guarantee(5.0, 1e-5), clock=world.time)
    made = len(world.told)
    with pytest.raises(RefusedError, match="stale-ledger"):
        weeks(world)
    assert {key for key, _, _ in world.told[made:]}.isdisjoint({world.told[0][0]})


def test_without_the_secret_of_any_week_the_stream_has_ended_in_words(
    stream: Callable[..., World],
) -> None:
    world = stream(noise=SystemStreams())
    weeks(world, 2)
    with world.endpoint.ledger._durably() as db:
        db.execute("DELETE FROM weeks WHERE week = 1 AND release = 'counts'")
    with pytest.raises(RefusedError, match="the stream has ended") as refused:
        weeks(world)
    assert refused.value.code == Refusal.LOST_SHARE
    assert world.endpoint.ledger.spends().epsilon == pytest.approx(5.0, rel=1e-6)


def test_who_leaves_reports_no_more_and_leaves_no_record_of_clicks(
    stream: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = stream()
    listen(world, monkeypatch)
    participant = world.sites[0].participant
    weeks(world, 2)
    run = world.trainings(horizon=T).runs.entries[0].run
    token = participant._tokens[0].tobytes()
    assert any(one == token for one, _, _ in participant.ledger.told_clicks(run))
    participant.forget(participant.users.user_ids[0])
    assert not any(one == token for one, _, _ in participant.ledger.told_clicks(run))
    made = len(world.told)
    weeks(world)
    assert {len(reports) for _, _, reports in world.told[made:]} == {12, 14, 13}


def test_a_client_that_joins_late_pays_the_whole_stream_and_tells_its_history_then(
    stream: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = stream()
    listen(world, monkeypatch)
    late = world.sites[2]
    late.refusal = "unreachable"
    weeks(world, 2, min_share=0.5)
    assert late.participant.ledger.epsilon == 0
    late.refusal = ""
    weeks(world)
    assert late.participant.ledger.epsilon == pytest.approx(5.0, rel=1e-6)
    for name in ("counts", "tastes"):
        made = of_sites(world, name)
        reports = next(each for each in made.values() if len(each) == 2)
        require_bound(reports)
        # of the third week, and all of the rest with the fourth
        assert np.square(reports[0]).sum(axis=(1, 2)).max() == pytest.approx(
            (3 / T) ** 0.5, rel=1e-2
        )
