"""Parties in processes of their own: aggregators that listen over mutual TLS, clients that do as a
pipe tells them, and what they send each other."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedrec.federation.messages import Question
from fedrec.federation.protocol import Opening
from fedrec.federation.wire import question_digest, question_header
from fedrec.operations.certificates import write_development_certificates
from fedrec.privacy.calibration import Plan
from fedrec.transport.channel import Access
from fedrec_aggregator import main
from fedrec_aggregator.settings import AggregatorSettings, validated

CLIENTS = ("first", "second")
ANY_EPSILON = {"max_epsilon": "inf"}
SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Asked:
    """A question of a run, as it is opened."""

    run: str
    question: Question
    plan: Plan

    @property
    def opening(self) -> Opening:
        """Opening of the question for an aggregator."""
        header = question_header(self.question, run=self.run, plan=self.plan.digest())
        return Opening(self.run, self.question.round, header, question_digest(header), 3_600.0)


def started(target: Any, *arguments: Any, daemon: bool = True) -> tuple[Any, Connection]:
    """A process that runs `target(*arguments, pipe)`, and the other end of the pipe."""
    here, there = SPAWN.Pipe()
    process = SPAWN.Process(target=target, args=(*arguments, there), daemon=daemon)
    process.start()
    there.close()  # so that its end is noticed here
    return process, here


def listening(settings: AggregatorSettings) -> tuple[Any, str]:
    """An aggregator's process, and where it listens."""
    process, pipe = started(_serve, settings)
    return process, pipe.recv()


def _serve(settings: AggregatorSettings, there: Connection) -> None:
    main.run(settings, ready=lambda address: there.send(str(address)))


def ended(processes: Sequence[Any]) -> None:
    """Told to stop, and waited for."""
    for process in processes:
        process.terminate()
        process.join()


def aggregator_settings(
    folder: Path, file: str, *, listen: str = "127.0.0.1:0", **more: Any
) -> AggregatorSettings:
    """Return the settings of the party whose certificate is this file."""
    tls = {"certificate": f"{file}.pem", "key": f"{file}-key.pem", "client_ca": "ca.pem"}
    places = {"listen": listen, "state": f"state-{file}", "log": f"{file}.jsonl", "tls": tls}
    return validated({**places, **more}, folder=folder)


def access(folder: Path, address: str, file: str, **more: Any) -> Access:
    """How the party of this certificate reaches an address."""
    pair = str(folder / f"{file}.pem"), str(folder / f"{file}-key.pem")
    return Access(address, ca=str(folder / "ca.pem"), certificate=pair[0], key=pair[1], **more)


@contextmanager
def aggregator(
    folder: Path, *, min_cohort: int = 100
) -> Iterator[tuple[Mapping[str, Access], int]]:
    """One that listens: how each client and the server reach it, and its process."""
    write_development_certificates(folder, clients=CLIENTS)
    limits = {"min_cohort": min_cohort}
    settings = aggregator_settings(
        folder, "aggregator", any_client=True, limits=limits, privacy=ANY_EPSILON
    )
    process, address = listening(settings)
    try:
        files = {name: f"client-{name}" for name in CLIENTS} | {"server": "server"}
        ways = {name: access(folder, address, file) for name, file in files.items()}
        yield ways, process.pid or 0
    finally:
        ended([process])


def names(users: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """(n, 16) distinct pseudonyms."""
    return np.stack([users, users], axis=1).astype("<i8").view(np.uint8)


def said(pipes: Sequence[Connection], word: Any) -> list[Any]:
    """What each process answers to a word."""
    for pipe in pipes:
        pipe.send(word)
    return [pipe.recv() for pipe in pipes]


@dataclass(frozen=True)
class Span:
    """From when to when a client sent, and of how many users."""

    start_s: float
    users: int
    end_s: float = 0.0

    def over(self) -> Span:
        """It ends now."""
        return Span(self.start_s, self.users, time.monotonic())


def length_s(spans: Sequence[Span]) -> float:
    """From the first start to the last end."""
    return max(span.end_s for span in spans) - min(span.start_s for span in spans)
