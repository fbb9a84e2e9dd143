"""An engineer's way: clicks in Parquet, a private model, an endpoint for private queries, asked
from Python and from curl.

python engineer.py FOLDER
"""

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

from made_up import clicks

import fedrec
from fedrec_client.clicks import Clicks
from fedrec_client.recommending import Recommender

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "endpoint")
folder.mkdir(parents=True, exist_ok=True)
clicks(users=400, items=80).write_parquet(folder / "clicks.parquet")

columns = {"user": "user_id", "item": "item_id", "timestamp": "clicked_at"}
data = fedrec.Dataset.from_file(folder / "clicks.parquet", columns=columns)
model = fedrec.ItemItem(epsilon=5, delta=1e-5).fit(data)
model.save(folder / "model")
print("training:", model.guarantee)

with model.serve(port=0, background=True) as served:
    # on a device: a few noised numbers leave, never a history, and a ledger says what they cost
    with Recommender(served.url, folder / "device", epsilon=5.0, limit=20.0) as device:
        answer = device.recommend(Clicks.of(["0", "1", "2"]), k=5)
        print("device:", [item.id for item in answer.items])
    # what leaves is a small JSON object that any program can send; here its numbers are all zero,
    # as of nobody
    with urllib.request.urlopen(f"{served.url}/v1/models") as reply:
        newest = json.load(reply)["models"][0]
    question = json.dumps(
        {"version": newest["version"], "coefficients": [0.0] * newest["coefficients"], "k": 5}
    )
    curl = [
        "curl",
        "-sS",
        "-H",
        "Content-Type: application/json",
        "-d",
        question,
        f"{served.url}/v1/recommend",
    ]
    print("curl:", subprocess.run(curl, capture_output=True, text=True, check=True).stdout)
