"""The tables and figures of the PrivateRec paper on a click log, with what the paper prints for
MIND beside them.

Protocol: that of `fedrec bench news` (`fedrec.data.clicklog`, split.seed 20), one division; seeds
draw noise and initialisation, and are said with each row. Test users were looked at for these
tables only. Learning rate, passes and the public start were chosen on validation users, at first of
another division, whose validation users may be test users here. DP-FedRec at infinite epsilon is
FedRec. Published figures are of MIND, which is other data: compare orders, not values. Every row is
a run of `fedrec simulate` in a process of its own, kept in a folder: the benchmark goes on from
there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedrec.errors import SettingsError
from fedrec.report.news import TABLES, PublishedRow
from fedrec.storage import finite
from fedrec_simulations.experiments.intervals import interval
from fedrec_simulations.experiments.news import Method, news_trial
from fedrec_simulations.experiments.progress import Tell
from fedrec_simulations.experiments.row_queue import rows_of, silent
from fedrec_simulations.experiments.rows import Row, folder_of, table
from fedrec_simulations.experiments.source import source_digest
from fedrec_simulations.experiments.trials import RowFiles

SERVED = (math.inf, 10.0, 5.0, 1.0, 0.1, 0.01, 0.001)
"""Epsilons of serving: Figure 4's."""
MODELS = ("nrms", "naml", "plm-nr")
PADDINGS, BASES = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7), (1, 3, 5, 10, 32)
"""Figure 5's and Figure 7's."""
_METRICS = ("auc", "mrr", "ndcg@5", "ndcg@10")
_IN_THE_PAPER = {
    "centralized": "centralized",
    "fedrec": "FedRec",
    "dp-fedrec": "DP-FedRec",
    "printed": "PrivateRec",
    "local": "PrivateRec",
}
_PRIVATE = ("local", "printed", "dp-fedrec")


def _method(variant: str, epsilon: float, model: str = "nrms", **news: float) -> Method:
    chosen = {
        key: value
        for key, value in news.items()
        if (key, value) not in {("padding", 0.0), ("basis", 5)}
    }
    return Method(
        variant, epsilon, ({"model": model} if model != "nrms" else {}) | chosen, seeds=(1,)
    )


FIGURE_4 = (
    *(_method(v, e) for v in ("local", "printed") for e in (1.0, 10.0, 20.0)),
    _method("fedrec", math.inf),
)
FIGURE_5 = {B: tuple(_method("local", 10.0, basis=B, padding=p) for p in PADDINGS) for B in (3, 5)}
FIGURE_6 = {v: tuple(_method(v, e) for e in (1.0, 5.0, 10.0, 20.0)) for v in _PRIVATE}
FIGURE_7 = {v: tuple(_method(v, 10.0, basis=B) for B in BASES) for v in ("local", "printed")}


def tables_of(model: str) -> tuple[Method, ...]:
    """Rows of Tables 1 and 2."""
    free = [_method(variant, math.inf, model) for variant in ("centralized", "fedrec")]
    return (*free, *(_method(variant, 10.0, model) for variant in _PRIVATE))


def methods() -> dict[str, Method]:
    """Every run that a table or a figure shows, once, by name: those of Table 1 first."""
    figures = (*FIGURE_6.values(), FIGURE_4, *FIGURE_7.values(), *FIGURE_5.values())
    others = [_method(v, e, "plm-nr") for e in (5.0, 1.0) for v in ("local", "dp-fedrec")]
    listed = [
        *(m for model in MODELS for m in tables_of(model)),
        *(m for part in figures for m in part),
        *others,
    ]
    return {m.name: m for m in listed}


def chosen(only: Sequence[str]) -> dict[str, Method]:
    """Of all runs those that one of `only` names: a run's whole name, or its variant, encoder,
    "epsilon 5", "basis 3", "padding 0.1", or several of these with commas between; without any,
    all.

    Raises SettingsError where one of them names no run."""
    listed = methods()
    parts = {name: {*name.split(", "), m.news.get("model", "nrms")} for name, m in listed.items()}
    wanted = dict[str, Method]()
    for said in only:
        asked = {part.strip() for part in said.split(",")}
        names = [said] if said in listed else [name for name in listed if asked <= parts[name]]
        if not names:
            known = ", ".join(sorted(set[Any]().union(*parts.values())))
            raise SettingsError(
                f"no run of news-paper is {said!r}",
                f"Use one of: {known}; or several with commas between, as 'local, naml'.",
            )
        wanted |= {name: listed[name] for name in names}
    return {name: m for name, m in listed.items() if name in wanted} if only else listed


def run(
    data: str,
    *,
    only: Sequence[str] = (),
    seeds: int = 1,
    quick: bool = False,
    folder: Path = Path("runs/bench-paper/privaterec"),
    tell: Tell = silent,
) -> dict[str, Any]:
    """Every run, or those of `chosen`, with seeds 1 to `seeds`, as a JSON-able dict.

    Data "planted" is the small planted set. Raises SettingsError without data and on an unknown
    run."""
    if not data:
        raise SettingsError(
            "the news-paper benchmark needs a data folder", "Give MovieLens 1M: --data PATH/ml-1m."
        )
    some = chosen(only or (["local, epsilon 10"] if quick else []))
    if quick:
        some, seeds = dict(list(some.items())[:1]), 1
    trials = {
        (name, seed): news_trial(data, m, SERVED, seed)
        for name, m in some.items()
        for seed in range(1, seeds + 1)
    }
    rows = rows_of(trials, RowFiles(folder_of(folder, data)), tell=tell)
    return {
        "protocol": (__doc__ or "").split("\n\n")[1],
        "code": source_digest(next(iter(trials.values())).make),
        "methods": {
            name: summary({seed: row for (of, seed), row in rows.items() if of == name})
            for name in some
        },
    }


def summary(by_seed: Mapping[int, Row]) -> Row:
    """What is shown of one run: means over seeds, and at each epsilon of serving the values of
    every seed."""
    rows = list(by_seed.values())
    found, each = rows[0], dict[str, Row]()
    for at, answer in enumerate(found["serving"]["answers"]):
        seen = [row["serving"]["answers"][at]["metrics"] for row in rows]
        each[f"{answer['epsilon']}"] = {name: [m[name] for m in seen] for name in _METRICS}
    content = {
        "guarantee": found["guarantee"],
        "seeds": list(by_seed),
        "each": each,
        "served": {e: {name: _mean(values) for name, values in m.items()} for e, m in each.items()},
        "auc_stderr": _mean([row["metrics"]["auc_stderr"] for row in rows]),
        "history_swap_auc": _mean([row["controls"]["history_swap_auc"] for row in rows]),
        "rounds": found["rounds"],
        "seconds": max(row["training_seconds"] for row in rows),
        "bytes_up_per_client": found["bytes_up_per_client"],
        "baselines": {
            name: metrics["auc"]
            for name, metrics in found["baselines"].items()
            if "served at" not in name
        },
    }
    return dict(finite(content))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def ignores_history(found: Row) -> bool:
    """Whether exchanged histories change its AUC by no more than a standard error."""
    gap = abs(found["history_swap_auc"] - found["served"]["inf"]["auc"])
    return bool(gap <= found["auc_stderr"])


def markdown(result: Row) -> str:
    """Tables 1 and 2, then a table per figure that some run was made for; a dash stands where one
    is missing."""
    found = result["methods"]
    first: Row = next(iter(found.values()))
    controls = "; ".join(f"{name} {_percent(auc)}" for name, auc in first["baselines"].items())
    parts = [
        (
            "**Tables 1 and 2.** AUC / MRR / nDCG@5 / nDCG@10 in percent. Training ε and serving "
            f"ε are per click (replace).{_seeds_in_words(first)}"
        ),
        _tables(found),
        (
            f"AUC without training: {controls}. A standard error of AUC over impressions is "
            f"about {_percent(first['auc_stderr'])}."
        ),
        _ordering(found),
        _ordering_served(found),
    ]
    epsilons, sizes = [f"ε = {e:g}" for e in (1, 5, 10, 20)], [f"B = {B}" for B in BASES]
    figures = (
        ({"": FIGURE_4}, ("**Figure 4.** AUC of one model served at many ε.", _figure_4(found))),
        (
            FIGURE_5,
            (
                "**Figure 5.** AUC of `local` trained at ε = 10 with clicks hidden with "
                "probability p, in training and in serving.",
                _figure_5(found),
                "The paper's best p is 0.5 at B = 5 and 0.2 at B = 3; it prints no values.",
            ),
        ),
        (
            FIGURE_6,
            (
                "**Figure 6.** AUC served bare against ε of training. The paper prints one value: "
                "PrivateRec on NewsFeeds at ε = 5, 61.35.",
                _lines(found, FIGURE_6, epsilons),
            ),
        ),
        (
            FIGURE_7,
            (
                "**Figure 7.** AUC served bare against the number of basis vectors B, at ε = 10. "
                "The paper's best is B = 3; it prints no values.",
                _lines(found, FIGURE_7, sizes),
            ),
        ),
    )
    for lines, words in figures:
        if any(m.name in found for some in lines.values() for m in some):
            parts += words
    return "\n\n".join(filter(None, parts))


def _seeds_in_words(first: Row) -> str:
    seeds = len(first.get("seeds", [1]))
    words = (
        f" Means over {seeds} seeds of noise and initial values; ± is half of the 95% interval "
        "(Student's t)."
    )
    return words if seeds > 1 else ""


def _tables(found: Row) -> str:
    head = (
        "model, variant, ε",
        "bare",
        "paper, MIND",
        "served at ε = 10",
        "paper, MIND",
        "swap",
        "seconds",
    )
    lines = [
        _line(model, m, found) for model in MODELS for m in tables_of(model) if m.name in found
    ]
    return table(head, lines)


def _line(model: str, method: Method, found: Row) -> list[str]:
    row, label = found[method.name], f"{model.upper()}, {method.variant}, {method.epsilon:g}"
    if not row["guarantee"]["established"]:
        label += ", NOT ESTABLISHED"
    if ignores_history(row):
        label += ", IGNORES THE HISTORY"
    bare, at_ten = (_all(row["served"][e], row, e) for e in ("inf", "10.0"))
    published = (_published(model, method, serving) for serving in (math.inf, 10.0))
    first, second = (
        _all(dict(zip(_METRICS, p.metrics.values(), strict=True))) if p else "–" for p in published
    )
    return [
        label,
        bare,
        first,
        at_ten,
        second,
        _percent(row["history_swap_auc"]),
        f"{row['seconds']:.0f}",
    ]


def _published(model: str, method: Method, serving: float) -> PublishedRow | None:
    name = _IN_THE_PAPER[method.variant]
    wanted = (model, name, method.epsilon, serving)
    return next((p for p in TABLES if (p.model, p.method, p.training, p.serving) == wanted), None)


_NO_VERDICT = (
    "No verdict on either: few seeds, other data than the paper's, `local` is our own form of the "
    "method with a public start, "
    "and a row that ignores the history compares nothing. An earlier version of this page said "
    "that the orderings were not found."
)


def _ordering(found: Row) -> str:
    """The paper puts PrivateRec above DP-FedRec at every epsilon of training; empty where no pair
    was run."""
    seen = "; ".join(
        f"{words}: {_percent(ours)} and {_percent(theirs)}" for words, ours, theirs in _pairs(found)
    )
    words = f"The paper puts PrivateRec above DP-FedRec. Here, `local` and DP-FedRec: {seen}."
    return words if seen else ""


def _ordering_served(found: Row) -> str:
    """The paper's other ordering: Table 2's first row of each model below PrivateRec, though FedRec
    trains without noise."""
    methods = {m: (_method("local", 10.0, m), _method("fedrec", math.inf, m)) for m in MODELS}
    pairs = {
        m: (_auc(found, ours, "10.0"), _auc(found, theirs, "10.0"))
        for m, (ours, theirs) in methods.items()
    }
    words = [
        f"{m.upper()} {_percent(ours)} and {_percent(theirs)}"
        for m, (ours, theirs) in pairs.items()
        if ours is not None and theirs is not None
    ]
    paper = "Served at ε = 10, the paper puts PrivateRec above FedRec with a noised user vector."
    here = f"{paper} Here, `local` and FedRec: {'; '.join(words)}. {_NO_VERDICT}"
    return here if words else ""


def _pairs(found: Row) -> Iterator[tuple[str, float, float]]:
    for model in MODELS:
        for epsilon in (1.0, 5.0, 10.0, 20.0):
            ours, theirs = (_auc(found, _method(v, epsilon, model)) for v in ("local", "dp-fedrec"))
            if ours is not None and theirs is not None:
                yield f"{model.upper()} at ε = {epsilon:g}", ours, theirs


def _figure_4(found: Row) -> str:
    lines = [[m.name, *(_cell(found, m, f"{e}") for e in SERVED)] for m in FIGURE_4]
    return table(
        ("variant, ε of training", *("bare" if math.isinf(e) else f"ε = {e:g}" for e in SERVED)),
        lines,
    )


def _figure_5(found: Row) -> str:
    wanted = [(B, e, some) for B, some in FIGURE_5.items() for e in SERVED[1:4]]
    lines = [
        [f"B = {B}, served at ε = {e:g}", *(_cell(found, m, f"{e}") for m in some)]
        for B, e, some in wanted
    ]
    return table(("", *(f"p = {p:g}" for p in PADDINGS)), lines)


def _lines(found: Row, figure: dict[str, tuple[Method, ...]], columns: Iterable[str]) -> str:
    return table(
        ("variant", *columns),
        [[name, *(_cell(found, m, "inf") for m in some)] for name, some in figure.items()],
    )


def _cell(found: Row, method: Method, served: str) -> str:
    auc = _auc(found, method, served)
    return "–" if auc is None else f"{_percent(auc)}{_half(found[method.name], served, 'auc')}"


def _half(row: Row, served: str, metric: str) -> str:
    """Half of the interval over seeds, where there are several."""
    values = row.get("each", {}).get(served, {}).get(metric, ())
    return f" ± {_percent(interval(values).half)}" if len(values) > 1 else ""


def _auc(found: Row, method: Method, served: str = "inf") -> float | None:
    return float(found[method.name]["served"][served]["auc"]) if method.name in found else None


def _all(metrics: Row, row: Row | None = None, served: str = "") -> str:
    halves = {name: _half(row, served, name) if row else "" for name in _METRICS}
    return " / ".join(f"{_percent(metrics[name])}{halves[name]}" for name in _METRICS)


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"
