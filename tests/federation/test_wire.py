import hashlib
import json
import struct
from collections.abc import Callable
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from fedrec.data.planted import PlantedShape, planted
from fedrec.errors import PrivacyError, RefusedError
from fedrec.factorization.facts import PublicFacts
from fedrec.federation.messages import BlockReports, Question, Release, ReleaseSpec, Reports, train
from fedrec.federation.protocol import TOKEN_BYTES, Answer, Invitation, Refusal, Terms
from fedrec.federation.report_batches import (
    Batch,
    announced_users,
    batch_bytes,
    pack_reports,
    select_users,
    unpack_reports,
)
from fedrec.federation.reports import block
from fedrec.federation.wire import (
    pack_answer,
    pack_invitation,
    pack_release,
    pack_terms,
    question_digest,
    question_header,
    read_answer,
    read_header,
    read_invitation,
    read_question,
    read_terms,
    unpack_release,
)
from fedrec.in_process import Loopback
from fedrec.privacy.accounting import Ledger
from fedrec.privacy.calibration import Plan, calibrate
from fedrec.privacy.guarantee import Guarantee, non_private
from fedrec.randomness import Streams
from fedrec.recipes import prepare
from fedrec.settings import load

ITEMS = 5
WIDTH = 2
STATISTICS = ReleaseSpec(
    "statistics",
    (
        block("gram", "outer", rows=ITEMS, width=WIDTH),
        block("moment", "linear", rows=ITEMS, width=WIDTH),
        block("own", "linear", rows=ITEMS, width=WIDTH, folds=3),
    ),
)
MEAN = ReleaseSpec("mean", (block("mean", "linear", rows=1, width=1),), isometric=False)
SPECS = (*STATISTICS.blocks, *MEAN.blocks)
PLAN = calibrate(Guarantee(5.0, 1e-5), {"statistics": 2.0, "mean": 1.0})
PUBLIC = {"V": np.arange(10, dtype=np.float32).reshape(5, 2), "round/total": np.array(3, np.int64)}
QUESTION = Question(4, "statistics", PUBLIC, (STATISTICS, MEAN))
HEADER, PLANNED = pack_invitation(Invitation("run-1", PLAN, QUESTION))
DIGEST = question_digest(HEADER)
RELEASE = Release(
    {
        "gram": np.full((ITEMS, 3), 0.1),
        "moment": np.zeros((ITEMS, WIDTH)),
        "own": np.zeros((ITEMS, WIDTH)),
        "mean": np.ones((1, 1)),
    },
    {"gram": 0.3, "moment": 0.3, "own": 0.3, "mean": 1e-9},
)
TERMS = Terms("run-1", '{"recipe": "default"}', "ratings", (1.0, 5.0), ("a", "b", "ä"))
ANSWER = Answer("library", 40, 39, {Refusal.TOO_LARGE.value: 1}, "", "")
shorts = st.integers(-(2**15) + 1, 2**15 - 1)


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    mine = draw(st.lists(st.sets(st.integers(0, ITEMS - 1)), max_size=4))
    ptr = np.concatenate([[0], np.cumsum([len(s) for s in mine])]).astype(np.int64)
    items = [i for s in mine for i in sorted(s)]

    def numbers(*shape: int) -> np.ndarray:
        size = int(np.prod(shape))
        return np.array(draw(st.lists(shorts, min_size=size, max_size=size)), np.int32).reshape(
            shape
        )

    n = len(mine)
    e = len(items)
    blocks = tuple(
        BlockReports(numbers(n if s.rows == 1 else e), numbers(n * s.folds, s.width)) for s in SPECS
    )
    who = np.frombuffer(draw(st.binary(min_size=32 * n, max_size=32 * n)), np.uint8).reshape(
        2, n, TOKEN_BYTES
    )
    return Batch(who[0], who[1], Reports(ptr, np.array(items, np.int32), blocks))


def batch() -> Batch:
    """Two users: items 1 and 3, and item 0."""
    blocks = tuple(
        BlockReports(
            np.full(2 if s.rows == 1 else 3, 7, np.int32),
            np.full((2 * s.folds, s.width), -9, np.int32),
        )
        for s in SPECS
    )
    who = np.arange(2 * TOKEN_BYTES, dtype=np.uint8).reshape(2, TOKEN_BYTES)
    return Batch(
        who, who + 100, Reports(np.array([0, 2, 3]), np.array([1, 3, 0], np.int32), blocks)
    )


def unpacked(data: bytes, *, max_users: int = 10, max_events_per_user: int = ITEMS) -> Batch:
    return unpack_reports(
        data, SPECS, DIGEST, max_users=max_users, max_events_per_user=max_events_per_user
    )


def code(call: Callable[[], object]) -> str:
    with pytest.raises(RefusedError) as caught:
        call()
    assert len(caught.value.cause) < 1_000
    return caught.value.code


def same(one: Batch, other: Batch) -> None:
    np.testing.assert_array_equal(one.ids, other.ids)
    np.testing.assert_array_equal(one.tokens, other.tokens)
    np.testing.assert_array_equal(one.reports.user_ptr, other.reports.user_ptr)
    np.testing.assert_array_equal(one.reports.items, other.reports.items)
    for a, b in zip(one.reports.blocks, other.reports.blocks, strict=True):
        np.testing.assert_array_equal(a.coefficients, b.coefficients)
        np.testing.assert_array_equal(a.vectors, b.vectors)


# --- reports ---


@given(batches())
def test_a_batch_comes_back_whole_and_has_the_length_that_its_sizes_say(sent: Batch) -> None:
    data = pack_reports(sent, DIGEST)
    same(unpacked(data), sent)
    assert len(data) == batch_bytes(
        SPECS, users=sent.reports.num_users, events=len(sent.reports.items)
    )
    assert announced_users(data) == sent.reports.num_users


def test_a_batch_is_laid_out_as_the_module_says() -> None:
    """Second code: the layout read with struct alone."""
    data = pack_reports(batch(), DIGEST)
    assert data[:36] == b"FRR1" + bytes.fromhex(DIGEST)
    assert struct.unpack_from("<II", data, 36) == (2, 3)
    assert data[44:60] + data[76:92] == bytes([*range(16), *range(100, 116)])
    assert struct.unpack_from("<2I3I", data, 108) == (2, 1, 1, 3, 0)
    assert struct.unpack_from("<3h4h", data, 128) == (7, 7, 7, -9, -9, -9, -9)
    assert struct.unpack_from("<2h2h", data, len(data) - 8) == (7, 7, -9, -9)


@settings(max_examples=200)
@given(batches(), st.data())
def test_damaged_bytes_are_refused_or_are_a_batch_within_all_limits(
    sent: Batch, data: st.DataObject
) -> None:
    whole = bytearray(pack_reports(sent, DIGEST))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at] ^= 1 << data.draw(st.integers(0, 7))
    cut = data.draw(st.sampled_from([len(whole), data.draw(st.integers(0, len(whole)))]))
    try:
        got = unpacked(bytes(whole[:cut]))
    except RefusedError as refusal:
        Refusal(refusal.code)  # a stable code, or ValueError
        return
    assert got.reports.num_users <= 10
    assert np.diff(got.reports.user_ptr).max(initial=0) <= ITEMS
    for user in range(got.reports.num_users):
        mine = got.reports.items[
            got.reports.user_ptr[user] : got.reports.user_ptr[user + 1]
        ].tolist()
        assert mine == sorted(set(mine) & set(range(ITEMS)))
    for part in got.reports.blocks:
        assert (
            max(np.abs(part.coefficients).max(initial=0), np.abs(part.vectors).max(initial=0))
            < 2**15
        )


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused(data: bytes) -> None:
    assert code(lambda: unpacked(data)) == Refusal.MALFORMED


@given(st.binary(max_size=100), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_sizes_are_never_believed_beyond_the_bytes_that_came(
    rest: bytes, users: int, events: int
) -> None:
    data = struct.pack("<4s32sII", b"FRR1", bytes.fromhex(DIGEST), users, events) + rest
    if len(data) != batch_bytes(SPECS, users=users, events=events):
        assert (
            code(lambda: unpacked(data, max_users=2**32, max_events_per_user=2**32))
            == Refusal.MALFORMED
        )


def test_every_way_to_be_wrong_has_its_code() -> None:
    good = pack_reports(batch(), DIGEST)
    assert code(lambda: unpacked(good[:-1])) == Refusal.MALFORMED
    assert code(lambda: unpacked(good + b"\0")) == Refusal.MALFORMED
    assert code(lambda: unpacked(b"FRR2" + good[4:])) == Refusal.MALFORMED
    assert code(lambda: unpacked(pack_reports(batch(), "0" * 64))) == Refusal.WRONG_QUESTION
    assert code(lambda: unpacked(good, max_users=1)) == Refusal.TOO_LARGE
    assert code(lambda: unpacked(good, max_events_per_user=1)) == Refusal.TOO_LARGE


def with_items(*items: int, ptr: tuple[int, ...] = (0, 2, 3)) -> bytes:
    one = batch()
    return pack_reports(
        replace(
            one,
            reports=replace(one.reports, user_ptr=np.array(ptr), items=np.array(items, np.int32)),
        ),
        DIGEST,
    )


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ((1, 3, ITEMS), Refusal.UNKNOWN_ITEM),
        ((1, 3, -1), Refusal.UNKNOWN_ITEM),
        ((3, 3, 0), Refusal.MALFORMED),
        ((3, 1, 0), Refusal.MALFORMED),
    ],
)
def test_items_out_of_the_catalogue_or_named_twice_are_refused(
    items: tuple[int, ...], expected: Refusal
) -> None:
    assert code(lambda: unpacked(with_items(*items))) == expected


def test_two_users_may_name_the_same_item_and_a_user_may_name_none() -> None:
    assert unpacked(with_items(1, 3, 3)).reports.items.tolist() == [1, 3, 3]
    assert unpacked(with_items(0, 1, 3, ptr=(0, 0, 3))).reports.user_ptr.tolist() == [0, 0, 3]
    assert unpacked(with_items(0, 1, 3, ptr=(0, 3, 3))).reports.user_ptr.tolist() == [0, 3, 3]


def test_lengths_must_add_up_to_the_events() -> None:
    data = bytearray(with_items(1, 3, 0))
    struct.pack_into("<I", data, 108, 1)
    assert code(lambda: unpacked(bytes(data))) == Refusal.MALFORMED


def test_the_number_without_a_positive_twin_is_out_of_range() -> None:
    data = bytearray(pack_reports(batch(), DIGEST))
    struct.pack_into("<h", data, 128, -(2**15))
    assert code(lambda: unpacked(bytes(data))) == Refusal.OUT_OF_RANGE


@pytest.mark.parametrize("number", [2**15, -(2**15)])
def test_a_number_of_more_than_15_bits_is_never_packed(number: int) -> None:
    broken = batch()
    broken.reports.blocks[0].vectors[0, 0] = number
    with pytest.raises(ValueError, match="15 bits"):
        pack_reports(broken, DIGEST)


@given(batches(), st.data())
def test_selected_users_are_those_of_a_batch_of_them_alone(
    sent: Batch, data: st.DataObject
) -> None:
    n = sent.reports.num_users
    kept = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)), bool)
    chosen = select_users(sent, kept, SPECS)
    same(unpacked(pack_reports(chosen, DIGEST)), chosen)
    assert [bytes(i) for i in chosen.ids] == [
        bytes(i) for i, k in zip(sent.ids, kept, strict=True) if k
    ]
    for at, user in enumerate(np.flatnonzero(kept)):
        np.testing.assert_array_equal(
            chosen.reports.blocks[0].vectors[at], sent.reports.blocks[0].vectors[user]
        )
        a, b = sent.reports.user_ptr[user : user + 2]
        c, d = chosen.reports.user_ptr[at : at + 2]
        np.testing.assert_array_equal(chosen.reports.items[c:d], sent.reports.items[a:b])
        np.testing.assert_array_equal(
            chosen.reports.blocks[1].coefficients[c:d], sent.reports.blocks[1].coefficients[a:b]
        )


# --- questions ---


def test_an_invitation_comes_back_whole() -> None:
    got = read_invitation(HEADER, PLANNED, PUBLIC)
    assert (got.run, got.plan, got.question.releases) == ("run-1", PLAN, QUESTION.releases)
    assert question_header(got.question, run=got.run, plan=got.plan.digest()) == HEADER
    assert got.question.public["round/total"].shape == ()


def test_a_plan_without_privacy_crosses_too() -> None:
    plan = calibrate(non_private(1e-5), {"statistics": 1.0, "mean": 1.0})
    header, planned = pack_invitation(Invitation("run-1", plan, QUESTION))
    assert read_invitation(header, planned, PUBLIC).plan == plan


@pytest.mark.parametrize("change", [{"run": "run-2"}, {"round": 5}, {"step": "other"}])
def test_the_digest_names_everything_of_a_question(change: dict[str, object]) -> None:
    assert question_digest(json.dumps({**json.loads(HEADER), **change}).encode()) != DIGEST
    for other in (
        replace(QUESTION, public={**PUBLIC, "V": PUBLIC["V"] + 1}),
        replace(
            QUESTION,
            public={
                **PUBLIC,
                "V": PUBLIC["V"]
                + (np.arange(PUBLIC["V"].size) == PUBLIC["V"].size - 1).reshape(PUBLIC["V"].shape),
            },
        ),
        replace(QUESTION, releases=(STATISTICS,)),
        replace(QUESTION, releases=(replace(STATISTICS, radius=2.0), MEAN)),
    ):
        assert question_digest(question_header(other, run="run-1", plan=PLAN.digest())) != DIGEST
    assert question_digest(question_header(QUESTION, run="run-1", plan="0" * 64)) != DIGEST


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        {"V": PUBLIC["V"]},
        {**PUBLIC, "more": np.zeros(1)},
        {**PUBLIC, "V": PUBLIC["V"].astype(np.float64)},
        {**PUBLIC, "V": PUBLIC["V"].T},
        {**PUBLIC, "V": np.nextafter(PUBLIC["V"], 9)},
        {**PUBLIC, "V": np.array([None])},
    ],
)
def test_arrays_that_are_not_the_announced_ones_are_refused(arrays: dict[str, np.ndarray]) -> None:
    assert code(lambda: read_question(HEADER, arrays)) == Refusal.WRONG_QUESTION


def test_a_view_of_the_announced_numbers_is_as_good_as_a_copy() -> None:
    read_question(HEADER, {**PUBLIC, "V": np.asfortranarray(PUBLIC["V"])})


def changed(path: str, value: object) -> bytes:
    content = json.loads(HEADER)
    *parents, last = path.split(".")
    at = content
    for key in parents:
        at = at[int(key)] if isinstance(at, list) else at[key]
    at[last] = value
    return json.dumps(content).encode()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("round", -1),
        ("round", 1.5),
        ("run", ""),
        ("run", "a b\n"),
        ("run", "x" * 1_000),
        ("plan", "short"),
        ("more", 1),
        ("releases", []),
        ("releases.0.radius", float("nan")),
        ("releases.0.radius", float("inf")),
        ("releases.0.radius", 0),
        ("releases.0.blocks.0.rows", 0),
        ("releases.0.blocks.0.rows", 2**31),
        ("releases.0.blocks.0.width", 2**26 + 1),
        ("releases.0.blocks.0.kind", "cubic"),
        ("releases.0.blocks.0.vector_step", 5e-324),
        ("releases.0.blocks.0.vector_step", -1.0),
        ("releases.0.blocks.0.name", "moment"),
        ("releases.0.name", "mean"),
        ("public.V.dtype", "|O"),
        ("public.V.shape", [1] * 5),
    ],
)
def test_a_header_that_nobody_here_wrote_is_refused(path: str, value: object) -> None:
    assert code(lambda: read_header(changed(path, value))) == Refusal.MALFORMED


def test_no_step_that_is_allowed_makes_a_grid_of_zero_or_infinity() -> None:
    for step in (1.1e-30, 9.9e11):
        spec = read_header(changed("releases.0.blocks.0.vector_step", step)).specs()[0].blocks[0]
        assert 0 < spec.step < np.inf


def test_a_header_is_bounded_before_it_is_parsed() -> None:
    assert code(lambda: read_header(b" " * (2**20 + 1))) == Refusal.TOO_LARGE


def promised(**changes: object) -> tuple[bytes, bytes]:
    """A hostile server's invitation: a header that names exactly the plan beside it."""
    content = asdict(PLAN)
    content["guarantee"].update({k: v for k, v in changes.items() if k in content["guarantee"]})
    content["releases"][0].update({k: v for k, v in changes.items() if k in content["releases"][0]})
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return question_header(QUESTION, run="run-1", plan=digest), json.dumps(content).encode()


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon": 4.9},
        {"mu": 10.0},
        {"mu": -1},
        {"mu": float("nan")},
        {"mu": 10**400},
        {"mu": "much"},
        {"epsilon": 10**400},
        {"epsilon": float("nan")},
        {"epsilon": "5"},
        {"delta": 0},
        {"delta": 5e-324},
        {"unit": "banana"},
        {"unit": ["user"]},
        {"neighbours": "none"},
        {"established": "yes"},
    ],
)
def test_a_plan_that_is_not_true_is_refused_though_the_question_names_it(
    changes: dict[str, object],
) -> None:
    header, plan = promised(**changes)
    with pytest.raises(PrivacyError):
        read_invitation(header, plan, PUBLIC)


def test_another_plan_than_the_question_names_is_refused() -> None:
    other = Plan(PLAN.guarantee, tuple(replace(r, mu=r.mu / 2) for r in PLAN.releases))
    header, planned = pack_invitation(Invitation("run-1", other, QUESTION))
    assert code(lambda: read_invitation(HEADER, planned, PUBLIC)) == Refusal.WRONG_PLAN
    assert code(lambda: read_invitation(header, PLANNED, PUBLIC)) == Refusal.WRONG_PLAN


# --- releases ---


def test_a_release_comes_back_whole_and_has_one_form() -> None:
    data = pack_release(RELEASE)
    got = unpack_release(data, QUESTION.releases)
    assert got.noise_std == dict(RELEASE.noise_std)
    assert all(np.array_equal(got.values[name], RELEASE.values[name]) for name in RELEASE.values)
    backwards = Release(
        dict(reversed(RELEASE.values.items())), dict(reversed(RELEASE.noise_std.items()))
    )
    assert pack_release(backwards) == data == pack_release(got)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_release_holds_finite_numbers_only(bad: float) -> None:
    values = {**RELEASE.values, "mean": np.array([[bad]])}
    assert (
        code(
            lambda: unpack_release(pack_release(replace(RELEASE, values=values)), QUESTION.releases)
        )
        == Refusal.MALFORMED
    )


@pytest.mark.parametrize("std", ["-0x1p0", "nan", "inf", "0x1p99999", "much", ""])
def test_a_noise_std_is_a_finite_number_of_at_least_zero(std: str) -> None:
    data = pack_release(RELEASE).replace(
        json.dumps(json.dumps((1e-9).hex()))[1:-1].encode(),
        json.dumps(json.dumps(std))[1:-1].encode(),
    )
    length = int.from_bytes(data[:8], "little") + len(data) - len(pack_release(RELEASE))
    assert (
        code(lambda: unpack_release(length.to_bytes(8, "little") + data[8:], QUESTION.releases))
        == Refusal.MALFORMED
    )


@pytest.mark.parametrize(
    "release",
    [
        replace(RELEASE, values={"mean": RELEASE.values["mean"]}),
        replace(RELEASE, values={**RELEASE.values, "more": np.ones((1, 1))}),
        replace(RELEASE, values={**RELEASE.values, "mean": np.ones((1, 2))}),
        replace(RELEASE, values={**RELEASE.values, "mean": np.ones((1, 1), np.float32)}),  # type: ignore[dict-item]
        replace(RELEASE, noise_std={"mean": 1.0}),
    ],
)
def test_a_release_of_other_blocks_shapes_or_numbers_is_refused(release: Release) -> None:
    assert (
        code(lambda: unpack_release(pack_release(release), QUESTION.releases)) == Refusal.MALFORMED
    )


# --- everything that is read is refused or right, never a crash ---

READERS: dict[str, tuple[Callable[[bytes], object], bytes]] = {
    "header": (read_header, HEADER),
    "plan": (lambda data: read_invitation(HEADER, data, PUBLIC), PLANNED),
    "release": (lambda data: unpack_release(data, QUESTION.releases), pack_release(RELEASE)),
    "terms": (read_terms, pack_terms(TERMS)),
    "answer": (read_answer, pack_answer(ANSWER)),
}
PIECES = [b"0", b"9" * 400, b"[", b"{", b"null", b'"', b"1e999", b"-1", b"NaN", b"\xff", b"\0"]


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=100)
@given(st.data())
def test_damaged_messages_raise_nothing_but_refusals(name: str, data: st.DataObject) -> None:
    read, good = READERS[name]
    at, end = sorted(data.draw(st.tuples(st.integers(0, len(good)), st.integers(0, len(good)))))
    piece = data.draw(st.sampled_from(PIECES) | st.binary(max_size=6))
    end = min(end, at + data.draw(st.sampled_from([0, 1, 8, len(good)])))
    try:
        read(good[:at] + piece + good[end:])
    except (RefusedError, PrivacyError):
        return


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("deep", [b"[", b'{"a":', b"9"], ids=["lists", "tables", "digits"])
def test_deep_or_endless_json_is_refused(name: str, deep: bytes) -> None:
    assert code(lambda: READERS[name][0](deep * 200_000)) in {
        Refusal.MALFORMED,
        Refusal.TOO_LARGE,
        Refusal.WRONG_PLAN,
    }


def test_a_release_with_deep_json_in_its_notes_is_refused() -> None:
    data = save(dict(RELEASE.values), metadata={"noise_std": "[" * 100_000})
    assert code(lambda: unpack_release(data, QUESTION.releases)) == Refusal.MALFORMED


def test_terms_and_answers_come_back_whole() -> None:
    assert read_terms(pack_terms(TERMS)) == TERMS
    assert read_answer(pack_answer(ANSWER)) == ANSWER
    assert (
        read_answer(pack_answer(Answer("a", 0, refusal=Refusal.BUDGET, cause="ü"))).refusal
        == Refusal.BUDGET
    )


def test_terms_with_another_letter_anywhere_are_refused() -> None:
    """Another item's id is as plausible as the right one: only the digest tells."""
    packed = pack_terms(TERMS)
    assert code(lambda: read_terms(packed.replace(b'"b"', b'"c"'))) == Refusal.MALFORMED
    assert code(lambda: read_terms(packed.replace(b"run-1", b"run-2"))) == Refusal.MALFORMED


@pytest.mark.parametrize(
    "terms",
    [
        replace(TERMS, items=("a", "b", "a")),
        replace(TERMS, items=()),
        replace(TERMS, value_range=(5.0, 1.0)),
        replace(TERMS, value_range=(1.0, float("nan"))),
        replace(TERMS, kind="guesses"),  # type: ignore[arg-type]
        replace(TERMS, run="run\n"),
    ],
)
def test_terms_that_cannot_be_meant_are_refused(terms: Terms) -> None:
    assert code(lambda: read_terms(pack_terms(terms))) == Refusal.MALFORMED


@pytest.mark.parametrize(
    "answer",
    [
        replace(ANSWER, accepted=-1),
        replace(ANSWER, rejected={"busy": -3}),
        replace(ANSWER, users=2**60),
    ],
)
def test_counts_of_an_answer_are_counts(answer: Answer) -> None:
    assert code(lambda: read_answer(pack_answer(answer))) == Refusal.MALFORMED


# --- both recipes, every round ---


class Carried(Loopback):
    """A loopback whose questions and reports are bytes in between."""

    def answer(self, question: Question) -> Release:
        header, planned = pack_invitation(Invitation("run-1", self.plan, question))
        return super().answer(read_invitation(header, planned, question.public).question)

    def reports(self, question: Question):  # type: ignore[no-untyped-def]
        digest = question_digest(question_header(question, run="run-1", plan=self.plan.digest()))
        for reports in super().reports(question):
            ids = np.zeros((reports.num_users, TOKEN_BYTES), np.uint8)
            data = pack_reports(Batch(ids, ids, reports), digest)
            yield unpack_reports(
                data, question.blocks, digest, max_users=100, max_events_per_user=1_000
            ).reports


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("recipe=published", "model.dimension=3"),
        ("recipe=published", "model.encoder=id", "privacy.epsilon=inf"),
    ],
)
def test_every_round_of_a_recipe_crosses_the_wire_without_a_change(
    overrides: tuple[str, ...],
) -> None:
    dataset = planted(PlantedShape(users=60, items=80, events=900), seed=1)
    data = dataset.interactions
    scenario = load(None, overrides)
    facts = PublicFacts(
        data.num_users, data.num_items, data.kind, data.value_range, dataset.features, Streams(1)
    )
    prepared = prepare(scenario, facts)

    def last(kind: type[Loopback]) -> dict[str, bytes]:
        link = kind(
            data,
            prepared.steps,
            prepared.plan,
            Streams(1),
            Ledger(prepared.plan.guarantee),
            users_per_batch=25,
        )
        *_, done = train(prepared.recipe, link, prepared.recipe.begin())
        return {name: array.tobytes() for name, array in done.state.items()}

    assert last(Carried) == last(Loopback)
