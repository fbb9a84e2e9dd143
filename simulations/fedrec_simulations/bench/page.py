"""docs/benchmarks.md: the kept results as tables, each with the command that makes it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedrec.storage import read_json, write_bytes
from fedrec_simulations.experiments.rows import figure, in_order, table

Result = dict[str, Any]


def write(target: Path, results: Path) -> None:
    """Write the page from the JSON files in `results`; a section whose file is absent is left out. Raises RunError on a damaged file."""
    parts = ["# Benchmarks", INTRODUCTION]
    for name, title, words, command, section in SECTIONS:
        if (path := results / f"{name}.json").exists():
            result = read_json(path)
            note = (
                [f"**Note.** {result['note']}"] if result.get("note") else []
            )  # how rows were made, where it is not how they would be now
            parts += [f"## {title}", words, f"```sh\n{command} --output {path.as_posix()}\n```", *note, section(result)]
    write_bytes(target, ("\n\n".join(parts) + "\n").encode())


INTRODUCTION = """Made by `fedrec docs docs/reference.md --results docs/results` from the files in docs/results, which these commands write.
Speeds were measured on two cores of a shared machine (AMD EPYC, AVX-512): read the ratios, which come from one run each, not the times.
Every ε is at δ = 10⁻⁵. Of ratings and clicks it is per user (add/remove), with the privacy loss distribution (PLD) and Renyi (RDP)
as second opinions. The tables of news state the unit and neighbours of each line: their epsilons do not compare."""


def _quality(result: Result) -> str:
    from fedrec_simulations.bench.quality import markdown

    return markdown(result)


def _ablation(result: Result) -> str:
    from fedrec_simulations.bench.ablation import markdown

    return markdown(result)


def _sizes(result: Result) -> str:
    from fedrec_simulations.bench.sizes import markdown

    return markdown(result)


def _simple(result: Result) -> str:
    from fedrec_simulations.bench.simple import markdown

    return markdown(result)


def _clicks(result: Result) -> str:
    lines = []
    for name, row in in_order(result):
        if isinstance(row, dict) and "ndcg@20" in row and "over" not in name:
            opinions = row.get("second_opinion", {})
            lines.append([name, figure(row["ndcg@20"]), figure(row["recall@20"]), *(figure(opinions.get(by), 3) for by in ("pld", "rdp"))])
    ratio = result.get("exact ALS over implicit") or {}
    words = ", ".join(f"{name} {figure(value, 3)}" for name, value in ratio.items())
    head = ("model (ε per user, add/remove)", "NDCG@20", "recall@20", "ε by PLD", "by RDP")
    return table(head, lines) + f"\n\nOur exact ALS over `implicit`'s with the same dimension and settings: {words}."


def _news(result: Result) -> str:
    from fedrec_simulations.experiments.news import markdown

    return markdown(result)


def _news_paper(result: Result) -> str:
    from fedrec_simulations.experiments.news_paper import markdown

    return markdown(result)


def _serving(result: Result) -> str:
    from fedrec_simulations.bench.serving import markdown

    return markdown(result)


def _serving_endurance(result: Result) -> str:
    from fedrec_simulations.bench.serving_endurance import markdown

    return markdown(result)


def _serving_lists(result: Result) -> str:
    from fedrec_simulations.bench.serving_lists import markdown

    return markdown(result)


def _serving_news(result: Result) -> str:
    from fedrec_simulations.bench.serving_news import markdown

    return markdown(result)


def _linkage(result: Result) -> str:
    from fedrec_simulations.bench.linkage import markdown

    return markdown(result)


def _serving_basis(result: Result) -> str:
    from fedrec_simulations.bench.serving_utility import markdown

    return markdown(result)


def _processes(result: Result) -> str:
    words = {
        "loopback_seconds": "loopback, all rounds, s",
        "processes_seconds": "separate processes, s",
        "allowed_seconds": "allowed: loopback, 10 s a round and 30 s to start",
        "start_seconds": "until the first round ends, above its own seconds",
        "seconds_a_round": "a round of processes, s",
        "bytes_up_per_user_and_round": "bytes a user sends in a round, mean",
        "most_bytes_up_of_143_ratings_in_a_round": "most that a user of 143 ratings sends in a round",
    }
    lines = [[word, f"{result[key]:,.1f}"] for key, word in words.items()]
    same = "The model is the same, byte for byte." if result["same_bytes"] else "THE MODELS DIFFER."
    shape = f"{result['clients']} clients, {result['users']:,} users, {result['items']:,} items, {result['rounds']} rounds"
    return f"{table((shape, 'measured'), lines)}\n\n{same}"


def _enrolment(result: Result) -> str:
    from fedrec_simulations.bench.enrolment import markdown

    return markdown(result)


def _device(result: Result) -> str:
    from fedrec_simulations.bench.device import markdown

    return markdown(result)


def _nodes(result: Result) -> str:
    from fedrec_simulations.bench.nodes import markdown

    return markdown(result)


def _cohorts(result: Result) -> str:
    from fedrec_simulations.bench.cohorts import markdown

    return markdown(result)


def _sharing(result: Result) -> str:
    from fedrec_simulations.bench.sharing import markdown

    return markdown(result)


def _sharing_intake(result: Result) -> str:
    from fedrec_simulations.bench.sharing_intake import markdown

    return markdown(result)


def _intake(result: Result) -> str:
    rates, costs = result["reports_per_second"], result["aggregator_cpu_us_per_report"]
    lines = [[name, f"{rates[name]:,.0f}", f"{costs[name]:,.0f}"] for name in rates]
    words = f"Peak memory {result['aggregator_peak_mb']:,.0f} MB; {result['bytes_per_report']:,.0f} bytes a report."
    small = table(("two client processes send", "reports a second", "aggregator µs a report"), lines)
    large = [
        [
            name,
            f"{row['numbers']:,}",
            *(f"{row[key]:.2f}" for key in ("report_seconds", "release_seconds", "fetch_seconds")),
            f"{row['aggregator_peak_mb']:,.0f}",
        ]
        for name, row in result["large"].items()
    ]
    head = ("10,677 items", "numbers released", "a report of 10,000 ratings, s", "release, s", "fetch, s", "peak MB")
    return f"{small}\n\n{words}\n\n{table(head, large)}"


def _grid(result: Result) -> str:
    ours, ray = result["messages_per_second"]["in_process_grid"], result["messages_per_second"]["ray"] or {}
    lines = [[size, f"{rate:,.0f}", figure(ray.get(size), 0)] for size, rate in ours.items()]
    return table((f"{result['shape']['nodes']} nodes, payload each way", "messages a second", "Ray's"), lines)


def _sgld(result: Result) -> str:
    lines = []
    for d, row in sorted(result["ratings_per_second"].items(), key=lambda pair: int(pair[0])):
        rates = [row.get(form, {}).get("wall", math.nan) / 1e6 for form in ("libmf", "sgd", "sgld")]
        lines.append([f"d = {d}", *(figure(rate, 1) for rate in rates), figure(rates[1] / rates[0], 1), figure(rates[2] / rates[1], 2)])
    errors, made = result["error_against_seconds"], result["predictions_per_second"]
    ends = {name: errors[key][-1] for name, key in (("ours", "ours"), ("LIBMF", "libmf")) if errors[key]}
    after = ", ".join(f"{name} {end['rmse']:.4f} in {end['seconds']:.1f} s" for name, end in ends.items())
    pairs, catalogues, paper = (
        rate / 1e6 for rate in (made["pairs"]["wall"], made["catalogues"]["wall"], result["paper_predictions_per_second"])
    )
    passes, d, floor = errors["ours"][-1]["passes"], errors["dimension"], errors["floor"]
    words = f"Held-out RMSE after {passes} passes, d = {d}: {after}; the truth {floor:.4f}."
    predicted = f"{pairs:.1f} million a second pair by pair, {catalogues:.0f} million by catalogue (paper, 32 virtual cores: {paper:.1f})"
    head = ("million ratings a second", "LIBMF", "SGD", "SGLD", "SGD over LIBMF", "SGLD over SGD")
    return f"{table(head, lines)}\n\n{words} Predictions, d = {made['dimension']}: {predicted}."


def _kernels(result: Result) -> str:
    lines = []
    for d, row in result["item_statistics"].items():
        ms, share = row["ms"], row["share_of_sgemm"]
        lines.append(
            [f"item statistics, {d}", f"{ms['float32']:.0f}", f"{row['best_batched_torch_over_ours']:.1f}x torch, {share:.0%} of SGEMM"]
        )
        lines.append([f"the same in exact integers, {d}", f"{ms['exact']:.0f}", f"{row['exact_over_float32']:.2f}x the float32 form"])
    for d, row in result["solves"].items():
        lines.append(
            [f"{row['systems']:,} Cholesky solves, {d}", f"{row['ms']['ours']:.0f}", f"{row['torch_over_ours']:.1f}x faster than torch"]
        )
    for d, row in result["projection"].items():
        lines.append(
            [f"{row['matrices']:,} PSD projections, {d}", f"{row['ms']['ours']:.0f}", f"{row['torch_over_ours']:.1f}x torch's eigh"]
        )
    noise = result["noise"]
    for std, rate in noise["million_per_second"].items():
        lines.append([f"{noise['draws'] / 1e6:.0f} M discrete Gaussians, {std}", f"{noise['ms'][std]:.0f}", f"{rate:.0f} M a second"])
    return table(("operation", "ms", "beside"), lines)


def _als(result: Result) -> str:
    seconds = result["seconds_per_iteration"]
    return table(
        ("one iteration, both sides, d = 64", "seconds"), [[name.replace("_", " "), f"{value:.2f}"] for name, value in seconds.items()]
    )


def _encoder(result: Result) -> str:
    epochs, ratios, batches = result["ssp2_epoch_ms"], result["ssp2_epoch_over_products"], result["dp_sgd_epoch"]
    lines = [[name.replace("_", " "), f"{ms:.1f}", f"{ratios[name]:.2f}"] for name, ms in epochs.items()]
    peers = [f"{row['seconds_per_epoch']:,.0f} s at batch {size}" for size, row in batches.items()]
    times = min(row["seconds_per_epoch"] for row in batches.values()) * 1000 / min(epochs.values())
    words = f"An epoch of DP-SGD (Opacus) on the same encoder, extrapolated from a few batches: {', '.join(peers)}"
    head = ("SSP2 epoch of the encoder", "ms", "over its products alone")
    return f"{table(head, lines)}\n\n{words}; at least {times:,.0f} times as long."


def _readers(result: Result) -> str:
    lines = [[name, f"{row['seconds']:.1f}", f"{row['peak_rss_mb']:.0f}"] for name, row in result.items()]
    return table(("10 million rows", "seconds", "peak MB"), lines)


SECTIONS: tuple[tuple[str, str, str, str, Callable[[Result], str]], ...] = (
    (
        "quality-ml1m",
        "Ratings: MovieLens 1M",
        "Random 80/10/10, test RMSE, mean of three split seeds. Hyper-parameters of `default` were chosen on validation.",
        "fedrec bench quality --data PATH/ml-1m",
        _quality,
    ),
    (
        "ablation-ml1m",
        "What each part of the default recipe is worth",
        "Validation RMSE on split seed 1; test is not read. Positive: the part helps.",
        "fedrec bench ablation --data PATH/ml-1m",
        _ablation,
    ),
    (
        "sizes",
        "The default at many sizes",
        "Planted ratings, 25 a user; test RMSE after the last round, in brackets that of item biases alone, by ε per user (add/remove). "
        "Means of three seeds. The worlds are made up: the table asks where the recipe breaks, not how good it is.",
        "fedrec bench sizes",
        _sizes,
    ),
    (
        "simple",
        "The default beside simple private methods",
        "Each on the same data, split, ε and unit; means of three seeds, test read once. Data sets whole and cut down.",
        "fedrec bench simple --data PATH/ml-1m --data PATH/ml-100k --users 300,1000 --items 100,300,1000",
        _simple,
    ),
    (
        "clicks-yelp2018",
        "Clicks: yelp2018",
        "The split of LightGCN; trained on all given train events, means over noise seeds.",
        "fedrec bench clicks --data PATH/yelp2018",
        _clicks,
    ),
    (
        "clicks-ml1m",
        "Clicks: MovieLens 1M, likes",
        "Ratings of at least 4 as clicks; a random split, 80% to train; means over noise seeds.",
        "fedrec bench clicks --data PATH/ml-1m",
        _clicks,
    ),
    (
        "news-ml1m",
        "News: a click log of MovieLens 1M",
        "Popularity-matched candidates; the protocol is `fedrec.data.clicklog`'s, one division of users for every row, seeds for noise and "
        "initialisation. Public rows and schedules were chosen before, on validation users of other divisions: some test users here took "
        "part in that choice.",
        "fedrec bench news --data PATH/ml-1m",
        _news,
    ),
    (
        "news-paper-ml1m",
        "News: the paper's tables and figures",
        "The same log, one seed: what trains in rounds (PrivateRec Alg. 3), as printed and in the form that holds (`local`), beside what "
        "the paper prints for MIND, which is other data.",
        "fedrec bench news-paper --data PATH/ml-1m",
        _news_paper,
    ),
    (
        "linkage-ml1m",
        "News: who is known again by noised answers",
        "A click is not a person: two answers on one history, each with new noise, matched by likelihood among all people who train. "
        "What hides a click may hide no person.",
        "fedrec bench linkage --data PATH/ml-1m",
        _linkage,
    ),
    (
        "serving-news-ml1m",
        "Private queries: news through a real server",
        "Test users of the click log ask `fedrec serve` over gRPC with the client's code; what it answers is scored as in evaluation. "
        "Padding and the basis of the attention form are Figures 5 and 7 of `fedrec bench news-paper`.",
        "fedrec bench serving-news --data PATH/ml-1m",
        _serving_news,
    ),
    (
        "serving-lists-ml1m",
        "Private queries: lists through a real server",
        "The default recipe at ε = 5 per user; ε of a question is per click (replace). NDCG@10 of held-out test likes.",
        "fedrec bench serving-lists --data PATH/ml-1m",
        _serving_lists,
    ),
    (
        "serving-basis-ml1m",
        "Private queries: ratings",
        "What a factorisation model's users lose by asking privately, by form, B and ε of one query. B follows the release.",
        "fedrec bench serving-basis --data PATH/ml-1m",
        _serving_basis,
    ),
    (
        "serving",
        "The serving server under load",
        "A real `fedrec serve` and a load generator, each a process, on the same cores.",
        "fedrec bench serving",
        _serving,
    ),
    (
        "serving-endurance",
        "The serving server under everything at once",
        "Load, a new version every five seconds, callers that hang up, malformed messages; every answer is held against a plain ranking.",
        "fedrec bench serving --endurance 60",
        _serving_endurance,
    ),
    (
        "processes-ml1m",
        "Separate processes",
        "The same training by loopback, and by an aggregator, a server and two clients as processes of their own on one machine.",
        "fedrec bench processes --data PATH/ml-1m",
        _processes,
    ),
    ("intake", "The aggregator's intake", "Real gRPC with mutual TLS; 143 ratings a user, 3,706 items.", "fedrec bench intake", _intake),
    (
        "enrolment",
        "Enrolment",
        "Users that enrol where a million are enrolled: the aggregator's rules and ledger alone, and its service. Medians over calls.",
        "fedrec bench enrolment",
        _enrolment,
    ),
    (
        "nodes",
        "A thousand nodes",
        "Synthetic nodes over mutual TLS at a real gate and SuperLink, which wait for messages between rounds.",
        "fedrec bench nodes --endurance 3600",
        _nodes,
    ),
    (
        "device",
        "A client at rest",
        "A real client and its SuperNode with one person's ratings, joined over mutual TLS. `idle_s` after a message its worker ends.",
        "fedrec bench device",
        _device,
    ),
    (
        "cohorts",
        "Sampled cohorts",
        "The default recipe on planted ratings, a new sample of users in every round, noise as if all were in it. Validation, 3 seeds.",
        "fedrec bench cohorts",
        _cohorts,
    ),
    (
        "sharing-ml1m",
        "Three aggregators",
        "Shares among three aggregators, in one process (three-party.md; not yet reviewed from outside): bytes and CPU of synthetic users, "
        "and trainings of the default recipe on MovieLens 1M beside one trusted aggregator's. Test rows of one split, noise of 2 seeds.",
        "fedrec bench sharing --data ml-1m",
        _sharing,
    ),
    (
        "sharing-intake",
        "The intake of three aggregators",
        "Real gRPC with mutual TLS, three aggregators and two client processes on one machine that did other work too; a step of the "
        "default recipe at MovieLens 1M's 3,883 items. Shares are made before the clock starts.",
        "fedrec bench sharing-intake",
        _sharing_intake,
    ),
    (
        "grid",
        "Flower's messages in one process",
        "The in-process grid of `--runtime flower`; best of five waves.",
        "fedrec bench grid",
        _grid,
    ),
    (
        "kernels",
        "Kernels",
        "MovieLens-10M's shape: 69,878 users, 10,677 items, 10 million ratings, long tail.",
        "fedrec bench kernels",
        _kernels,
    ),
    ("als", "Alternating least squares", "The same shape, non-private, exact.", "fedrec bench als", _als),
    (
        "sgld",
        "Blocked SGD and SGLD",
        "MovieLens-10M's shape, planted, two cores; in the same run LIBMF, built as its authors do: `-O3 -march=native`, AVX, OpenMP.",
        "fedrec bench sgld",
        _sgld,
    ),
    ("encoder", "The feature encoder", "10,677 items, 58,645 features, 725,000 non-zeros, d = 64.", "fedrec bench encoder", _encoder),
    ("readers", "Readers", "Whole files to checked interactions, each in a process of its own.", "fedrec bench readers", _readers),
)
