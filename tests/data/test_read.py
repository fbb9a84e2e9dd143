import hashlib
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from fedrec.cli.main import guarded
from fedrec.data.read import FORMATS, read
from fedrec.errors import DataError, MalformedRowError, SettingsError


def test_an_unknown_format_is_answered_with_the_known_ones(tmp_path):
    with pytest.raises(SettingsError) as raised:
        read(tmp_path, "ml-2m")
    assert all(name in raised.value.remedy for name in FORMATS)


def test_a_folder_in_no_known_format_is_answered_with_the_known_ones(tmp_path):
    with pytest.raises(DataError) as raised:
        read(tmp_path)
    assert all(name in raised.value.remedy for name in FORMATS)


def test_a_path_that_is_not_there_is_a_data_error(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        read(tmp_path / "nowhere")


def test_an_option_of_another_format_is_refused(tmp_path):
    (tmp_path / "train.txt").write_text("0 1\n")
    with pytest.raises(SettingsError, match="no option 'given'"):
        read(tmp_path, given="u1")


def test_an_unknown_policy_is_refused(tmp_path):
    (tmp_path / "train.txt").write_text("0 1\n")
    with pytest.raises(SettingsError, match="policy"):
        read(tmp_path, duplicates="first")


def test_a_ratings_dat_that_may_be_1m_or_10m_is_not_guessed(tmp_path):
    (tmp_path / "ratings.dat").write_text("1::2::3::4\n")
    with pytest.raises(DataError, match="may be ml-1m or ml-10m"):
        read(tmp_path)
    (tmp_path / "ratings.dat").write_text("1::2::3.5::4\n")
    assert read(tmp_path).interactions.value_range == (0.5, 5.0)


def test_click_lists_and_matrices_hold_the_same_clicks(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "train.txt").write_text("0 2 0\n2 1\n1\n")
    (tmp_path / "a" / "test.txt").write_text("0 3\n")
    train = sparse.csr_matrix(([1.0, 1.0, 1.0], ([0, 0, 2], [2, 0, 1])), shape=(3, 4))
    sparse.save_npz(tmp_path / "b" / "toy_train.npz", train)
    sparse.save_npz(
        tmp_path / "b" / "toy_test.npz", sparse.csr_matrix(([1.0], ([0], [3])), shape=(3, 4))
    )
    lists = read(tmp_path / "a")
    matrices = read(tmp_path / "b")
    assert lists.provenance.format == "clicks-lists"
    assert matrices.provenance.format == "clicks-npz"
    for one, other in (
        (lists.interactions, matrices.interactions),
        (lists.given_test, matrices.given_test),
    ):
        np.testing.assert_array_equal(one.user_ptr, other.user_ptr)
        np.testing.assert_array_equal(one.items, other.items)
        assert one.kind == other.kind == "clicks"
    np.testing.assert_array_equal(lists.interactions.items, [0, 2, 1])


@pytest.mark.parametrize("bad", ["1 x", "", "1 -2", "1 2.5"])
def test_a_bad_line_of_clicks_is_named(tmp_path, bad):
    (tmp_path / "train.txt").write_text(f"0 1 2\n{bad}\n2 1\n")
    with pytest.raises(MalformedRowError) as raised:
        read(tmp_path)
    assert (raised.value.path.name, raised.value.line) == ("train.txt", 2)


def test_what_is_not_a_matrix_is_a_data_error(tmp_path):
    (tmp_path / "x_train.npz").write_text("no")
    with pytest.raises(DataError, match="not a SciPy sparse matrix"):
        read(tmp_path)


def test_provenance_holds_the_digest_of_what_was_read(tmp_path):
    (tmp_path / "train.txt").write_bytes(b"0 1\n")
    (file,) = read(tmp_path).provenance.files
    assert file.sha256 == hashlib.sha256(b"0 1\n").hexdigest()
    assert (file.name, file.size_bytes) == ("train.txt", 4)


@pytest.mark.slow
@pytest.mark.real_data
def test_yelp2018_has_the_sizes_of_the_lightgcn_split(real_data):
    data = read(real_data / "implicit/yelp2018")
    events = data.interactions
    assert (events.num_users, events.num_items, len(events), len(data.given_test)) == (
        31_668,
        38_048,
        1_237_259,
        324_147,
    )
    again = read(real_data / "implicit/yelp2018/test.txt", "clicks-lists").interactions
    np.testing.assert_array_equal(again.users, data.given_test.users)
    np.testing.assert_array_equal(again.items, data.given_test.items)


def test_numbers_with_huge_gaps_are_refused_before_anything_is_allocated(tmp_path):
    (tmp_path / "train.txt").write_text("0 1 999999999\n")
    with pytest.raises(DataError, match="users and items in 2 clicks"):
        read(tmp_path)


def test_the_command_of_the_data_page_for_a_file_without_a_header_reads_it(
    tmp_path, monkeypatch, capsys
):
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    command = next(line for line in page.splitlines() if "describe ratings.dat" in line)
    (tmp_path / "ratings.dat").write_text("1::10::5::978300760\n2::20::4::978300761\n")
    monkeypatch.chdir(tmp_path)
    assert guarded(command.split()[1:]) == 0
    assert "format table kind ratings events 2" in " ".join(capsys.readouterr().out.split())


def test_where_two_formats_fit_the_remedy_names_the_key_and_the_table(tmp_path):
    (tmp_path / "ratings.dat").write_text("1::10::5::978300760\n")
    with pytest.raises(DataError, match="ml-1m or ml-10m") as failure:
        read(tmp_path / "ratings.dat")
    assert "data.format = ml-1m" in failure.value.remedy
    assert "table" in failure.value.remedy
