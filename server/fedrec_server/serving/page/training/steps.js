/**
 * The steps of the default recipe for ratings, for one person: `fedrec_client.device.steps`, which says what they are.
 *
 * Numbers are doubles, as there. Sums are added in the same order; systems are solved by other means (`solving`), so that numbers
 * differ in their last bits, and reports, which are cut to 15 bits, only where one lies that close to a point of the grid.
 */

import { bounded, inOrder, rowSquares } from "./reports.js";
import { applied, inverse, matrix, picked, productWithTransposed, solved, transposedProduct, withDiagonal } from "./solving.js";

const PRIOR_RATINGS = 3;
const UNITS = ["unit_users", "unit_ratio", "unit_residual", "unit_excess", "unit_gain", "unit_lift"];
const ONE = Float64Array.of(1);
const NOTHING = Int32Array.of();

/** By name: (question, mine) to {items, parts}. mine: {items (n,) rising, x (n,) on [-2, 2], count of the catalogue}. */
export const STEPS = {
  "default/counts": counts,
  "default/biases": biases,
  "default/tastes": tastes,
  "default/step": step,
  "default/pairs": pairs,
};

/** 1 on each item, and the person's mean on [-1, 1]. */
function counts({ array, releases }, { items, x }) {
  const n = items.length;
  const share = array("mean_energy")[0];
  const mean = n ? Math.max(-1, Math.min(1, inOrder(x) / n / 2)) : 0;
  const parts = [
    { coefficients: new Float64Array(n).fill(Math.sqrt((1 - share) / Math.max(n, 1))), vectors: ONE },
    { coefficients: Float64Array.of(Math.sqrt(share) * mean), vectors: ONE },
  ];
  return { items, parts: bounded(items, parts, releases, "clip") };
}

/** omega x and omega kappa, for ratings from which the person's own shrunk mean is taken. */
function biases({ array, releases }, { items, x }) {
  const [kappa, mean] = [array("kappa")[0], array("mean")[0]];
  const centred = x.map((value) => value - mean);
  const own = inOrder(centred) / (centred.length + PRIOR_RATINGS);
  const weights = at(array("omega"), items);
  const parts = [
    { coefficients: weights.map((w, e) => w * (centred[e] - own)), vectors: ONE },
    { coefficients: weights.map((w) => w * kappa), vectors: ONE },
  ];
  return { items, parts: bounded(items, parts, releases) };
}

/** z z' with z the weighted residuals on the items asked for. */
function tastes(question, mine) {
  const { array, releases } = question;
  const [omega, columns] = [at(array("omega"), mine.items), array("items")];
  const place = placesOf(columns, mine.count);
  const { phi, targets, variance } = modelOf(question, mine);
  const mean = posteriorMean(phi, targets, variance);
  const z = new Float64Array(columns.length);
  mine.items.forEach((item, e) => {
    const fitted = inOrder(row(phi, e).map((value, c) => mean[c] * value));
    if (place[item] >= 0) z[place[item]] = omega[e] * (targets[e] - fitted);
  });
  return { items: NOTHING, parts: bounded(NOTHING, [{ coefficients: ONE, vectors: z }], releases) };
}

/** omega times cross-fitted residuals, times the person's vector without each fold; and scales of how long a step to take. */
function step(question, mine) {
  const { array, releases } = question;
  const [n, d, spec] = [mine.items.length, array("width")[0], releases[0].blocks[0]];
  const [omega, alpha, energy] = [at(array("omega"), mine.items), array("alpha")[0], array("scales_energy")[0]];
  const { phi, targets, variance } = modelOf(question, mine);
  const fold = mine.items.map((item) => item % spec.folds);
  const { residuals, vectors: fitted, noiseShare } = crossFit(phi, targets, variance, fold, d, spec.folds);
  const first = matrix(n, 1, Float64Array.from({ length: n }, (_, e) => phi.values[e * phi.columns]));
  const plain = crossFit(first, targets, variance, fold, 0, spec.folds).residuals;
  const coefficients = omega.map((w, e) => w * residuals[e]);
  const vectors = new Float64Array(spec.folds * (d + 1));
  for (let k = 0; k < spec.folds; k += 1) {
    vectors[k * (d + 1)] = alpha;
    vectors.set(fitted.subarray(k * d, (k + 1) * d), k * (d + 1) + 1);
  }
  const squares = rowSquares(vectors, d + 1);
  const norm = Math.sqrt(inOrder(coefficients.map((c, e) => c * c * squares[fold[e]])));
  const scales = scalesOf({ array, n, d, norm, residuals, plain, noiseShare, variance, fitted, fold });
  const weight = Math.min(Math.sqrt(n / array("most_ratings")[0]), 1);
  const length = Math.sqrt(rowSquares(scales, scales.length)[0]);
  const beside = (Math.sqrt(energy) * weight) / Math.max(length, 1);
  const factor = norm > 0 ? Math.sqrt(1 - (beside * length) ** 2) / norm : 0;
  const { radius } = releases[0];
  const parts = [
    { coefficients: coefficients.map((c) => radius * c * factor), vectors },
    { coefficients: Float64Array.of(radius * beside), vectors: scales },
  ];
  return { items: mine.items, parts: bounded(mine.items, parts, releases, "clip") };
}

/** Means over the person's ratings of what says how long a step to take, each in its public unit. */
function scalesOf({ array, n, d, norm, residuals, plain, noiseShare, variance, fitted, fold }) {
  const added = plain.map((value, e) => value - residuals[e]);
  const squares = residuals.map((value) => value * value);
  const columns = [
    squares,
    squares.map((square, e) => noiseShare[e] * square - variance[e]),
    added.map((value, e) => value * plain[e]),
    added.map((value) => value * value),
    ...Array.from({ length: d }, (_, c) => residuals.map((_, e) => fitted[fold[e] * d + c] * fitted[fold[e] * d + c])),
  ];
  const ratio = norm > 0 ? Math.sqrt(Math.max(n, 1)) / norm : 0;
  const units = [...UNITS.map((name) => array(name)[0]), ...new Array(d).fill(array("unit_known")[0])];
  const means = columns.map((column) => inOrder(column) / Math.max(n, 1));
  return Float64Array.from([1, ratio, ...means], (value, c) => (n > 0 ? value / units[c] : 0));
}

/** Rows z_j z of the items asked for that were rated, z their weights. */
function pairs({ array, releases }, mine) {
  const [omega, asked] = [array("omega"), array("items")];
  const place = placesOf(asked, mine.count);
  const items = mine.items.filter((item) => place[item] >= 0).sort((one, other) => place[one] - place[other]);
  const [z, columns] = [at(omega, items), items.map((item) => place[item])];
  const dense = new Float64Array(asked.length);
  columns.forEach((column, e) => (dense[column] = z[e]));
  return { items: columns, parts: bounded(columns, [{ coefficients: z, vectors: dense }], releases) };
}

/** Residuals (n,), vectors (folds, width) and noise shares (n,) of `factorization.cross_fitting`; phi (n, D) of the person's items. */
function crossFit(phi, t, v, fold, width, folds) {
  const [n, D] = [phi.rows, phi.columns];
  const found = { residuals: new Float64Array(n), vectors: new Float64Array(folds * width), noiseShare: new Float64Array(n) };
  const members = Array.from({ length: folds }, () => []);
  fold.forEach((k, e) => members[k].push(e));
  if (n >= D) fewFeatures(found, { phi, t, v, members, width });
  else if (n) fewRatings(found, { phi, t, v, members, width });
  return found;
}

function fewFeatures(found, { phi, t, v, members, width }) {
  const [n, D] = [phi.rows, phi.columns];
  const scaled = matrix(n, D, phi.values.map((value, at) => value / v[Math.floor(at / D)]));
  const S = inverse(withDiagonal(transposedProduct(scaled, phi), () => 1));
  const w = applied(S, transposedProduct(scaled, matrix(n, 1, t)).values);
  const SX = productWithTransposed(phi, S); // S is symmetric
  const misfit = applied(phi, w).map((fitted, e) => t[e] - fitted);
  members.forEach((mine, k) => {
    if (!mine.length) return;
    const less = productWithTransposed(picked(SX, mine), picked(phi, mine));
    const M = inverse(withDiagonal(matrix(less.rows, less.columns, less.values.map((value) => -value)), (e) => v[mine[e]]));
    const u = applied(M, mine.map((e) => misfit[e]));
    mine.forEach((e, at) => {
      found.residuals[e] = v[e] * u[at];
      found.noiseShare[e] = 1 / (v[e] * M.values[at * mine.length + at]);
    });
    fill(found.vectors, k, width, (c) => w[c] - inOrder(mine.map((e, at) => SX.values[e * D + c] * u[at])));
  });
}

function fewRatings(found, { phi, t, v, members, width }) {
  const D = phi.columns;
  const K = inverse(withDiagonal(productWithTransposed(phi, phi), (e) => v[e]));
  const weights = applied(K, t);
  members.forEach((mine, k) => {
    if (!mine.length) return;
    const M = inverse(picked(K, mine, mine));
    const r = applied(M, mine.map((e) => weights[e]));
    mine.forEach((e, at) => {
      found.residuals[e] = r[at];
      found.noiseShare[e] = v[e] / M.values[at * mine.length + at];
    });
    const back = applied(picked(K, Array.from(weights.keys()), mine), r);
    fill(found.vectors, k, width, (c) => inOrder(weights.map((weight, e) => phi.values[e * D + c] * (weight - back[e]))));
  });
}

function fill(vectors, k, width, value) {
  for (let c = 0; c < width; c += 1) vectors[k * width + c] = value(c);
}

/** phi (n, D) of the person's items, what mean and biases leave of the ratings (n,), and the variance (n,) of their noise. */
function modelOf({ array, shape }, { items, x }) {
  const [whole, mean, bias] = [array("phi"), array("mean")[0], at(array("bias"), items)];
  const phi = picked(matrix(...shape("phi"), whole), items);
  return { phi, targets: x.map((value, e) => value - mean - bias[e]), variance: at(array("variance"), items) };
}

function posteriorMean(phi, targets, variance) {
  const [n, D] = [phi.rows, phi.columns];
  if (!n) return new Float64Array(D);
  if (n < D) {
    const weights = solved(withDiagonal(productWithTransposed(phi, phi), (e) => variance[e]), targets);
    return transposedProduct(phi, matrix(n, 1, weights)).values;
  }
  const scaled = matrix(n, D, phi.values.map((value, place) => value / variance[Math.floor(place / D)]));
  return solved(withDiagonal(transposedProduct(scaled, phi), () => 1), transposedProduct(scaled, matrix(n, 1, targets)).values);
}

function row({ columns, values }, e) {
  return values.subarray(e * columns, (e + 1) * columns);
}

/** Numbers of these items; of fewer than asked for, none is made up. */
function at(values, items) {
  return Float64Array.from(items, (item) => values[item]);
}

/** (count,) where each item is in the list, -1 where it is not. */
function placesOf(items, count) {
  const place = new Int32Array(count).fill(-1);
  items.forEach((item, order) => (place[item] = order));
  return place;
}
