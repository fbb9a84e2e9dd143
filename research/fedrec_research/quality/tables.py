"""Tables of research/docs/quality.md: for one data set, split and metric, the mean of each line at
each epsilon, from the kept results and from nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrec.storage import read_json
from fedrec_research.drawing import figure

EPSILONS = (0.5, 1.0, 5.0, 20.0, 200.0, math.inf)
SIMPLE = "simple private"
PUBLIC = "public only"
OURS = "ours"
EASE = "exact EASE"
ALS = "exact ALS"
LINES = (SIMPLE, PUBLIC, OURS, EASE, ALS)
_NDCG = "ndcg@20"
BY_TIME = ("temporal", "leave-last-out")


@dataclass(frozen=True)
class Table:
    """values: by line and epsilon, those that were measured. file: of the result; command: what
    makes it again."""

    data: str
    split: str
    metric: str
    values: Mapping[str, Mapping[float, float]]
    file: str
    command: str

    @property
    def title(self) -> str:
        """A heading of the page."""
        return f"{self.data}, {self.split}, {self.metric.upper()}"

    @property
    def rows(self) -> list[list[str]]:
        """Lines as text; what was not measured is blank, and what is not private stands at infinity
        alone."""
        return [
            [line, *(figure(found[e]) if e in found else "" for e in EPSILONS)]
            for line in LINES
            for found in [self.values.get(line, {})]
        ]

    @property
    def blank(self) -> int:
        """Cells of what depends on epsilon, and of the three references, without a value."""
        wanted = {(line, e) for line in (SIMPLE, OURS) for e in EPSILONS}
        wanted |= {(line, math.inf) for line in (PUBLIC, EASE, ALS)}
        if self.metric == "rmse":
            wanted -= {(EASE, math.inf)}  # it ranks, and predicts no rating
        return sum(e not in self.values.get(line, {}) for line, e in wanted)


def tables(results: Path) -> list[Table]:
    """Splits by time first, then those that are given, and random ones last."""
    found = [*_clicks(results), *_ratings(results), *_with_sides(results)]
    order = {**dict.fromkeys(BY_TIME, 0), "given": 1}
    return sorted(found, key=lambda table: (order.get(table.split, 2), table.data, table.metric))


def _clicks(results: Path) -> Iterator[Table]:
    for path in sorted(results.glob("clicks-*.json")):
        found = read_json(path)
        private: dict[str, dict[float, float]] = {SIMPLE: {}, OURS: {}}
        for key, row in found.items():
            name, _, epsilon = key.rpartition("epsilon ")
            if not epsilon.replace(".", "").isdigit() or name == "without features, ":
                continue
            line = private[SIMPLE if name else OURS]
            line[float(epsilon)] = max(line.get(float(epsilon), 0.0), row[_NDCG])
        private[OURS][math.inf] = found["no privacy, same rounds"][_NDCG]
        references = {EASE: found["EASE"], ALS: found["exact ALS"]}
        data = path.stem.removeprefix("clicks-")
        split = found.get("split", "random" if data == "ml1m" else "given")
        data = data.removesuffix(f"-{split}")
        given = split in ("given", "random") and "split" not in found
        yield Table(
            f"{data}, clicks",
            split,
            _NDCG,
            private | {line: {math.inf: row[_NDCG]} for line, row in references.items()},
            path.name,
            f"clicks --data PATH/{data}{'' if given else f' --seeds 3 --set split.kind={split}'}",
        )


def _ratings(results: Path) -> Iterator[Table]:
    """The whole sets of ratings beside simple methods, divided at random."""
    path = results / "simple.json"
    if not path.exists():
        return
    found = read_json(path)
    exact = results / "quality-ml1m.json"
    als = {
        row["name"]: row["rmse"]
        for row in (read_json(exact)["non_private"] if exact.exists() else ())
    }
    for data in ("ml-100k", "ml-1m"):
        for metric in ("rmse", _NDCG):
            values: dict[str, dict[float, float]] = {SIMPLE: {}, OURS: {}}
            for cell in found["cells"]:
                if (cell["data"], cell["metric"]) == (data, metric):
                    epsilon = float(cell["epsilon"])
                    values[OURS][epsilon] = cell["means"]["default"]
                    values[SIMPLE][epsilon] = cell["means"][cell["best_simple"]]
            if (data, metric) == ("ml-1m", "rmse") and "ALS" in als:
                values[ALS] = {math.inf: als["ALS"]}
            yield Table(
                f"{data}, ratings", "random", metric, values, path.name, "simple --data PATH"
            )


def _with_sides(results: Path) -> Iterator[Table]:
    """Clicks with public tags."""
    for path in sorted(results.glob("public-prior-*.json")):
        found = read_json(path)
        values: dict[str, dict[float, float]] = {SIMPLE: {}, OURS: {}}
        for row in found["private"]:
            line = {"default": OURS, "dp-popularity": SIMPLE, "dp-item-item": SIMPLE}.get(
                row["line"]
            )
            if line:
                epsilon = float(row["epsilon"])
                values[line][epsilon] = max(values[line].get(epsilon, 0.0), row["test"][0])
        references = {PUBLIC: "public sides alone", ALS: "non-private ALS"}
        known: Mapping[str, Any] = found["not private"]
        values |= {line: {math.inf: known[name]["test"][0]} for line, name in references.items()}
        name = found["data"]["name"]
        command = f"public-prior --data PATH/{name}"
        yield Table(f"{name} with tags, clicks", "random", _NDCG, values, path.name, command)


def behind(results: Path) -> list[str]:
    """How many cells the default is behind the best simple method by more than the bar, in a
    sentence for each kept comparison."""
    told = []
    for name, words in (
        ("simple", "real sets, whole and cut"),
        ("simple-planted", "planted shapes"),
    ):
        path = results / f"{name}.json"
        if path.exists():
            found = read_json(path)
            judged = [cell for cell in found["cells"] if cell["behind"] is not None]
            told.append(f"{found['behind']} of {len(judged)} cells of {words}")
    return told
