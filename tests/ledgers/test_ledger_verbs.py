"""`fedrec ledger`: what ledgers say of themselves, and jumps of the clock."""

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedrec.cli.ledgers import inventory, verification
from fedrec.cli.main import app
from fedrec.ledgers.sqlite_ledger import read_clock
from fedrec.operations.clock import ClockJump, Clocks
from fedrec.privacy.calibration import calibrate
from fedrec.privacy.guarantee import Guarantee
from fedrec_client.click_ledger import ClickLedger
from fedrec_client.ledger import ClientLedger
from tests.aggregator.conftest import World

DAY_S = 86_400.0
EVERYBODY = list(range(12))
LIMIT = Guarantee(50.0, 1e-5)
PLAN = calibrate(Guarantee(1.0, 1e-5), {f"x/{t}": 1.0 for t in range(9)})


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    (tmp_path / "ratings.csv").write_text("user,item,rating\nfirst,a,5\n")
    (tmp_path / "aggregator.toml").write_text(
        'listen = "127.0.0.1:1"\nstate = "a"\ninsecure = true\n[privacy]\nmax_epsilon = 50.0\n'
    )
    (tmp_path / "server.toml").write_text(
        'state = "s"\npublic = { path = "p" }\nlink = { insecure = true }\n'
    )
    (tmp_path / "client.toml").write_text(
        'name = "client-0"\nstate = "c"\ndata = { path = "ratings.csv", rating_range = [1, 5] '
        "}\n[privacy]\nmax_epsilon = 50.0\n"
        '[aggregator]\naddress = "127.0.0.1:1"\ninsecure = true\n[server]\naddress = '
        '"127.0.0.1:2"\ninsecure = true\n'
    )
    return tmp_path


@pytest.mark.parametrize("days", [3.0, -3.0])
def test_a_clock_that_jumps_in_the_middle_of_a_round_is_written_down_and_the_round_ends_as_it_was_to(
    settings: Path, days: float
) -> None:
    world = World(settings / "a")
    passed = [0.0]
    world.enroll()
    clocks = Clocks(world.clock, lambda: passed[0])
    world.open()
    world.send(EVERYBODY[:6])
    world.aggregator._clock = lambda: passed[0]  # deadlines are on a clock that nobody sets
    world.clock.now_s += days * DAY_S + 60.0
    passed[0] += 60.0
    jump = clocks.jump()
    assert jump is not None
    assert jump.now_s - jump.expected_s == pytest.approx(days * DAY_S)
    assert clocks.jump() is None  # told once
    world.aggregator.ledger.note_clock(jump)
    world.send(EVERYBODY[6:])
    assert world.aggregator.close(world.run, 0).phase == "released"
    world.restart()  # the chain with the note in it is whole
    world.stop()
    shown = inventory.shown(settings / "aggregator.toml")
    assert [each.now_s - each.expected_s for each in shown.jumps] == [pytest.approx(days * DAY_S)]
    assert f"set {'ahead' if days > 0 else 'back'} by 72.0 h" in inventory.text(shown)


def test_a_correction_of_a_minute_is_no_jump() -> None:
    now_s = [1_000.0]
    passed_s = [0.0]
    clocks = Clocks(lambda: now_s[0], lambda: passed_s[0])
    now_s[0] = 1_000.0 + 500.0
    passed_s[0] = 440.0
    assert clocks.jump() is None


def test_a_client_writes_a_jump_back_down_with_its_next_entry(tmp_path: Path) -> None:
    now_s = [1_000_000.0]
    ledger = ClientLedger(tmp_path / "ledger.sqlite", limit=LIMIT, clock=lambda: now_s[0])
    for round, back in enumerate((0.0, 3 * DAY_S, 0.0)):
        now_s[0] -= back
        ledger.charge("run", round, f"{round}", PLAN, [f"x/{round}"])
    ledger.note_clock(ClockJump(5.0, 9.0))
    ledger.close()
    assert read_clock(tmp_path / "ledger.sqlite") == (
        (1, ClockJump(1_000_000.0, 1_000_000.0 - 3 * DAY_S)),
        (3, ClockJump(5.0, 9.0)),
    )
    ClientLedger(tmp_path / "ledger.sqlite", limit=LIMIT).close()
    clicks = ClickLedger(tmp_path / "clicks.sqlite", limit=Guarantee(5.0, 1e-5, "click", "replace"))
    clicks.note_clock(ClockJump(1.0, 2.0))
    assert clicks.note_clock() is None
    clicks.close()
    assert read_clock(tmp_path / "clicks.sqlite") == ((0, ClockJump(1.0, 2.0)),)


def test_verify_finds_a_head_file_that_knows_more_and_a_release_that_is_another(
    settings: Path,
) -> None:
    ledger = ClientLedger(settings / "c" / "ledger.sqlite", limit=LIMIT)
    ledger.charge("run", 0, "0", PLAN, ["x/0"])
    old = (settings / "c" / "ledger.sqlite").read_bytes()
    ledger.charge("run", 1, "1", PLAN, ["x/1"])
    ledger.close()
    assert not any(found.wrong for found in verification.verified([settings / "client.toml"]))
    (settings / "c" / "ledger.sqlite").write_bytes(old)
    [_, head] = verification.verified([settings / "client.toml"])
    assert "is older than" in head.wrong
    world = World(settings / "a")
    world.enroll()
    world.open()
    world.send(EVERYBODY)
    world.aggregator.close(world.run, 0)
    world.stop()
    [path] = (settings / "a").rglob("round-000.safetensors")
    path.write_bytes(path.read_bytes() + b"1")
    result = CliRunner().invoke(
        app, ["ledger", "verify", str(settings / "aggregator.toml"), "--json"]
    )
    assert result.exit_code == 6
    assert "not as recorded" in result.stdout
    shutil.rmtree(path.parent)
    assert (
        CliRunner().invoke(app, ["ledger", "verify", str(settings / "aggregator.toml")]).exit_code
        == 0
    )
    assert (
        "epsilon"
        in CliRunner().invoke(app, ["ledger", "show", str(settings / "aggregator.toml")]).stdout
    )
