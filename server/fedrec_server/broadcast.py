"""Terms and questions to every client, and their answers, over whatever carries messages: our own
service (`round_service`) or Flower's grid (`flower`).

What a client sends is read with suspicion: it costs that client its answer, never the others
theirs. Which client a node is, our service knows by its certificate: an answer in another's name is
none.

Wave of one message over the nodes of a post: whom it was sent to, who has answered, and whom to
ask again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy.typing as npt

from fedrec.errors import RefusedError
from fedrec.federation.coding import coded, deflated
from fedrec.federation.protocol import Answer, Invitation, Refusal, Terms
from fedrec.federation.round_messages import (
    ASK,
    FIELD,
    JOIN,
    TELL,
    RoundMessage,
    npy_files,
    read_npy,
    said,
    spoken,
)
from fedrec.federation.wire import pack_invitation, pack_terms, read_answer
from fedrec.news.messages import Ask, Reply, pack_ask
from fedrec.operations import logs
from fedrec_server.cohorts import UNREACHABLE

Received: TypeAlias = RoundMessage | Answer
"""What came back for a message: a client's own words, or the refusal that stands in their place."""
_ANSWER_BYTES = 2**16
_POLLED_SHARE = 0.05
_LONGEST_POLL_S = 1.0
"""An answer is a few numbers. Between two looks a twentieth of what a round has taken passes, and a
second at most: short rounds are not slowed, and long ones cost few calls."""
log = logging.getLogger(__name__)


@dataclass
class Wave:
    """One message to all nodes: what was sent, who answered. `names` are the clients that nodes
    were heard as.

    lacking: nodes without the arrays that a question stands on.
    """

    names: dict[str, str]
    sent: dict[str, str] = field(default_factory=dict)
    answers: dict[str, Answer] = field(default_factory=dict)
    again_at: dict[str, tuple[float, float]] = field(default_factory=dict)
    lacking: set[str] = field(default_factory=set)

    def lacks(self, message: str) -> bool:
        """Whether the node of this message is to get all arrays: once, so that a node cannot ask
        without end."""
        node = self.sent[message]
        if node in self.lacking:
            return False
        self.lacking.add(node)
        del self.sent[message], self.again_at[node]
        return True

    def due(self, nodes: Iterable[str], now: float, again_s: float) -> list[str]:
        """Nodes to ask now: those never asked in this wave, and those silent for too long, each
        time twice as long."""
        due = list[str]()
        for node in nodes:
            at, pause_s = self.again_at.get(node, (now, again_s))
            if now >= at and node not in self.answers:
                self.again_at[node] = (now + pause_s, 2 * pause_s)
                due.append(node)
        return due

    def take(self, message: str, answer: Answer) -> None:
        """The first answer of a node counts; an answer without a client's name gets the name the
        node was heard as."""
        node = self.sent[message]
        if answer.client:
            self.names[node] = answer.client
        self.answers.setdefault(node, answer if answer.client else _named(answer, self.name(node)))

    def give_up(self, node: str, cause: str) -> None:
        """Wait for the node no longer."""
        self.answers.setdefault(node, Answer(self.name(node), 0, refusal=UNREACHABLE, cause=cause))

    def open_messages(self) -> list[str]:
        """Those to nodes that have not answered."""
        return [message for message, node in self.sent.items() if node not in self.answers]

    def waiting(self) -> set[str]:
        """Nodes that were asked, and whose client has answered neither here nor at another node."""
        heard = {answer.client for answer in self.answers.values() if answer.refusal != UNREACHABLE}
        return {
            node
            for node in self.sent.values()
            if node not in self.answers and self.names.get(node) not in heard
        }

    def results(self) -> list[Answer]:
        """All answers, `UNREACHABLE` where there is none in time; not for a node whose client
        answered at another one."""
        for node in self.waiting():
            self.give_up(node, "no answer in time")
        heard = {answer.client for answer in self.answers.values() if answer.refusal != UNREACHABLE}
        return [
            answer
            for answer in self.answers.values()
            if answer.refusal != UNREACHABLE or answer.client not in heard
        ]

    def name(self, node: str) -> str:
        """Name of the client, or of the node where it is not known."""
        return self.names.get(node, f"node-{node}")


def _named(answer: Answer, client: str) -> Answer:
    return Answer(
        client, answer.users, answer.accepted, answer.rejected, answer.refusal, answer.cause
    )


class Post(Protocol):
    """What carries messages to nodes and replies back; a node is a client, or where one runs.

    again_s: after how many seconds a silent node is asked again, infinity where no message is lost.
    owned: whether it knows which client a node is; nodes are believed where it does not.
    """

    again_s: float
    owned: bool

    def nodes(self) -> Sequence[str]:
        """Those that are there."""

    def owner(self, node: str) -> str:
        """The client that a node is, "" where that is not known."""

    def send(self, nodes: Sequence[str], message: RoundMessage, ttl_s: float) -> Sequence[str]:
        """Names of the messages, in the order of the nodes; fewer where some were not taken."""

    def replies(self, names: Collection[str]) -> Iterable[tuple[str, Received]]:
        """The replies to these messages that are there, each once."""


@dataclass
class ClientBroadcast:
    """A `Broadcast` over a post's nodes. Seconds; `sleep` and `clock` are the test's to replace.

    An answer is waited for up to `timeout_s`. A node that is silent for `again_s` is asked again,
    then after twice that and so on, where messages can be lost: a question asked twice is counted
    once. A node that appears meanwhile is asked too, and a client that answers from there is not
    waited for at its old node.

    connected: clients whose nodes were there at the last look. unanswered: clients that were asked
    and have not answered.
    Replies are fetched for all nodes together, every `poll_s` at first, and after a long wait every
    twentieth part of it, up to a second. A client that was silent for a whole wave takes the
    others' time no longer: it is asked, one message at a time, and waited for again when it has
    answered one, however late.
    """

    post: Post
    timeout_s: float
    poll_s: float = 0.1
    nodes_s: float = 1.0
    again_s: float = float("inf")
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    names: dict[str, str] = field(default_factory=dict)
    connected: int = 0
    unanswered: Collection[str] = ()
    # by client, the last message of each of its nodes
    _silent: dict[str, dict[str, str]] = field(default_factory=dict)

    def join(self, terms: Terms) -> Sequence[Answer]:
        """One answer per client; none while no node is there."""
        return self._gathered(RoundMessage(said(terms=deflated(pack_terms(terms))), kind=JOIN))

    def ask(self, invitation: Invitation) -> Sequence[Answer]:
        """One answer per client; `UNREACHABLE` for one that did not answer in time."""
        return self._asked(invitation, None)

    def ask_some(self, invitation: Invitation, clients: Collection[str]) -> Sequence[Answer]:
        """Asks as `ask` does, of these clients alone."""
        return self._asked(invitation, clients)

    def _asked(self, invitation: Invitation, only: Collection[str] | None) -> Sequence[Answer]:
        header, plan = pack_invitation(invitation)
        words = said(header=header, plan=plan, quorum=invitation.quorum)

        def all_of_it() -> RoundMessage:
            return RoundMessage(words, coded(invitation.question.public, {}), ASK)

        what = RoundMessage(words, invitation.payloads, ASK) if invitation.payloads else all_of_it()
        return self._gathered(what, all_of_it=all_of_it, only=only)

    def tell(self, ask: Ask) -> list[Reply]:
        """See `news.messages.NewsBroadcast`."""
        told = dict[str, Mapping[str, npt.NDArray[Any]]]()
        what = RoundMessage(said(ask=pack_ask(ask)), npy_files(ask.public), TELL)
        answers = self._gathered(what, told)
        return [Reply(answer, told.get(answer.client, {})) for answer in answers]

    def _gathered(
        self,
        what: RoundMessage,
        told: dict[str, Mapping[str, npt.NDArray[Any]]] | None = None,
        all_of_it: Callable[[], RoundMessage] | None = None,
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
                self._send([node for node in due if node not in wave.lacking], wave, what, ttl_s)
                lacking = [node for node in due if node in wave.lacking]
                if lacking and all_of_it is not None:
                    self._send(lacking, wave, all_of_it(), ttl_s)
            if self._collect(wave, {} if told is None else told):
                look_at = now  # they are asked at once
                continue
            waiting = {node for node in wave.waiting() if wave.name(node) not in self._silent}
            self.unanswered = {wave.name(node) for node in wave.waiting()} | self._silent.keys()
            if not waiting or self.clock() >= deadline:
                self._note_silence(wave)
                return self._with_the_silent(wave.results(), only)
            # Flower's grid is asked; it tells nobody that a reply has come
            self.sleep(
                min(max(self.poll_s, _POLLED_SHARE * (self.clock() - started)), _LONGEST_POLL_S)
            )

    def _to_ask(self, only: Collection[str] | None) -> list[str]:
        """The nodes of clients; not those whose last message is still unanswered after a whole wave
        of silence."""
        nodes = list(self.post.nodes())
        self.names.update({node: name for node in nodes if (name := self.post.owner(node))})
        self.connected = len({self.names.get(node, node) for node in nodes})
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
        for message, reply in self.post.replies(list(left)):
            client, node = left[message]
            if isinstance(reply, Answer):
                self._silent.get(client, {}).pop(node, None)
            else:
                self._silent.pop(client, None)

    def _forget_gone(self, client: str, nodes: Sequence[str]) -> None:
        """Nodes that are there no longer; the client stays silent at its next one, where its name
        is known to be its own."""
        left = {
            node: message for node, message in self._silent.get(client, {}).items() if node in nodes
        }
        if left or (client in self._silent and self.post.owned):
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

    def _send(self, nodes: Sequence[str], wave: Wave, what: RoundMessage, ttl_s: float) -> None:
        sent = list(self.post.send(nodes, what, ttl_s)) if nodes else []
        for node, name in zip(nodes, sent + [""] * (len(nodes) - len(sent)), strict=True):
            if name:
                wave.sent[name] = node
            else:
                wave.give_up(node, "its message was not taken")

    def _collect(self, wave: Wave, told: dict[str, Mapping[str, npt.NDArray[Any]]]) -> bool:
        """Take the replies that are there. Whether a node lacks the question before."""
        lacking = len(wave.lacking)
        for name, reply in self.post.replies(wave.open_messages()):
            if name not in wave.sent:  # it was asked again
                continue
            answer = self._owned(wave.sent[name], answer_of(reply))
            if answer.refusal == Refusal.ARRAYS_UNKNOWN and wave.lacks(name):
                continue
            if isinstance(reply, RoundMessage) and not answer.refusal:
                told.setdefault(answer.client, arrays_of(reply))
            wave.take(name, answer)
        return len(wave.lacking) > lacking

    def _owned(self, node: str, answer: Answer) -> Answer:
        """An answer in the name of the client that the node is."""
        owner = self.post.owner(node)
        if not self.post.owned or not answer.client or answer.client == owner:
            return answer
        logs.say(log, "false-name", level=logging.WARNING, sender=owner, node=node)
        return Answer(
            owner, 0, refusal=Refusal.FORBIDDEN.value, cause="it answered in another client's name"
        )


def answer_of(reply: Received) -> Answer:
    """What a node said, or a refusal in its place; `client` is empty where it did not say who it
    is."""
    if isinstance(reply, Answer):
        return reply
    value = reply.bytes_of("answer")
    if value is None or len(value) > _ANSWER_BYTES:
        return malformed(f"its reply holds no answer of at most {_ANSWER_BYTES} bytes")
    try:
        answer = read_answer(value)
    except RefusedError as failure:
        return malformed(failure.cause)
    try:
        spoken(reply.said.get(FIELD), who=f"client {answer.client}")
    except RefusedError as failure:
        return Answer(
            answer.client, 0, refusal=failure.code, cause=f"{failure.cause}. {failure.remedy}"
        )
    return answer


def arrays_of(reply: RoundMessage) -> Mapping[str, npt.NDArray[Any]]:
    """What a client told, as far as it can be read; what is missing is found out by who needs
    it."""
    found = dict[str, npt.NDArray[Any]]()
    for name, content in reply.arrays.items():
        with suppress(ValueError):
            found[name] = read_npy(content)
    return found


def malformed(cause: str) -> Answer:
    """An answer in place of a reply that cannot be read."""
    return Answer("", 0, refusal=Refusal.MALFORMED.value, cause=cause)
