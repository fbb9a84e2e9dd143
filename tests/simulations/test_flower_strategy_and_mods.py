"""Strategy and mods for other people's Flower apps: what leaves a node is bounded, noise is drawn
once a round, and the ledger says what was spent."""

from __future__ import annotations

import math
import runpy
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from scipy import stats

from fedrec.errors import BudgetExceededError, PrivacyError
from fedrec.privacy.accounting import GaussianEvent, epsilon_of, mu_for
from fedrec.randomness import Streams
from fedrec_app.mods import LABELS, RandomizedLabels, bounded_update
from fedrec_app.strategy import COEFFICIENTS, VECTORS, PrivateSum, flat
from tests.flower_grid import RUN_ID, InProcessGrid

START = {"W": np.ones((3, 2), np.float32), "b": np.zeros(4)}
NODES = 5
INFINITE = math.inf


def model(**changes: Any) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in (START | changes).items()})


def app(change: Callable[[int], float]) -> ClientApp:
    """A node that moves every entry of W by `change(node)`."""
    made = ClientApp(mods=[bounded_update])

    @made.train()
    def train(message: Message, context: Context) -> Message:
        moved = START["W"] + np.float32(change(context.node_id))
        return Message(RecordDict({"mine": model(W=moved)}), reply_to=message)

    return made


def private(**chosen: Any) -> PrivateSum:
    usual = {"epsilon": 5.0, "delta": 1e-5, "rounds": 2, "radius": 1.0, "nodes": NODES}
    return PrivateSum(**(usual | {"noise": Streams(3)} | chosen))


def nodes(change: Callable[[int], float] = lambda node: 0.1) -> InProcessGrid:
    return InProcessGrid({2 + k: app(change) for k in range(NODES)})


def one_round(chosen: PrivateSum, grid: InProcessGrid) -> tuple[ArrayRecord, Any]:
    messages = chosen.configure_train(1, model(), ConfigRecord(), grid)
    return chosen.aggregate_train(1, grid.send_and_receive(messages))


def update(arrays: ArrayRecord) -> np.ndarray[Any, Any]:
    return flat(arrays) - flat(model())


def test_without_noise_the_model_moves_by_the_mean_of_all_updates() -> None:
    arrays, _ = one_round(private(epsilon=INFINITE), nodes(lambda node: 0.01 * node))
    moved = arrays["W"].numpy() - START["W"]
    assert moved.dtype == np.float32
    assert moved == pytest.approx(0.01 * np.mean(range(2, 2 + NODES)), abs=1e-4)
    assert (arrays["b"].numpy() == 0).all()


def test_an_update_is_cut_to_the_radius_over_all_arrays_together() -> None:
    arrays, _ = one_round(private(epsilon=INFINITE, radius=0.5), nodes(lambda node: 1e6))
    assert np.linalg.norm(update(arrays)) == pytest.approx(0.5, abs=1e-3)


def test_a_reply_of_the_mod_holds_the_report_and_nothing_else() -> None:
    grid = nodes()
    (reply, *_) = grid.send_and_receive(private().configure_train(1, model(), ConfigRecord(), grid))
    assert {name: {*record} for name, record in reply.content.items()} == {
        "report": {COEFFICIENTS, VECTORS}
    }


def test_noise_has_the_std_that_the_ledger_was_charged_for() -> None:
    """Kolmogorov-Smirnov at 1e-4, and it fails at 2/3 and 3/2 of the std."""
    chosen = private(radius=0.7)
    wide = {"W": np.zeros((50, 80)), "b": np.zeros(4)}
    arrays = ArrayRecord({name: Array(array) for name, array in wide.items()})
    chosen.configure_train(1, arrays, ConfigRecord(), nodes())
    released, _ = chosen.aggregate_train(1, [])
    (event,) = chosen.ledger.events
    std = 0.7 / event.mu / NODES
    drawn = flat(released)
    assert stats.kstest(drawn / std, "norm").pvalue > 1e-4
    for factor in (2 / 3, 3 / 2):
        assert stats.kstest(drawn / std / factor, "norm").pvalue < 1e-4


def test_all_rounds_together_spend_what_was_asked_for_and_no_more() -> None:
    chosen = private()
    result = chosen.start(nodes(), model(), num_rounds=2)
    assert chosen.ledger.epsilon == pytest.approx(5.0)
    assert [m["epsilon"] for m in result.train_metrics_clientapp.values()] == [
        pytest.approx(epsilon_of(mu_for(5.0, 1e-5) / math.sqrt(2), 1e-5)),
        pytest.approx(5.0),
    ]
    with pytest.raises(BudgetExceededError):  # the same strategy, once more
        chosen.start(nodes(), model(), num_rounds=1)
    with pytest.raises(PrivacyError, match="past the 2"):
        chosen.configure_train(3, model(), ConfigRecord(), nodes())


def test_a_release_is_charged_before_its_noise_is_drawn() -> None:
    class NoNoise(Streams):
        def key(self, name: str, *, round: int = 0) -> bytes:
            raise AssertionError("drawn")

    def refuse(events: Sequence[GaussianEvent]) -> None:
        raise BudgetExceededError("full", "Stop.")

    with pytest.raises(BudgetExceededError):
        one_round(private(noise=NoNoise(1), charge=refuse), nodes())


@pytest.mark.parametrize(
    "forged",
    [
        {COEFFICIENTS: np.full(1, 2**15 - 1, np.int32)},  # longer than the radius
        {COEFFICIENTS: np.full(1, 2**20, np.int32)},
        {VECTORS: np.full((1, 10), 2**15 - 1, np.int32)},
        {VECTORS: np.zeros((1, 9), np.int32)},
        {VECTORS: np.zeros((2, 10), np.int32)},
        {VECTORS: np.zeros((1, 10), np.float64)},
        {VECTORS: np.full((1, 10), np.nan)},
        {COEFFICIENTS: None},
    ],
)
def test_a_report_that_is_not_within_the_radius_counts_as_none(forged: dict[str, Any]) -> None:
    def hostile(message: Message, context: Context) -> Message:
        reply = app(lambda node: 0.1)(message, context)
        for name, array in forged.items():
            record = reply.content["report"]
            assert isinstance(record, ArrayRecord)
            if array is None:
                del record[name]
            else:
                record[name] = Array(array)
        return reply

    grid = nodes()
    grid._apps[3] = hostile
    arrays, metrics = one_round(private(epsilon=INFINITE), grid)
    assert (metrics["reported"], metrics["asked"]) == (NODES - 1, NODES)
    share = (NODES - 1) / NODES
    assert arrays["W"].numpy() - 1 == pytest.approx(0.1 * share, abs=1e-4)


def test_a_node_is_counted_once_and_one_that_was_not_asked_never() -> None:
    grid = nodes()
    chosen = private(epsilon=INFINITE)
    messages = list(chosen.configure_train(1, model(), ConfigRecord(), grid))
    first, second, *_ = grid.send_and_receive(messages)
    second.metadata.__dict__["_src_node_id"] = 99
    error = Message(Error(2, "away"), reply_to=messages[2])
    arrays, metrics = chosen.aggregate_train(1, [first, first, second, error])
    assert metrics["reported"] == 1
    assert arrays["W"].numpy() - 1 == pytest.approx(0.1 / NODES, abs=1e-4)


def test_whoever_has_another_model_or_no_numbers_sends_nothing() -> None:
    other = ClientApp(mods=[bounded_update])

    @other.train()
    def train(message: Message, context: Context) -> Message:
        changed = {"W": np.zeros((2, 3))} if context.node_id == 2 else {"b": np.full(4, np.nan)}
        return Message(RecordDict({"mine": model(**changed)}), reply_to=message)

    grid = InProcessGrid({2: other, 3: other})
    replies = grid.send_and_receive(
        private(nodes=2).configure_train(1, model(), ConfigRecord(), grid)
    )
    assert all(reply.has_error() for reply in replies)


def test_nodes_that_are_not_there_yet_are_waited_for_and_nobody_evaluates() -> None:
    grid = InProcessGrid({})

    def sleep(_: float) -> None:
        grid._apps[2 + len(grid._apps)] = app(lambda node: 0.1)

    chosen = private(sleep=sleep)
    messages: Iterable[Message] = chosen.configure_train(1, model(), ConfigRecord(), grid)
    assert [message.metadata.dst_node_id for message in messages] == [2, 3, 4, 5, 6]
    assert chosen.configure_evaluate(1, model(), ConfigRecord(), grid) == []


@pytest.mark.parametrize("wrong", [{"rounds": 0}, {"nodes": 0}, {"radius": INFINITE}])
def test_numbers_that_make_no_guarantee_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        private(**wrong)


# --- labels ---

TRUTH = np.arange(2_000) % 4


def labelled(truth: np.ndarray[Any, Any], context: Context, epsilon: float) -> Any:
    InProcessGrid({})
    asked = Message(RecordDict(), 2, "query.labels")
    mod = RandomizedLabels(epsilon, 4, Streams(5))

    def tell(message: Message, _: Context) -> Message:
        told = ArrayRecord({LABELS: Array(truth)})
        return Message(RecordDict({LABELS: told}), reply_to=message)

    return mod(asked, context, tell).content[LABELS][LABELS].numpy()  # type: ignore[index]


def test_labels_leave_by_randomised_response() -> None:
    told = labelled(TRUTH, Context(RUN_ID, 2, {}, RecordDict(), {}), 1.0)
    true = int((told == TRUTH).sum())
    assert stats.binomtest(true, len(TRUTH), math.e / (math.e + 3)).pvalue > 1e-4
    assert RandomizedLabels(1.0, 4).event.epsilon == 1.0


def test_labels_that_are_asked_for_again_are_the_same_and_cost_nothing_more() -> None:
    context = Context(RUN_ID, 2, {}, RecordDict(), {})
    first = labelled(TRUTH, context, 1.0)
    assert (labelled(TRUTH[::-1].copy(), context, 1.0) == first).all()
    with pytest.raises(ValueError, match="2000 labels were told, found 3"):
        labelled(TRUTH[:3], context, 1.0)


@pytest.mark.slow
def test_the_example_with_another_peoples_model_prints_what_was_spent(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def played(server: ServerApp, client: ClientApp, count: int) -> None:
        grid = InProcessGrid(dict.fromkeys(range(2, 2 + count), client))
        server(grid, Context(RUN_ID, 1, {}, RecordDict(), {}))

    monkeypatch.setattr("flwr.simulation.run_simulation", played)  # which needs Ray
    example = Path(__file__).parents[2] / "docs" / "examples" / "flower_factorization.py"
    assert example.read_text().count("\n") < 70
    found = runpy.run_path(str(example))
    printed = capsys.readouterr().out.splitlines()
    start, ours, theirs = [line for line in printed if " error " in line]
    assert "epsilon 8 at delta 1e-05 per user" in ours
    assert "gdp=8.0" in theirs
    assert found["private"].ledger.epsilon == pytest.approx(8.0)
    errors = [float(line.split("error ")[1].split(",")[0]) for line in (start, ours, theirs)]
    assert max(errors[1:]) < 0.8 * errors[0]
