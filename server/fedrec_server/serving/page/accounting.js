/**
 * Exact accounting of Gaussian releases, as `fedrec.privacy.accounting`: answers of mu_1, mu_2, .. are mu-GDP together with
 * mu^2 = sum mu_i^2 (Dong, Roth and Su 2022), and mu-GDP is (epsilon, delta)-DP for
 *
 *     delta(epsilon) = Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu)        (Balle and Wang 2018)
 */

import { logNdtr, ndtr } from "./normal.js";

const HALVINGS = 200;

/** The exact delta of mu-GDP at epsilon >= 0. */
export function deltaOf(mu, epsilon) {
  if (mu === 0) return 0;
  if (mu === Infinity) return 1;
  const tail = Math.exp(Math.min(0, epsilon + logNdtr(-mu / 2 - epsilon / mu)));
  return Math.max(0, ndtr(mu / 2 - epsilon / mu) - tail);
}

/** The smallest epsilon with deltaOf(mu, epsilon) <= delta. */
export function epsilonOf(mu, delta) {
  if (mu === Infinity) return Infinity;
  return turningPoint((epsilon) => deltaOf(mu, epsilon) > delta).above;
}

/** The largest mu that is (epsilon, delta)-DP. */
export function muFor(epsilon, delta) {
  if (epsilon === Infinity) return Infinity;
  return turningPoint((mu) => deltaOf(mu, epsilon) <= delta).below;
}

/**
 * The largest mu of a release that is (epsilon, delta)-DP where each click was hidden before with probability `padding`
 * (`fedrec.privacy.mixtures`): exp(epsilon) = p + (1 - p) exp(e0) and delta = (1 - p) d0 amplify an (e0, d0)-DP release.
 */
export function muBehind(epsilon, delta, padding) {
  return muFor(epsilon + Math.log1p(-padding * Math.exp(-epsilon)) - Math.log1p(-padding), delta / (1 - padding));
}

/** The smallest epsilon of one mu-GDP release behind padding. */
export function epsilonBehind(mu, delta, padding) {
  const inner = epsilonOf(mu, delta / (1 - padding));
  return inner === Infinity ? inner : inner + Math.log1p(padding * Math.expm1(-inner));
}

/** mu of all releases together; 0 for none. */
export function compose(mus) {
  return Math.hypot(0, ...mus);
}

/** What is left of a budget of `limit` = {epsilon, delta}: the largest epsilon that one more answer, behind padding, may have. */
export function epsilonLeft(limit, spentMu, padding = 0) {
  if (spentMu === 0) return limit.epsilon;
  const left = muFor(limit.epsilon, limit.delta) ** 2 - spentMu ** 2;
  return left > 0 ? epsilonBehind(Math.sqrt(left), limit.delta, padding) : 0;
}

/**
 * How often the best guess between two equally likely titles at one place is right, for whoever knows all the others: Phi(mu/2),
 * the power of the Neyman-Pearson test at equal errors. Where the title was hidden, both are the same, and the guess is a coin's.
 */
export function rightGuesses(mu, padding = 0) {
  return padding / 2 + (1 - padding) * ndtr(mu / 2);
}

/** Where a condition that holds from 0 on stops holding: the last number where it does, and the next, where it does not. */
function turningPoint(holds) {
  if (!holds(0)) return { below: 0, above: 0 };
  let [below, above] = [0, 1];
  while (holds(above)) [below, above] = [above, 2 * above];
  for (let i = 0; i < HALVINGS; i += 1) {
    const middle = (below + above) / 2;
    if (middle === below || middle === above) break;
    if (holds(middle)) below = middle;
    else above = middle;
  }
  return { below, above };
}
