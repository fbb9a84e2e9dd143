"""Mods for anybody's ClientApp: bounded updates for `strategy.PrivateSum`, and randomised labels.

app = ClientApp(mods=[bounded_update])
app = ClientApp(mods=[RandomizedLabels(epsilon=1.0, symbols=10)])
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MessageType, RecordDict

from fedrec.federation.reports import RealBlock, bounded
from fedrec.privacy.selection import PureEvent, draw, randomised_response
from fedrec.randomness import Streams, SystemStreams
from fedrec_app.strategy import COEFFICIENTS, RADIUS, VECTORS, flat, spec_of

App = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, App], Message]

LABELS = "labels"
"""Name of the record, and of its array, that `RandomizedLabels` replaces."""
_KEPT = "fedrec.labels"


def bounded_update(message: Message, context: Context, call_next: App) -> Message:
    """A training reply's arrays become a report: new minus old, cut to the radius that the strategy
    told, on its integer grid. Metrics of the reply stay here.

    The reply must have one array record, with the arrays of the message.

    Args:
        message: Flower's, from `PrivateSum`.
        context: The node's.
        call_next: The mods and the app below.

    Returns:
        The reply, whose arrays are the report.

    Raises:
        ValueError: The reply has other arrays, or numbers that are not finite.
    """
    reply = call_next(message, context)
    if message.metadata.message_type != MessageType.TRAIN or reply.has_error():
        return reply
    (before,) = message.content.array_records.values()
    (after,) = reply.content.array_records.values()
    shapes = [{name: array.shape for name, array in each.items()} for each in (before, after)]
    if shapes[0] != shapes[1]:
        raise ValueError(f"a reply has the arrays of its message, found {[*after]}")
    (config,) = message.content.config_records.values()
    update = flat(after) - flat(before)
    part = RealBlock(np.ones(1), update[None])
    spec = spec_of(len(update), float(config[RADIUS]))  # type: ignore[arg-type]
    nothing = np.zeros(0, np.int32)
    report = bounded(np.zeros(2, np.int64), nothing, [part], [spec], scaling="clip").blocks[0]
    arrays = {COEFFICIENTS: Array(report.coefficients), VECTORS: Array(report.vectors)}
    return Message(RecordDict({"report": ArrayRecord(arrays)}), reply_to=message)


@dataclass(frozen=True)
class RandomizedLabels:
    """A reply's array `labels.labels` of symbols 0 .. symbols - 1 leaves by randomised response.

    Each label is (epsilon, 0)-private, one exchanged for another, however often it is asked for:
    the first answer is kept in the node's context and told again. A SuperNode that loses its
    context, at a restart, draws anew and pays again. A node's labels must not change their number.
    noise: `SystemStreams`, or `Streams(seed)` for an experiment.
    """

    epsilon: float
    symbols: int
    noise: Streams | SystemStreams = field(default_factory=SystemStreams)

    @property
    def event(self) -> PureEvent:
        """What one label costs."""
        return randomised_response(self.symbols, self.epsilon).event(LABELS)

    def __call__(self, message: Message, context: Context, call_next: App) -> Message:
        """See the class. Raises ValueError on a symbol that is none, and on another number of
        labels than the first time."""
        reply = call_next(message, context)
        if reply.has_error() or LABELS not in reply.content.array_records:
            return reply
        truth = reply.content.array_records[LABELS][LABELS].numpy()
        if _KEPT not in context.state.array_records:
            mechanism = randomised_response(self.symbols, self.epsilon)
            key = self.noise.key(f"labels/{context.node_id}")
            told, _ = draw(truth, mechanism, name=LABELS, key=key)
            context.state[_KEPT] = ArrayRecord({LABELS: Array(told[:, 0])})
        kept = context.state.array_records[_KEPT]
        if len(kept[LABELS].numpy()) != len(truth):
            raise ValueError(f"{len(kept[LABELS].numpy())} labels were told, found {len(truth)}")
        reply.content[LABELS] = ArrayRecord({LABELS: kept[LABELS]})
        return reply
