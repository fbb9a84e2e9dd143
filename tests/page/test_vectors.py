"""The page's modules and the Python code on the same numbers: equal to 1e-6 relative, mostly to
much less."""

import math

import numpy as np
import pytest
from safetensors.numpy import load_file
from scipy.special import ndtr

from fedrec.data.ids import plain_id
from fedrec.numerics.segments import tie_keys
from fedrec.privacy import bounded_mean
from fedrec.privacy.accounting import GaussianEvent, compose, delta_of, epsilon_of, mu_for
from fedrec.privacy.bounded_mean import Coefficients, Population
from fedrec.privacy.guarantee import Guarantee
from fedrec.serving import asking, bundle
from fedrec.serving.user_map import Sizes

from .conftest import attention_parts, planted

EPSILONS = (0.1, 0.2, 0.5, 1, 2, 3, 5, 7, 10, 15, 20)
DELTA = 1e-5


def test_the_normal_distribution_is_right_in_the_middle_and_far_out(node):
    xs = np.concatenate(
        [np.linspace(-8, 8, 321), [-30.0, -37.0, 2 * math.sqrt(2), -2 * math.sqrt(2)]]
    )
    found = node("calls", module="normal", name="ndtr", arguments=[[x] for x in xs])
    np.testing.assert_allclose(found, ndtr(xs), rtol=1e-11)
    found = node("calls", module="normal", name="gelu", arguments=[[x] for x in xs])
    np.testing.assert_allclose(found, xs * ndtr(xs), rtol=1e-11)


def test_an_epsilon_is_calibrated_to_the_same_mu_and_back(node):
    mus = node(
        "calls",
        module="accounting",
        name="muFor",
        arguments=[[epsilon, DELTA] for epsilon in EPSILONS],
    )
    np.testing.assert_allclose(mus, [mu_for(epsilon, DELTA) for epsilon in EPSILONS], rtol=1e-9)
    back = node(
        "calls", module="accounting", name="epsilonOf", arguments=[[mu, DELTA] for mu in mus]
    )
    np.testing.assert_allclose(back, EPSILONS, rtol=1e-9)


def test_delta_is_the_same_where_it_is_large_and_where_it_is_tiny(node):
    points = [
        (mu, epsilon)
        for mu in (0.03, 0.3, 1.0, 3.0, 8.0)
        for epsilon in (0.0, 0.5, 2.0, 10.0, 30.0)
    ]
    found = np.array(
        node("calls", module="accounting", name="deltaOf", arguments=[list(p) for p in points])
    )
    expected = np.array([delta_of(*p) for p in points])
    # atol: a difference of numbers below 1
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-15)


def test_answers_compose_as_the_exact_accountant_composes_them(node):
    mus = [mu_for(epsilon, DELTA) for epsilon in (5.0, 1.0, 1.0, 0.1)]
    together = node("calls", module="accounting", name="compose", arguments=[[mus]])[0]
    assert together == pytest.approx(
        compose([GaussianEvent("answer", mu, "click", "replace") for mu in mus]), rel=1e-12
    )
    left = node(
        "calls",
        module="accounting",
        name="epsilonLeft",
        arguments=[[{"epsilon": 20, "delta": DELTA}, together]],
    )[0]
    assert left == pytest.approx(
        epsilon_of(math.sqrt(mu_for(20, DELTA) ** 2 - together**2), DELTA), rel=1e-9
    )


def test_an_id_has_the_same_form_in_the_page_and_in_python(node):
    ids = ["7", "7.0", "+7", "-7.00", "7.5", "007", "0", "7e1", " 7 ", "a b", "a  b", "\u00a0ann"]
    ids += ["ann\u200b", "\ufeffann", "a\ufeffb", "Zoe\u0308", "Zo\u00eb", "x\u00b2", "x2"]
    ids += [
        "\uff41\uff11",
        "\uff76",
        "\u3000ann\u2028b",
        "an\u00adn",
        "a\tb",
        "\x85a\x1fb",
        "",
        " ",
    ]
    found = node("calls", module="history", name="plainId", arguments=[[each] for each in ids])
    assert found == [plain_id(each) for each in ids]


def test_no_more_titles_are_picked_than_count(node):
    found = node("picks", ids=["a", "b", "b", "c", "d", "e"], longest=3)
    assert found == [[1, False], [2, False], [2, False], [3, True], [3, True], [3, True]]


def test_the_bundle_is_read_as_python_reads_it(node, planted_bundle, bundle_path):
    found = node("bundle", bundle=str(bundle_path), version=planted_bundle.version)
    assert found["about"] == planted_bundle.about.model_dump(mode="json")
    assert (found["m"], found["B"], found["D"]) == (
        planted_bundle.size,
        planted_bundle.coefficients,
        planted_bundle.items.shape[1],
    )
    assert (found["ids"], found["titles"]) == (
        list(planted_bundle.ids.all()),
        list(planted_bundle.titles.all()),
    )
    assert found["categories"] == [str(bits) for bits in planted_bundle.categories]
    assert found["rows"] == planted_bundle.rows.ravel().tolist()
    assert found["mean"] == planted_bundle.mean.tolist()


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0, 20.0])
def test_a_noised_release_becomes_the_same_query_and_the_same_ranking(
    node, planted_bundle, bundle_path, epsilon
):
    rng = np.random.default_rng(1)
    H = planted_bundle.about.history
    mu = mu_for(epsilon, DELTA)
    histories = rng.integers(-1, planted_bundle.size, (6, H))
    histories[0] = -1
    table = asking.public_table(planted_bundle)
    std = bounded_mean.noise_std(table, H, mu=mu)
    exact = asking.exact(planted_bundle, histories)
    noised = exact + rng.normal(0, std, exact.shape)
    sent = asking.query(
        planted_bundle, Coefficients(noised, std, GaussianEvent("answer", mu, "click", "replace"))
    )
    cases = [
        {"history": h.tolist(), "noised": a.tolist(), "noiseStd": std, "mu": mu}
        for h, a in zip(histories, noised, strict=True)
    ]

    found = node("answers", bundle=str(bundle_path), version=planted_bundle.version, cases=cases)

    users = planted_bundle.users(sent)
    scores = users @ planted_bundle.items.T + planted_bundle.bias
    for at, case in enumerate(found):
        assert case["exact"] == pytest.approx(exact[at], rel=1e-15, abs=0)
        assert math.sqrt(case["variance"]) * 2.0**-bounded_mean.BITS / H == pytest.approx(
            std, rel=1e-6
        )
        # rounded towards more noise
        assert case["variance"] >= (std / (2.0**-bounded_mean.BITS / H)) ** 2
        for name, expected in (("sent", sent[at]), ("user", users[at]), ("scored", scores[at])):
            np.testing.assert_allclose(case[name], expected, atol=1e-6 * np.abs(expected).max())
        by_score = np.array(case["scored"])[case["order"]]
        assert (np.diff(by_score) <= 0).all()
        assert sorted(case["order"]) == list(range(planted_bundle.size))


def test_equal_scores_are_ordered_as_python_orders_them(node):
    rows = [*range(2_000), 10**6, 2**31 - 1]
    assert node("ties", rows=rows) == tie_keys(np.array(rows)).tolist()


def test_without_noise_the_exact_query_is_that_of_python(node, planted_bundle, bundle_path):
    history = [[3, 11, 19, 27, 5, 13, -1, -1, 2, 2]]
    released = Coefficients(
        asking.exact(planted_bundle, np.array(history)),
        0.0,
        GaussianEvent("answer", 1.0, "click", "replace"),
    )
    cases = [
        {"history": history[0], "noised": released.values[0].tolist(), "noiseStd": 0, "mu": 1.0}
    ]
    found = node("answers", bundle=str(bundle_path), version=planted_bundle.version, cases=cases)[0]
    np.testing.assert_allclose(
        found["exactQuery"], asking.query(planted_bundle, released)[0], rtol=1e-6
    )
    assert found["sent"] == found["exactQuery"]


@pytest.mark.parametrize("epsilon", [0.5, 5.0, math.inf])
def test_groups_of_sizes_read_a_release_as_python_does(node, tmp_path, epsilon):
    rng = np.random.default_rng(5)
    G = 3
    plain = planted(tmp_path / "plain")
    B = plain.coefficients
    roots = 0.05 * rng.normal(size=(G, B, B))
    covariance = roots @ roots.transpose(0, 2, 1) + 1e-4 * np.eye(B)
    parts = (
        np.array([3.0, 9.0, 30.0]),
        np.full(G, 1 / G),
        0.1 * rng.normal(size=(G, B)),
        covariance,
        rng.normal(size=(G, B, B)),
    )
    path = tmp_path / "sized"
    sized = planted(path, **Sizes(*parts).arrays())
    mu = mu_for(epsilon, DELTA)
    std = bounded_mean.noise_std(asking.public_table(sized), sized.about.history, mu=mu)
    noised = rng.normal(0.1, 0.2, (5, B))
    event = GaussianEvent("answer", 1.0, "click", "replace")
    expected = asking.query(sized, Coefficients(noised, std, event))
    cases = [{"history": [1, 2], "noised": a.tolist(), "noiseStd": std, "mu": 1.0} for a in noised]
    found = node("answers", bundle=str(path), version=sized.version, cases=cases)
    np.testing.assert_allclose(
        [case["sent"] for case in found], expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max()
    )
    guarantee = Guarantee(epsilon, DELTA, "click", "replace")
    titles = [0, 1, 3, 6, 12, 500]
    shares = node("told", bundle=str(path), version=sized.version, cases=[[n, std] for n in titles])
    np.testing.assert_allclose(
        shares, [asking.told(sized, n, guarantee=guarantee) for n in titles], rtol=1e-9
    )
    for exact in (case["exactQuery"] for case in found):
        alone = asking.query(
            sized, Coefficients(asking.exact(sized, np.array([[-1] * 8 + [1, 2]])), 0.0, event)
        )
        np.testing.assert_allclose(exact, alone[0], rtol=1e-5, atol=1e-6 * np.abs(alone).max())


def test_a_column_that_all_rows_share_makes_no_difference_of_rows(node):
    rng = np.random.default_rng(3)
    taste = rng.integers(-(2**17), 2**17, (60, 3))
    rows = np.column_stack([taste, np.full(60, 2**19)])
    longest = np.sqrt((rows**2).sum(1).max())
    apart = 2 * np.sqrt((taste**2).sum(1).max())
    enough = max(longest, apart) * 2.0**-bounded_mean.BITS / 7
    (found,) = node(
        "sensitivity",
        cases=[{"rows": rows.tolist(), "history": 7, "sensitivity": enough, "pairs": 0}],
    )
    assert found == pytest.approx(enough, rel=1e-12)
    assert enough < 2 * longest * 2.0**-bounded_mean.BITS / 7


def test_a_taste_of_one_kind_has_that_kind_on_top(node, planted_bundle, bundle_path):
    cases = [
        {"history": list(range(kind, 80, 8)), "noised": [0.0] * 8, "noiseStd": 0, "mu": 1.0}
        for kind in range(8)
    ]
    exact = node("answers", bundle=str(bundle_path), version=planted_bundle.version, cases=cases)
    for case, found in zip(cases, exact, strict=True):
        case["noised"] = found["exact"]
    for kind, found in enumerate(
        node("answers", bundle=str(bundle_path), version=planted_bundle.version, cases=cases)
    ):
        assert {row % 8 for row in found["order"][:5]} == {kind}


def _farthest(rows, history):
    with_empty = np.concatenate([rows, np.zeros((1, rows.shape[1]), np.int64)]).astype(float)
    return (
        np.sqrt(((with_empty[:, None] - with_empty) ** 2).sum(-1).max())
        * 2.0**-bounded_mean.BITS
        / history
    )


@pytest.mark.parametrize("least", [0, -(2**18)], ids=["shares", "signed"])
def test_a_stated_sensitivity_is_taken_where_it_is_true_and_refused_where_it_is_less(node, least):
    rng = np.random.default_rng(2)
    drawn = [rng.integers(least, 2**18, (30, 3)) for _ in range(8)]
    stated = [(rows, _farthest(rows, 7) * factor) for rows in drawn for factor in (0.999, 1.0, 1.5)]
    cases = [
        {"rows": rows.tolist(), "history": 7, "sensitivity": value, "pairs": 1e6}
        for rows, value in stated
    ]
    expected = [None if at % 3 == 0 else value for at, (_, value) in enumerate(stated)]
    assert node("sensitivity", cases=cases) == expected


@pytest.mark.parametrize("least", [0, -(2**18)], ids=["shares", "signed"])
def test_where_there_are_too_many_pairs_the_noise_is_made_for_more_and_never_for_less(node, least):
    rng = np.random.default_rng(3)
    rows = rng.integers(least, 2**18, (60, 3))
    true = _farthest(rows, 7)
    (found,) = node(
        "sensitivity",
        cases=[{"rows": rows.tolist(), "history": 7, "sensitivity": true, "pairs": 0}],
    )
    longest = np.sqrt((rows**2).sum(1).max()) * 2.0**-bounded_mean.BITS / 7
    assert found == pytest.approx(longest * (2 if least else math.sqrt(2)), rel=1e-9)
    assert found > true


def test_decoding_ignores_everything_but_the_release_and_public_numbers(
    node, planted_bundle, bundle_path
):
    population = Population(planted_bundle.mean, planted_bundle.covariance)
    noised = np.linspace(-0.2, 0.4, planted_bundle.coefficients)
    cases = [
        {"history": history, "noised": noised.tolist(), "noiseStd": 0.05, "mu": 1.0}
        for history in ([1, 2, 3], [70])
    ]
    one, other = node(
        "answers", bundle=str(bundle_path), version=planted_bundle.version, cases=cases
    )
    assert one["sent"] == other["sent"]
    decoded = bounded_mean.decode(
        Coefficients(noised[None], 0.05, GaussianEvent("answer", 1.0, "click", "replace")),
        population,
    )
    np.testing.assert_allclose(
        one["sent"],
        (decoded[0] - planted_bundle.mean) / planted_bundle.about.scale,
        rtol=1e-6,
        atol=1e-7,
    )


def test_a_model_of_an_unknown_form_is_refused_in_words(
    node, planted_bundle, bundle_path, tmp_path
):
    about = planted_bundle.about.model_copy(update={"form": "whole vectors"})
    version = bundle.write(tmp_path / "other", about, load_file(bundle_path))
    with pytest.raises(AssertionError, match="ask it with: fedrec recommend"):
        node("bundle", bundle=str(tmp_path / "other"), version=version)


def test_only_the_latest_titles_count(node, planted_bundle, bundle_path):
    latest = list(range(20, 20 + planted_bundle.about.history))
    cases = [
        {"history": history, "noised": [0.0] * 8, "noiseStd": 0, "mu": 1.0}
        for history in (latest, [1, 2, *latest])
    ]
    one, other = node(
        "answers", bundle=str(bundle_path), version=planted_bundle.version, cases=cases
    )
    assert one["exact"] == other["exact"]


@pytest.mark.slow
@pytest.mark.parametrize("attention", [False, True])
def test_lists_that_are_everybodys_are_known_by_invented_readers_where_no_sizes_are(
    node, tmp_path, attention
):
    if attention:
        bundle.write(tmp_path / "b", *attention_parts(heads=2))
    else:
        planted(tmp_path / "b")
    read = bundle.read(tmp_path / "b")
    epsilons = (0.1, 5.0, 1e6)
    cases = [[8, mu_for(epsilon, DELTA)] for epsilon in epsilons]
    *found, nothing = node(
        "toldOfInvented",
        bundle=str(tmp_path / "b"),
        version=read.version,
        cases=[*cases, [0, 1.0]],
    )
    expected = [
        asking.told(read, 8, guarantee=Guarantee(epsilon, DELTA, "click", "replace"))
        for epsilon in epsilons
    ]
    np.testing.assert_allclose(found, expected, atol=0.1)
    assert found[0] < asking.HIDDEN
    assert attention or found[2] > 0.9
    assert nothing == 0
