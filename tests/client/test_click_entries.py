"""A ledger of clicks whose chain fits, but whose words are not known, is refused."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from fedrec.errors import RunError
from fedrec.privacy.accounting import GaussianEvent
from fedrec.privacy.click_accounting import Costs
from fedrec.privacy.guarantee import Guarantee
from fedrec_client.click_ledger import CLICKS, ClickLedger

LIMIT = Guarantee(10.0, 1e-5, "click", "replace")
COSTS = Costs((GaussianEvent("report", 0.5, "click", "replace"),), ())


@pytest.mark.parametrize("word", ["gaussian", "laplace"])
def test_a_charge_that_a_newer_version_wrote_is_not_read_as_another(
    tmp_path: Path, word: str
) -> None:
    """The chain holds no secret: with its heads made again, the same word opens, another does not."""
    path = tmp_path / "clicks.sqlite"
    with closing(ClickLedger(path, limit=LIMIT)) as ledger:
        ledger.charge("run", COSTS)
    with closing(sqlite3.connect(path)) as database:
        row = database.execute("SELECT number, time_s, run, kind, content FROM entries").fetchone()
        content = json.loads(row[4])
        content["history"][0][0] = word
        changed = (*row[:4], json.dumps(content, sort_keys=True))
        update = "UPDATE entries SET content = ?, head = ? WHERE number = 1"
        database.execute(update, (changed[4], CLICKS.entries.head(CLICKS.entries.begins, changed)))
        database.commit()
    if word == "gaussian":
        with closing(ClickLedger(path, limit=LIMIT)) as ledger:
            assert ledger.runs[0].price == COSTS
    else:
        with pytest.raises(RunError, match="entry, 1, that this version cannot read"):
            ClickLedger(path, limit=LIMIT)
