"""Text in another encoding, quotes without a partner and byte order marks, in every text reader:
file, line, cause and remedy."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedrec
from fedrec.data.features import read_records
from fedrec.data.movielens import ML_1M, ML_20M, ML_100K, read_films
from fedrec.data.news_files import read_mind
from fedrec.data.read import detect, read
from fedrec.encoders.word_vectors import read_vectors
from fedrec.settings_tables import load_content
from fedrec_client.clicks import read_clicks

NEWS = "N{}\tnews\tlocal\tThe caf\u00e9 {}\t\tu\t[]\t[]\n"
SEEN = "{}\tU{}\t11/15/2019 10:22:32 AM\tN1\tN1-1 N2-0\n"
GENRES = "|".join("0" * 19)


def _mind(file: Path) -> Any:
    for name, row in (("news.tsv", NEWS), ("behaviors.tsv", SEEN)):
        if not (file.parent / name).exists():
            (file.parent / name).write_text(row.format(1, 1) + row.format(2, 2), encoding="utf-8")
    return read_mind(file.parent)


def _items(file: Path) -> fedrec.Dataset:
    log = file.parent / "log.csv"
    log.write_text("user,item\n1,a\n")
    return read(log, item_features=str(file))


READERS: dict[str, tuple[str, str, Callable[[Path], Any]]] = {
    "csv": ("a.csv", "user,item\nann,caf\u00e9\nbob,x\n", read),
    "tsv": ("a.tsv", "user\titem\nann\tcaf\u00e9\nbob\tx\n", read),
    "recbole": ("a.inter", "user_id:token\titem_id:token\n1\tcaf\u00e9\n", read),
    "items": ("items.csv", "item,title\na,caf\u00e9\n", _items),
    "news": ("news.tsv", NEWS.format(1, 1) + NEWS.format(2, 2), _mind),
    "metadata": ("m.jsonl", '{"movieId": 1, "title": "caf\u00e9"}\n', read_records),
    "vectors": ("v.txt", "caf\u00e9 1 2\nb 3 4\n", read_vectors),
    "a history": ("h.txt", "a\ncaf\u00e9\n", read_clicks),
    "a history with a header": ("h.csv", "item,rating\ncaf\u00e9,5\n", read_clicks),
}
MARKED: dict[str, tuple[str, str, Callable[[Path], Any]]] = READERS | {
    "behaviors": ("behaviors.tsv", SEEN.format(1, 1) + SEEN.format(2, 2), _mind),
    "ratings of 100k": ("u.data", "1\t1\t5\t10\n2\t1\t3\t11\n", read),
    "ratings of 1m": ("ratings.dat", "1::1::5::10\n2::1::3::11\n", lambda f: read(f, "ml-1m")),
    "ratings of 20m": (
        "ratings.csv",
        "userId,movieId,rating,timestamp\n1,1,5.0,10\n2,1,3.5,11\n",
        lambda f: read(f, detect(f)),
    ),
    "films of 100k": (
        "u.item",
        f"1|A (1999)|1-Jan-1999||u|{GENRES}\n",
        lambda f: read_films(f, ML_100K),
    ),
    "films of 1m": ("movies.dat", "1::caf\u00e9 (1999)::Drama\n", lambda f: read_films(f, ML_1M)),
    "lists of clicks": ("train.txt", "0 1 2\n1 0\n", read),
    "a scenario": ("s.toml", 'recipe = "default"\n', load_content),
}


@pytest.mark.parametrize("case", READERS)
def test_another_encoding_is_refused_with_its_line_and_the_way_out(
    case: str, tmp_path: Path
) -> None:
    name, text, reader = READERS[case]
    (tmp_path / name).write_bytes(text.encode("cp1252"))
    line = next(n for n, own in enumerate(text.splitlines(), start=1) if "\u00e9" in own)
    with pytest.raises(fedrec.DataError, match=rf"{name}, line {line}: .*UTF-8.*caf\u00e9") as said:
        reader(tmp_path / name)
    assert "iconv" in said.value.remedy
    (tmp_path / name).write_bytes(text.encode("utf-8"))
    reader(tmp_path / name)


def _plain(value: Any) -> str:
    return repr(getattr(value, "catalogue", value))


@pytest.mark.parametrize("case", MARKED)
def test_a_byte_order_mark_changes_nothing(case: str, tmp_path: Path) -> None:
    name, text, reader = MARKED[case]
    encoding = "latin-1" if case == "films of 1m" else "utf-8"
    (tmp_path / name).write_bytes(text.encode(encoding))
    plain = _plain(reader(tmp_path / name))
    (tmp_path / name).write_bytes(BOM_UTF8 + text.encode("utf-8"))
    assert _plain(reader(tmp_path / name)) == plain


QUOTES = {
    "never closed": 'a,b\n1,"x\n2,y\n3,z\n',
    "letters behind": 'a,b\n1,"x"y\n2,y\n',
    "closed much later": 'a,b\n1,"x\n2,y"z\n3,w\n',
    "in the last row": 'a,b\n0,"x\n',
}


@pytest.mark.parametrize("case", QUOTES)
@pytest.mark.parametrize("door", ["rows", "items", "films"])
def test_a_quote_without_a_partner_is_named_by_its_line(
    case: str, door: str, tmp_path: Path
) -> None:
    header = "user,item"
    file = tmp_path / "log.csv"
    reader: Callable[[Path], Any] = read
    if door == "items":
        header = "item,title"
        file = tmp_path / "items.csv"
        reader = _items
    text = QUOTES[case].replace("a,b", header)
    if door == "films":
        file = tmp_path / "movies.csv"
        text = "movieId,title,genres\n9,A,Drama\n" + text.partition("\n")[2]
        reader = lambda path: read_films(path, ML_20M)  # noqa: E731
        text = text.replace("1,", "1,A,").replace("0,", "0,A,")
    file.write_text(text)
    line = 1 + next(n for n, own in enumerate(text.splitlines()) if '"' in own)
    with pytest.raises(fedrec.DataError, match=f"line {line}: .*quotes are in pairs") as said:
        reader(file)
    assert "twice" in said.value.remedy
