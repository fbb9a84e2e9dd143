"""`fedrec bench paper`: any figure by name, beside what its paper says."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedrec.errors import SettingsError
from fedrec_simulations.command import app
from fedrec_simulations.papers import ada_dpals, figures


def test_a_figure_comes_with_what_the_paper_says_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(app, ["bench", "paper", "ada-dpals/figure7", "--data", "planted", "--quick", "--json"])
    told = json.loads(shown.stdout)
    assert list(told["figures"]) == ["figure7"]
    assert told["figures"]["figure7"]["published"]["share of events of the most frequent tenth"] == 0.86
    assert told["figures"]["figure7"]["rows"] == json.loads(json.dumps(ada_dpals.figure("figure7", "planted", True, tmp_path)))


def test_unknown_papers_figures_and_missing_names_are_refused_with_what_there_is(tmp_path: Path) -> None:
    for name, words in (("alphafold", "ada-dpals"), ("dp-cmf/figure9", "figure1")):
        with pytest.raises(SettingsError) as caught:
            figures.run(name, "planted", folder=tmp_path)
        assert words in caught.value.remedy
    for arguments in (["bench", "paper"], ["bench", "kernels", "dp-cmf"]):
        with pytest.raises(SettingsError):
            CliRunner().invoke(app, arguments, standalone_mode=False, catch_exceptions=False)


@pytest.mark.parametrize("paper", figures.PAPERS.values())
def test_every_paper_has_figures_and_says_how_it_was_read(paper: str) -> None:
    module = import_module(f"fedrec_simulations.papers.{paper}")
    assert module.FIGURES
    assert all("how" in said for said in module.PUBLISHED.values())
