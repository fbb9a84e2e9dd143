/** How far one replaced title can move the coefficients: looked at here, because the noise is made for it and the server states it. */

import { sensitivityOfAttention } from "./attention.js";

const GRID = 2 ** 20;
const ROUNDING = 1 + 1e-12;
const MOST_PRODUCTS = 2e8; // a second or so

/**
 * What noise must be made for, in L2 and real units: of attention what its clipping allows, else about.sensitivity where the rows agree with it. The longest row, and twice the longest
 * without columns that are the same in all rows (sqrt2 times it where no entry is negative), are always enough, and are taken where
 * there are too many pairs of rows to look at.
 * Throws RangeError where two rows, or one and an empty place, are farther apart than is stated.
 */
export function sensitivityOf(bundle, mostPairs = MOST_PRODUCTS / bundle.B) {
  if (bundle.encoder) return sensitivityOfAttention(bundle);
  const { rows, m, B, about } = bundle;
  const stated = about.sensitivity * about.history * GRID * ROUNDING;
  const { sorted, squares } = byLength(rows, m, B);
  const signed = rows.some((entry) => entry < 0);
  const enough = Math.max(Math.sqrt(squares[0]), longestVarying(rows, m, B) * (signed ? 2 : Math.SQRT2));
  if (stated >= enough) return about.sensitivity;
  const within = stated ** 2 >= squares[0] ? pairsWithin(stated ** 2, { sorted, squares, B, signed, mostPairs }) : false;
  if (within === false) throw new RangeError("the model states less than one title can do, so it is not asked");
  return within ? about.sensitivity : (enough * ROUNDING) / about.history / GRID;
}

/**
 * Whether all squared distances are at most `limit`; null where there are too many to say. |x - y|^2 <= 2 |x|^2 + 2 |y|^2, without the
 * 2 where no entry is negative: rows come by falling length, and those that cannot matter are not looked at.
 */
function pairsWithin(limit, { sorted, squares, B, signed, mostPairs }) {
  const factor = signed ? 2 : 1;
  let looked = 0;
  for (let a = 0; a < squares.length && factor * (squares[a] + squares[0]) > limit; a += 1) {
    for (let b = 0; b < a && factor * (squares[a] + squares[b]) > limit; b += 1) {
      if (squaredDistance(sorted, a * B, b * B, B) > limit) return false;
      looked += 1;
    }
    if (looked > mostPairs) return null;
  }
  return true;
}

/** The longest row without the columns in which all rows are the same: these are in no difference of two rows. */
function longestVarying(rows, m, B) {
  const varying = Array.from({ length: B }, (_, b) => b).filter((b) => {
    for (let j = 1; j < m; j += 1) if (rows[j * B + b] !== rows[b]) return true;
    return false;
  });
  let largest = 0;
  for (let j = 0; j < m; j += 1) {
    let square = 0;
    for (const b of varying) square += rows[j * B + b] * rows[j * B + b];
    largest = Math.max(largest, square);
  }
  return Math.sqrt(largest);
}

/** The rows by falling length, one after another, and their squared lengths. */
function byLength(rows, m, B) {
  const lengths = new Float64Array(m);
  for (let j = 0; j < m; j += 1) for (let b = 0; b < B; b += 1) lengths[j] += rows[j * B + b] * rows[j * B + b];
  const order = Uint32Array.from(lengths, (_, j) => j).sort((i, j) => lengths[j] - lengths[i]);
  const sorted = new Float64Array(m * B);
  order.forEach((row, place) => sorted.set(rows.subarray(row * B, (row + 1) * B), place * B));
  return { sorted, squares: Float64Array.from(order, (row) => lengths[row]) };
}

function squaredDistance(values, one, other, B) {
  let square = 0;
  for (let b = 0; b < B; b += 1) {
    const difference = values[one + b] - values[other + b];
    square += difference * difference;
  }
  return square;
}
