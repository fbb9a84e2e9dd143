"""Strategy for anybody's Flower app: sums bounded updates, adds discrete Gaussian noise once, and
keeps a ledger of what that costs.

    strategy = PrivateSum(epsilon=5, delta=1e-5, rounds=20, radius=1.0, nodes=50)
    strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=20)

Guarantee: (epsilon, delta)-DP of all rounds together; unit "user", which is a node with everything
it holds, neighbours "add/remove", the number of nodes public. Proof: every report has L2 norm at
most `radius` (`federation.reports`, checked again here), and `federation.releases.release` charges
the ledger before it draws noise. The ServerApp sees reports before the noise, as with Flower's own
central wrappers: it is trusted. Metrics of replies are not read, and nodes are not asked to
evaluate: neither is covered.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedrec.arrays import Float64s, Int64s
from fedrec.errors import PrivacyError
from fedrec.federation.messages import BlockReports, Question, ReleaseSpec, Reports
from fedrec.federation.releases import Charge, release
from fedrec.federation.reports import ExactSums, block, within_radius
from fedrec.federation.round_messages import read_npy
from fedrec.privacy.accounting import Ledger
from fedrec.privacy.calibration import calibrate
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Streams, SystemStreams

log = logging.getLogger("flwr")
"""What Flower shows."""

RADIUS = "fedrec.radius"
"""Key of the config record that tells `mods.bounded_update` the radius."""
COEFFICIENTS = "fedrec.coefficients"
VECTORS = "fedrec.vectors"
"""Arrays of a reply, both int32: (1,) and (1, numbers of the model)."""


def spec_of(width: int, radius: float, name: str = "update") -> ReleaseSpec:
    """The grid of an update of so many numbers, whose L2 norm is at most `radius`."""
    dense = block("update", "linear", rows=1, width=width, radius=radius)
    return ReleaseSpec(name, (dense,), radius)


def flat(arrays: ArrayRecord) -> Float64s:
    """(n,) all numbers of a model, array by array."""
    return np.concatenate([array.numpy().ravel() for array in arrays.values()], dtype=np.float64)


class PrivateSum(Strategy):
    """Moves the arrays by `learning_rate` times the noised sum of updates over `nodes`. `ledger`
    holds what was spent.

    Args:
        epsilon: Of the whole training, per node (add/remove).
        delta: The probability with which the guarantee may fail.
        rounds: Of the whole training, over which the budget is divided evenly.
        radius: L2 norm to which an update is cut.
        nodes: How many take part; all of them are waited for.
        learning_rate: What the mean update is multiplied by.
        noise: `SystemStreams`, or `Streams(seed)` for an experiment.
        charge: Told of each release before its noise is drawn; it may keep it on disk.
        sleep: Waits for nodes; a test's to replace.

    Raises:
        ValueError: Rounds, nodes or radius are not positive.
    """

    def __init__(
        self,
        *,
        epsilon: float,
        delta: float,
        rounds: int,
        radius: float,
        nodes: int,
        learning_rate: float = 1.0,
        noise: Streams | SystemStreams | None = None,
        charge: Charge | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if rounds < 1 or nodes < 1 or not 0 < radius < np.inf:
            raise ValueError(
                "rounds, nodes and a finite radius must be positive, found "
                f"{rounds!r}, {nodes!r} and {radius!r}"
            )
        shares = {f"update/{t}": 1.0 for t in range(1, rounds + 1)}
        self.plan = calibrate(Guarantee(epsilon, delta), shares)
        self.ledger = Ledger(self.plan.guarantee)
        self._rounds = rounds
        self._radius = radius
        self._nodes = nodes
        self._learning_rate = learning_rate
        self._noise = noise or SystemStreams()
        self._charge = charge
        self._sleep = sleep
        self._arrays = ArrayRecord()
        self._asked = frozenset[int]()

    def summary(self) -> None:
        """Say what is promised, where Flower shows it."""
        log.info("%s, %d rounds of %d nodes", self.plan.guarantee, self._rounds, self._nodes)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """A message to every node.

        Args:
            server_round: From 1.
            arrays: The current ones.
            config: Sent along.
            grid: Flower's, whose nodes are asked.

        Returns:
            The messages.

        Raises:
            PrivacyError: This is past the last round of the plan.
        """
        if server_round > self._rounds:
            raise PrivacyError(
                f"round {server_round} is past the {self._rounds} that the budget is divided over",
                "Give PrivateSum as many rounds as start().",
            )
        while len(nodes := sorted(grid.get_node_ids())) < self._nodes:
            self._sleep(1.0)
        self._arrays = arrays
        self._asked = frozenset(nodes[: self._nodes])
        told = ConfigRecord({**config, "server-round": server_round, RADIUS: self._radius})
        content = RecordDict({"arrays": arrays, "config": told})
        return [Message(content, node, MessageType.TRAIN) for node in sorted(self._asked)]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord, MetricRecord]:
        """The arrays after the round, and what was spent by then.

        A report that is not within the radius, and a second one of a node, count as none. The round
        is released whoever answered: that somebody is missing must not show in whether it is.

        Args:
            server_round: The one that was asked.
            replies: Of the nodes.

        Returns:
            Arrays, and epsilon.

        Raises:
            BudgetExceededError: The ledger's limit would be passed; no noise is drawn then.
        """
        before = flat(self._arrays)
        spec = spec_of(len(before), self._radius, f"update/{server_round}")
        sums = ExactSums(spec.blocks)
        heard = set[int]()
        for reply in replies:
            node = reply.metadata.src_node_id
            if node in self._asked - heard and _added(reply, spec, sums):
                heard.add(node)
        question = Question(server_round, "update", {}, (spec,))
        done, self.ledger = release(
            question, sums.blocks, self.plan, self.ledger, noise=self._noise, charge=self._charge
        )
        after = before + self._learning_rate * done.values["update"][0] / self._nodes
        spent = {"epsilon": self.ledger.epsilon, "reported": len(heard), "asked": len(self._asked)}
        return _shaped(after, self._arrays), MetricRecord({**spent})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Nobody: a node's metrics are no part of the guarantee. `evaluate_fn` has public data.

        Args:
            server_round: Not read.
            arrays: Not read.
            config: Not read.
            grid: Not read.

        Returns:
            No messages.
        """
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> None:
        """Nothing was asked.

        Args:
            server_round: Not read.
            replies: None come.
        """


def _added(reply: Message, spec: ReleaseSpec, sums: ExactSums) -> bool:
    """Whether the reply holds a report within the radius, which is in the sums then."""
    try:
        (record,) = reply.content.array_records.values()
        part = BlockReports(read_npy(record[COEFFICIENTS].data), read_npy(record[VECTORS].data))
        report = Reports(np.zeros(2, np.int64), np.zeros(0, np.int32), (part,))
        if {part.coefficients.dtype, part.vectors.dtype} != {np.dtype(np.int32)}:
            return False
        checked = ExactSums(spec.blocks)
        checked.add(report)  # shapes and bits
        if not within_radius(report, (spec,)).all():
            return False
    except (ValueError, KeyError):  # no content, no such array, none of ours
        return False
    sums.add(report)
    return True


def _shaped(numbers: Float64s, like: ArrayRecord) -> ArrayRecord:
    arrays = dict[str, Array]()
    start = 0
    for name, array in like.items():
        old = array.numpy()
        part: Float64s | Int64s = numbers[start : start + old.size].reshape(old.shape)
        arrays[name] = Array(part.astype(old.dtype))
        start += old.size
    return ArrayRecord(arrays)
