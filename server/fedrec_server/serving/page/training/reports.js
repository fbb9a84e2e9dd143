/**
 * One person's bounded report: the bytes of `fedrec_client.device.steps`, which are those of the full client.
 *
 * Guarantee (user, add/remove): the report of a release has joint L2 norm at most its radius. Vectors are scaled to norm at most 1,
 * coefficients so that the norm is the radius (or at most it), and both are cut to the grid towards zero. No noise is drawn here:
 * the aggregator adds it to the sum. Sums run in the order of the items, as everywhere in fedrec.
 */

import { joined, utf8 } from "./bytes.js";

const SLACK = 1e-12; // as `fedrec.federation.reports`
const LEAST = 1e-140; // too
const LARGEST = 2 ** 15;
const MOST_ITEMS = 20_000; // as `fedrec.federation.report_batches`
const MOST_BYTES = 2 ** 20;
const DEGREES = { linear: 1, outer: 2 };

/** The sum, each number added to the sum of those before. */
export function inOrder(values) {
  let sum = 0;
  for (const value of values) sum += value;
  return sum;
}

/** (folds,) squared norm of each row of vectors (folds, width). */
export function rowSquares(vectors, width) {
  return Float64Array.from({ length: vectors.length / width }, (_, row) =>
    inOrder(vectors.subarray(row * width, (row + 1) * width).map((value) => value * value)),
  );
}

/** Whether blocks of this kind are known here. */
export function isKnownKind(kind) {
  return Object.hasOwn(DEGREES, kind);
}

/**
 * Parts {coefficients, vectors} on the grid, scaled to each release's radius (scaling "exact": to it; "clip": down to it only).
 * Throws RangeError on numbers that are not finite.
 */
export function bounded(items, parts, releases, scaling = "exact") {
  const left = [...parts];
  return releases.flatMap((release) => {
    const unit = release.blocks.map((spec) => unitVectors(left.shift(), items, spec));
    const norm = Math.sqrt(inOrder(unit.map(({ coefficients }) => inOrder(coefficients.map((c) => c * c)))));
    const exact = norm >= LEAST ? (release.radius * (1 - SLACK)) / norm : 0;
    const factor = scaling === "exact" ? exact : Math.min(1, exact);
    return unit.map(({ coefficients, vectors }, at) => {
      const spec = release.blocks[at];
      return {
        coefficients: quantised(coefficients.map((c) => c * factor), spec.coefficient_step),
        vectors: quantised(vectors, spec.vector_step),
      };
    });
  });
}

/** The report of somebody who says nothing. */
export function silence(blocks) {
  return blocks.map(({ rows, folds, width }) => ({
    coefficients: new Int16Array(rows === 1 ? 1 : 0),
    vectors: new Int16Array(folds * width),
  }));
}

/**
 * Throws RangeError where a report is not of the form that the question announces, or larger than a radius. The aggregator would turn it away or
 * shorten it, and the server hears how many were: it must not choose who, by arrays on which a step fails for some, whose empty report is
 * sound.
 */
export function requireSound(items, parts, releases) {
  const blocks = releases.flatMap((release) => release.blocks);
  const sound = (part, { rows, folds, width }) => part.coefficients.length === (rows === 1 ? 1 : items.length) && part.vectors.length === folds * width;
  if (items.length > MOST_ITEMS) throw new RangeError("The report names more items than an aggregator takes.");
  const most = Math.max(...blocks.map(({ rows }) => rows));
  if (parts.length !== blocks.length || [...items].some((item) => item >= most) || !parts.every((part, at) => sound(part, blocks[at]))) {
    throw new RangeError("The report is not of the announced form.");
  }
  const left = [...parts];
  for (const release of releases) {
    const square = inOrder(release.blocks.map((spec) => squareOf(left.shift(), items, spec)));
    if (!(square <= release.radius ** 2)) throw new RangeError(`The report of release ${release.name} is larger than its radius.`);
  }
}

/** Whether the aggregator takes the report that these blocks make, however many items of the catalogue the person has. */
export function isShort(blocks, items) {
  const events = Math.min(items, MOST_ITEMS);
  const numbers = blocks.map(({ rows, folds, width }) => (rows === 1 ? 1 : events) + folds * width);
  return 80 + 4 * events + 2 * inOrder(numbers) <= MOST_BYTES;
}

/** A batch of one report, as `federation.wire.pack_reports` writes it. */
export function packed(digest, reportId, token, items, parts) {
  const numbers = parts.flatMap(({ coefficients, vectors }) => [littleEndian(coefficients, 2), littleEndian(vectors, 2)]);
  const counts = littleEndian([1, items.length], 4);
  return joined([utf8("FRR1"), digest, counts, reportId, token, littleEndian([items.length, ...items], 4), ...numbers]);
}

/** The squared norm of one block's part of a report, in real units. */
function squareOf({ coefficients, vectors }, items, spec) {
  const squares = rowSquares(Float64Array.from(vectors, (value) => value * spec.vector_step), spec.width);
  const real = Float64Array.from(coefficients, (c) => c * spec.coefficient_step);
  return inOrder(real.map((c, at) => c * c * squares[owner(items, at, spec)] ** DEGREES[spec.kind]));
}

/** Which vector a coefficient belongs to. */
function owner(items, at, { rows, folds }) {
  return rows === 1 ? 0 : items[at] % folds;
}

function unitVectors({ coefficients, vectors }, items, spec) {
  const lengths = rowSquares(vectors, spec.width).map((square) => (Math.sqrt(square) < LEAST ? 0 : Math.sqrt(square)));
  if (![...lengths, ...coefficients].every(Number.isFinite)) throw new RangeError(`block ${spec.name} has numbers that are not finite`);
  const moved = DEGREES[spec.kind] === 2 ? lengths.map((length) => length * length) : lengths;
  return {
    coefficients: coefficients.map((c, at) => c * moved[owner(items, at, spec)]),
    vectors: vectors.map((value, at) => value / (lengths[Math.floor(at / spec.width)] || 1)),
  };
}

/** Towards zero on the grid of `step`: no norm ever grows. */
function quantised(values, step) {
  return Int16Array.from(values, (value) => {
    const onGrid = value / step;
    if (!(Math.abs(onGrid) < LARGEST)) throw new RangeError(`${value} does not fit a grid of step ${step}`);
    return Math.trunc(onGrid);
  });
}

function littleEndian(numbers, size) {
  const view = new DataView(new ArrayBuffer(size * numbers.length));
  Array.from(numbers).forEach((number, at) => (size === 2 ? view.setInt16(2 * at, number, true) : view.setUint32(4 * at, number, true)));
  return new Uint8Array(view.buffer);
}
