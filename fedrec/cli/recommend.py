"""Output of `fedrec recommend`: the list, what is promised, what it cost, and where asked for every
byte that left."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from fedrec.errors import SettingsError
from fedrec.storage import finite
from fedrec_client.clicks import Clicks, read_clicks
from fedrec_client.explaining import balance, cost, decoded, explained, person, promise, shown
from fedrec_client.public_model import PublicModel
from fedrec_client.recommending import DEVICE_MB, Answered, Recommender, Via
from fedrec_client.serving_link import Trust

_TITLE = 60  # characters; score and rank beside it fit the line of a narrow terminal


@dataclass(frozen=True)
class Choices:
    """What the person chose openly; none of it is made of the history."""

    k: int = 10
    categories: tuple[str, ...] = ()
    candidates: int | None = None
    last: bool = False
    explain: bool = False
    items: Path | None = None
    keep_seen: bool = False

    @property
    def ids(self) -> list[str] | None:
        """The only items that are ranked, None for all. Raises as `read_clicks`."""
        return None if self.items is None else [one.item for one in read_clicks(self.items).events]


@dataclass(frozen=True)
class DeviceOptions:
    """Where the ledger is kept, and what may be spent."""

    server: str
    state: Path
    epsilon: float
    limit: float
    delta: float
    renew_every_days: float | None
    max_user_epsilon: float
    trust: Trust
    timeout_s: float
    via: Via = "auto"
    device_mb: float = DEVICE_MB

    def open(self) -> Recommender:
        """Raises as `Recommender`."""
        every_s = None if self.renew_every_days is None else 86_400 * self.renew_every_days
        money = {
            "epsilon": self.epsilon,
            "limit": self.limit,
            "delta": self.delta,
            "renew_every_s": every_s,
            "max_user_epsilon": self.max_user_epsilon,
        }
        return Recommender(
            self.server,
            self.state,
            trust=self.trust,
            timeout_s=self.timeout_s,
            via=self.via,
            device_mb=self.device_mb,
            **money,  # type: ignore[arg-type]
        )


def default_state() -> Path:
    """State folder of this user of this machine, for all servers: clicks that several servers ask
    about are the same clicks."""
    return (
        Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser()
        / "fedrec"
        / "recommend"
    )


def run(
    history: Path | None, device: DeviceOptions, choices: Choices
) -> tuple[str, dict[str, Any]]:
    """Text and JSON. Raises FedRecError."""
    if history is None:
        raise SettingsError(
            "no history is given",
            "--history read.txt: the item ids that you read, one a line. Without any: --demo.",
        )
    clicks = read_clicks(history)
    if not device.server:
        raise SettingsError(
            "no server is given", "--server http://127.0.0.1:8080, or what fedrec serve prints."
        )
    with device.open() as recommender:
        answered = asked(recommender, clicks, choices)
        said = text(answered, recommender, choices)
        if not choices.explain:
            via = "" if device.via == "auto" else f" --via {device.via}"
            ask = f"fedrec recommend --server {device.server} --history {quote(str(history))}{via}"
            said += f"\nnext     {ask} --explain"
        return said, as_dict(answered, recommender, choices)


def asked(recommender: Recommender, clicks: Clicks, choices: Choices) -> Answered:
    """The list."""
    return recommender.recommend(
        clicks,
        k=choices.k,
        categories=choices.categories,
        candidates=choices.candidates,
        last=choices.last,
        items=choices.ids,
        keep_seen=choices.keep_seen,
    )


def text(answered: Answered, recommender: Recommender, choices: Choices) -> str:
    """The output for a terminal."""
    lines = [f"{'':>4}  {'title':{_TITLE}}  {'score':>9}"]
    lines += [
        f"{rank:4}  {_cut(item.title)}  {item.score:9.3f}"
        for rank, item in enumerate(answered.items, start=1)
    ]
    notes = [_short(answered, choices)] if len(answered.items) < choices.k else []
    notes += [_unknown(answered)] if answered.unknown else []
    notes += _told(answered)
    if choices.explain:
        said = [*facts(answered, recommender), "", explained(answered, recommender)]
    else:
        said = costs(answered, recommender)
    return "\n".join([*lines, "", *notes, *said])


def costs(answered: Answered, recommender: Recommender) -> list[str]:
    """What the list can show, what it cost, and what of it all is left, a line each."""
    about = answered.bundle.about
    seen = shown(answered, recommender)
    said = [
        *([f"training {plain(about.trained)}"] if about.experiment else []),
        *([f"list     {seen}"] if seen else []),
        *([] if answered.fresh else [f"cost     {cost(answered, recommender)}"]),
    ]
    if not recommender.ledger.entries:
        return said
    return [
        *said,
        f"spent    {balance(recommender)}",
        f"person   {person(answered, recommender)}",
    ]


def facts(answered: Answered, recommender: Recommender) -> list[str]:
    """Model, what was promised of its training, promise, then `costs`, a line each."""
    about = answered.bundle.about
    return [
        f"model    {plain(about.name)}, version {answered.bundle.version}",
        *([] if about.experiment else [f"training {plain(about.trained)}"]),
        f"promise  {promise(answered, recommender)}",
        *([f"cost     {cost(answered, recommender)}"] if answered.fresh else []),
        *costs(answered, recommender),
        *(
            ["known    a server that keeps answers may recognise you by them"]
            if answered.answer is not None
            else []
        ),
    ]


def as_dict(answered: Answered, recommender: Recommender, choices: Choices) -> dict[str, Any]:
    """The output for a program."""
    ledger = recommender.ledger
    answer = answered.answer
    about = answered.bundle.about
    content: dict[str, Any] = {
        "items": [asdict(item) for item in answered.items],
        "version": answered.bundle.version,
        "training": {**about.training, "noise": about.noise},
        "experiment": about.experiment,
        "fresh": answered.fresh,
        "promise": promise(answered, recommender),
        "guarantee": None if answer is None else asdict(recommender.guarantee),
        "spent": {
            "epsilon": ledger.epsilon,
            "limit": ledger.limit.epsilon,
            "left": ledger.epsilon_left,
            "delta": ledger.limit.delta,
        },
        "person": {
            "unit": "user",
            "neighbours": "replace",
            "clicks": answered.clicks,
            "epsilon": ledger.epsilon_of_person(answered.clicks),
            "any_history": ledger.epsilon_of_person(),
            "limit": ledger.max_user_epsilon,
        },
        "answers": len(ledger.entries),
        "asked": answered.asked,
        "hidden": answered.hidden,
        "shown": shown(answered, recommender),
        "unknown": answered.unknown,
        "without_blanks": answered.without_blanks,
        "off_scale": answered.off_scale,
        "bytes_left": sum(len(left.body) for left in answered.left),
    }
    if choices.explain:
        content["left"] = [
            {
                "what": left.what,
                "headers": dict(left.headers),
                "body": left.body.hex(),
                "decoded": decoded(left) if left.body else "",
            }
            for left in answered.left
        ]
    return dict(finite(content))


def titles(answered: Answered) -> list[str]:
    """Titles of the list, cut to a column."""
    return [_cut(item.title) for item in answered.items]


def beside(left: Sequence[str], right: Sequence[str]) -> list[str]:
    """Two lists as two columns, with ranks."""
    rows = max(len(left), len(right))
    pad = [*left, *[""] * (rows - len(left))], [*right, *[""] * (rows - len(right))]
    return [
        f"{rank:4}  {one:{_TITLE}}  {other}".rstrip()
        for rank, (one, other) in enumerate(zip(*pad, strict=True), start=1)
    ]


def _short(answered: Answered, choices: Choices) -> str:
    short = f"{len(answered.items)} of {choices.k}"
    came = len(answered.items) + answered.hidden
    if answered.answer is None or came < answered.asked or answered.asked >= answered.bundle.size:
        where = "these categories have" if choices.categories else "the catalogue has"
        where = where if choices.items is None else "these items have"
        return f"{short}: {where} no others{'' if choices.keep_seen else ' that were not seen'}."
    return (
        f"{short}: the others of the {answered.asked} asked for had been seen; --candidates asks "
        "for more."
    )


def _unknown(answered: Answered) -> str:
    count = answered.unknown
    clicks = (
        "1 of the clicks is of an item" if count == 1 else f"{count} of the clicks are of items"
    )
    which = "it counts as an empty place" if count == 1 else "they count as empty places"
    sides = f"{plain(answered.first_unknown)!r}; its ids are such as {answered.bundle.ids[0]!r}"
    nothing = "" if answered.clicks else " Nothing of it is known: the list is everybody's."
    return (
        f"{clicks} that this model does not have: {which}. It has no {sides}. The server was not "
        f"told.{nothing}"
    )


def _told(answered: Answered) -> list[str]:
    """What else of the history is not as the catalogue has it: said, and never refused, since a
    refusal that depends on a history would tell the server of it."""
    notes = []
    if answered.without_blanks:
        count = answered.without_blanks
        ids = "1 id was" if count == 1 else f"{count} ids were"
        notes.append(f"{ids} found without blanks or signs of no width.")
    scale = PublicModel(answered.bundle).scale
    if answered.off_scale and scale:
        ratings = "1 rating is" if answered.off_scale == 1 else f"{answered.off_scale} ratings are"
        notes.append(
            f"{ratings} outside this model's scale, {scale[0]:g} to {scale[1]:g}: correct the "
            "history. The server was not told."
        )
    return notes


def plain(text: str) -> str:
    """Words of a server, without what a terminal would obey."""
    return "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text
    )


def _cut(text: str) -> str:
    title = plain(text)
    return f"{title if len(title) <= _TITLE else title[: _TITLE - 3] + '...':{_TITLE}}"
