"""A researcher's way: a data frame, a privacy-utility curve with three seeds, a figure for the
paper and its numbers as CSV.

    python researcher.py OUTPUT

The frame here is made up. With your own: `log = polars.read_parquet("clicks.parquet")`.
"""

import sys
from pathlib import Path

import polars as pl
from made_up import clicks

import fedrec

output = Path(sys.argv[1] if len(sys.argv) > 1 else "curve")
output.mkdir(parents=True, exist_ok=True)

log: pl.DataFrame = clicks(users=400, items=80)
data = fedrec.Dataset.from_frame(
    log, user="user_id", item="item_id", time="clicked_at", duplicates="last"
)
train, test = data.split("leave-last-out", seed=1)

# an experiment: the figure repeats to the byte, and no model is released
model = fedrec.ItemItem(delta=1e-5, noise="seeded")
curve = fedrec.privacy_curve(model, train, test, epsilons=[1, 5, 20], seeds=range(3))

curve.plot().save(output / "curve.svg")
curve.to_frame().write_csv(output / "points.csv")
curve.summary().write_csv(output / "summary.csv")
print(curve)
