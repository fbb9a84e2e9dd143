"""The page's modules under node, and a planted bundle; skipped where there is no node."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from fedrec.privacy.bounded_mean import topic_table
from fedrec.serving import bundle
from fedrec.serving.bundle import FILE, Bundle, Texts
from tests.waiting import HANG_S

PAGE = Path(__file__).parents[2] / "server" / "fedrec_server" / "serving" / "page"
_DRIVER = Path(__file__).with_name("driver.mjs")

Node = Callable[..., Any]

KINDS = ("Space", "Kitchen", "Harbour", "Détective", "Garden", "Desert", "Violin", "Mountain")
NOUNS = (
    "Story",
    "Letters",
    "Winter",
    "Secret",
    "Supervisor",
    "Return",
    "Morning",
    "Promise",
    "House",
    "Road",
    "Song",
    "Shadow",
    "Summer",
    "Choice",
    "Visitor",
)
HISTORY = 10
NASTY = 117
"""The row whose title tries to be HTML."""


def planted(
    path: Path, *, seed: int = 0, noise: Literal["seeded", "system"] = "system", **changed: Any
) -> Bundle:
    """Titles of eight kinds, one topic each, and a user map with hidden units; written to `path`
    and read again.

    changed: other arrays by name, and `about`, other words.
    """
    about, arrays = planted_parts(seed=seed, noise=noise)
    bundle.write(path, about.model_copy(update=changed.pop("about", {})), arrays | changed)
    return bundle.read(path)


def planted_parts(
    *, seed: int = 0, noise: Literal["seeded", "system"] = "system", D: int = 12
) -> tuple[bundle.About, dict[str, Any]]:
    """About and arrays of `planted`."""
    rng = np.random.default_rng(seed)
    B = len(KINDS)
    hidden = 5
    titles = [f"{kind} {noun}" for noun in NOUNS for kind in KINDS]
    titles[NASTY] = "Desert <img src=x onerror=alert(1)>"
    m = len(titles)
    kind = np.arange(m) % B
    public = 0.8 * np.eye(B)[kind] + rng.normal(size=(m, B)) / 50
    directions = np.linalg.qr(rng.normal(size=(D, B)))[0].T
    table = topic_table(public)
    spread = rng.normal(size=(B, B)) / 40
    about = bundle.About(
        name="planted", family="news", form="additive", history=HISTORY,
        sensitivity=float(np.nextafter(table.diameter / HISTORY, 1)),
        delta=1e-5, scale=0.1, categories=KINDS, training={"epsilon": 5.0, "delta": 1e-5,
        "unit": "click", "neighbours": "replace"},
        noise=noise, fedrec="0",
    )  # fmt: skip
    ids = Texts.of([f"i{row}" for row in range(m)])
    names = Texts.of(titles)
    arrays = {
        "rows": table.rows.astype(np.int32),
        "mean": public.mean(0),
        "covariance": spread @ spread.T + 0.004 * np.eye(B),
        "users.linear": directions.astype(np.float32),
        "users.offset": (rng.normal(size=D) / 50).astype(np.float32),
        "users.first": (rng.normal(size=(B, hidden)) / 3).astype(np.float32),
        "users.first_bias": rng.normal(size=hidden).astype(np.float32),
        "users.second": (rng.normal(size=(hidden, D)) / 10).astype(np.float32),
        "items": (directions[kind] + rng.normal(size=(m, D)) / 8).astype(np.float32),
        "bias": (rng.normal(size=m) / 10).astype(np.float32),
        "categories": (np.uint64(1) << kind.astype(np.uint64)).astype(np.uint64),
        "ids.content": ids.content, "ids.ptr": ids.ptr, "titles.content": names.content,
        "titles.ptr": names.ptr,
    }  # fmt: skip
    return about, arrays


def attention_parts(
    *,
    heads: int = 2,
    padding: float = 0.0,
    theta: float = 0.6,
    basis: int = len(KINDS),
    D: int = 12,
) -> tuple[bundle.About, dict[str, Any]]:
    """About and arrays of the same catalogue, asked by attention over `basis` vectors of length D:
    NRMS's user encoder, or NAML's for 0 heads."""
    rng = np.random.default_rng(6)
    about, arrays = planted_parts(D=D)
    m = len(arrays["items"])
    queries = 5
    ours = about.model_copy(
        update={
            "form": "attention",
            "sensitivity": float(np.nextafter(np.sqrt(2) * min(theta, 1.0), 2)),
            "scale": 1.0,
        }
    )
    shapes = {"pool.dense": (D, queries), "pool.bias": (queries,), "pool.query": (queries, 1)}
    if heads:
        shapes["attention.project"] = (D, 3 * D)
    else:
        shapes["centre"] = (D,)
    encoder = {f"encoder.{name}": rng.normal(size=shape) for name, shape in shapes.items()}
    if not heads:
        encoder |= {"encoder.scale": np.array([3.0]), "encoder.spread": np.array([0.5])}
    made = {
        **{name: array.astype(np.float32) for name, array in encoder.items()},
        "anonymous": rng.normal(size=D).astype(np.float32),
        "theta": np.array(theta),
        "padding": np.array(padding),
        "heads": np.array(heads),
        "rows": np.zeros((0, basis), np.int32),
        "mean": np.zeros(basis),
        "covariance": np.zeros((basis, basis)),
        "bias": np.zeros(m, np.float32),
        "users.linear": (4 * rng.normal(size=(basis, D))).astype(np.float32),
        "users.offset": np.zeros(D, np.float32),
        "users.first": np.zeros((basis, 0), np.float32),
        "users.first_bias": np.zeros(0, np.float32),
        "users.second": np.zeros((0, D), np.float32),
    }
    return ours, arrays | made


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Node:
    """`node(job, **what)`: the result of a job of driver.mjs."""
    if shutil.which("node") is None:
        pytest.skip("node is not installed: the page's modules run in it")
    modules = tmp_path_factory.mktemp("page") / "modules"
    shutil.copytree(PAGE, modules)
    (modules / "package.json").write_text('{"type": "module"}')

    def run(job: str, **what: Any) -> Any:
        asked = json.dumps({"modules": str(modules), "job": job, **what})
        done = subprocess.run(
            ["node", str(_DRIVER)],
            input=asked,
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.fixture(scope="session")
def bundle_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / FILE
    planted(path)
    return path


@pytest.fixture(scope="session")
def planted_bundle(bundle_path: Path) -> Bundle:
    return bundle.read(bundle_path)


Serve = Callable[..., AbstractContextManager[str]]


@contextmanager
def _serving(run_folder: Path, *, settings: str = "", more: Sequence[str] = ()) -> Iterator[str]:
    """The URL of a real `fedrec serve --page` on a free port, for as long as the block lasts."""
    file = run_folder / "serving.toml"
    log = run_folder / "serving.log"
    file.write_text(settings)
    ways = ["--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--page", "--settings", str(file)]
    command = [sys.executable, "-m", "fedrec.cli", "serve", str(run_folder), *ways, *more]
    with (
        log.open("w") as kept,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=kept, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            told = dict(
                line.split() for line in (process.stdout.readline() for _ in range(3)) if line
            )
            assert "http" in told, log.read_text()
            yield told["http"] + "/"
        finally:
            process.terminate()


@pytest.fixture(scope="session")
def serve() -> Serve:
    return _serving


@pytest.fixture(scope="session")
def site(bundle_path: Path) -> Iterator[str]:
    with _serving(bundle_path.parent) as url:
        yield url
