/** A question, a plan and the terms of a run as one person's device reads them: by digests, as `fedrec_client.device.questions`. */

import { compose, deltaOf } from "../accounting.js";
import { RefusedError, hexOf, sha256 } from "./bytes.js";
import { isKnownKind, isShort } from "./reports.js";

const MOST_BYTES = 2 ** 28;
const TYPES = { "<f4": Float32Array, "<f8": Float64Array, "<i4": Int32Array, "<i8": BigInt64Array };
const ROUNDING = 1e-9;

/** {digest, run, plan, round, step, releases, arrays: {name: {dtype, shape, sha256}}} of a question's bytes. Throws RefusedError. */
export async function readHeader(content) {
  const told = parsed(content, "malformed", "question");
  const digest = hexOf(await sha256(content));
  try {
    const releases = told.releases.map((release) => ({ ...release, blocks: release.blocks.map((block) => ({ folds: 1, ...block })) }));
    const header = { digest, run: told.run, plan: told.plan, round: told.round, step: told.step, releases, arrays: told.public };
    if (!isTable(told.public) || !isTyped(header)) throw new RangeError("a field is not of its type");
    if (!isSound(header)) throw new RangeError("its arrays or blocks have impossible sizes");
    return header;
  } catch (failure) {
    throw new RefusedError("malformed", `This is no question: ${failure.message}.`);
  }
}

/** {digest, epsilon, delta, mus: {release: mu}} of the bytes of the plan of this digest. Throws RefusedError. */
export function readPlan(content, digest) {
  const told = parsed(content, "wrong-plan", "plan");
  const { guarantee, releases, aggregation = "trusted" } = told;
  const { epsilon, delta, unit, neighbours, established = true } = guarantee ?? {};
  const typed = isNumber(epsilon) && isNumber(delta) && Array.isArray(releases) && releases.every((r) => isText(r?.name) && isNumber(r.mu));
  if (!typed || !(epsilon > 0 && delta >= 0 && delta < 1)) throw wrongPlan("The plan has no guarantee.");
  const mus = Object.fromEntries(releases.map(({ name, mu }) => [name, mu]));
  const promise = { digest, epsilon, delta, mus };
  const perUser = unit === "user" && neighbours === "add/remove" && established === true;
  const priced = Object.keys(mus).length === releases.length && Object.values(mus).every((mu) => mu > 0);
  if (!perUser || !priced || aggregation !== "trusted") {
    throw wrongPlan("The plan does not protect a user, is not proved, or is for three aggregators.");
  }
  if (!(deltaOf(compose(Object.values(mus)) * (1 - ROUNDING), epsilon) <= delta * (1 + 1e-6))) {
    throw wrongPlan("The plan's releases add up to more than its guarantee: do not take part.");
  }
  return promise;
}

/** The terms of a run on ratings: {digest, run, kind, value_range, items}. Throws RefusedError. */
export function readTerms(content, digest) {
  const { run, kind, value_range: range, items } = parsed(content, "malformed", "description of a run");
  const scaled = Array.isArray(range) && range.length === 2 && range.every(isNumber) && range[0] < range[1];
  if (!isText(run) || kind !== "ratings" || !scaled || !Array.isArray(items) || !items.every(isText)) {
    throw new RefusedError("malformed", "This device answers runs on ratings with a scale.");
  }
  return { digest, run, kind, value_range: range, items };
}

/** Throws RefusedError where an array or a block fits neither the catalogue nor the items that are asked for. */
export function requireRows({ arrays, releases }, items) {
  const listed = arrays.items?.shape[0] ?? 1;
  const misfit = Object.entries(arrays).find(([name, { shape }]) => name !== "items" && shape.length > 0 && shape[0] !== items);
  const block = releases.flatMap(({ blocks }) => blocks).find(({ rows }) => ![1, items, listed].includes(rows));
  const blocks = releases.flatMap((release) => release.blocks);
  if (!isShort(blocks, items)) throw new RefusedError("too-large", "A report could have more bytes than an aggregator takes.");
  if (new Set(blocks.map(({ rows }) => rows).filter((rows) => rows !== 1)).size > 1) {
    throw new RefusedError("malformed", "Blocks have different numbers of rows.");
  }
  if (!misfit && !block) return;
  const what = misfit ? `public array ${misfit[0]}` : `block ${block.name}`;
  throw new RefusedError("malformed", `${what} does not fit a catalogue of ${items} items.`);
}

/** {step, releases, blocks, array(name), shape(name)}: arrays as numbers. contents: bytes by name. Throws RefusedError. */
export async function questionOf(header, contents) {
  const read = {};
  for (const [name, { dtype, shape, sha256: announced }] of Object.entries(header.arrays)) {
    const bytes = contents[name];
    if (hexOf(await sha256(bytes)) !== announced || bytes.length !== sizeOf({ dtype, shape })) {
      throw new RefusedError("wrong-question", `Array ${name} is not the one that the question announces.`);
    }
    const values = new TYPES[dtype](bytes.slice().buffer);
    read[name] = dtype === "<i8" ? Float64Array.from(values, Number) : values;
    if (!read[name].every(Number.isFinite)) throw new RefusedError("malformed", `Array ${name} has numbers that are not finite.`);
  }
  const blocks = header.releases.flatMap((release) => release.blocks);
  return { step: header.step, releases: header.releases, blocks, array: (name) => read[name], shape: (name) => header.arrays[name].shape };
}

/** Strings are strings and numbers numbers: what JavaScript would turn into one is shown as one thing and compared as another. */
function isTyped({ arrays, releases, round, run, plan, step }) {
  const blocks = releases.flatMap((release) => release.blocks);
  return (
    [run, plan, step].every(isText) &&
    isCount(round) &&
    releases.every(({ name, radius, isometric }) => isText(name) && isNumber(radius) && typeof isometric === "boolean") &&
    blocks.every(({ name, kind, coefficient_step: one, vector_step: other }) => isText(name) && isText(kind) && isNumber(one) && isNumber(other)) &&
    blocks.every(({ rows, width, folds }) => [rows, width, folds].every(isCount)) &&
    Object.values(arrays).every(({ dtype, shape, sha256: digest }) => isText(dtype) && isText(digest) && Array.isArray(shape) && shape.every(isCount))
  );
}

function isSound({ arrays, releases }) {
  const sizes = Object.values(arrays).map((array) => (Object.hasOwn(TYPES, array.dtype) ? sizeOf(array) : NaN));
  const blocks = releases.flatMap((release) => release.blocks);
  const steps = [...releases.map(({ radius }) => radius), ...blocks.flatMap((block) => [block.coefficient_step, block.vector_step])];
  return (
    releases.length > 0 &&
    steps.every((size) => size > 0 && Math.abs(Math.log2(size)) <= 64) &&
    blocks.every(({ kind, rows, width, folds }) => isKnownKind(kind) && [rows, width, folds].every((count) => count >= 1)) &&
    blocks.reduce((numbers, { width, folds }) => numbers + width * folds, 0) * 8 + sizes.reduce((sum, size) => sum + size, 0) <= MOST_BYTES
  );
}

function isCount(value) {
  return Number.isSafeInteger(value) && value >= 0;
}

function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}

function isTable(value) {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}

function isText(value) {
  return typeof value === "string";
}

function sizeOf({ dtype, shape }) {
  return TYPES[dtype].BYTES_PER_ELEMENT * shape.reduce((product, rows) => product * rows, 1);
}

function parsed(content, code, what) {
  try {
    const told = JSON.parse(new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(content));
    if (isTable(told)) return told;
  } catch {
    // said below
  }
  throw new RefusedError(code, `This is no ${what}.`);
}

function wrongPlan(cause) {
  return new RefusedError("wrong-plan", cause);
}
