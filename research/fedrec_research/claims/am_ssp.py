"""Claims of AM-SSP (Krichene et al. 2024): learning with public features."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from fedrec_research.claims import lines
from fedrec_research.claims.claim import Claim, Evidence, Test, not_tested_by, proved, untested
from fedrec_research.claims.points import (
    Pair,
    Spot,
    ahead,
    at_epsilon,
    computed,
    more,
)
from fedrec_research.study.judging import Verdict

NAME = "am-ssp"
RECALL = "recall_capped@20"
SSP = "AM-SSP"
IDS = "DP-ALS (id only)"
SLICED = (1, 5, 20)
_REWRITE = (
    "the line here is our own descent on one layer, not Alg. 6, which clips examples that clicks "
    "do not have"
)
_NO_DP_SGD = (
    "our lines of DP-SGD have item biases, and no line on one model is searched beside them"
)
RESAMPLED = {
    "all examples (Alg. 2)": "SSP2 against SSP1 on all examples",
    "batches (Alg. 4)": "on batches, which amplify nothing per user",
}
"""Figure 4's two forms of SSP1, and their words."""


def noised_once(form: str, epsilon: int) -> Pair:
    """One item update: noise drawn once against noise drawn in each of 16 steps."""
    series = f"epsilon = {epsilon}, {form}"
    ends = [Spot("am-ssp/figure4", series, n) for n in (1, 16)]
    return Pair(RESAMPLED[form], epsilon, ends[0], ends[1])


def _seconds(figure: str, rival: str) -> Test:
    """Seconds to the end of training, ours over AM-SSP's."""

    def judge(evidence: Evidence) -> Verdict:
        rows = evidence.figures.get(figure, ())
        last = {
            (name, e): max(
                (row["x"] for row in rows if row["series"] == f"{name}, epsilon = {e}"), default=0.0
            )
            for name in (SSP, rival)
            for e in SLICED
        }
        if not all(last.values()):
            return Verdict("not tested", "")
        ratios = [last[rival, e] / last[SSP, e] for e in SLICED]
        return Verdict(
            "not tested",
            f"Its training takes {min(ratios):.0f} to {max(ratios):.0f} times AM-SSP's",
        )

    return Test((f"fedrec research figures {figure}",), "seconds of the last points", judge)


def _ratios(passes: str, epochs: Sequence[int], batches: Sequence[int]) -> list[Spot]:
    return [
        Spot("am-ssp/figure6", f"{passes}, {e} epochs", b, "cost ratio")
        for e, b in product(epochs, batches)
    ]


def _cheaper(values: Sequence[float]) -> tuple[int, int, str]:
    won = sum(value < 0.1 for value in values)
    said = " / ".join(f"{value:.2g}" for value in values)
    return (
        won,
        len(values),
        f"SSP's cost over DP-SGD's is {said} at 10, 100, 1,000 epochs, batches of 100 and 1,000",
    )


def _dearer(values: Sequence[float]) -> tuple[int, int, str]:
    won = sum(value > 1 for value in values[:2]) + (values[2] < 1)
    said = " / ".join(f"{value:.2g}" for value in values)
    return won, 3, f"cost ratio {said} at 1, 10, 1,000 epochs of batches of 100"


def _visited(values: Sequence[float]) -> tuple[int, int, str]:
    said = " / ".join(f"{value:.0f}" for value in values)
    return (
        sum(value > 100 for value in values),
        len(values),
        f"at batches of 1,000: {said} (α = 0.1, 0.3, 1)",
    )


CLAIMS = (
    Claim(
        NAME,
        "figure1",
        "Fig. 1",
        "On ratings AM-SSP beats AM-DPSGD.",
        lines.on_one_model("am-ssp", "am-dpsgd", kinds=("ratings",)),
        main=True,
    ),
    Claim(
        NAME,
        "figure1",
        "4.2",
        "On ratings AM-SSP beats DP-CMF with the same features.",
        lines.on_one_model("am-ssp", "dp-cmf", about=lines.VECTORS, kinds=("ratings",)),
        "by 0.025 at ε = 1 to 0.0123 at 20",
        main=True,
    ),
    Claim(
        NAME,
        "figure1",
        "4.2",
        "On ratings features help AM-SSP: it beats DPALS with ids alone.",
        lines.on_one_model("am-ssp", "ada-dpals", about=lines.FEATURES, kinds=("ratings",)),
        main=True,
    ),
    Claim(
        NAME,
        "figure1",
        "4.2",
        "On ratings features help AM-DPSGD: it beats DPALS with ids alone.",
        lines.on_one_model("am-dpsgd", "dpals-uniform", about=lines.FEATURES, kinds=("ratings",)),
    ),
    Claim(
        NAME,
        "figure1",
        "E.1",
        "DP-SGD on the whole model at ε = 20 is worse than the others at 5.",
        untested(_NO_DP_SGD),
    ),
    Claim(
        NAME,
        "figure2",
        "Fig. 2",
        "On clicks AM-SSP beats AM-DPSGD.",
        not_tested_by(_REWRITE, lines.on_one_model("am-ssp", "encoder-descent", kinds=("clicks",))),
    ),
    Claim(
        NAME,
        "figure2",
        "Fig. 2",
        "On clicks AM-SSP beats DP-CMF with the same features.",
        lines.on_one_model("am-ssp", "dp-cmf", about=lines.VECTORS, kinds=("clicks",)),
        main=True,
    ),
    Claim(
        NAME,
        "figure2",
        "4.2",
        "On clicks features help AM-SSP.",
        lines.on_one_model("am-ssp", "ada-dpals", about=lines.FEATURES, kinds=("clicks",)),
        main=True,
    ),
    Claim(
        NAME,
        "figure2",
        "4.2",
        "On clicks features harm AM-DPSGD.",
        not_tested_by(
            _REWRITE,
            lines.on_one_model(
                "ada-dpgd", "encoder-descent", about=lines.FEATURES, kinds=("clicks",)
            ),
        ),
    ),
    Claim(
        NAME,
        "figure2",
        "E.1",
        "DP-SGD on the whole model has this Recall@20 at ε = 20.",
        untested("ML-20M is not at hand, and the paper prints no loss for it"),
        "0.206",
    ),
    Claim(
        NAME,
        "figure2",
        "E.1",
        "All other methods are better than that at ε = 1.",
        untested(_NO_DP_SGD),
    ),
    Claim(
        NAME,
        "figure3",
        "4.3",
        "On ratings AM-SSP trains about a hundred times faster than AM-DPSGD.",
        not_tested_by(
            "what is timed is our own descent, not Alg. 6",
            _seconds("am-ssp/figure3", "AM-DPSGD with biases, our rewrite"),
        ),
        "about 100",
    ),
    Claim(
        NAME,
        "figure4",
        "4.4",
        "Noise drawn once (SSP2) beats noise drawn in every step (SSP1).",
        ahead([noised_once(form, e) for form in RESAMPLED for e in SLICED]),
        main=True,
    ),
    Claim(
        NAME,
        "figure4",
        "4.4",
        "The smaller ε, the more is lost by drawing noise in every step.",
        more([(noised_once(form, 1), noised_once(form, 20)) for form in RESAMPLED], "ε"),
    ),
    Claim(
        NAME,
        "figure5",
        "App. C",
        "An item is visited more than 100 times for batches up to a few thousand.",
        computed(
            [
                Spot("am-ssp/figure5", f"alpha = {a}", 1000, "visits per item")
                for a in ("0.1", "0.3", "1")
            ],
            _visited,
        ),
        "> 100",
    ),
    Claim(
        NAME,
        "figure6",
        "App. C",
        "Where a pass costs d², SSP is cheaper by orders of magnitude at batches of 100 to 1,000.",
        computed(_ratios("c = d^2", (10, 100, 1000), (100, 1000)), _cheaper),
    ),
    Claim(
        NAME,
        "figure6",
        "App. C",
        "Where a pass costs d, SSP is dearer unless epochs are very many.",
        computed(_ratios("c = d", (1, 10, 1000), (100,)), _dearer),
    ),
    Claim(
        NAME,
        "",
        "Fig. 7",
        "The Wikidata features are this dense.",
        untested("features from Wikidata are not at hand, or not to be passed on"),
    ),
    Claim(
        NAME,
        "figure8",
        "E.2",
        "On clicks AM-SSP trains about a thousand times faster than AM-DPSGD.",
        not_tested_by(
            "what is timed is our own descent, not Alg. 6",
            _seconds("am-ssp/figure8", "AM-DPSGD, our rewrite"),
        ),
        "about 1,000",
    ),
    Claim(
        NAME,
        "figure9",
        "E.3",
        "On ratings AM-SSP is far ahead of DP-ALS on rare films.",
        ahead(
            [p for e in SLICED for p in at_epsilon("am-ssp/figure9", SSP, IDS, e, (0, 1))], "bucket"
        ),
        main=True,
    ),
    Claim(
        NAME,
        "figure9",
        "E.3",
        "It gains more on rare films than on frequent ones.",
        more(
            [
                (
                    at_epsilon(
                        "am-ssp/figure9",
                        SSP,
                        IDS,
                        e,
                        (0,),
                        reading=f"ε = {e}, the rarest beside the top fifth",
                    )[0],
                    at_epsilon("am-ssp/figure9", SSP, IDS, e, (4,))[0],
                )
                for e in SLICED
            ],
            "bucket",
        ),
    ),
    Claim(
        NAME,
        "figure9",
        "E.3",
        "AM-SSP is better than AM-DPSGD on frequent items and worse on rare ones.",
        untested("the line of AM-DPSGD in this figure is our own descent with biases, not Alg. 6"),
    ),
    Claim(
        NAME,
        "figure9b",
        "E.3",
        "On clicks AM-DPSGD is worst in all buckets.",
        untested("the line of AM-DPSGD in this figure is our own descent, not Alg. 6"),
    ),
    Claim(
        NAME,
        "figure9b",
        "E.3",
        "On clicks AM-SSP gains most over DP-ALS on rare items.",
        more(
            [
                (
                    at_epsilon(
                        "am-ssp/figure9b",
                        SSP,
                        IDS,
                        e,
                        (0,),
                        RECALL,
                        reading=f"ε = {e}, the rarest beside the top fifth",
                    )[0],
                    at_epsilon("am-ssp/figure9b", SSP, IDS, e, (4,), RECALL)[0],
                )
                for e in SLICED
            ],
            "bucket",
        ),
    ),
    Claim(
        NAME,
        "",
        "Thm 1, 2",
        "The theorems give the noise of a training.",
        proved(
            "in part",
            "they need ε < log 1/δ and one update; the experiments compose many updates by bounds. "
            "Here every release is charged, exactly",
            "tests/factorization/test_papers_line_by_line.py",
        ),
    ),
    Claim(
        NAME,
        "",
        "3.5",
        "Batches of examples amplify privacy.",
        proved(
            "did not hold",
            "they do per example; they sample no users, so that a user gains nothing. "
            "Charged without amplification",
            "research/tests/test_am_dpsgd.py",
        ),
        main=True,
    ),
    Claim(
        NAME,
        "",
        "Alg. 6",
        "Clipping the gradient of each example makes it private.",
        proved(
            "did not hold",
            "it bounds no user: here the weights of a user's examples sum to 1 besides",
            "research/tests/test_am_dpsgd.py",
        ),
    ),
)
