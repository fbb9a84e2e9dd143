"""Runs the installed ServerApp in this process, as the task of a Flower run, and never opens the
bundle.

Flower's own way is a process that polls for tasks and another one per run. One process is enough
here: it submits the run, takes its task with the SuperLink's secret, and calls the app with
Flower's `Grid`. It starts at once, its errors keep their types, and whoever ends it ends the run.
To Flower the run is a channel for messages: where one is lost, the next continues from the
checkpoints. flwr keeps these interfaces private, hence tested releases: `require_tested_flower`.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import httpx
from flwr.common.constant import Status, SubStatus
from flwr.common.serde import context_from_proto, fab_to_proto, run_from_proto
from flwr.proto.control_pb2 import ListRunsRequest, StartRunRequest, StopRunRequest
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    AcquireTaskResponse,
    PullTaskInputRequest,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.serverapp import ServerApp
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.retry import RetryInvoker, exponential
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity

from fedrec.errors import RunError
from fedrec.operations import logs
from fedrec.operations.flower_process import require_tested_flower
from fedrec_server.grid import LOST, EachReplyGrid

_ACQUIRE = frozenset({"/flwr.proto.Runtime/AcquireTask"})
_FAB_ID = "fedrec/fedrec-run"

log = logging.getLogger(__name__)


class LostRunError(Exception):
    """The SuperLink stayed away, or gave the run up: submit another."""


@dataclass(frozen=True)
class AppRunner:
    """Runs apps at one SuperLink, which serves this server alone. Seconds.

    address: host:port. secret: the SuperLink's, for tasks. root_certificates: PEM, None for plain
    HTTP. away_s: how long the SuperLink may stay away in the middle of a run.
    """

    address: str
    secret: bytes = field(repr=False)
    root_certificates: bytes | None = None
    away_s: float = 120.0
    poll_s: float = 0.1
    task_s: float = 30.0
    heartbeat_s: float = 10.0
    sleep: Callable[[float], None] = time.sleep

    def run(self, app: ServerApp, bundle: bytes) -> None:
        """Submit a run and carry it to its end.

        Raises LostRunError, RunError where the SuperLink is not ours, and what the app raises."""
        require_tested_flower()
        try:
            run_id = self._submitted(bundle)
            self._carried_out(app, run_id, self._token(run_id))
        except LOST as failure:
            logs.say_failure(log, "run-lost", failure)
            raise LostRunError("Flower's SuperLink stayed away, or gave the run up") from failure

    def _submitted(self, bundle: bytes) -> int:
        """A run that an earlier life of this server left untaken is stopped first; one that was
        running fails by itself for want of heartbeats. Stopped now, it would leave SuperNodes with
        messages cut off in their middle."""
        with ControlHttpClient.from_server_address(*self._at, [_version("flwr CLI")]) as control:
            for run in control.ListRuns(ListRunsRequest()).run_dict.values():
                if run.fab_id == _FAB_ID and run.status.status in {Status.PENDING, Status.STARTING}:
                    with suppress(httpx.HTTPStatusError):  # it ended meanwhile
                        control.StopRun(StopRunRequest(run_id=run.run_id))
            fab = Fab(hashlib.sha256(bundle).hexdigest(), bundle, {})
            run_id = int(control.StartRun(StartRunRequest(fab=fab_to_proto(fab))).run_id)
        logs.say(log, "run-submitted", address=self.address)
        return run_id

    def _token(self, run_id: int) -> str:
        """The task of the run.

        Raises RunError where the SuperLink gives tasks to others, or does not take our secret."""
        signed = SuperExecAuthHttpInterceptor(master_secret=self.secret, protected_methods=_ACQUIRE)
        deadline = time.monotonic() + self.task_s
        with RuntimeHttpClient.from_server_address(
            *self._at, [_version("SuperExec"), signed]
        ) as runtime:
            while time.monotonic() < deadline:
                found = _acquired(runtime)
                if found.token and found.task.run_id == run_id:
                    return str(found.token)
                if found.token:
                    raise RunError(
                        f"the SuperLink at {self.address} has runs of other apps",
                        "Give this server a SuperLink of its own.",
                    )
                self.sleep(self.poll_s)
        raise RunError(
            f"the SuperLink at {self.address} gave the run's task to another executor",
            (
                "Start that SuperLink with --isolation process and --superexec-auth-secret-file, "
                "and without a flower-superexec."
            ),
        )

    def _carried_out(self, app: ServerApp, run_id: int, token: str) -> None:
        address, insecure, certificates = self._at
        grid = EachReplyGrid(address, insecure, certificates, token=token)
        # Flower's own would interrupt this process
        grid._retry_invoker = _patiently(self.away_s, self.sleep)
        try:
            task = grid._runtime_client.PullTaskInput(PullTaskInputRequest())
            TaskIdentity.task_id = task.task_id
            TaskIdentity.run_id = run_id
            TaskIdentity.node_id = task.context.node_id
            grid.set_run(run_from_proto(task.run))
            with self._heartbeats(token):
                status = SubStatus.FAILED
                try:
                    app(grid, context_from_proto(task.context))
                    status = SubStatus.COMPLETED
                finally:
                    self._finished(token, status)
        finally:
            grid.close()

    def _finished(self, token: str, status: str) -> None:
        """Best effort: a SuperLink that is not told finds out by itself."""
        with self._runtime(token) as runtime, suppress(*LOST):
            runtime.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=""))

    @contextmanager
    def _heartbeats(self, token: str) -> Iterator[None]:
        """While the body runs, however long it computes.

        One that fails is tried again: the grid's own calls find out what is lost."""
        ended = threading.Event()

        def beat() -> None:
            with self._runtime(token) as runtime:
                while not ended.wait(self.heartbeat_s):
                    with suppress(*LOST):
                        runtime.SendTaskHeartbeat(SendTaskHeartbeatRequest())

        thread = threading.Thread(target=beat, name="task-heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _runtime(self, token: str) -> RuntimeHttpClient:
        """Calls for the task beside the grid's, tried once each."""
        return RuntimeHttpClient.from_server_address(
            *self._at, [_version("flwr-serverapp"), RuntimeTokenHttpInterceptor(token=token)]
        )

    @property
    def _at(self) -> tuple[str, bool, bytes | None]:
        return self.address, self.root_certificates is None, self.root_certificates


def _version(component: str) -> RuntimeVersionHttpInterceptor:
    return RuntimeVersionHttpInterceptor(component_name=component)


def _acquired(runtime: RuntimeHttpClient) -> AcquireTaskResponse:
    try:
        return runtime.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
    except httpx.HTTPStatusError as failure:
        if failure.response.status_code not in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}:
            raise
        raise RunError(
            "the SuperLink does not take this server's secret",
            "Give superlink.secret the file that it was started with.",
        ) from None


def _patiently(away_s: float, sleep: Callable[[float], None]) -> RetryInvoker:
    """Tries again while the SuperLink is away or being started, for up to `away_s`."""
    being_started = {
        httpx.codes.BAD_GATEWAY,
        httpx.codes.SERVICE_UNAVAILABLE,
        httpx.codes.GATEWAY_TIMEOUT,
    }

    def hopeless(failure: Exception) -> bool:
        return (
            isinstance(failure, httpx.HTTPStatusError)
            and failure.response.status_code not in being_started
        )

    return RetryInvoker(
        lambda: exponential(base_delay=0.2, max_delay=2),
        (httpx.TransportError, httpx.HTTPStatusError),
        max_tries=None,
        max_time=away_s,
        should_giveup=hopeless,
        wait_function=sleep,
    )
