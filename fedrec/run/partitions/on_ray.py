"""The engine on Ray: one actor for each core of the cluster maps parts, keeps those it has read,
and adds up; sums are merged in a tree.

A task is put into Ray's object store once and travels once to each node. An actor adds the sums of
its parts to one total, which leaves it when all parts are done. Where an actor is lost, the parts
in its total are mapped again by others, so that each part counts exactly once; where a total is
lost on its way, the pass is done again. Cores of nodes that join get actors while a pass runs.
"""

from __future__ import annotations

import copy
import os
import secrets
import socket
from collections import deque
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedrec.errors import FedRecError, RunError, require
from fedrec.numerics.threads import use_at_most
from fedrec.run.code_version import code_version
from fedrec.run.partitions.parts import Parts, PartTask, Told, merged

PACKAGES = (
    "fedrec",
    "fedrec_aggregator",
    "fedrec.cli",
    "fedrec_client",
    "fedrec_server",
    "fedrec_simulations",
    "fedrec.transport",
)
_TICK_S = 0.5
"""How often nodes that joined are looked for."""
_ATTEMPTS = 3
_NO_WORKER_S = 120.0
_ANSWER_S = 10.0
"""Passes that are begun, the later ones after a loss; time for the first worker to come up, for
which an autoscaler may start a machine; and for the port of Ray's head to answer."""


def _ray() -> Any:
    """Ray, whose types differ by version and by whether it is installed."""
    return import_module("ray")


def _version() -> str:
    """Release and code: one release with other code may compute other sums."""
    return ", commit ".join(word for word in code_version().values() if word)


class RayWorker:
    """What runs in an actor: parts of the data set, the task of the pass, and the total of the
    parts mapped in it."""

    def __init__(self, source: Parts) -> None:
        use_at_most(1)
        self._source = source
        self._pass = ""
        self._task = None
        self._total = None

    def version(self) -> str:
        """Return the version of fedrec on the node."""
        return _version()

    def process_id(self) -> int:
        """Return the process id of the worker on its node."""
        return os.getpid()

    def map(self, key: str, task: Sequence[Any], index: int) -> int:
        """Add a part's sums to the total of the pass. task: of one reference, which is fetched
        once."""
        # copied: arrays of the object store cannot be written, for which kernels would be compiled
        # anew
        if key != self._pass:
            self._pass = key
            self._task = copy.deepcopy(_ray().get(task[0]))
            self._total = None
        self._total = merged(self._total, self._task.map(self._source.read(index)))  # type: ignore[attr-defined]
        return index

    def take(self, key: str) -> Any:
        """The total, which is forgotten here."""
        assert key == self._pass
        total = self._total
        self._total = None
        self._pass = ""
        self._task = None
        return total


def _merged_copy(one: Any, other: Any) -> Any:
    return merged(copy.deepcopy(one), other)


class OnRay:
    """See `protocol.Engine`."""

    def __init__(self, source: Parts) -> None:
        self._ray = _ray()
        self._source = source
        self._actor = self._ray.remote(
            num_cpus=1, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD"
        )(RayWorker)
        self._merge = self._ray.remote(num_cpus=0)(_merged_copy)
        self._ready = list[Any]()
        self._starting = dict[Any, Any]()
        self._reader = dict[int, Any]()  # which actor has read a part
        self.started = 0
        """How many workers came up so far."""

    @classmethod
    def start(cls, source: Parts, address: str = "", *, ship: bool = False) -> OnRay:
        """Join the cluster at `address`, or start Ray on this machine. ship: send this package
        instead of using that of the nodes.

        Raises RunError where there is no such cluster.
        """
        require("cluster", "--runtime ray")
        _require_answer(address)
        environment: dict[str, Any] = {
            "env_vars": {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
        }
        if ship:
            environment["py_modules"] = [_folder(name) for name in PACKAGES]
        try:
            local: dict[str, Any] = {} if address else {"include_dashboard": False}
            _ray().init(
                address=address or "local", runtime_env=environment, log_to_driver=False, **local
            )
        except (ConnectionError, RuntimeError, ValueError) as failure:
            raise RunError(
                f"no Ray cluster at {address or 'this machine'}: {_first_line(failure)}",
                "Check --address.",
            ) from None
        return cls(source)

    @property
    def parts(self) -> int:
        """See `protocol.Engine`."""
        return len(self._source.data.parts)

    def process_ids(self) -> list[int]:
        """Return the process ids of all workers that are up."""
        return [self._ray.get(actor.process_id.remote()) for actor in self._ready]

    def reduce(self, task: PartTask, told: Told, *, only: int | None = None) -> Any:
        """See `protocol.Engine`."""
        asked = list(range(self.parts)) if only is None else [only]
        try:
            kept = self._ray.put(task)
        except self._ray.exceptions.RayError as failure:
            raise RunError(
                f"Ray's object store does not take the question: {_first_line(failure)}",
                "Free memory or disk on the driver's node, or raise --object-store-memory there.",
            ) from None
        for _ in range(_ATTEMPTS):  # a pass that lost a worker is begun again, on the others
            key = secrets.token_hex(8)
            held = self._mapped(key, kept, asked, told)
            totals = [actor.take.remote(key) for actor in held]
            while len(totals) > 1:
                pairs = zip(totals[::2], totals[1::2], strict=False)
                totals = [
                    *(self._merge.remote(*pair) for pair in pairs),
                    *(totals[-1:] if len(totals) % 2 else []),
                ]
            try:
                return self._ray.get(totals[0])
            except self._ray.exceptions.RayTaskError as failure:
                if not isinstance(failure.cause, self._ray.exceptions.RayError):
                    raise self._cause(failure) from None
            except self._ray.exceptions.RayError:
                # an actor or a node was lost with a total: nothing of the pass counts
                pass
            self._forget_lost()
        raise RunError(
            f"workers of the Ray cluster were lost in {_ATTEMPTS} passes",
            "Look at ray status; more memory may be needed.",
        )

    def _mapped(self, key: str, task: Any, asked: Sequence[int], told: Told) -> list[Any]:
        """The actors that hold totals, of all parts that were asked, each once."""
        waiting = deque(asked)
        running = dict[Any, tuple[Any, int]]()
        held = dict[Any, list[int]]()
        done = 0
        while waiting or running:
            self._grow(must=not running)
            busy = {actor for actor, _ in running.values()}
            for actor in [actor for actor in self._ready if actor not in busy]:
                if waiting:
                    index = self._next(waiting, actor)
                    running[actor.map.remote(key, [task], index)] = actor, index
            finished, _ = self._ray.wait(list(running), num_returns=1, timeout=_TICK_S)
            for reference in finished:
                actor, index = running.pop(reference)
                try:
                    self._ray.get(reference)
                except self._ray.exceptions.RayTaskError as failure:
                    raise self._cause(failure) from None
                except self._ray.exceptions.RayError:
                    again = held.pop(actor, [])
                    waiting.extend([index, *again])
                    done -= len(again)
                    self._drop(actor)
                    continue
                held.setdefault(actor, []).append(index)
                self._reader[index] = actor
                done = done + 1
                told(done, len(asked))
        return list(held)

    def _next(self, waiting: deque[int], actor: Any) -> int:
        """A part that this actor has read, else one that nobody has, else any."""
        found = next((i for i in waiting if self._reader.get(i) == actor), None)
        if found is None:
            found = next((i for i in waiting if i not in self._reader), waiting[0])
        waiting.remove(found)
        return found

    def _grow(self, *, must: bool) -> None:
        """An actor for each core of the cluster; those that are up are ready. must: wait for one
        where there is none."""
        cores = max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        for _ in range(cores - len(self._ready) - len(self._starting)):
            actor = self._actor.remote(self._source)
            self._starting[actor.version.remote()] = actor
        while self._starting:
            wait = _NO_WORKER_S if must and not self._ready else 0
            up, _ = self._ray.wait(list(self._starting), num_returns=1, timeout=wait)
            if not up:
                break
            self._join(up[0], self._starting.pop(up[0]))
        if must and not self._ready:
            raise RunError(
                f"no worker of the Ray cluster came up in {_NO_WORKER_S:g} s",
                "Look at ray status: others may use all cores.",
            )

    def _join(self, reference: Any, actor: Any) -> None:
        try:
            version = self._ray.get(reference)
        except self._ray.exceptions.RayError as failure:
            said = str(failure)
            if "No module named 'fedrec" in said:
                raise RunError(
                    "nodes of the Ray cluster do not have fedrec",
                    "Install it there, or give --ship-package.",
                ) from None
            if "creation task" in said:
                raise RunError(
                    f"a worker of the Ray cluster cannot start: {said.strip().splitlines()[-1]}",
                    "Install one version of fedrec on all nodes, or give --ship-package.",
                ) from None
            return  # lost while it started
        if version != _version():
            raise RunError(
                f"a node of the Ray cluster has fedrec {version}, and this is {_version()}",
                "Install one version, or give --ship-package.",
            )
        self._ready.append(actor)
        self.started += 1

    def _forget_lost(self) -> None:
        for actor in list(self._ready):
            try:
                self._ray.get(actor.version.remote(), timeout=30)
            except self._ray.exceptions.RayError:
                self._drop(actor)

    def _drop(self, actor: Any) -> None:
        self._ready = [one for one in self._ready if one != actor]
        self._reader = {index: one for index, one in self._reader.items() if one != actor}

    def _cause(self, failure: Any) -> BaseException:
        return (
            failure.cause
            if isinstance(failure.cause, FedRecError)
            else RunError(f"a worker failed: {failure.cause!r}", "See Ray's logs.")
        )

    def close(self) -> None:
        """See `protocol.Engine`."""
        self._ray.shutdown()


def _first_line(failure: Exception) -> str:
    return next(iter(str(failure).strip().splitlines()), type(failure).__name__)


def _require_answer(address: str) -> None:
    """Raises RunError where nobody listens at HOST:PORT: Ray itself would try for many minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not (colon and port.isdigit()):
        return  # "", "auto" and the like, which Ray resolves
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_S).close()
    except (OSError, OverflowError) as failure:
        raise RunError(f"no Ray cluster at {address}: {failure}", "Check --address.") from None


def _folder(package: str) -> str:
    found = find_spec(package)
    assert found is not None
    assert found.origin is not None
    return str(Path(found.origin).parent)
