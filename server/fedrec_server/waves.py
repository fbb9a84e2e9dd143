"""Wave of one message over the nodes of a post: whom it was sent to, who has answered, and whom to
ask again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from fedrec.federation.protocol import Answer
from fedrec_server.cohorts import UNREACHABLE


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
