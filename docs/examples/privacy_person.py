"""A privacy person's way: a mechanism of one's own (capped_counts.py), simulated on planted data
and then attacked.

python privacy_person.py FOLDER
"""

import sys
from pathlib import Path

import capped_counts  # registers the recipe "capped-counts"

import fedrec

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs")
data = fedrec.Dataset.planted("small", kind="clicks")
settings = {"own.most": 10, "compare.als": False, "run.examples": 0}
run = fedrec.simulate("capped-counts", data, epsilon=5, settings=settings, directory=folder)
print(run.guarantee)
print("report:", run.report())

found = fedrec.audit("capped-counts", data, settings={"own.most": 10})
print(found.table())
print("settings:", capped_counts.CappedCounts().model_dump())
sys.exit(found.exit_code)
