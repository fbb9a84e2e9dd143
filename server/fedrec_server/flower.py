"""Flower's messages on the server: terms and questions go out to every node, receipts come back.

    query.join   {"fedrec": {"terms": bytes}}
                 -> {"fedrec": {"answer": bytes}}
    query.ask    {"fedrec": {"header": bytes, "plan": bytes, "quorum": int}, "public": ArrayRecord}
                 -> {"fedrec": {"answer": bytes}}
    query.tell   {"fedrec": {"ask": bytes}, "public": ArrayRecord}
                 -> the same and {"reply": ArrayRecord}

Each message is a RecordDict. Each "fedrec" record has "protocol" too, the sender's version of the
messages (`fedrec.federation.versions`). The bytes are those of `fedrec.federation.wire`, terms by
zlib; a question's arrays are payloads of `fedrec.federation.coding`, which stand on the question
before, and a node that lacks it says so (`ARRAYS_UNKNOWN`) and gets all of them. What a node sends
is read in `replies`. Which client a node is comes from the proxy, not from what the node says: a
node of nobody is not asked, and an answer in another's name is none. Flower's own waiting loop is
not used: it polls every 3 s and ends with whoever was there first.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import time
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx
import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from fedrec import __version__
from fedrec.federation.coding import coded, deflated
from fedrec.federation.protocol import Answer, Invitation, Refusal, Terms
from fedrec.federation.versions import FIELD, PROTOCOL
from fedrec.federation.wire import pack_invitation, pack_terms
from fedrec.news.messages import Ask, Reply, pack_ask
from fedrec.operations import logs
from fedrec_server.replies import MESSAGE, answer_of, arrays_of
from fedrec_server.stragglers import UNREACHABLE
from fedrec_server.waves import Wave

T = TypeVar("T")

PUBLIC = "public"
JOIN = "query.join"
ASK = "query.ask"
TELL = "query.tell"
CODED = "fedrec.coding"
"""Flower's word for how an array is written."""

UNREADABLE = 1_000
"""Code of the error that stands for a reply which Flower cannot unpack; Flower's own are below."""

SENT_AGAIN_S = (1.0, 4.0, 16.0, 64.0)
"""Pauses after pushes of messages that a busy SuperLink did not take whole."""

Owner = Callable[[int], str]
"""The client that a node is, "" for one that is nobody's."""

SENT_AT_ONCE = 40
ASKED_AT_ONCE = 200
"""Messages of one call to the SuperLink, which must answer within 30 s: it writes a message in up
to a tenth of a second on a busy machine, and looks replies up in one query."""
_POLLED_SHARE = 0.05
_LONGEST_POLL_S = 1.0

log = logging.getLogger(__name__)


def server_app(
    serve: Callable[[FlowerBroadcast], None],
    *,
    timeout_s: float,
    again_s: float = 60.0,
    sleep: Callable[[float], None] = time.sleep,
    owner: Owner | None = None,
    wake: Callable[[Iterable[int]], None] | None = None,
) -> ServerApp:
    """The app that runs `serve` over the grid it is given; seconds as those of
    `FlowerBroadcast`."""
    installed = ServerApp()

    @installed.main()
    def main(grid: Grid, _context: Context) -> None:
        serve(
            FlowerBroadcast(grid, timeout_s, again_s=again_s, sleep=sleep, owner=owner, wake=wake)
        )

    return installed


app = ServerApp()
"""What a bundle names, because Flower wants a name there. It does nothing: `fedrec server` runs
`server_app` around its own settings, in its own process (`fedrec_server.executor`)."""


def bundle(scenario_digest: str) -> bytes:
    """The thinnest bundle that Flower takes: a zip of settings and a manifest, the same bytes every
    time.

    It carries names and no code: server and clients run what is installed. Not built by `flwr
    build`, which brings Flower's command line into this process and would pack whatever lies
    around.
    """
    lines = [
        "[project]",
        'name = "fedrec-run"',
        f"version = {json.dumps(__version__)}",
        'description = "Runs what is installed."',
        'license = "Apache-2.0"',
        "dependencies = []",
        "[tool.flwr.app]",
        'publisher = "fedrec"',
        "[tool.flwr.app.components]",
        'serverapp = "fedrec_server.flower:app"',
        'clientapp = "fedrec_client.flower:app"',
        "[tool.flwr.app.config]",
        f"scenario = {json.dumps(scenario_digest)}",
    ]
    settings = "\n".join(lines).encode()
    manifest = f"pyproject.toml,{hashlib.sha256(settings).hexdigest()},{len(settings) * 8}".encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in (("pyproject.toml", settings), (".info/CONTENT", manifest)):
            file.writestr(zipfile.ZipInfo(name), content)
    return packed.getvalue()


@dataclass
class FlowerBroadcast:
    """A `Broadcast` over a grid's nodes. Seconds; `sleep` and `clock` are the test's to replace.

    An answer is waited for up to `timeout_s`. A node that is silent for `again_s` is asked again,
    then after twice that and so on: a message or a reply can be lost in a crash, and a question
    asked twice is counted once. A node that appears meanwhile is asked too, and a client that
    answers from there is not waited for at its old node.

    connected: clients whose nodes were there at the last look. unanswered: clients that were asked
    and have not answered.
    Replies are fetched for all nodes together, every `poll_s` at first, and after a long wait every
    twentieth part of it, up to a second.

    owner: which client a node is; None believes what nodes say, as on one machine. A client that
    was silent for a whole wave takes the others' time no longer: it is asked, one message at a
    time, and waited for again when it has answered one, however late. wake: is told the nodes that
    have a message.
    """

    grid: Grid
    timeout_s: float
    poll_s: float = 0.1
    nodes_s: float = 1.0
    again_s: float = 60.0
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    names: dict[int, str] = field(default_factory=dict)
    owner: Owner | None = None
    connected: int = 0
    unanswered: Collection[str] = ()
    wake: Callable[[Iterable[int]], None] | None = None
    # by client, the last message of each of its nodes
    _silent: dict[str, dict[int, str]] = field(default_factory=dict)

    def join(self, terms: Terms) -> Sequence[Answer]:
        """One answer per client; none while no node is there."""
        return self._gathered(JOIN, RecordDict({MESSAGE: _said(terms=deflated(pack_terms(terms)))}))

    def ask(self, invitation: Invitation) -> Sequence[Answer]:
        """One answer per client; `UNREACHABLE` for one that did not answer in time."""
        return self._asked(invitation, None)

    def ask_some(self, invitation: Invitation, clients: Collection[str]) -> Sequence[Answer]:
        """Asks as `ask` does, of these clients alone."""
        return self._asked(invitation, clients)

    def _asked(self, invitation: Invitation, only: Collection[str] | None) -> Sequence[Answer]:
        header, plan = pack_invitation(invitation)

        def content(payloads: Mapping[str, bytes]) -> RecordDict:
            arrays = {
                name: Array("uint8", (len(data),), CODED, data) for name, data in payloads.items()
            }
            said = _said(header=header, plan=plan, quorum=invitation.quorum)
            return RecordDict({MESSAGE: said, PUBLIC: ArrayRecord(arrays)})

        def all_of_it() -> RecordDict:
            return content(coded(invitation.question.public, {}))

        what = content(invitation.payloads) if invitation.payloads else all_of_it()
        return self._gathered(ASK, what, all_of_it=all_of_it, only=only)

    def tell(self, ask: Ask) -> list[Reply]:
        """See `news.messages.NewsBroadcast`."""
        arrays = {name: Array(np.asarray(array, order="C")) for name, array in ask.public.items()}
        content = RecordDict({MESSAGE: _said(ask=pack_ask(ask)), PUBLIC: ArrayRecord(arrays)})
        told = dict[str, Mapping[str, npt.NDArray[Any]]]()
        answers = self._gathered(TELL, content, told)
        return [Reply(answer, told.get(answer.client, {})) for answer in answers]

    def _gathered(
        self,
        kind: str,
        content: RecordDict,
        told: dict[str, Mapping[str, npt.NDArray[Any]]] | None = None,
        all_of_it: Callable[[], RecordDict] | None = None,
        only: Collection[str] | None = None,
    ) -> list[Answer]:
        """`told` gets the arrays of each client's first answer; `all_of_it` makes what a node gets
        that lacks the question before.

        only: clients to ask, None for all.
        """
        started = self.clock()
        deadline = started + self.timeout_s
        look_at = started
        wave = Wave(self.names)
        while True:
            now = self.clock()
            if now >= look_at:
                look_at = now + self.nodes_s
                due = wave.due(self._to_ask(only), now, self.again_s)
                ttl_s = max(1.0, deadline - now)
                lacking = [node for node in due if node in wave.lacking]
                self._send(
                    [node for node in due if node not in wave.lacking],
                    wave,
                    kind,
                    content,
                    ttl_s=ttl_s,
                )
                if lacking and all_of_it is not None:
                    self._send(lacking, wave, kind, all_of_it(), ttl_s=ttl_s)
            if self._collect(wave, {} if told is None else told):
                look_at = now  # they are asked at once
                continue
            waiting = {node for node in wave.waiting() if wave.name(node) not in self._silent}
            self.unanswered = {wave.name(node) for node in wave.waiting()} | self._silent.keys()
            if not waiting or self.clock() >= deadline:
                self._note_silence(wave)
                return self._with_the_silent(wave.results(), only)
            self.sleep(
                min(max(self.poll_s, _POLLED_SHARE * (self.clock() - started)), _LONGEST_POLL_S)
            )

    def _to_ask(self, only: Collection[str] | None) -> list[int]:
        """The nodes of clients; not those whose last message is still unanswered after a whole wave
        of silence."""
        nodes = list(self.grid.get_node_ids())
        if self.owner is not None:
            self.names.update({node: name for node in nodes if (name := self.owner(node))})
            nodes = [node for node in nodes if self.owner(node)]
        self.connected = len({self.names.get(node, str(node)) for node in nodes})
        self._hear()
        for client in list(self._silent):
            self._forget_gone(client, nodes)
        named = [(node, self.names.get(node, f"node-{node}")) for node in nodes]
        return [
            node
            for node, name in named
            if node not in self._silent.get(name, {}) and (only is None or name in only)
        ]

    def _with_the_silent(self, answers: list[Answer], only: Collection[str] | None) -> list[Answer]:
        heard = {answer.client for answer in answers}
        mute = [
            client
            for client, left in self._silent.items()
            if left and client not in heard and (only is None or client in only)
        ]
        return [
            *answers,
            *(
                Answer(name, 0, refusal=UNREACHABLE, cause="silent since an earlier message")
                for name in mute
            ),
        ]

    def _hear(self) -> None:
        """What became of the messages that silent clients left: an answer ends the silence, a lost
        one may be sent again."""
        left = {
            message: (client, node)
            for client, nodes in self._silent.items()
            for node, message in nodes.items()
        }
        for message, reply in self._replies(list(left)):
            client, node = left[message]
            if reply is None or reply.has_error():
                self._silent.get(client, {}).pop(node, None)
            else:
                self._silent.pop(client, None)

    def _forget_gone(self, client: str, nodes: Sequence[int]) -> None:
        """Nodes that Flower counts no longer; the client stays silent at its next one, where its
        name is known to be its own."""
        left = {
            node: message for node, message in self._silent.get(client, {}).items() if node in nodes
        }
        if left or (self.owner is not None and client in self._silent):
            self._silent[client] = left
        else:
            self._silent.pop(client, None)

    def _note_silence(self, wave: Wave) -> None:
        """Whoever was asked and did not answer, at any node; answered ends it."""
        silent = wave.waiting()
        for message, node in wave.sent.items():
            if node in silent:
                client = wave.name(node)
                if client not in self._silent:
                    logs.say(log, "client-silent", level=logging.WARNING, sender=client)
                self._silent.setdefault(client, {})[node] = message
        for client in {
            answer.client for answer in wave.answers.values() if answer.refusal != UNREACHABLE
        }:
            self._silent.pop(client, None)

    def _send(
        self, nodes: Sequence[int], wave: Wave, kind: str, content: RecordDict, *, ttl_s: float
    ) -> None:
        if not nodes:
            return
        for some in _pieces(nodes, SENT_AT_ONCE):
            sent = self._pushed(some, kind, content, ttl_s)
            for node, name in zip(some, sent + [""] * (len(some) - len(sent)), strict=True):
                if name:
                    wave.sent[name] = node
                else:
                    wave.give_up(node, "the SuperLink did not take the message")
            if self.wake:
                self.wake(some)

    def _pushed(
        self, nodes: Sequence[int], kind: str, content: RecordDict, ttl_s: float
    ) -> list[str]:
        """Names of the messages; none where a SuperLink that is too busy has not taken all parts of
        them, several times.

        One whose parts were taken after all is the same question again, which costs nothing.
        """
        for pause_s in SENT_AGAIN_S:
            try:
                return list(
                    self.grid.push_messages(
                        [Message(content, node, kind, ttl=ttl_s) for node in nodes]
                    )
                )
            except httpx.HTTPError:  # the SuperLink stays away
                raise
            except Exception:  # its session was too slow, or was begun again
                logs.say(
                    log,
                    "messages-not-taken",
                    level=logging.WARNING,
                    nodes=len(nodes),
                    wait_s=pause_s,
                )
                self.sleep(pause_s)
        return []

    def _collect(self, wave: Wave, told: dict[str, Mapping[str, npt.NDArray[Any]]]) -> bool:
        """Take the replies that are there. Whether a node lacks the question before."""
        lacking = len(wave.lacking)
        for name, reply in self._replies(wave.open_messages()):
            if name not in wave.sent:  # it was asked again
                continue
            answer = self._owned(wave.sent[name], answer_of(reply))
            if answer.refusal == Refusal.ARRAYS_UNKNOWN and wave.lacks(name):
                continue
            if reply is not None and not answer.refusal:
                told.setdefault(answer.client, arrays_of(reply))
            wave.take(name, answer)
        return len(wave.lacking) > lacking

    def _replies(self, names: Sequence[str]) -> Iterator[tuple[str, Message | None]]:
        """The replies to messages that are there, each with the message it answers; None for one
        that cannot be unpacked.

        A grid that fails over one reply (`executor` has one that does not) is asked for the others
        one by one.
        """
        asked = set(names)
        for some in _pieces(names, ASKED_AT_ONCE):
            try:
                replies = list(self.grid.pull_messages(some))
            except httpx.HTTPError:
                raise
            except Exception as failure:
                # whatever a node's bytes do to Flower's unpacking is that node's failure
                if len(some) > 1:
                    yield from (found for name in some for found in self._replies([name]))
                    continue
                logs.say_failure(log, "reply-unreadable", failure)
                yield some[0], None
                continue
            for reply in replies:
                name = reply.metadata.reply_to_message_id
                if name in asked:
                    asked.remove(name)
                    yield (
                        name,
                        None if reply.has_error() and reply.error.code == UNREADABLE else reply,
                    )

    def _owned(self, node: int, answer: Answer) -> Answer:
        """An answer in the name of the client that the node is."""
        owner = self.owner(node) if self.owner else answer.client
        if not answer.client or answer.client == owner:
            return answer
        logs.say(log, "false-name", level=logging.WARNING, sender=owner, node=str(node))
        return Answer(
            owner, 0, refusal=Refusal.FORBIDDEN.value, cause="it answered in another client's name"
        )


def _pieces(parts: Sequence[T], size: int) -> Iterator[list[T]]:
    return (list(parts[start : start + size]) for start in range(0, len(parts), size))


def _said(**parts: bytes | int) -> ConfigRecord:
    return ConfigRecord({**parts, FIELD: PROTOCOL})
