"""The page's ledger: a repeated question is the same bytes for nothing, and past the limit nothing
is drawn."""

import json

import numpy as np
import pytest

from fedrec.api.persons import account_of_person
from fedrec.privacy.accounting import GaussianEvent, epsilon_of, mu_for
from fedrec.privacy.click_accounting import serving_epsilon
from fedrec.privacy.guarantee import Guarantee
from fedrec.privacy.mixtures import PaddedEvent, epsilon_of_events, inner_mu
from fedrec.privacy.person import of_person
from fedrec.run.data.budget import DataBudget

DELTA = 1e-5
LIMIT = {"epsilon": 20, "delta": DELTA}


def _question(edit=1, version="00aa", epsilon=5):
    return {"edit": edit, "version": version, "epsilon": epsilon}


def test_the_same_question_has_the_same_numbers_and_costs_nothing(node):
    steps = [
        ["ask", _question(), [1.5, 2.5]],
        ["ask", _question(), [9.0, 9.0]],
        ["ask", _question(epsilon=1), [3.0, 4.0]],
        ["ask", _question(), []],
    ]
    first, again, other, back = node("ledger", limit=LIMIT, steps=steps)
    assert (first["coefficients"], first["cost"], first["drawn"]) == ([1.5, 2.5], 5, 1)
    assert (again["coefficients"], again["cost"], again["drawn"], again["spent"]) == (
        [1.5, 2.5],
        0,
        0,
        first["spent"],
    )
    # also after another epsilon
    assert (other["cost"], back["coefficients"], back["cost"]) == (1, [1.5, 2.5], 0)


@pytest.mark.parametrize("changed", [{"edit": 2}, {"version": "00bb"}, {"epsilon": 2}])
def test_a_changed_question_is_drawn_and_paid_for_again(node, changed):
    steps = [["ask", _question(), [1.0]], ["ask", _question(**changed), [2.0]]]
    first, second = node("ledger", limit=LIMIT, steps=steps)
    assert second["coefficients"] == [2.0]
    assert second["spent"] > first["spent"]


def test_an_earlier_history_is_a_new_question(node):
    steps = [
        ["ask", _question(edit=1), [1.0]],
        ["ask", _question(edit=2), [2.0]],
        ["ask", _question(edit=1), [3.0]],
    ]
    assert node("ledger", limit=LIMIT, steps=steps)[-1]["coefficients"] == [3.0]


def test_spent_is_the_exact_composition_and_the_limit_holds(node):
    steps = [["ask", _question(edit=edit, epsilon=1), [0.0]] for edit in range(200)]
    said = node("ledger", limit=LIMIT, steps=steps)
    one = Guarantee(1.0, DELTA, "click", "replace")
    paid = [step for step in said if "cost" in step]
    for answers in (1, 10, 50, 100):
        assert paid[answers - 1]["spent"] == pytest.approx(serving_epsilon(answers, one), rel=1e-6)
    allowed = int(mu_for(20, DELTA) ** 2 / mu_for(1, DELTA) ** 2)
    assert len(paid) == allowed
    assert {(step["refused"], step["drawn"]) for step in said[allowed:]} == {("spent", 0)}
    assert said[-1]["left"] < 1
    assert {(e["unit"], e["neighbours"]) for e in said[-1]["entries"]} == {("click", "replace")}


def test_one_answer_may_take_the_whole_limit_and_then_only_repeats_are_left(node):
    asked = [
        (_question(epsilon=20), [1.0]),
        (_question(edit=2, epsilon=0.1), [2.0]),
        (_question(epsilon=20), []),
    ]
    whole, more, repeat = node("ledger", limit=LIMIT, steps=[["ask", *each] for each in asked])
    assert whole["cost"] == 20
    assert (more["refused"], more["drawn"], more["left"]) == ("spent", 0, 0)
    assert (repeat["coefficients"], repeat["cost"]) == ([1.0], 0)


def test_where_the_charge_cannot_be_kept_there_is_no_answer_to_send(node):
    steps = [["fail"], ["ask", _question(), [1.0]], ["work"], ["ask", _question(), [2.0]]]
    _, failed, _, after = node("ledger", limit=LIMIT, steps=steps)
    assert failed["refused"] == "the disk is full"
    assert "coefficients" not in failed
    assert after["coefficients"] == [2.0]


def test_what_another_tab_pays_between_a_read_and_a_write_is_kept_and_counted(node):
    first = node("ledger", limit=LIMIT, steps=[["ask", _question(), [1.0]]])[0]["entries"]
    more = [["rival", first], ["ask", _question(edit=2, epsilon=1), [2.0]]]
    both = node("ledger", limit=LIMIT, steps=more)[1]
    assert (both["coefficients"], both["drawn"]) == ([2.0], 2)  # what was drawn first never left
    assert [entry["epsilon"] for entry in both["entries"]] == [5, 1]
    steps = [["rival", first], ["ask", _question(edit=2, epsilon=20), [3.0]]]
    past = node("ledger", limit=LIMIT, steps=steps)[1]
    assert (past["refused"], len(past["entries"])) == ("spent", 1)
    held = [["ask", _question(), [1.0]], ["rival", first], ["forget"]]
    assert len(node("ledger", limit=LIMIT, steps=held)[-1]["entries"]) == 2


def test_forgetting_answers_keeps_what_was_spent(node):
    steps = [["ask", _question(), [1.0]], ["forget"], ["ask", _question(), [2.0]]]
    first, forgotten, again = node("ledger", limit=LIMIT, steps=steps)
    assert forgotten["spent"] == first["spent"]
    assert (again["coefficients"], again["cost"]) == ([2.0], 5)


def test_a_body_holds_the_agreed_fields_and_the_very_float32s(node):
    coefficients = np.concatenate(
        [np.random.default_rng(5).normal(size=500), [0.0, 1e-7, -3e8, 0.1, 1e-30]]
    ).astype(np.float32)
    questions = [
        {
            "version": "0123456789abcdef",
            "coefficients": coefficients.tolist(),
            "k": 60,
            "category": c,
        }
        for c in (None, 'a "b"\\')
    ]
    plain, filtered = (json.loads(body) for body in node("bodies", questions=questions))
    assert list(plain) == ["version", "coefficients", "k"]
    assert list(filtered) == ["version", "coefficients", "k", "categories"]
    assert (plain["version"], plain["k"], filtered["categories"]) == (
        "0123456789abcdef",
        60,
        ['a "b"\\'],
    )
    np.testing.assert_array_equal(np.array(plain["coefficients"], np.float32), coefficients)


def test_a_person_of_many_titles_pays_for_all_of_them(node):
    steps = [
        ["ask", _question(edit=1), [0.0]],
        ["ask", _question(edit=2), [0.0]],
        ["person", 1, _question()],
        ["person", 20, _question()],
    ]
    *_, one_title, twenty = node("ledger", limit=LIMIT, steps=steps)
    mu = mu_for(5, DELTA)
    assert one_title["one"] == pytest.approx(5, rel=1e-6)
    assert twenty["one"] == pytest.approx(epsilon_of(20 * mu, DELTA), rel=1e-6)
    assert twenty["together"] == pytest.approx(epsilon_of(20 * mu * np.sqrt(3), DELTA), rel=1e-6)
    assert one_title["entries"] == twenty["entries"]  # it is said, not spent


@pytest.mark.parametrize("padding", [0.1, 0.7])
def test_one_answer_behind_padding_costs_its_epsilon_and_several_as_if_nothing_was_hidden(
    node, padding
):
    asked = [_question(edit=edit, epsilon=5) | {"padding": padding} for edit in range(2)]
    one, two = node(
        "ledger", limit=LIMIT, padding=padding, steps=[["ask", each, [0.0]] for each in asked]
    )
    inner = inner_mu(Guarantee(5.0, DELTA, "click", "replace"), padding)
    assert one["entries"][0]["mu"] == pytest.approx(inner, rel=1e-9)
    assert one["spent"] == pytest.approx(5, rel=1e-9)
    assert two["spent"] == pytest.approx(epsilon_of(inner * np.sqrt(2), DELTA), rel=1e-9)
    # the most that the next answer may have is what takes all that is left
    left = Guarantee(one["left"], DELTA, "click", "replace")
    assert np.hypot(inner, inner_mu(left, padding)) == pytest.approx(mu_for(20, DELTA), rel=1e-9)
    events = [PaddedEvent("answer", inner, padding)] * 2
    assert two["spent"] >= epsilon_of_events(events, DELTA)  # never less than the exact price


def test_one_padded_answer_may_take_the_whole_limit_and_then_nothing_is_left(node):
    asked = [_question(edit=edit, epsilon=20) | {"padding": 0.5} for edit in range(2)]
    whole, more = node(
        "ledger", limit=LIMIT, padding=0.5, steps=[["ask", each, [0.0]] for each in asked]
    )
    assert whole["cost"] == 20
    assert (more["refused"], more["drawn"], more["left"]) == ("spent", 0, 0)


@pytest.mark.parametrize("padding", [0.0, 0.5])
def test_attention_of_many_titles_costs_a_person_no_more_than_its_bound(node, padding):
    question = _question() | {"padding": padding, "bounded": True}
    steps = [
        ["person", 1, question],
        ["person", 20, question],
        ["ask", question, [0.0]],
        ["person", 20, question],
        ["person", 20, question | {"edit": "later"}],
    ]
    one_title, twenty, _, again, after = node("ledger", limit=LIMIT, steps=steps)
    event = PaddedEvent(
        "attention", inner_mu(Guarantee(5.0, DELTA, "click", "replace"), padding), padding
    )
    for found, titles in ((one_title, 1), (twenty, 20)):
        price = epsilon_of_events([of_person(event, titles)], DELTA)
        assert found["one"] == pytest.approx(price, rel=1e-4)
    assert again["together"] <= again["one"]  # the same answer costs nothing again
    assert after["together"] == pytest.approx(epsilon_of(event.mu * np.sqrt(2), DELTA), rel=1e-6)


@pytest.mark.parametrize("places", [None, 10])
def test_everything_of_one_person_is_the_sum_that_the_command_prints(node, places, tmp_path):
    """Answers, and rounds of trainings, which an exchange moves twice: as `account_of_person`."""
    known = {} if places is None else {"places": places}
    steps = [
        ["everything", []],
        ["ask", _question(epsilon=1) | known, [1.0]],
        ["ask", _question(edit=2, epsilon=2) | known | {"bounded": True}, [1.0]],
        ["everything", [0.3, 0.4]],
    ]
    nothing, *_, together = node("ledger", limit=LIMIT, steps=steps)
    assert nothing["together"] == 0
    budget = DataBudget(tmp_path / "trainings.jsonl", Guarantee(50.0, DELTA))
    budget.charge("here", "system", [GaussianEvent("a", 0.3), GaussianEvent("b", 0.4)])
    assert account_of_person(budget.path, delta=DELTA).epsilon == pytest.approx(
        epsilon_of(1.0, DELTA), rel=1e-9
    )
    mus = [(places or 1_000) * mu_for(1, DELTA), mu_for(2, DELTA), 0.6, 0.8]
    assert together["together"] == pytest.approx(epsilon_of(np.hypot.reduce(mus), DELTA), rel=1e-6)
