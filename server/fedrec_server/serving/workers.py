"""Workers of one server: processes that answer on the same ports. Whoever starts them holds the
ports, merges their counts, and starts another where one ends.

HTTP: each has a listening socket of its own, among which the system divides connections
(SO_REUSEPORT). gRPC's library takes no socket, so each binds the port again, which the parent
holds. A worker that is told to end goes on until another answers in its place, which takes over its
socket; that of one that died is closed at once, so that nobody waits in it.

A caller's limits are divided (`LimitsTable.divided`), as nothing else is kept of callers: budgets
and ledgers of queries are the devices'. A version that one worker announces and another has not
loaded yet is loaded there when somebody asks for it (`ServingContext.model`).
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector

from fedrec.errors import RunError
from fedrec.operations.addresses import Address
from fedrec.operations.machine import free_bytes, usable_cores
from fedrec.transport.http_listener import bound
from fedrec_server.serving.settings import ServingSettings

_SPAWN = multiprocessing.get_context("spawn")
"""Forked children would share locks that another thread of the parent holds."""
_LEAST_FREE_BYTES = 200 * 2**20
_LOOK_S = 0.1
_SCRAPE_S = 1.0
"""For all workers to tell their counts; the last told ones stand in for those that do not."""
_PAUSE_S = 1.0
"""Between two starts of a worker that ends before it answers."""
_ADDED = ("counter", "histogram")
Samples = list[tuple[str, str, str, list[tuple[str, dict[str, str], float]]]]
"""Name, words, type and values of each metric."""


def chosen(settings: ServingSettings) -> int:
    """How many workers: as the settings say, else one a core, and no more than the least limit can
    be divided by; 1 where memory is short, or ports cannot be shared."""
    if settings.workers or not hasattr(socket, "SO_REUSEPORT"):
        return settings.workers or 1
    free = free_bytes()
    short = free is not None and free < _LEAST_FREE_BYTES
    return 1 if short else min(usable_cores(), settings.limits.least)


@dataclass
class Worker:
    """The worker's side. first: of all; it alone fetches and verifies."""

    first: bool
    pipe: Connection
    http: socket.socket | None
    grpc: str

    def say(self, kind: str, content: object = None) -> None:
        """Tell the parent."""
        with suppress(OSError):  # it is gone, which the pipe's end tells
            self.pipe.send((kind, content))

    def heard(self) -> Iterator[tuple[str, Any]]:
        """What the parent has said; `stop` where it is gone."""
        try:
            while self.pipe.poll():
                yield self.pipe.recv()
        except (EOFError, OSError):
            yield "stop", None


def samples(registry: CollectorRegistry) -> Samples:
    """A worker's counts."""
    return [
        (m.name, m.documentation, m.type, [(s.name, dict(s.labels), s.value) for s in m.samples])
        for m in registry.collect()
    ]


def merged(told: Iterable[Samples], ended: Samples) -> Iterator[Metric]:
    """The counts of all workers as one process's: counters, histograms and memory are added, of
    states the largest stands. ended: of workers that are gone, whose counts stay."""
    found = dict[str, Metric]()
    values = dict[tuple[str, str, tuple[tuple[str, str], ...]], float]()
    for each, gone in [*((samples, False) for samples in told), (ended, True)]:
        for name, words, kind, numbers in each:
            added = kind in _ADDED or name == "fedrec_memory_bytes"
            if gone and kind not in _ADDED:
                continue
            found.setdefault(name, Metric(name, words, kind))
            for sample, labels, value in numbers:
                key = name, sample, tuple(labels.items())
                before = values.get(key)
                first = sample.endswith("_created")  # when a count began
                join = min if first else float.__add__ if added else max
                values[key] = value if before is None else join(float(before), float(value))
    for (name, sample, labelled), value in values.items():
        found[name].add_sample(sample, dict(labelled), value)
    return iter(found.values())


@dataclass
class _Child:
    """counts: as it told them last, at which turn of asking."""

    slot: int
    process: Any
    pipe: Connection
    counts: Samples = field(default_factory=list)
    turn: int = 0
    ready: bool = False
    leaving: bool = False


class Workers(Collector):
    """All workers, of whom each runs `work(worker)`."""

    def __init__(
        self, settings: ServingSettings, number: int, work: Callable[[Worker], None]
    ) -> None:
        """Raises SettingsError where an address cannot be had."""
        self._work = work
        self._grace_s = settings.limits.notice_s + settings.limits.grace_s + 5.0
        self._http = _shared(settings.http, "http", number) if settings.http else [None] * number
        self._held = _shared(settings.grpc, "grpc", 1, listening=False) if settings.grpc else []
        self.grpc = _address(settings.grpc, self._held[0]) if self._held else ""
        self.http = _address(settings.http, self._http[0]) if self._http[0] else ""
        self._children = dict[int, _Child]()
        self._leaving = list[_Child]()
        self._ended: Samples = []
        self._verified: Mapping[str, str] = {}
        self._turn = 0
        self._heard = threading.Condition()  # of counts: whoever serves metrics waits for them
        self._saying = threading.Lock()  # a message is written whole: that thread writes as well
        self.told: Any = None

    def run(
        self,
        *,
        ready: Callable[[Any], None],
        changed: Callable[[Sequence[str]], None],
        again: threading.Event,
        over: threading.Event,
    ) -> None:
        """Keep all workers until `over`; `again`: they look for new bundles. ready: is told once
        all listen; changed: what was verified. Raises RunError where a first one does not start."""
        for slot in range(len(self._http)):
            self._start(slot)
        pause_s = 0.0
        told = False
        try:
            while not over.is_set():
                self._listen(changed)
                if again.is_set():
                    again.clear()
                    self._say_all("look")
                if not told and all(child.ready for child in self._children.values()):
                    told = True
                    ready(self.told)
                for slot, child in [*self._children.items()]:
                    if child.process.is_alive() and not child.leaving:
                        continue
                    if not child.ready and not told:
                        raise RunError("a worker did not start", "Its error is said above.")
                    if not child.ready and time.monotonic() < pause_s:
                        continue
                    pause_s = time.monotonic() + _PAUSE_S
                    self._leaving.append(child)
                    if not child.leaving and (held := self._http[slot]):
                        held.close()
                        self._http[slot] = bound(Address.of(self.http), "http", shared=True)
                    self._start(slot)
        finally:
            self._stop()

    def collect(self) -> Iterator[Metric]:
        """Implements `Collector`: of this process nothing is counted."""
        with self._heard:
            self._turn += 1
            self._say_all("counts", self._turn)
            everybody = [*self._children.values(), *self._leaving]
            self._heard.wait_for(
                lambda: all(c.turn == self._turn or not c.ready for c in everybody),
                _SCRAPE_S,
            )
            return merged([child.counts for child in everybody], self._ended)

    def _start(self, slot: int) -> None:
        here, there = _SPAWN.Pipe()
        worker = Worker(slot == 0, there, self._http[slot], self.grpc)
        process = _SPAWN.Process(target=self._work, args=(worker,), name=f"worker-{slot}")
        process.start()
        there.close()  # so that its end is noticed here
        self._children[slot] = _Child(slot, process, here)
        self._say(self._children[slot], "verified", self._verified)

    def _listen(self, changed: Callable[[Sequence[str]], None]) -> None:
        everybody = [*self._children.values(), *self._leaving]
        by_pipe = {child.pipe: child for child in everybody}
        for pipe in wait([*by_pipe], _LOOK_S):
            child = by_pipe[pipe]  # type: ignore[index]
            try:
                kind, content = child.pipe.recv()
            except (EOFError, OSError):
                child.process.join(self._grace_s)
                if child in self._leaving:
                    self._forget(child)
                continue
            if kind == "ready":
                child.ready = True
                self.told = self.told or content
                for before in self._leaving:
                    if before.slot == child.slot:
                        self._say(before, "go")
            elif kind == "leaving":
                child.leaving = True
            elif kind == "failed" and self.told is None:
                raise RunError(*content)
            elif kind == "verified":
                self._verified = content
                self._say_all("verified", content)
                changed([*dict.fromkeys(content.values())])
            else:
                with self._heard:
                    child.turn, child.counts = content
                    self._heard.notify_all()

    def _forget(self, child: _Child) -> None:
        with self._heard:
            self._leaving.remove(child)
            self._ended = [
                (m.name, m.documentation, m.type, [(s.name, s.labels, s.value) for s in m.samples])
                for m in merged([child.counts], self._ended)
                if m.type in _ADDED
            ]
        child.pipe.close()

    def _say_all(self, kind: str, content: object = None) -> None:
        for child in [*self._children.values(), *self._leaving]:
            self._say(child, kind, content)

    def _say(self, child: _Child, kind: str, content: object = None) -> None:
        with self._saying, suppress(OSError):  # it has ended, which is seen elsewhere
            child.pipe.send((kind, content))

    def _stop(self) -> None:
        self._say_all("stop")
        end_s = time.monotonic() + self._grace_s
        for child in [*self._children.values(), *self._leaving]:
            child.process.join(max(0.0, end_s - time.monotonic()))
            if child.process.is_alive():
                os.kill(child.process.pid, signal.SIGKILL)
                child.process.join()
        for held in [*self._http, *self._held]:
            if held:
                held.close()


def _shared(text: str, setting: str, number: int, *, listening: bool = True) -> list[Any]:
    """Sockets of one address that several processes share."""
    where = Address.of(text)
    with bound(where, setting) as alone:  # refused where another program has it
        port = int(alone.getsockname()[1])
    return [
        bound(Address(where.host, port), setting, shared=True, listening=listening)
        for _ in range(number)
    ]


def _address(text: str, held: socket.socket) -> str:
    return str(Address(Address.of(text).host, int(held.getsockname()[1])))
