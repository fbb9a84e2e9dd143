import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedrec.errors import RefusedError, RunError
from fedrec.privacy.calibration import calibrate
from fedrec.privacy.guarantee import Guarantee
from fedrec_aggregator.ledger import ReleaseLedger

EVERYBODY, RUN, DAY_S = list(range(12)), "run-1", 86_400.0


def released(world: Any) -> None:
    world.send(EVERYBODY)
    world.aggregator.tick()


def changed(world: Any, statement: str) -> None:
    world.stop()
    with sqlite3.connect(world.folder / "ledger.sqlite") as database:
        database.execute(statement)
    database.close()


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM entries WHERE seq = 1",
        "DELETE FROM entries WHERE seq = 0",
        "UPDATE entries SET content = replace(content, 's/0', 's/1') WHERE seq = 1",
        "UPDATE entries SET hash = (SELECT hash FROM entries WHERE seq = 0) WHERE seq = 2",
        "UPDATE entries SET seq = 99 WHERE seq = 1",
    ],
)
def test_a_damaged_chain_is_not_opened(world: Any, statement: str) -> None:
    released(world)
    changed(world, statement)
    with pytest.raises(RunError, match="damaged") as caught:
        world.start()
    assert "backup" in caught.value.remedy


def test_bytes_that_are_no_database_are_damage_not_a_traceback(make: Callable[..., Any]) -> None:
    world = make()
    world.stop()
    (world.folder / "ledger.sqlite").write_bytes(b"not a database" * 100)
    with pytest.raises(RunError, match="damaged"):
        world.start()


def test_an_older_copy_does_not_know_what_the_server_has_seen(world: Any) -> None:
    old = (world.folder / "ledger.sqlite").read_bytes()
    released(world)
    head = world.aggregator.status(RUN, 0).ledger_head
    world.stop()
    (world.folder / "ledger.sqlite").write_bytes(old)
    world.start()
    with pytest.raises(RefusedError) as caught:
        world.aggregator.open_round(world.opening(head=head))
    assert caught.value.code == "stale-ledger"


def test_another_ledger_shares_no_head(tmp_path: Path) -> None:
    heads = set[str]()
    for name in ("a", "b"):
        ledger = ReleaseLedger(tmp_path / name, limit=None, clock=lambda: 0.0)
        heads.add(ledger.head())
        assert ledger.knows("")
        assert ledger.knows(ledger.head())
        ledger.close()
    assert len(heads) == 2


def test_every_head_ever_told_is_known_after_a_restart(world: Any) -> None:
    heads = [world.aggregator.ledger.head()]
    for round in range(2):
        world.open(round)
        world.send(EVERYBODY, round)
        heads.append(world.aggregator.close(RUN, round).ledger_head)
    world.restart()
    assert all(world.aggregator.ledger.knows(head) for head in heads)
    assert world.aggregator.ledger.head() == heads[-1]
    assert len(set(heads)) == 3


def test_a_clock_more_than_a_day_behind_the_ledger_is_refused(world: Any) -> None:
    released(world)
    world.clock.now_s -= DAY_S
    world.restart()
    world.clock.now_s -= 60
    with pytest.raises(RefusedError, match="clock") as caught:
        world.restart()
    assert caught.value.code == "stale-ledger"
    world.clock.now_s += 120
    world.start()


def test_a_folder_has_one_aggregator(make: Callable[..., Any]) -> None:
    world = make()
    with pytest.raises(RunError, match="another aggregator"):
        ReleaseLedger(world.folder, limit=None)
    world.restart()


def test_a_folder_that_cannot_be_made_is_said_clearly(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be used"):
        ReleaseLedger(tmp_path / "file" / "folder", limit=None)


def test_a_damaged_or_missing_release_file_is_never_served(world: Any) -> None:
    released(world)
    (path,) = world.folder.rglob("round-000.safetensors")
    path.write_bytes(path.read_bytes()[:-8] + bytes(8))
    with pytest.raises(RunError, match="not the file"):
        world.aggregator.release(RUN, 0)
    path.unlink()
    with pytest.raises(RunError, match="cannot be read"):
        world.aggregator.release(RUN, 0)


def test_spends_of_several_units_are_not_added_without_a_limit_that_needs_it(tmp_path: Path) -> None:
    ledger = ReleaseLedger(tmp_path, limit=None)
    plans = [calibrate(Guarantee(2.0, 1e-5, unit), {"x": 1.0}) for unit in ("user", "example")]  # type: ignore[arg-type]
    for plan in plans:
        ledger.charge(plan.guarantee.unit, 0, plan, ["x"])
    assert ledger.spends().epsilon == pytest.approx(2.0)
    assert ledger.account(plans[1].guarantee).epsilon == pytest.approx(2.0)
    ledger.close()
