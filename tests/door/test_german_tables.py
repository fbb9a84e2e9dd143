"""A shop's tables as a German office program writes them: semicolons, decimal commas, days first,
umlauts, German names of columns. Each refusal says the words that lead on, to a list with titles."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import fedrec
from fedrec.cli.main import guarded
from fedrec.errors import DataError

TITLES = ("Süße Träume", "Über Flüsse", "Die Straße", "Mord in Görlitz", "Öl & Äpfel")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = [
        f"{k:05d};{j:03d};{(k + j) % 9 / 2 + 1:.1f};{j + 1:02d}.11.2024 05:03"
        for k in range(40)
        for j in range(5)
    ]
    text = (
        "\n".join(["Kunde;Artikelnummer;Bewertung;Datum", *rows])
        .replace(".0;", ",0;")
        .replace(".5;", ",5;")
    )
    (tmp_path / "bewertungen.csv").write_bytes(f"{text}\n".encode("cp1252"))
    items = "".join(f"{j:03d};{title};{j},90\n" for j, title in enumerate(TITLES))
    (tmp_path / "artikel.csv").write_bytes(f"Artikelnummer;Titel;Preis\n{items}".encode("cp1252"))
    return tmp_path / "bewertungen.csv"


def test_each_refusal_of_the_command_says_the_flag_that_leads_on(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["simulate", "--data", str(table), "--scale", "1", "5", "--time", "Datum"]
    words += ["--items", str(table.with_name("artikel.csv")), f"--set=run.directory={table.parent}"]
    words += ["--set=recipe=dp-bias", "--set=compare.als=false", "--set=privacy.noise=seeded"]
    refused = 0
    while (code := guarded(words)) and refused < 4:
        assert code == 3
        said = capsys.readouterr().err
        refused += 1
        if "iconv" in said:  # one table is cp1252: its bytes are no UTF-8
            file = table.with_name("artikel.csv")
            file.write_bytes(file.read_bytes().decode("cp1252").encode())
        else:
            found = re.findall(r"--(decimal|time-format) ('[^']*'|\S+)", said)
            assert found
            words += [word for flag, value in found for word in (f"--{flag}", value.strip("'"))]
    assert (code, refused) == (0, 2)  # numbers and times are said together


def test_its_list_has_titles_with_umlauts(table: Path) -> None:
    file = table.with_name("artikel.csv")
    said = {"rating_range": (1, 5), "decimal": ",", "time_format": "%d.%m.%Y %H:%M"}
    read = {"time": "Datum", "features_path": str(file), **said}
    with pytest.raises(DataError, match="expected UTF-8"):
        fedrec.Dataset.from_file(table, **read)
    file.write_bytes(file.read_bytes().decode("cp1252").encode())
    data = fedrec.Dataset.from_file(table, **read)
    assert data.to_frame().columns == ["Kunde", "Artikelnummer", "Bewertung", "Datum"]
    listed = fedrec.ItemBias(noise="seeded").fit(data).recommend(history=["001"], k=4)
    assert {*listed["title"]} == {*TITLES} - {"Über Flüsse"}
