/**
 * From a history to the numbers that leave: `fedrec.serving.asking` in the browser. A model that is asked by attention has its own
 * first and last line (`attention.js`); grid, noise and price are these.
 *
 *     a    = (1/H) sum over H places of the public row of its title, in whole steps of 2^-20 / H; an empty place adds 0
 *     a~   = a + discrete Gaussian noise on the same grid                  the only line that meets a secret
 *     sent = (posterior mean of a given a~ - mean) / scale, as float32     public numbers and a~ alone; or what `sizes` make of a~
 *
 * Guarantee: mu-GDP, unit "click", neighbours "replace": two histories that differ in which title stands at one place. One such
 * change moves a by at most bundle.sensitivity = S; with noise of variance (S/mu)^2 + 8 step^2 the proof of
 * `fedrec/privacy/gaussian.py` applies. The variance is rounded up to a whole number of squared steps.
 * S is looked at in `sensitivity.js`.
 */

import { clickedRows, clippedAttention, latticeStep, noisedAttention, sharesOf } from "./attention.js";
import { draw, Uniform } from "./discrete_gaussian.js";

const GRID = 2 ** 20;
const ROUNDED_UP = 1 + 2 ** -40; // more than double arithmetic can lose
const SMALLEST_VARIANCE = 16; // in squared steps: below, the proof would eat the noise

/** (B,) whole numbers: the rows of the last H items added up. history: item rows, oldest first, -1 for none. */
export function sums({ rows, m, B, about }, history) {
  const total = new Float64Array(B); // whole numbers far below 2^53
  for (const item of history.slice(-about.history)) {
    if (!Number.isInteger(item) || item < -1 || item >= m) throw new RangeError(`no item ${item} among ${m}`);
    for (let b = 0; item >= 0 && b < B; b += 1) total[b] += rows[item * B + b];
  }
  return total;
}

/** (B,) coefficients without noise. They never leave the device. */
export function exact(bundle, history) {
  if (bundle.encoder) return clippedAttention(bundle, clickedRows(bundle, history));
  return sums(bundle, history).map((steps) => steps * stepOf(bundle));
}

/** Variance of the noise in squared steps, a BigInt, for mu-GDP. Throws RangeError where the grid is too coarse. */
export function noiseVariance(bundle, mu) {
  const variance = Math.ceil((bundle.sensitivity / mu / stepOf(bundle, mu)) ** 2 * ROUNDED_UP + 8);
  if (!(variance >= SMALLEST_VARIANCE)) throw new RangeError(`the grid is too coarse for noise of mu ${mu}`);
  return BigInt(variance);
}

/** The real standard deviation of that noise. */
export function noiseStdOf(bundle, mu) {
  return Math.sqrt(Number(noiseVariance(bundle, mu))) * stepOf(bundle, mu);
}

/** {noised, noiseStd, sent}: one noised release of a history, mu-GDP per click replaced, before what hiding clicks adds. */
export function ask(bundle, history, { mu, uniform = new Uniform() }) {
  const [variance, noiseStd, step] = [noiseVariance(bundle, mu), noiseStdOf(bundle, mu), stepOf(bundle, mu)];
  if (bundle.encoder) {
    const noised = noisedAttention(bundle, history, { step, variance, uniform });
    return { noised, noiseStd, sent: sharesOf(noised, noiseStd) };
  }
  const noised = sums(bundle, history).map((steps) => Number(BigInt(steps) + draw(variance, uniform)) * step);
  return { noised, noiseStd, sent: sentOf(bundle, noised, noiseStd) };
}

/**
 * `ask`, whatever the history holds: where this one alone fails, an empty one is asked for at the same price, because whether a question
 * leaves must not depend on titles. The model was looked at (`bundle.js`) and rehearsed before, so that nothing should fail here.
 */
export function askWhatever(bundle, history, options) {
  try {
    return ask(bundle, history, options);
  } catch {
    return ask(bundle, [], options);
  }
}

/** Throws RangeError where a question to this model cannot be made of an invented history. Looks at no other. */
export function rehearse(bundle, mu) {
  const full = Array.from({ length: bundle.about.history }, (_, place) => place % bundle.m);
  for (const invented of bundle.encoder ? [[], [-1], full] : [[]]) {
    const { sent } = ask(bundle, invented, { mu });
    if (!sent.every(Number.isFinite)) throw new RangeError("questions to this model are not finite numbers");
  }
}

/** (B,) float32: what leaves for coefficients with this noise. */
export function sentOf(bundle, values, noiseStd) {
  if (bundle.encoder) return sharesOf(values, noiseStd);
  if (bundle.sizes === null) return query(bundle, decode(bundle, values, noiseStd));
  return Float32Array.from(bySize(bundle, values, noiseStd), (value) => value / bundle.about.scale);
}

/** (B,) the posterior mean of a query under groups of sizes, `fedrec.serving.user_map.Sizes.read`. */
function bySize({ sizes, B }, values, noiseStd) {
  const G = sizes.shares.length;
  const [logs, means] = [new Float64Array(G), []];
  for (let g = 0; g < G; g += 1) {
    const [mean, C] = [sizes.mean.subarray(g * B, (g + 1) * B), sizes.covariance.subarray(g * B * B, (g + 1) * B * B)];
    const factor = Float64Array.from(C);
    for (let b = 0; b < B; b += 1) factor[b * B + b] += noiseStd ** 2;
    const away = values.map((value, b) => value - mean[b]);
    const x = solve(factor, away); // factor holds the Cholesky factor from here on
    logs[g] = Math.log(sizes.shares[g]);
    for (let b = 0; b < B; b += 1) logs[g] -= Math.log(factor[b * B + b]) + (away[b] * x[b]) / 2;
    const moved = new Float64Array(B);
    for (let b = 0; b < B; b += 1) for (let c = 0; c < B; c += 1) moved[b] += C[b * B + c] * x[c];
    const found = new Float64Array(B);
    for (let b = 0; b < B; b += 1) for (let c = 0; c < B; c += 1) found[c] += moved[b] * sizes.matrix[(g * B + b) * B + c];
    means.push(found);
  }
  const largest = Math.max(...logs);
  const weights = logs.map((log) => Math.exp(log - largest));
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  return Float64Array.from({ length: B }, (_, c) => means.reduce((sum, found, g) => sum + (weights[g] / total) * found[c], 0));
}

/**
 * Which share of what so many titles say of their list this noise leaves, by public numbers; null where the model does not say.
 * `fedrec.serving.asking.told`: of the group of sizes nearest by log, tr(M' C (C + s^2 I)^-1 C M) / tr(M' C M).
 */
export function told({ sizes, B }, titles, noiseStd) {
  if (sizes === null) return null;
  if (titles === 0) return 0;
  const away = Array.from(sizes.clicks, (clicks) => Math.abs(Math.log(Math.max(clicks, 1)) - Math.log(titles)));
  const g = away.indexOf(Math.min(...away));
  const C = sizes.covariance.subarray(g * B * B, (g + 1) * B * B);
  const factor = Float64Array.from(C);
  for (let b = 0; b < B; b += 1) factor[b * B + b] += noiseStd ** 2;
  factorise(factor, B);
  let [kept, all] = [0, 0];
  for (let c = 0; c < B; c += 1) {
    const moved = new Float64Array(B); // C times a column of M
    const column = Float64Array.from({ length: B }, (_, b) => sizes.matrix[(g * B + b) * B + c]);
    for (let b = 0; b < B; b += 1) for (let d = 0; d < B; d += 1) moved[b] += C[b * B + d] * column[d];
    const read = solved(factor, moved);
    for (let b = 0; b < B; b += 1) {
      kept += moved[b] * read[b];
      all += moved[b] * column[b];
    }
  }
  return kept / Math.max(all, 1e-300);
}

/** (B,) m + C (C + s^2 I)^-1 (a~ - m): the posterior mean given the noised coefficients and the public population. */
export function decode({ mean, covariance, B }, noised, noiseStd) {
  if (noiseStd === 0) return Float64Array.from(noised);
  const system = Float64Array.from(covariance);
  for (let b = 0; b < B; b += 1) system[b * B + b] += noiseStd ** 2;
  const x = solve(system, noised.map((value, b) => value - mean[b]));
  return Float64Array.from(mean, (value, b) => {
    let moved = value;
    for (let c = 0; c < B; c += 1) moved += covariance[b * B + c] * x[c];
    return moved;
  });
}

/** (B,) float32: centred and scaled by public numbers, as the model reads them. */
export function query({ mean, about }, coefficients) {
  return Float32Array.from(coefficients, (value, b) => (value - mean[b]) / about.scale);
}

function stepOf(bundle, mu) {
  return bundle.encoder ? latticeStep(bundle, mu) : 1 / GRID / bundle.about.history;
}

/** x with A x = y for a symmetric positive definite A (n x n), which becomes its Cholesky factor. */
function solve(A, y) {
  factorise(A, y.length);
  return solved(A, y);
}

/** The lower triangle of a symmetric positive definite A (n x n) becomes its Cholesky factor. */
function factorise(A, n) {
  for (let i = 0; i < n; i += 1) {
    for (let j = 0; j <= i; j += 1) {
      let value = A[i * n + j];
      for (let k = 0; k < j; k += 1) value -= A[i * n + k] * A[j * n + k];
      A[i * n + j] = i === j ? Math.sqrt(value) : value / A[j * n + j];
    }
  }
}

/** x with L L' x = y for a Cholesky factor L. */
function solved(A, y) {
  const n = y.length;
  const x = Float64Array.from(y);
  for (let i = 0; i < n; i += 1) {
    for (let k = 0; k < i; k += 1) x[i] -= A[i * n + k] * x[k];
    x[i] /= A[i * n + i];
  }
  for (let i = n - 1; i >= 0; i -= 1) {
    for (let k = i + 1; k < n; k += 1) x[i] -= A[k * n + i] * x[k];
    x[i] /= A[i * n + i];
  }
  return x;
}
