/**
 * What a list can show of a person, where a model has no groups of sizes: `fedrec.serving.asking.told`, by invented readers alone.
 *
 * Each likes the titles that are nearest to one title. The share is what a noised list has in common with the reader's own, beyond
 * what it has in common with another reader's.
 */

import { ask, exact, sentOf } from "./mechanism.js";
import { scores } from "./ranking.js";

const READERS = 64;
const FEWEST = 8; // of a large catalogue
const WORK = 1.5e8; // multiplications of one pass over the catalogue for all readers
const DRAWS = 4; // of each reader's noise, where the catalogue is small
const LISTED = 10;

/** The share for so many titles at mu, between 0 and 1; null where the model fails at it. */
export function toldOfInvented(bundle, titles, mu) {
  if (titles === 0) return 0;
  const { m, D, about } = bundle;
  const readers = Math.min(m, Math.max(FEWEST, Math.min(READERS, Math.floor(WORK / (m * D)))));
  const draws = Math.max(1, Math.min(DRAWS, Math.floor(WORK / (readers * m * D))));
  const units = centredUnits(bundle);
  const n = Math.min(titles, about.history, m);
  const histories = Array.from({ length: readers }, (_, i) => {
    const liked = Math.floor(((i + 0.5) * m) / readers);
    const near = Float32Array.from({ length: m }, (_, j) => {
      let product = 0;
      for (let d = 0; d < D; d += 1) product += units[liked * D + d] * units[j * D + d];
      return product;
    });
    return first(near, n);
  });
  try {
    const mine = histories.map((history) => new Set(listed(bundle, sentOf(bundle, exact(bundle, history), 0))));
    let [own, others] = [0, 0];
    for (let draw = 0; draw < draws * readers; draw += 1) {
      const i = draw % readers;
      const list = listed(bundle, ask(bundle, histories[i], { mu }).sent);
      mine.forEach((theirs, j) => {
        const shared = list.filter((row) => theirs.has(row)).length / list.length / draws;
        if (i === j) own += shared / readers;
        else others += shared / (readers * (readers - 1));
      });
    }
    return Math.max(own - others, 0) / Math.max(1 - others, 1e-9);
  } catch {
    return null; // a model that fails at some number of titles would ask for it
  }
}

function listed(bundle, sent) {
  return first(scores(bundle, sent), Math.min(LISTED, bundle.m));
}

/** Rows of the k highest values, in any order. */
function first(values, k) {
  const least = Float32Array.from(values).sort().at(-k);
  const above = [];
  const equal = [];
  values.forEach((value, row) => value >= least && (value > least ? above : equal).push(row));
  return [...above, ...equal].slice(0, k);
}

/** (m, D) the items' vectors less their mean, of length 1. */
function centredUnits({ items, m, D }) {
  const mean = new Float64Array(D);
  for (let at = 0; at < m * D; at += 1) mean[at % D] += items[at] / m;
  const units = Float32Array.from({ length: m * D }, (_, at) => items[at] - mean[at % D]);
  for (let j = 0; j < m; j += 1) {
    const row = units.subarray(j * D, (j + 1) * D);
    const length = Math.max(Math.hypot(...row), 1e-12);
    for (let d = 0; d < D; d += 1) row[d] /= length;
  }
  return units;
}
