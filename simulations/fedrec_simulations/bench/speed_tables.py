"""Tables of benchmarks of speed, from their kept results: they need none of the packages that the
benchmarks need."""

from __future__ import annotations

import math
from typing import Any

from fedrec_simulations.experiments.rows import figure, in_order, table

Result = dict[str, Any]


def clicks(result: Result) -> str:
    """Clicks: quality and seconds."""
    lines = []
    for name, row in in_order(result):
        if isinstance(row, dict) and "ndcg@20" in row and "over" not in name:
            opinions = row.get("second_opinion", {})
            lines.append(
                [
                    _named(name, row, result["data"]["items"]),
                    figure(row["ndcg@20"]),
                    figure(row["recall@20"]),
                    *(figure(opinions.get(by), 3) for by in ("pld", "rdp")),
                ]
            )
    ratio = result.get("exact ALS over implicit") or {}
    words = ", ".join(f"{name} {figure(value, 3)}" for name, value in ratio.items())
    head = ("model, ε per user (add/remove)", "NDCG@20", "recall@20", "ε by PLD", "by RDP")
    exact = result["exact ALS"]
    chosen = (
        f"EASE's ridge is chosen on validation. ALS has {exact['dimension']} dimensions, ridge "
        f"{exact['ridge']:g} and alpha {exact['alpha']:g}, which nothing chose on these data. Both "
        "are references, not upper bounds: other models without privacy may be better."
    )
    return (
        f"{table(head, lines)}\n\n{chosen}\n\nOur exact ALS over `implicit`'s with the same "
        f"dimension and settings: {words}."
    )


def _named(name: str, row: Result, items: int) -> str:
    """With the recipe and the unit of an epsilon; of EASE, how many items it ranks."""
    if row.get("items", items) < items:
        return f"{name}, on the {row['items']:,} most frequent items"
    recipe = "default, " if name.startswith(("epsilon", "without features", "no privacy")) else ""
    return f"{recipe}{name} per user" if "epsilon" in name else f"{recipe}{name}"


def processes(result: Result) -> str:
    """Seconds and bytes of separate processes beside the loopback."""
    words = {
        "loopback_seconds": "loopback, all rounds, s",
        "processes_seconds": "separate processes, s",
        "allowed_seconds": "allowed: loopback, 10 s a round and 30 s to start",
        "start_seconds": "until the first round ends, above its own seconds",
        "seconds_a_round": "a round of processes, s",
        "bytes_up_per_user_and_round": "bytes a user sends in a round, mean",
        "most_bytes_up_of_143_ratings_in_a_round": (
            "most that a user of 143 ratings sends in a round"
        ),
    }
    lines = [[word, f"{result[key]:,.1f}"] for key, word in words.items()]
    same = "The model is the same, byte for byte." if result["same_bytes"] else "THE MODELS DIFFER."
    shape = (
        f"{result['clients']} clients, {result['users']:,} users, {result['items']:,} items, "
        f"{result['rounds']} rounds"
    )
    return f"{table((shape, 'measured'), lines)}\n\n{same}"


def intake(result: Result) -> str:
    """The aggregator's intake."""
    rates, costs = result["reports_per_second"], result["aggregator_cpu_us_per_report"]
    lines = [[name, f"{rates[name]:,.0f}", f"{costs[name]:,.0f}"] for name in rates]
    words = (
        f"Peak memory {result['aggregator_peak_mb']:,.0f} MB; {result['bytes_per_report']:,.0f} "
        "bytes a report."
    )
    small = table(
        ("two client processes send", "reports a second", "aggregator µs a report"), lines
    )
    large = [
        [
            name,
            f"{row['numbers']:,}",
            *(f"{row[key]:.2f}" for key in ("report_seconds", "release_seconds", "fetch_seconds")),
            f"{row['aggregator_peak_mb']:,.0f}",
        ]
        for name, row in result["large"].items()
    ]
    head = (
        "10,677 items",
        "numbers released",
        "a report of 10,000 ratings, s",
        "release, s",
        "fetch, s",
        "peak MB",
    )
    return f"{small}\n\n{words}\n\n{table(head, large)}"


def grid(result: Result) -> str:
    """Messages a second of the grid in this process beside Ray's."""
    ours, ray = (
        result["messages_per_second"]["in_process_grid"],
        result["messages_per_second"]["ray"] or {},
    )
    lines = [[size, f"{rate:,.0f}", figure(ray.get(size), 0)] for size, rate in ours.items()]
    return table(
        (f"{result['shape']['nodes']} nodes, payload each way", "messages a second", "Ray's"), lines
    )


def sgld(result: Result) -> str:
    """Speed of blocked SGD and SGLD, and error against seconds."""
    lines = []
    for d, row in sorted(result["ratings_per_second"].items(), key=lambda pair: int(pair[0])):
        rates = [row.get(form, {}).get("wall", math.nan) / 1e6 for form in ("libmf", "sgd", "sgld")]
        lines.append(
            [
                f"d = {d}",
                *(figure(rate, 1) for rate in rates),
                figure(rates[1] / rates[0], 1),
                figure(rates[2] / rates[1], 2),
            ]
        )
    errors, made = result["error_against_seconds"], result["predictions_per_second"]
    ends = {
        name: errors[key][-1] for name, key in (("ours", "ours"), ("LIBMF", "libmf")) if errors[key]
    }
    after = ", ".join(
        f"{name} {end['rmse']:.4f} in {end['seconds']:.1f} s" for name, end in ends.items()
    )
    pairs, catalogues, paper = (
        rate / 1e6
        for rate in (
            made["pairs"]["wall"],
            made["catalogues"]["wall"],
            result["paper_predictions_per_second"],
        )
    )
    passes, d, floor = errors["ours"][-1]["passes"], errors["dimension"], errors["floor"]
    words = f"Held-out RMSE after {passes} passes, d = {d}: {after}; the truth {floor:.4f}."
    predicted = (
        f"{pairs:.1f} million a second pair by pair, {catalogues:.0f} million by catalogue "
        f"(paper, 32 virtual cores: {paper:.1f})"
    )
    head = ("million ratings a second", "LIBMF", "SGD", "SGLD", "SGD over LIBMF", "SGLD over SGD")
    return f"{table(head, lines)}\n\n{words} Predictions, d = {made['dimension']}: {predicted}."


def kernels(result: Result) -> str:
    """Seconds of kernels beside their references."""
    lines = []
    for d, row in result["item_statistics"].items():
        ms, share = row["ms"], row["share_of_sgemm"]
        lines.append(
            [
                f"item statistics, {d}",
                f"{ms['float32']:.0f}",
                f"{row['best_batched_torch_over_ours']:.1f}x torch, {share:.0%} of SGEMM",
            ]
        )
        lines.append(
            [
                f"the same in exact integers, {d}",
                f"{ms['exact']:.0f}",
                f"{row['exact_over_float32']:.2f}x the float32 form",
            ]
        )
    for d, row in result["solves"].items():
        lines.append(
            [
                f"{row['systems']:,} Cholesky solves, {d}",
                f"{row['ms']['ours']:.0f}",
                f"{row['torch_over_ours']:.1f}x faster than torch",
            ]
        )
    for d, row in result["projection"].items():
        lines.append(
            [
                f"{row['matrices']:,} PSD projections, {d}",
                f"{row['ms']['ours']:.0f}",
                f"{row['torch_over_ours']:.1f}x torch's eigh",
            ]
        )
    noise = result["noise"]
    for std, rate in noise["million_per_second"].items():
        lines.append(
            [
                f"{noise['draws'] / 1e6:.0f} M discrete Gaussians, {std}",
                f"{noise['ms'][std]:.0f}",
                f"{rate:.0f} M a second",
            ]
        )
    return table(("operation", "ms", "beside"), lines)


def als(result: Result) -> str:
    """Seconds of ALS beside its peer."""
    seconds = result["seconds_per_iteration"]
    return table(
        ("one iteration, both sides, d = 64", "seconds"),
        [[name.replace("_", " "), f"{value:.2f}"] for name, value in seconds.items()],
    )


def encoder(result: Result) -> str:
    """Seconds of the encoder beside its peer."""
    epochs, ratios, batches = (
        result["ssp2_epoch_ms"],
        result["ssp2_epoch_over_products"],
        result["dp_sgd_epoch"],
    )
    lines = [
        [name.replace("_", " "), f"{ms:.1f}", f"{ratios[name]:.2f}"] for name, ms in epochs.items()
    ]
    peers = [f"{row['seconds_per_epoch']:,.0f} s at batch {size}" for size, row in batches.items()]
    times = min(row["seconds_per_epoch"] for row in batches.values()) * 1000 / min(epochs.values())
    words = (
        "An epoch of DP-SGD (Opacus) on the same encoder, extrapolated from a few batches: "
        f"{', '.join(peers)}"
    )
    head = ("SSP2 epoch of the encoder", "ms", "over its products alone")
    shape = result["shape"]
    visits = (
        f"An SSP2 epoch visits {shape['items']:,} items; a DP-SGD epoch visits "
        f"{shape['examples']:,} examples. Opacus cannot share an item's pass between its examples, "
        "as AM-SSP Alg. 6 does."
    )
    return f"{table(head, lines)}\n\n{words}; at least {times:,.0f} times as long. {visits}"


def readers(result: Result) -> str:
    """Seconds and memory of readers."""
    lines = [
        [name, f"{row['seconds']:.1f}", f"{row['peak_rss_mb']:.0f}"] for name, row in result.items()
    ]
    return table(("10 million rows", "seconds", "peak MB"), lines)
