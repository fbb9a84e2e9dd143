"""The table of the benchmark of clicks, from a kept result: it needs none of the packages that the
benchmark needs."""

from __future__ import annotations

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
