"""Bundles of planted numbers, servers on free ports in a thread, and plain clients of both
doors."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import grpc
import httpx2
import numpy as np
import numpy.typing as npt
import pytest

from fedrec.numerics.segments import tie_keys
from fedrec.serving import bundle
from fedrec.serving.bundle import Texts
from fedrec.serving.user_map import UserMap
from fedrec.transport.serving_api import serving_pb2 as pb
from fedrec_server.serving import main
from fedrec_server.serving.settings import validated
from tests.threads import serving
from tests.waiting import HANG_S

CATEGORIES = ("crime", "drama", "war")
B = 6
D = 5


def planted(
    path: Path,
    *,
    seed: int = 1,
    m: int = 40,
    width: int = D,
    coefficients: int = B,
    noise: Literal["seeded", "system"] = "system",
) -> str:
    """Write a bundle of random numbers; item j has categories j mod 8, in bits.

    Returns its version."""
    rng = np.random.default_rng(seed)
    texts = Texts.of([f"item {j}" for j in range(m)])
    named = {
        f"{name}.{part}": array
        for name in ("ids", "titles")
        for part, array in (("content", texts.content), ("ptr", texts.ptr))
    }
    arrays: dict[str, npt.NDArray[Any]] = {
        **UserMap.of_linear(
            rng.standard_normal((coefficients, width)), rng.standard_normal(width)
        ).arrays(),
        **named,
        "items": rng.standard_normal((m, width)).astype(np.float32),
        "bias": rng.standard_normal(m).astype(np.float32),
        "categories": (np.arange(m) % 8).astype(np.uint64),
        "rows": np.zeros((m, coefficients), np.int32),
        "mean": np.zeros(coefficients),
        "covariance": np.eye(coefficients),
    }
    about = bundle.About(
        name=f"planted {seed}",
        family="clicks",
        form="additive",
        history=50,
        sensitivity=0.03,
        delta=1e-5,
        categories=CATEGORIES,
        training={"epsilon": "inf"},
        noise=noise,
        fedrec="0",
    )
    return bundle.write(path, about, arrays)


def reference(
    catalogue: Any, coefficients: Sequence[float], k: int, mask: int = 0
) -> tuple[list[int], list[float]]:
    """Every score in double precision, rounded, sorted: what the server must say."""
    u = catalogue.users(np.array(coefficients, np.float32)[None])[0].astype(np.float64)
    scores = ((catalogue.items.astype(np.float64) * u).sum(1) + catalogue.bias).astype(np.float32)
    order = [
        j
        for j in np.lexsort((tie_keys(np.arange(len(scores))), -scores))
        if not mask or int(catalogue.categories[j]) & mask
    ][:k]
    return [int(j) for j in order], [float(scores[j]) for j in order]


@dataclass(frozen=True)
class Running:
    """A server, and clients for it."""

    told: main.Serving
    channel: grpc.Channel
    http: httpx2.Client

    def recommend(
        self, version: str, coefficients: Sequence[float], k: int = 5, categories: int = 0
    ) -> tuple[list[int], list[float]]:
        request = pb.RecommendRequest(
            version=int(version, 16), coefficients=coefficients, k=k, categories=categories
        )
        reply = pb.RecommendReply.FromString(self.raw("Recommend", request.SerializeToString()))
        return list(reply.items), list(reply.scores)

    def raw(self, method: str, message: bytes) -> bytes:
        return bytes(
            self.channel.unary_unary(f"/fedrec.serving.v1.Recommender/{method}")(
                message, timeout=HANG_S
            )
        )

    def model(self, version: int = 0) -> bytes:
        call = self.channel.unary_stream("/fedrec.serving.v1.Recommender/GetModel")
        pieces = call(pb.GetModelRequest(version=version).SerializeToString(), timeout=HANG_S)
        return b"".join(pb.ModelPiece.FromString(piece).data for piece in pieces)

    def metrics(self) -> str:
        return httpx2.get(f"http://{self.told.metrics}/metrics", timeout=HANG_S).text

    def post(self, content: dict[str, Any] | bytes) -> httpx2.Response:
        return self.http.post(
            "/v1/recommend", content=content if isinstance(content, bytes) else json.dumps(content)
        )


Start = Callable[..., Running]


@contextmanager
def running(paths: Sequence[Path], settings: dict[str, Any], **options: Any) -> Iterator[Running]:
    fast = {"watch_s": 0.05}, {"notice_s": 0.0, "grace_s": 2.0}
    tables = {
        "models": fast[0] | settings.get("models", {}),
        "limits": fast[1] | settings.get("limits", {}),
    }
    chosen = validated(
        dict.fromkeys(("grpc", "http", "metrics"), "127.0.0.1:0") | settings | tables
    )

    with (
        serving(main.run, paths, chosen, **options) as told,
        grpc.insecure_channel(told.grpc) as channel,
        httpx2.Client(base_url=told.http, timeout=HANG_S) as http,
    ):
        yield Running(told, channel, http)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a server over one planted bundle, or over given paths; tables of settings by name."""
    with ExitStack() as stack:

        def started(
            paths: Sequence[Path] = (),
            *,
            page: bool = False,
            demo: bool = False,
            verify: Callable[[Path], str] | None = None,
            **settings: Any,
        ) -> Running:
            if not paths:
                paths = [tmp_path / "serving.safetensors"]
                planted(paths[0])
            return stack.enter_context(
                running(
                    paths,
                    {"log": str(tmp_path / "log.jsonl")} | settings,
                    page=page,
                    demo=demo,
                    verify=verify,
                )
            )

        yield started
