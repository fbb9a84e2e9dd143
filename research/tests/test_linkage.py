"""Linkage on planted people: far beyond chance at a usual epsilon per click, and no less on the
same history than on a longer one."""

import json
from pathlib import Path

from fedrec_research.quality import linkage
from fedrec_research.trials import Asked

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_people_are_linked_beyond_chance() -> None:
    result = linkage.run(Asked(("planted",), quick=True))
    assert list(result["epsilons"]) == ["5", "10"]
    five, ten = result["epsilons"].values()
    assert five["same"]["low"] > 5 * five["same"]["chance"]
    assert (
        ten["same"]["rate"] > five["same"]["rate"] > five["later"]["rate"] > five["same"]["chance"]
    )
    assert ten["user_epsilon"] > five["user_epsilon"] > 1_000


def test_the_pages_say_what_was_measured() -> None:
    kept = json.loads((ROOT / "research" / "results" / "linkage-ml1m.json").read_text())
    privacy = (DOCS / "privacy.md").read_text()
    for epsilon in ("0.5", "1", "5", "10", "20"):
        row = kept["epsilons"][epsilon]
        shares = " | ".join(f"{row[which]['rate']:.1%}" for which in ("same", "later"))
        (line,) = [
            line for line in privacy.splitlines() if line.startswith(f"| {epsilon} | {shares} |")
        ]
        both, labels = (float(cell.replace(",", "")) for cell in line.split("|")[4:6])
        assert abs(both / row["user_epsilon"] - 1) < 1e-3
        assert abs(labels / row["user_epsilon_of_labels"] - 1) < 1e-3
    for page in ("news.md", "serving.md"):
        said = (DOCS / page).read_text()
        assert f"{kept['epsilons']['5']['same']['rate']:.0%}" in said
        assert f"{kept['people']:,} people" in said
