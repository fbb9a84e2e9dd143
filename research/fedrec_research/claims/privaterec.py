"""Claims of PrivateRec (Liu et al. 2022): training and serving news."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from fedrec_research.claims.claim import Claim, Test, not_tested_by, proved, untested
from fedrec_research.claims.points import (
    Pair,
    Spot,
    ahead,
    along,
    best,
    computed,
    never_behind,
    of_other_data,
)

NAME = "privaterec"
TEXT = "privaterec/text"
MODELS = ("nrms", "naml", "plm-nr")
FORMS = ("printed", "local")
"""As printed, and made sound."""
NOISES = {"as printed": "laplace-printed", "sound": "laplace"}
_NO_TEXT = "a click log of ml-1m; PLM-NR has no language model there"
_ON_TEXT = "films with titles and plots, PLM-NR with MiniLM"


def _trained(figure: str, worse: str, form: str) -> list[Pair]:
    """PrivateRec in one form beside a rival of the tables, by model."""
    return [
        Pair(f"{form} against {worse}", m, Spot(figure, f"{m}, {form}", 10, "auc"),
             Spot(figure, f"{m}, {worse}", 10, "auc"))
        for m in MODELS
    ]  # fmt: skip


def on_text(way: str, model: str, noise: str, served: float | str) -> Spot:
    """AUC of films with texts, served at an epsilon."""
    return Spot(TEXT, f"{way}, {model}, {noise}", served, "auc")


def _rival(served: float, noise: str, form: str) -> Iterator[Pair]:
    for model in MODELS:
        yield Pair(
            f"{form}, ε = {served:g}",
            model,
            on_text("as printed", model, f"{noise}, ReLU", served),
            on_text("FedRec", model, noise, served),
        )


def _lost() -> Test:
    """AUC that serving at 10 loses beside bare, by form and model: the paper's is at most 0.013."""
    spots = [
        on_text("as printed", m, f"laplace-printed{suffix}", s)
        for suffix in (", ReLU", "")
        for m in MODELS
        for s in ("inf", 10)
    ]

    def judge(values: Sequence[float]) -> tuple[int, int, str]:
        lost = [bare - served for bare, served in zip(values[::2], values[1::2], strict=True)]
        said = [f"{100 * x:.1f}" for x in lost]
        return (
            sum(x <= 0.013 for x in lost),
            len(lost),
            (
                f"by ReLU {' / '.join(said[:3])}, by SoftPlus {' / '.join(said[3:])} points, of "
                f"{', '.join(MODELS)}; {_ON_TEXT}"
            ),
        )

    return computed(spots, judge)


def _falls() -> Test:
    """The noise of one weight at padding 0 and 0.5, served at 10 and at 1."""
    spots = [
        Spot("privaterec/figure5", f"one answer at epsilon {e}{form}", p, _STD)
        for form in ("", ", as printed")
        for e in (10, 1)
        for p in (0, 0.5)
    ]

    def judge(values: Sequence[float]) -> tuple[int, int, str]:
        left = [padded / bare for bare, padded in zip(values[::2], values[1::2], strict=True)]
        said = " / ".join(f"{share:.2f}" for share in left)
        won = sum(share < 1 for share in left) + (left[1] < left[0]) + (left[3] < left[2])
        return (
            won,
            6,
            f"half padded, so much of the noise is left at ε = 10, 1, ours and printed: {said}",
        )

    return computed(spots, judge)


_STD = "noise std of an attention weight"
_PADDINGS = (0, 0.1, 0.2, 0.3, 0.5, 0.7)


def _best_padding() -> Test:
    served = (10, 5, 1)
    curves = {
        f"B = {B}, ε = {e}": [
            Spot("privaterec/figure5", f"B = {B}, served at epsilon {e}", p, "auc")
            for p in _PADDINGS
        ]
        for B, e in product((3, 5), served)
    }
    wanted = {f"B = {B}, ε = {e}": (p, p) for (B, p), e in product(((3, 0.2), (5, 0.5)), served)}
    return best(curves, wanted)


CLAIMS = (
    Claim(
        NAME,
        "table1",
        "Table 1",
        "Trained at ε = 10 PrivateRec beats DP-FedRec.",
        ahead(
            [p for form in FORMS for p in _trained("privaterec/table1", "dp-fedrec", form)],
            "model",
            _NO_TEXT,
        ),
        "AUC 58.32 / 57.51 / 58.75 against 54.59 / 55.31 / 54.87",
        main=True,
    ),
    Claim(
        NAME,
        "table1",
        "Table 1",
        "Training on all data in one place is best.",
        ahead(
            [
                Pair(
                    "centralized against FedRec",
                    m,
                    *(
                        Spot("privaterec/table1", f"{m}, {w}", "inf", "auc")
                        for w in ("centralized", "fedrec")
                    ),
                )
                for m in MODELS
            ],
            "model",
            _NO_TEXT,
        ),
        "AUC 65.82 / 65.35 / 67.08 against 62.80 / 63.04 / 66.05",
    ),
    Claim(
        NAME,
        "table1",
        "4.1",
        "From FedRec to DP-FedRec PLM-NR loses most, as noise grows with the model.",
        untested("PLM-NR has no language model in these rows; on text DP-FedRec was not run"),
    ),
    Claim(
        NAME,
        "table2",
        "Table 2",
        "Trained and served at ε = 10 PrivateRec beats DP-FedRec.",
        ahead(
            [p for form in FORMS for p in _trained("privaterec/table2", "dp-fedrec", form)],
            "model",
            _NO_TEXT,
        ),
        "AUC 57.00 / 57.52 / 58.69 against 50.19 / 50.11 / 50.03",
        main=True,
    ),
    Claim(
        NAME,
        "table2",
        "Table 2",
        "Served at ε = 10 PrivateRec beats FedRec with a noised user vector.",
        ahead(
            [
                p
                for form, noise in NOISES.items()
                for p in _rival(10, noise, f"Laplace noise {form}")
            ],
            "model",
            _ON_TEXT,
        ),
        "AUC 57.00 / 57.52 / 58.69 against 50.23 / 50.32 / 50.59",
        main=True,
    ),
    Claim(
        NAME,
        "table2",
        "Tables 1, 2",
        "Serving at ε = 10 costs PrivateRec so many points of AUC.",
        _lost(),
        "0 to 1.3",
        main=True,
    ),
    Claim(
        NAME,
        "figure4",
        "4.2",
        "AUC falls with the ε of serving.",
        ahead(
            [
                Pair(
                    f"{form}, trained at {e}, served at 10 against 0.001",
                    form,
                    *(
                        Spot("privaterec/figure4", f"{form}, epsilon {e}", s, "auc")
                        for s in (10, 0.001)
                    ),
                )
                for form, e in product(FORMS, (10, 20))
            ],
            "form",
            _NO_TEXT,
        ),
    ),
    Claim(
        NAME,
        "figure4",
        "4.2",
        "At every ε of serving PrivateRec beats FedRec.",
        ahead(
            [
                p
                for e in (10, 5, 1)
                for form, noise in NOISES.items()
                for p in _rival(e, noise, f"Laplace noise {form}")
            ],
            "model",
            _ON_TEXT,
        ),
        main=True,
    ),
    Claim(
        NAME,
        "figure4",
        "4.2",
        "Noise in training makes serving robust: without it PrivateRec is not better served.",
        never_behind(
            [
                Pair(
                    "trained at 10 against without noise",
                    s,
                    on_text("as printed", "plm-nr", "laplace, ReLU", s),
                    on_text("no noise in training", "plm-nr", "laplace, ReLU", s),
                )
                for s in (10, 5, 1)
            ],
            "ε",
            "one seed without noise in training, so that nothing is told apart",
        ),
        main=True,
    ),
    Claim(
        NAME,
        "figure4",
        "4.2",
        "A model trained at ε = 20 is less robust than one trained at 10.",
        ahead(
            [
                Pair(
                    f"{form}, trained at 10 against 20",
                    s,
                    *(
                        Spot("privaterec/figure4", f"{form}, epsilon {e}", s, "auc")
                        for e in (10, 20)
                    ),
                )
                for form, s in product(FORMS, (10, 5, 1))
            ],
            "ε of serving",
            _NO_TEXT,
        ),
    ),
    Claim(
        NAME,
        "figure5",
        "4.2",
        "The best padding p is 0.5 for B = 5 and 0.2 for B = 3.",
        _best_padding(),
        "0.5 / 0.2",
    ),
    Claim(NAME, "figure5", "4.2", "Padding lowers the noise, most at small ε.", _falls()),
    Claim(
        NAME,
        "figure6",
        "4.1",
        "At every ε of training PrivateRec beats DP-FedRec.",
        ahead(
            [
                p
                for form in FORMS
                for p in along("privaterec/figure6", form, "dp-fedrec", (1, 5, 10, 20), "auc")
            ],
            "ε",
            _NO_TEXT,
        ),
        main=True,
    ),
    Claim(
        NAME,
        "figure6",
        "4.1",
        "At ε = 5 it has this AUC.",
        of_other_data(
            [Spot("privaterec/figure6", form, 5, "auc") for form in FORMS],
            "a number of NewsFeeds, which is not public",
        ),
        "61.35",
    ),
    Claim(
        NAME,
        "figure6",
        "4.1",
        "Five basis vectors cost nothing in training without noise.",
        not_tested_by(
            "one seed, which has no interval",
            of_other_data(
                [
                    on_text("no noise in training", "plm-nr", "laplace", "inf"),
                    on_text("FedRec", "plm-nr", "laplace", "inf"),
                ],
                "PLM-NR on text with five vectors, and FedRec",
            ),
        ),
        main=True,
    ),
    Claim(
        NAME,
        "figure7",
        "4.2",
        "Three basis vectors are best.",
        best(
            {
                form: [Spot("privaterec/figure7", form, B, "auc") for B in (1, 3, 5, 10, 32)]
                for form in FORMS
            },
            (3, 3),
        ),
        "3",
    ),
    Claim(
        NAME,
        "",
        "Thm 3",
        "Gradients and labels are private in training.",
        proved(
            "did not hold",
            "as printed gradients name the clicked news, and the clicked item is always among "
            "those sent; `local` mends both",
            "tests/news/test_privaterec_line_by_line.py",
        ),
        main=True,
    ),
    Claim(
        NAME,
        "",
        "Sec. 3",
        "One round costs ε per click.",
        proved(
            "held",
            'a training costs more: `news.accounting = "per-round"` prints how much',
            "tests/news/test_privaterec_line_by_line.py",
        ),
        main=True,
    ),
)
