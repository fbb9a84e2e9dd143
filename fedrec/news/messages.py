"""Messages between a server and clients that hold clicks, where no aggregator stands between; all
that the server asks is public.

ask     run, round, how many users there are, the number of each client's first user; arrays
        round 0: "topics" (m, B), the public rows
        round t: "parameters" (P,), "cohort" (n,) numbers of users
reply   an `Answer`; arrays, noised on the device
        round 0: `reports_training.collected_arrays`
        round t: "gradient" (P,), "weight" (1,), "loss" (1,)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedrec.errors import RefusedError, SettingsError
from fedrec.federation.protocol import Answer, Broadcast, Refusal
from fedrec.settings import Scenario, validated
from fedrec.storage import told_json

_SENT = ("recipe", "seed", "privacy", "news")
_OPENED = ("word_vectors", "language_model")
_FILES = (*_OPENED, "entity_vectors")
"""Keys of `news` that name a file; those that a device would open come first."""
LATER_KEYS = ("accounting", "attention_noise", "bands", "printed", "serving_noise", "sizes")
"""Keys of `news` that came after version 2 of the messages: left out where they are at their
default, since a client without them refuses a recipe that has them."""
_WITH_CLIENTS = "with-the-clients"

Arrays = Mapping[str, npt.NDArray[Any]]
Count = Annotated[int, Field(ge=0, le=2**40)]


@dataclass(frozen=True)
class Ask:
    """A question to all clients. first_user: by client's name."""

    run: str
    round: int
    users: int
    first_user: Mapping[str, int]
    public: Arrays

    def digest(self) -> str:
        """SHA-256 of everything: a round is answered once, to one question."""
        hashed = hashlib.sha256(pack_ask(self))
        for name, array in sorted(self.public.items()):
            hashed.update(
                f"{name}/{array.dtype.str}/{array.shape}/".encode()
                + np.asarray(array, order="C").tobytes()
            )
        return hashed.hexdigest()


@dataclass(frozen=True)
class Reply:
    """What one client says: arrays where it does not refuse."""

    answer: Answer
    arrays: Arrays = field(default_factory=dict)


class NewsBroadcast(Broadcast, Protocol):
    """A way to clients that can be told an `Ask` too."""

    def tell(self, ask: Ask) -> list[Reply]:
        """One reply per client; `unreachable` for one that did not answer in time."""


class _Ask(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    run: Annotated[str, Field(max_length=120)]
    round: Count
    users: Count
    first_user: dict[Annotated[str, Field(max_length=200)], Count] = Field(max_length=2**20)


def pack_ask(ask: Ask) -> bytes:
    """Canonical JSON; the arrays travel beside it."""
    content = {
        "run": ask.run,
        "round": ask.round,
        "users": ask.users,
        "first_user": dict(ask.first_user),
    }
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def read_ask(content: bytes, public: Arrays) -> Ask:
    """Raises RefusedError where it is not what `pack_ask` writes."""
    try:
        return Ask(**dict(_Ask.model_validate_json(content)), public=public)
    except ValidationError as failure:
        words = failure.errors()[0]["msg"][:300]
        raise RefusedError(
            Refusal.MALFORMED.value,
            f"the question is wrong: {words}",
            "The server must ask otherwise.",
        ) from None


def news_recipe(scenario: Scenario) -> str:
    """The part of a scenario that decides what runs on a device, as canonical JSON: public, and
    sent to every client. Paths of the server's own files are left out."""
    plain = set(LATER_KEYS) - scenario.news.chosen()
    content = scenario.model_dump(
        mode="json", include=set(_SENT), exclude={"privacy": scenario.unsaid, "news": plain}
    )
    content["news"] |= dict.fromkeys(_FILES, "")
    data = {
        "format": scenario.data.format,
        "path": _WITH_CLIENTS if scenario.data.path else "",
    }
    return json.dumps(content | {"data": data}, sort_keys=True)


def scenario_of(recipe: str) -> Scenario:
    """The scenario of a `news_recipe`, which names no file: one that a device opened would be the
    server's choice, and what it holds would be told in the words of an error.

    Raises SettingsError."""
    try:
        content = told_json(recipe)
    except ValueError:
        content = None
    if not isinstance(content, dict) or content.get("recipe") != "privaterec":
        raise SettingsError(
            "the run's recipe is none of news", "Use the same version of fedrec everywhere."
        )
    news = content.get("news") or {}
    data = content.get("data") or {}
    named = (
        not isinstance(news, dict)
        or not isinstance(data, dict)
        or not set(content) <= {*_SENT, "data"}
        or not set(data) <= {"format", "path"}
        or data.get("path") not in (None, "", _WITH_CLIENTS)
        or any(news.get(name) for name in _OPENED)
    )
    if named:
        raise SettingsError(
            "the run's recipe names files, or keys that are nothing of a device's",
            "The server must leave them out.",
        )
    return validated(content, source="the run's recipe")
