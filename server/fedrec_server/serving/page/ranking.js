/** The exact ranking, on the device: what the server does with a question, done with the coefficients before noise. */

import { userVector } from "./user_map.js";

/** (m,) scores of all items: items_j . U + bias_j. */
export function scores(bundle, coefficients) {
  const { items, bias, m, D } = bundle;
  const user = userVector(bundle, coefficients);
  return Float32Array.from({ length: m }, (_, j) => {
    let score = bias[j];
    for (let d = 0; d < D; d += 1) score += items[j * D + d] * user[d];
    return score;
  });
}

/** Key of a row by which equal scores are ordered, a permutation of 32-bit numbers: `fedrec.numerics.segments`. */
export function tieKey(row) {
  let x = row ^ 0x9e3779b9;
  x = Math.imul(x ^ (x >>> 16), 0x7feb352d);
  x = Math.imul(x ^ (x >>> 15), 0x846ca68b);
  return (x ^ (x >>> 16)) >>> 0;
}

/** Items by falling score, the smaller key first where equal; only those that `wanted` says yes to. */
export function ranking(scored, wanted = () => true) {
  const rows = [];
  for (let j = 0; j < scored.length; j += 1) if (wanted(j)) rows.push(j);
  return rows.sort((i, j) => scored[j] - scored[i] || tieKey(i) - tieKey(j));
}
