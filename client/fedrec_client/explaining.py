"""Explanation for the person whose clicks they are: what left this device, byte by byte, what
stayed, and what it cost."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from google.protobuf.message import Message

from fedrec.serving.asking import HIDDEN
from fedrec.transport.serving_api import serving_pb2 as pb
from fedrec_client.recommending import Answered, Recommender
from fedrec_client.serving_link import Left

_MESSAGES: dict[str, type[Message]] = {
    "Recommend": pb.RecommendRequest,
    "GetModel": pb.GetModelRequest,
}


def promise(answered: Answered, recommender: Recommender) -> str:
    """What is promised of the answer, with unit and neighbours in words."""
    if answered.answer is None:
        return "ranked on this device by the clicks themselves: nothing of them was sent"
    guarantee = recommender.guarantee
    if not guarantee.private:
        return str(guarantee)
    return (
        f"{guarantee}: had any one click of the history been another item, whatever the server "
        "sees would be as likely up to a "
        f"factor of e^{guarantee.epsilon:g}, but for a chance of {guarantee.delta:g}. When you "
        "click and ask, k and "
        "categories are not hidden"
    )


def cost(answered: Answered, recommender: Recommender) -> str:
    """Cost of this call, in words."""
    if answered.answer is None:
        return "nothing: ranked on this device, exact; nothing of the history was sent"
    if not answered.fresh:
        return f"nothing: answer {answered.answer.number} was sent again, as it was drawn"
    earlier = [
        answer for answer in recommender.ledger.entries if answer.history == answered.answer.history
    ]
    again = (
        " (these clicks had an answer, but for another model or epsilon)"
        if len(earlier) > 1
        else ""
    )
    return (
        f"one fresh answer of epsilon {recommender.guarantee.epsilon:g} per click (replace){again}"
    )


def shown(answered: Answered, recommender: Recommender) -> str | None:
    """How much of the clicks the list can show, said on this device alone; None where nobody
    knows."""
    if answered.answer is None:
        return (
            "everybody's: this model says nothing else of these clicks"
            if answered.everybodys
            else None
        )
    share = answered.share
    if share is None:
        return None
    clicks = "1 click says" if answered.clicks == 1 else f"{answered.clicks} clicks say"
    left = (
        f"noise of epsilon {recommender.guarantee.epsilon:g} per click leaves about {share:.0%} of "
        f"what {clicks} about the list"
    )
    if share >= HIDDEN:
        return left
    return (
        f"everybody's, made on this device: {left}. More clicks, a larger epsilon or --via device "
        "would show yours"
    )


def balance(recommender: Recommender) -> str:
    """Spent and left."""
    ledger = recommender.ledger
    days = "" if ledger.renew_every_s is None else f" in any {ledger.renew_every_s / 86_400:g} days"
    of_all = (
        ""
        if ledger.renew_every_s is None
        else f"; epsilon {ledger.epsilon_of_all_time:.4g} in all time"
    )
    possible = (
        f"up to epsilon {ledger.epsilon_left:.4g} still fits"
        if ledger.epsilon_left
        else "no fresh answer fits"
    )
    spent = f"epsilon {ledger.epsilon:.4g} of {ledger.limit.epsilon:g} per click (replace)"
    return f"{spent}{days} at delta {ledger.limit.delta:g}{of_all}; {possible}"


def person(answered: Answered, recommender: Recommender) -> str:
    """What all answers that count are for the whole person, at the person's own number of
    clicks."""
    ledger = recommender.ledger
    clicks = answered.clicks
    own = ledger.epsilon_of_person(clicks)
    whole = ledger.epsilon_of_person()
    answers = len(ledger.counting)
    limit = "" if math.isinf(ledger.max_user_epsilon) else f" of {ledger.max_user_epsilon:g}"
    asked = f"{answers} fresh answer{'s' * (answers != 1)} on {clicks} click{'s' * (clicks != 1)}"
    return (
        f"{asked}: epsilon {own:.4g} per user (replace) for this history; "
        f"{whole:.4g}{limit} for the longest possible one"
    )


def explained(answered: Answered, recommender: Recommender) -> str:
    """Every message that left in this call, in hex and decoded; then what did not leave."""
    lines = [line for message in answered.left for line in (*_message(message), "")]
    return "\n".join(
        [*(lines or ["Nothing left this device.", ""]), *_stayed(answered, recommender)]
    )


def _message(left: Left) -> Iterator[str]:
    yield f"Left this device: {left.what}, a body of {len(left.body)} bytes"
    yield from (f"  {name}: {value}" for name, value in left.headers)
    for start in range(0, len(left.body), 32):
        yield f"  {start:06x}  {left.body[start : start + 32].hex(' ', -4)}"
    if left.body:
        yield f"  that is: {decoded(left)}"


def decoded(left: Left) -> str:
    """The body of a message in words."""
    kind = _MESSAGES.get(left.what.rpartition("/")[2]) if left.what.startswith("/fedrec.") else None
    if kind is None:
        return json.dumps(json.loads(left.body))
    message = kind.FromString(left.body)
    fields = [(field.name, value) for field, value in message.ListFields()]
    return ", ".join(f"{name} {_worded(name, value)}" for name, value in fields)


def _worded(name: str, value: Any) -> str:
    if name == "coefficients":
        return " ".join(str(np.float32(number)) for number in value)
    return f"{value:016x}" if name == "version" else str(value)


def _stayed(answered: Answered, recommender: Recommender) -> Iterator[str]:
    about = answered.bundle.about
    answer = answered.answer
    yield (
        "Stayed on this device: the history, its ratings and times, and the coefficients before "
        "noise."
    )
    if answer is not None:
        yield (
            f"The {len(answer.sent)} coefficients are those of the latest {about.history} clicks "
            "plus discrete Gaussian noise of std "
            f"{answer.noise_std:.4g} on each, then decoded with public numbers; one click moves "
            f"them by at most {about.sensitivity:.4g}."
        )
        if answer.padding:
            yield (
                f"Before that, each click was left out with probability {answer.padding:g}, "
                "drawn here and kept secret."
            )
        yield (
            f"{answered.asked} items were asked for, whatever the history; {answered.hidden} of "
            "them are in it, and were left out here."
        )
