"""Sums are the same in any order and tree, and an engine that loses workers counts every part
exactly once."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedrec.data.planted import SHAPES, planted
from fedrec.data.splits import random_split
from fedrec.errors import DataError, RunError
from fedrec.evaluation.controls import paired
from fedrec.evaluation.ranking import evaluate_ranking
from fedrec.evaluation.ratings import by_popularity, rating_metrics
from fedrec.evaluation.toplists import same_for_everyone
from fedrec.run.data.describing import partition
from fedrec.run.partitions import on_ray
from fedrec.run.partitions.evaluation import Moments, TestSums, TestTask, outcomes
from fedrec.run.partitions.methods import BiasMethod, CountTask, PopularityMethod
from fedrec.run.partitions.on_ray import OnRay
from fedrec.run.partitions.parts import InThisProcess, Parts, PartSplit, merged
from fedrec.settings import load


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    folder = tmp_path_factory.mktemp("data") / "parts"
    partition(load(None, ["data.preset=small"]), str(folder), parts=6, resume=False)
    return Parts(load(None, [f'data.path="{folder}"']))


def _quiet(done: int, of: int) -> None: ...


def test_evaluation_from_sums_is_that_of_all_users_together(parts: Parts) -> None:
    split = random_split(planted(SHAPES["small"], seed=1).interactions, seed=1)
    train = split.train
    targets = split.test.targets
    counts = np.bincount(train.items, minlength=train.num_items)
    rng = np.random.default_rng(1)
    methods = {
        f"{n}": BiasMethod(3.0 + n / 5, rng.normal(0, 0.3, train.num_items), 4.0, (1.0, 5.0))
        for n in range(3)
    }
    listed = {"popular": PopularityMethod(counts), "rare": PopularityMethod(-counts)}
    task = TestTask(methods, listed, counts, (5, 10), 1.0)
    found = outcomes(task, InThisProcess(parts).reduce(task, _quiet))
    expected = {name: method.predictions(split.test) for name, method in methods.items()}
    metrics = {
        name: rating_metrics(prediction, targets)
        for name, prediction in expected.items()
        if prediction is not None
    }
    for name, metric in metrics.items():
        ours = found[name].ratings
        assert ours is not None
        assert (ours.events, ours.users) == (metric.events, metric.users)
        assert [ours.rmse, ours.mae, ours.rmse_stderr] == pytest.approx(
            [metric.rmse, metric.mae, metric.rmse_stderr], rel=1e-5
        )
        slices = by_popularity(expected[name], targets, counts)
        assert [s.rmse for s in found[name].rating_buckets] == pytest.approx(
            [s.rmse for s in slices], rel=1e-5
        )
        assert [s.rmse_stderr for s in found[name].rating_buckets] == pytest.approx(
            [s.rmse_stderr for s in slices], rel=1e-3
        )
    for one, other in itertools.combinations(metrics, 2):
        apart = paired(found[one].ratings.influence, found[other].ratings.influence)  # type: ignore[union-attr]
        assert apart == pytest.approx(
            paired(metrics[one].influence, metrics[other].influence), rel=1e-4
        )
    reports = {
        name: evaluate_ranking(
            same_for_everyone(sign * counts),
            history=train,
            targets=targets,
            train_counts=counts,
            cutoffs=(5, 10),
        )
        for name, sign in (("popular", 1), ("rare", -1))
    }
    for name, report in reports.items():
        ours_listed = found[name].ranking
        assert ours_listed is not None
        for k in (5, 10):
            assert vars(ours_listed.lists[k]) == pytest.approx(vars(report.lists[k]))
            assert ours_listed.at[k].as_dict() == pytest.approx(
                report.at[k].as_dict(), rel=1e-4, abs=1e-6
            )
    ndcg = [found[name].ranking.at[10].influence["ndcg"] for name in reports]  # type: ignore[union-attr]
    assert paired(*ndcg) == pytest.approx(
        paired(*(report.at[10].influence["ndcg"] for report in reports.values())), rel=1e-3
    )


def test_from_sums_of_few_users_the_error_is_that_of_the_users_and_of_one_it_is_unknown() -> None:
    values = np.array([[1.0, 1.0, 2.0], [4.0, 2.0, 2.0], [9.0, 3.0, 2.0]])  # squares, sizes, events
    task = TestTask(
        {"one": BiasMethod(3.0, np.zeros(2), 4.0, (1.0, 5.0))}, {}, np.zeros(2), (5,), 1
    )
    for users, known in ((3, True), (2, True), (1, False)):
        found = outcomes(task, TestSums({0: Moments.of(values[:users], 32)}))["one"].ratings
        assert found is not None
        of_mse = np.std(values[:users, 0] / 2, ddof=1) / np.sqrt(users) if known else np.nan
        assert found.rmse_stderr * 2 * found.rmse == pytest.approx(of_mse, rel=1e-6, nan_ok=True)


def test_sums_are_the_same_in_any_order(parts: Parts) -> None:
    task = CountTask()

    def summed(order: Sequence[int]) -> Any:
        total = None
        for index in order:
            total = merged(total, task.map(parts.read(index)))
        return total

    one = summed(range(6))
    other = summed([5, 2, 0, 4, 1, 3])
    np.testing.assert_array_equal(one.totals, other.totals)
    assert (one.users, one.train, one.mean) == (other.users, other.train, other.mean)


def test_a_worker_keeps_no_more_than_its_cache_holds(parts: Parts) -> None:
    some = Parts(parts.scenario, cache_bytes=parts.read(0).size_bytes * 5 // 2)
    for index in range(6):
        some.read(index)
    assert 1 <= len(some._kept) <= 3
    assert sum(kept.size_bytes for kept in some._kept.values()) <= some.cache_bytes


def test_a_second_pass_reads_again_only_what_did_not_fit(parts: Parts) -> None:
    some = Parts(parts.scenario, cache_bytes=parts.read(0).size_bytes * 5 // 2)
    first, second = ([some.read(index) for index in range(6)] for _ in range(2))
    same = [one is other for one, other in zip(first, second, strict=True)]
    assert 1 <= same.count(True) <= 3
    assert same[0]


# --- Ray, played by one thread: what its engine does when workers die ---


class LostError(Exception):
    """Ray's: an actor or an object is gone."""


class TaskError(Exception):
    """Ray's: what ran on a worker raised `cause`."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


@dataclass
class Reference:
    value: Callable[[], Any]


class FakeRay:
    """The part of Ray that `OnRay` uses. dies(kind, number): whether a call of that method, the
    number-th of all, loses its actor."""

    def __init__(self, cores: int, dies: Callable[[str, int], bool]) -> None:
        self.exceptions = SimpleNamespace(RayTaskError=TaskError, RayError=Exception)
        self.cores = cores
        self.dies = dies
        self.calls = 0
        self.started = 0

    def remote(self, **_: Any) -> Callable[[Any], Any]:
        return lambda made: SimpleNamespace(remote=lambda *given: self._made(made, given))

    def _made(self, made: Any, given: tuple[Any, ...]) -> Any:
        if isinstance(made, type):
            self.started += 1
            return FakeActor(self, made(*given))
        return self._reference(lambda: made(*(self.get(one) for one in given)))

    def _reference(self, compute: Callable[[], Any]) -> FakeReference:
        return FakeReference(compute)

    def put(self, value: Any) -> Any:
        return self._reference(lambda: value)

    def get(self, reference: Any, timeout: float = 0) -> Any:
        return reference.get()

    def wait(
        self, references: list[Any], num_returns: int, timeout: float
    ) -> tuple[list[Any], list[Any]]:
        return references[:num_returns], references[num_returns:]

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": self.cores}


class FakeReference:
    def __init__(self, compute: Callable[[], Any]) -> None:
        self._compute = compute
        self._known = list[Any]()

    def get(self) -> Any:
        if not self._known:
            try:
                self._known = [self._compute(), None]
            except Exception as failure:
                self._known = [None, failure]
        if self._known[1] is not None:
            raise self._known[1]
        return self._known[0]


class FakeActor:
    def __init__(self, ray: FakeRay, worker: Any) -> None:
        self._ray = ray
        self._worker = worker
        self._dead = False
        for name in ("version", "map", "take"):
            setattr(
                self,
                name,
                SimpleNamespace(remote=lambda *given, name=name: self._call(name, given)),
            )

    def _call(self, name: str, given: tuple[Any, ...]) -> FakeReference:
        def compute() -> Any:
            self._ray.calls += name != "version"
            if self._dead or (name != "version" and self._ray.dies(name, self._ray.calls)):
                self._dead = True
                raise LostError(name)
            try:
                return getattr(self._worker, name)(*given)
            except Exception as failure:
                raise TaskError(failure) from None

        return FakeReference(compute)


def _engine(
    parts: Parts, monkeypatch: pytest.MonkeyPatch, cores: int, dies: Callable[[str, int], bool]
) -> tuple[OnRay, FakeRay]:
    fake = FakeRay(cores, dies)
    monkeypatch.setattr(on_ray, "_ray", lambda: fake)
    monkeypatch.setattr(on_ray, "use_at_most", lambda number: None)
    return OnRay(Parts(parts.scenario)), fake


def _counted(sums: Any) -> tuple[Any, ...]:
    return sums.users, sums.train, sums.test, sums.totals.tobytes(), sums.counts.tobytes()


@pytest.mark.parametrize("when", range(1, 11))
def test_every_part_counts_once_whenever_a_worker_dies(
    parts: Parts, monkeypatch: pytest.MonkeyPatch, when: int
) -> None:
    expected = _counted(InThisProcess(parts).reduce(CountTask(), _quiet))
    engine, fake = _engine(parts, monkeypatch, 2, lambda name, call: call == when)
    assert _counted(engine.reduce(CountTask(), _quiet)) == expected
    again = engine.reduce(CountTask(), _quiet)
    assert _counted(again) == expected
    assert fake.calls > 6


def test_a_node_that_joins_in_a_pass_is_used(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, fake = _engine(parts, monkeypatch, 1, lambda name, call: False)

    def told(done: int, of: int) -> None:
        fake.cores = 3 if done >= 2 else 1

    assert _counted(engine.reduce(CountTask(), told)) == _counted(
        InThisProcess(parts).reduce(CountTask(), _quiet)
    )
    assert fake.started == 3


def test_workers_that_keep_dying_end_the_run_with_a_remedy(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = _engine(parts, monkeypatch, 2, lambda name, call: name == "take")
    with pytest.raises(RunError, match="lost in 3 passes"):
        engine.reduce(CountTask(), _quiet)


def _raising(said: str) -> Callable[..., Any]:
    def fails(*_: Any) -> Any:
        raise LostError(said)

    return fails


@pytest.mark.parametrize(
    ("version", "said"),
    [
        (lambda worker: "0.0.9, code 0123", "has fedrec 0.0.9, code 0123, and this is"),
        (_raising("an error raised in its creation task\nno Parts here"), "cannot start: no Parts"),
        (_raising("No module named 'fedrec_simulations'"), "do not have fedrec"),
    ],
)
def test_a_node_with_other_code_is_refused_before_it_maps_a_part(
    parts: Parts, monkeypatch: pytest.MonkeyPatch, version: Callable[..., Any], said: str
) -> None:
    monkeypatch.setattr(on_ray.RayWorker, "version", version)
    engine, fake = _engine(parts, monkeypatch, 2, lambda name, call: False)
    with pytest.raises(RunError, match=said) as refused:
        engine.reduce(CountTask(), _quiet)
    assert "--ship-package" in refused.value.remedy
    assert fake.calls == 0


def test_one_release_with_other_code_is_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    before = on_ray._version()
    monkeypatch.setattr(on_ray, "code_version", lambda: {"version": "9", "commit": ""})
    assert on_ray._version() != before


def test_a_question_that_the_object_store_does_not_take_ends_the_run_with_a_remedy(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, fake = _engine(parts, monkeypatch, 2, lambda name, call: False)
    monkeypatch.setattr(fake, "put", _raising("Local disk is full\nwith more lines"))
    with pytest.raises(RunError, match="does not take the question: Local disk is full"):
        engine.reduce(CountTask(), _quiet)


def test_an_address_where_nobody_listens_is_refused_before_ray_is_asked() -> None:
    with socket.socket() as taken:  # bound, and not listening
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for named in (address, f"ray://{address}"):
            with pytest.raises(RunError, match=f"no Ray cluster at {named}"):
                on_ray._require_answer(named)
        taken.listen()
        on_ray._require_answer(address)
    on_ray._require_answer("auto")  # which Ray resolves


def test_what_a_reader_says_of_a_part_reaches_the_driver(
    parts: Parts, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    partition(load(None, ["data.preset=small"]), str(tmp_path / "parts"), parts=2, resume=False)
    (tmp_path / "parts" / "part-00001.parquet").write_bytes(b"")
    broken = Parts(load(None, [f'data.path="{tmp_path / "parts"}"']))
    engine, _ = _engine(broken, monkeypatch, 2, lambda name, call: False)
    with pytest.raises(DataError, match="part-00001"):
        engine.reduce(CountTask(), _quiet)


def test_a_part_goes_to_the_worker_that_has_read_it(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = _engine(parts, monkeypatch, 2, lambda name, call: False)
    reads = list[tuple[int, int]]()

    @dataclass(frozen=True)
    class Watched:
        def map(self, part: PartSplit) -> Any:
            reads.append((part.index, id(part)))
            return CountTask().map(part)

    engine.reduce(Watched(), _quiet)
    first = dict(reads)
    reads.clear()
    engine.reduce(Watched(), _quiet)
    assert dict(reads) == first  # the same objects: from memory
