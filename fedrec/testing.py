"""Contract class of recipes: five tests of a private algorithm, for a mechanism of one's own, with
pytest.

    class TestMine(fedrec.testing.RecipeContract):
        recipe = "my-mechanism"
        kind = "clicks"

        def plain(self, data):  # the released sums by a second, obvious computation
            return {"counts": np.bincount(data.items, minlength=data.num_items)[:, None]}

Each test holds for every recipe that trains in rounds of reports; `plain` is the only thing that a
recipe must say of itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from scipy import stats

from fedrec.data.interactions import Interactions
from fedrec.data.kinds import Kind
from fedrec.data.planted import SHAPES, planted
from fedrec.evaluation.ranking import evaluate_ranking
from fedrec.evaluation.toplists import dot_product
from fedrec.factorization.facts import PublicFacts, predict
from fedrec.factorization.rankers import ranker_of
from fedrec.federation.messages import Question, RoundDone, train
from fedrec.federation.releases import noise_stds, release
from fedrec.federation.reports import ExactSums, within_radius
from fedrec.in_process import Loopback
from fedrec.privacy.accounting import Ledger, epsilon_of
from fedrec.randomness import Streams
from fedrec.recipes import Prepared, prepare
from fedrec.settings import validated

_LEVEL = 1e-9
"""Of the Kolmogorov-Smirnov tests: the chance of a false alarm is below it for each block."""
_NUMBERS = 3_000
"""At so many draws noise of 2/3 or 3/2 of its std is told apart with certainty."""


class RecipeContract:
    """Five tests that every private recipe passes. Set `recipe` and `kind`, and give `plain`.

    >>> class TestCounts(RecipeContract):
    ...     recipe, kind = "dp-popularity", "clicks"
    ...     def plain(self, data):
    ...         weights = np.diff(data.user_ptr)[data.users] ** -0.5
    ...         return {"counts": np.bincount(data.items, weights, data.num_items)[:, None]}
    >>> TestCounts().test_with_an_infinite_budget_the_first_release_is_the_plain_sum()
    """

    recipe: ClassVar[str] = ""
    kind: ClassVar[Kind] = "clicks"
    own: ClassVar[Mapping[str, Any]] = {}
    delta: ClassVar[float] = 1e-5

    def data(self, seed: int = 1) -> Interactions:
        """Planted events, some users of which have one event or none: what the tests run on.

        Args:
            seed: Of the events.

        Returns:
            The events.
        """
        found = planted(replace(SHAPES["small"], kind=self.kind), seed=seed).interactions
        few = np.random.default_rng(seed).random(found.num_users)[found.users]
        first = np.zeros(len(found), np.bool_)
        first[found.user_ptr[:-1][np.diff(found.user_ptr) > 0]] = True
        return found.select((few > 0.2) | (first & (few > 0.1)))

    def plain(self, data: Interactions) -> Mapping[str, npt.NDArray[np.floating]]:
        """Sums without noise of the first round's blocks, by name, (rows, columns), computed in
        another way than the recipe does.

        Args:
            data: What `data` gave.

        Returns:
            The sums.

        Raises:
            NotImplementedError: The test class does not give it.
        """
        raise NotImplementedError(
            f"{type(self).__name__}.plain: return the sums that the first round releases, by "
            "block name"
        )

    def prepared(self, data: Interactions, epsilon: float) -> Prepared:
        """The recipe for this data at an epsilon.

        Args:
            data: What `data` gave.
            epsilon: Infinite for no noise.

        Returns:
            Both halves of the recipe, and its plan.
        """
        scenario = validated(
            {
                "recipe": self.recipe,
                "own": dict(self.own),
                "privacy": {"epsilon": epsilon, "delta": self.delta},
            },
            source=self.recipe,
        )
        return prepare(
            scenario,
            PublicFacts(
                data.num_users, data.num_items, data.kind, data.value_range, None, Streams(1)
            ),
        )

    def rounds(self, data: Interactions, made: Prepared) -> Iterator[RoundDone]:
        """All rounds of one training.

        Args:
            data: What `data` gave.
            made: What `prepared` gave.

        Returns:
            What each round asked and released, as it is done.
        """
        link = Loopback(data, made.steps, made.plan, Streams(1), Ledger(made.plan.guarantee))
        yield from train(made.recipe, link, made.recipe.begin())

    def test_with_an_infinite_budget_the_first_release_is_the_plain_sum(self) -> None:
        """To the rounding of the grid: each report is cut towards zero in steps that the block
        declares."""
        data = self.data()
        done = next(self.rounds(data, self.prepared(data, math.inf)))
        plain = self.plain(data)
        assert set(plain) == {block.name for block in done.question.blocks}, (
            "plain must name every block of the first round"
        )
        for block in done.question.blocks:
            cut = 2 * data.num_users * (block.coefficient_step + block.vector_step)
            # each user's coefficient and vector are rounded to a grid, by less than a step each
            np.testing.assert_allclose(
                done.answer.values[block.name], plain[block.name], rtol=0, atol=cut
            )

    def test_a_user_moves_every_release_by_at_most_its_radius(self) -> None:
        """Everybody's report is within its radius, and is the same whoever else reports: removing a
        user removes exactly it."""
        data = self.data()
        for question, made in self._questions(data):
            assert within_radius(made.steps[question.step](question, data), question.releases).all()
            whole = _sums(question, made, data)
            for user in np.linspace(0, data.num_users - 1, 25).astype(np.int64):
                rest = _sums(question, made, data.select(data.users != user))
                alone = _sums(question, made, data.users_subset(np.array([user])))
                for with_user, without, own in zip(whole, rest, alone, strict=True):
                    np.testing.assert_array_equal(with_user - without, own)

    def test_noise_has_the_planned_distribution_and_no_other(self) -> None:
        """Kolmogorov-Smirnov at level 1e-9 at the planned std; at 2/3 and 3/2 of it the test
        fails."""
        data = self.data()
        for question, made in self._questions(data):
            wide = _widened(question)
            sums = [np.zeros((block.rows, block.columns), np.int64) for block in wide.blocks]
            answer, _ = release(
                wide, sums, made.plan, Ledger(made.plan.guarantee), noise=Streams(7)
            )
            planned = noise_stds(wide, made.plan)
            for spec in wide.releases:
                # what a grid adds to the noise (8 step^2) is within
                assert (
                    abs(planned[spec.name] - spec.radius / made.plan[spec.name].mu)
                    <= 1e-5 * planned[spec.name]
                )
                for block in spec.blocks:
                    drawn = answer.values[block.name] / planned[spec.name]
                    z = drawn[
                        :, block.form.relative_std(block.width, isometric=spec.isometric) == 1
                    ].ravel()[: 2 * _NUMBERS]
                    assert stats.kstest(z, "norm").pvalue > _LEVEL, block.name
                    assert all(
                        stats.kstest(z / wrong, "norm").pvalue < _LEVEL for wrong in (2 / 3, 3 / 2)
                    ), block.name

    def test_epsilon_equals_an_independent_computation(self) -> None:
        """The stds that are drawn, recombined by hand, cost the epsilon that was asked for, by two
        accountants."""
        data = self.data()
        for epsilon in (1.0, 5.0, 20.0):
            made = self.prepared(data, epsilon)
            asked = [done.question for done in self.rounds(data, made)]
            stds = {
                name: std
                for question in asked
                for name, std in noise_stds(question, made.plan).items()
            }
            radii = {spec.name: spec.radius for question in asked for spec in question.releases}
            assert set(stds) == {planned.name for planned in made.plan.releases}, (
                "the plan must hold exactly the releases that are asked for"
            )
            mu = math.sqrt(sum((radii[name] / stds[name]) ** 2 for name in stds))
            assert abs(epsilon_of(mu, self.delta) - epsilon) <= 1e-4 * epsilon  # rounded as above
        # the second accountant's grid of losses is pessimistic, by up to a thousandth
        assert 20.0 * (1 - 1e-6) <= made.plan.opinions().pld <= 20.0 * 1.001

    def test_a_planted_answer_is_found(self) -> None:
        """At epsilon 20, clearly better on unseen events than a guess: the mean of ratings, or a
        list drawn at random."""
        everything = planted(replace(SHAPES["small"], kind=self.kind), seed=2).interactions
        unseen = np.random.default_rng(1).random(len(everything)) < 0.1
        seen = everything.select(~unseen)
        asked = everything.select(unseen)
        made = self.prepared(seen, 20.0)
        *_, last = self.rounds(seen, made)
        model = made.recipe.model(last.state)
        if seen.rated:
            error = predict(model, seen, asked) - asked.values
            assert float(np.sqrt(np.mean(error**2))) < 0.97 * float(np.std(asked.values))
            return
        ranker = ranker_of(model)
        counts = np.bincount(seen.items, minlength=seen.num_items)
        V = np.asarray(ranker.item_vectors, np.float32)
        chance = np.random.default_rng(3).standard_normal((1, len(V))).astype(np.float32)
        ours = dot_product(np.asarray(ranker.user_vectors(seen), np.float32), V)
        guess = dot_product(np.ones((seen.num_users, 1), np.float32), chance.T.copy())
        found = [
            evaluate_ranking(s, history=seen, targets=asked, train_counts=counts, cutoffs=(20,))
            .at[20]
            .ndcg
            for s in (ours, guess)
        ]
        assert found[0] > 1.5 * found[1]

    def _questions(self, data: Interactions) -> Iterator[tuple[Question, Prepared]]:
        made = self.prepared(data, 5.0)
        for done in self.rounds(data, made):
            yield done.question, made


def _sums(
    question: Question, made: Prepared, data: Interactions
) -> tuple[npt.NDArray[np.int64], ...]:
    sums = ExactSums(question.blocks)
    sums.add(made.steps[question.step](question, data))
    return sums.blocks


def _widened(question: Question) -> Question:
    """The question with each block repeated until a test of its noise has enough numbers."""
    releases = tuple(
        replace(
            spec,
            blocks=tuple(
                replace(block, rows=block.rows * -(-_NUMBERS // block.rows))
                for block in spec.blocks
            ),
        )
        for spec in question.releases
    )
    return replace(question, releases=releases)
