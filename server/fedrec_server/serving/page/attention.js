/**
 * PrivateRec's Alg. 2 in the browser (`fedrec.news.attention`): how a model with a user encoder and B public basis vectors is asked.
 *
 *     rows   = the latest H clicks, each hidden behind the anonymous item with probability p          l. 2-5
 *     alpha  = softmax(u b' / sqrt D) of the user vector u of these rows, clipped to L2 norm theta     l. 6-8
 *     noised = alpha, rounded down to a grid, + discrete Gaussian noise on that grid                   l. 9
 *     sent   = SoftPlus(noised) over its sum, as float32: a function of the noised numbers alone       l. 10
 *
 * Guarantee, per click replaced: clipped weights are not negative, so two histories are at most sqrt2 min(theta, 1) apart, however many
 * clicks differ; the noise makes that mu-GDP (`mechanism.js`), and hiding amplifies it (`accounting.js`, `muBehind`), as long as
 * nobody learns which clicks were hidden: this is drawn for every answer and kept nowhere.
 */

import { draw } from "./discrete_gaussian.js";
import { softmax, userVector } from "./user_encoder.js";

const LATTICE_BITS = 20; // the grid is 2^-20 of the noise, give or take a factor 2
const WORD = 2 ** 64;
const ROUNDED_UP = 1 + 2 ** -48; // a coin that hides falls at least as often as is stated
const SHORTER = 1 - 2 ** -40; // so that no rounding leaves a clipped vector longer than theta

/** How far two histories can be apart: what the noise is made for. */
export function sensitivityOfAttention({ encoder: { theta } }) {
  return Math.SQRT2 * (1 + 2 ** -50) * Math.min(theta, 1);
}

/** The grid of answers that are mu-GDP: a power of two, so that rounding to it is exact. */
export function latticeStep(bundle, mu) {
  return 2 ** (Math.floor(Math.log2(bundle.sensitivity / mu)) - LATTICE_BITS);
}

/**
 * The rows that the encoder reads: the latest H. A title that the model lacks is an empty place; where clicks are hidden it is a
 * click on the anonymous item, row m, for hiding makes an answer cheaper only between clicks.
 */
export function clickedRows({ m, about, encoder: { padding } }, history) {
  for (const row of history) if (!Number.isInteger(row) || row < -1 || row >= m) throw new RangeError(`no item ${row} among ${m}`);
  const latest = history.slice(-about.history);
  return padding > 0 ? latest.map((row) => (row < 0 ? m : row)) : latest.filter((row) => row >= 0);
}

/** Each of the rows, or the anonymous one in its place with probability `padding`, a coin for each. */
export function hidden(rows, { padding, anonymous, uniform }) {
  if (padding === 0) return rows;
  const threshold = BigInt(Math.ceil(padding * ROUNDED_UP * WORD));
  return rows.map((row) => (uniform.below(BigInt(WORD)) < threshold ? anonymous : row));
}

/** (B,) attention of a user with these rows over the basis, clipped. It never leaves the device. */
export function clippedAttention(bundle, rows) {
  const { users, B, D, encoder } = bundle;
  const user = userVector(bundle, rows);
  const logits = Array.from({ length: B }, (_, b) => {
    let product = 0;
    for (let d = 0; d < D; d += 1) product += user[d] * users.linear[b * D + d];
    return product / Math.sqrt(D);
  });
  const alpha = softmax(logits);
  const length = Math.hypot(...alpha);
  return length > encoder.theta ? alpha.map((weight) => (weight * encoder.theta * SHORTER) / length) : alpha;
}

/** (B,) noised attention of a history. variance: of the noise, in squared steps of the grid. */
export function noisedAttention(bundle, history, { step, variance, uniform }) {
  const rows = hidden(clickedRows(bundle, history), { padding: bundle.encoder.padding, anonymous: bundle.m, uniform });
  return clippedAttention(bundle, rows).map((weight) => Number(BigInt(Math.floor(weight / step)) + draw(variance, uniform)) * step);
}

/** (B,) float32 shares that are sent for noised attention, or those of attention without noise. */
export function sharesOf(values, noiseStd) {
  return Float32Array.from(noiseStd > 0 ? softmax(values.map(logSoftPlus)) : ofPositiveParts(values));
}

/** log log(1 + e^x), for numbers of any size. */
function logSoftPlus(x) {
  if (x < -30) return x; // log(1 + e^x) = e^x there, to 1e-13
  return Math.log(x > 30 ? x + Math.log1p(Math.exp(-x)) : Math.log1p(Math.exp(x)));
}

function ofPositiveParts(values) {
  const positive = values.map((value) => Math.max(value, 0));
  const total = positive.reduce((sum, value) => sum + value, 0);
  return positive.map((value) => (total > 0 ? value / total : 1 / values.length));
}
