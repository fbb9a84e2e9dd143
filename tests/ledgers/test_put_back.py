"""State folders that are put back as a whole, or copied to another machine, where the newest head of
the ledger is kept elsewhere: refused by one entry as by ten. Without it nothing there knows better."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrec.errors import RunError
from fedrec.federation.protocol import OwnLedger
from fedrec.privacy.accounting import GaussianEvent
from fedrec.privacy.calibration import calibrate
from fedrec.privacy.click_accounting import Costs
from fedrec.privacy.guarantee import Guarantee
from fedrec_client.click_ledger import ClickLedger
from fedrec_client.device.ledger import DeviceLedger
from fedrec_client.device.questions import DevicePromise
from fedrec_client.ledger import ClientLedger

LIMIT = Guarantee(500.0, 1e-5)
PLAN = calibrate(Guarantee(3.0, 1e-5), {"counts": 1.0})
PROMISE = DevicePromise("plan", 0.01, 1e-5, {"counts": 0.01})
CLICK = Costs((GaussianEvent("step", 0.01, "click", "replace"),), ())


def _of_client(folder: Path, seen: Path | None) -> Any:
    return ClientLedger(folder / "ledger.sqlite", limit=LIMIT, seen=seen)


def _of_clicks(folder: Path, seen: Path | None) -> Any:
    limit = replace(LIMIT, unit="click", neighbours="replace")
    return ClickLedger(folder / "clicks.sqlite", limit=limit, seen=seen)


def _of_device(folder: Path, seen: Path | None) -> Any:
    return DeviceLedger(folder, epsilon=500.0, delta=1e-5, seen=seen)


def _answered(ledger: ClickLedger, k: int) -> None:
    ledger.charge("run", CLICK)
    ledger.answer("run", k, str(k), np.ones(3, bool), most=99)


LEDGERS: dict[str, tuple[Callable[..., Any], Callable[[Any, int], Any]]] = {
    "client": (_of_client, lambda kept, k: kept.charge(f"r{k}", 0, str(k), PLAN, ["counts"])),
    "client of news, its runs": (_of_clicks, lambda kept, k: kept.charge(f"r{k}", CLICK)),
    "client of news, its answers": (_of_clicks, _answered),
    "light device": (
        _of_device,
        lambda kept, k: kept.charge(f"r{k}", 0, str(k), PROMISE, ["counts"], terms=""),
    ),
}


@pytest.mark.parametrize("back", [1, 10])
@pytest.mark.parametrize("elsewhere", [True, False])
@pytest.mark.parametrize("name", LEDGERS)
def test_a_folder_put_back_is_refused_where_a_head_is_kept_elsewhere(
    name: str, elsewhere: bool, back: int, tmp_path: Path
) -> None:
    opened, charge = LEDGERS[name]
    folder, old = tmp_path / "state", tmp_path / "old"
    seen = tmp_path / "elsewhere" / "head.json" if elsewhere else None
    for k in range(12):
        with closing(opened(folder, seen)) as ledger:
            charge(ledger, k)
        if k == 11 - back:
            shutil.copytree(folder, old)
    opened(folder, seen).close()
    shutil.rmtree(folder)
    shutil.copytree(old, folder)
    if elsewhere:
        with pytest.raises(RunError, match="older than"):
            opened(folder, seen)
        shutil.rmtree(folder)
        with pytest.raises(RunError, match="is gone"):
            opened(folder, seen)
    else:
        opened(folder, None).close()


@pytest.mark.parametrize("name", LEDGERS)
def test_a_head_elsewhere_may_come_later_and_stay_behind_by_a_crash(
    name: str, tmp_path: Path
) -> None:
    opened, charge = LEDGERS[name]
    folder, seen = tmp_path / "state", tmp_path / "head.json"
    with closing(opened(folder, None)) as ledger:
        charge(ledger, 0)
    with closing(opened(folder, seen)) as ledger:
        charge(ledger, 1)
    before = seen.read_bytes()
    with closing(opened(folder, None)) as ledger:  # as a crash before the second file was written
        charge(ledger, 2)
    opened(folder, seen).close()
    assert seen.read_bytes() != before


@pytest.mark.parametrize("first", [0, 3])
def test_of_a_ledger_copied_to_a_second_machine_the_aggregator_takes_one(
    first: int, tmp_path: Path
) -> None:
    """Both go on alike, by questions of their own: whoever is seen second is refused, however much
    longer its ledger is."""
    opened, charge = LEDGERS["client"]
    with closing(opened(tmp_path / "a", None)) as ledger:
        for k in range(first):
            charge(ledger, k)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    told = dict[str, OwnLedger]()
    for machine, more in (("a", range(10, 12)), ("b", range(20, 25))):
        with closing(opened(tmp_path / machine, None)) as ledger:
            for k in more:
                charge(ledger, k)
            told[machine] = ledger.told
    assert not told["b"].follows(told["a"].end)
    assert not told["a"].follows(told["b"].end)
    assert told["b"].follows(told["b"].end)
