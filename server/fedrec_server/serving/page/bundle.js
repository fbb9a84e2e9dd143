/**
 * The public bundle (`fedrec.serving.bundle`): everything a question is made with, and everything the exact list is made with.
 *
 * The server chooses it, and sees whether a question follows. So types, lengths and numbers are looked at here, before any history:
 * a bundle that could fail for some titles alone is refused for all.
 */

import { attentionOf } from "./attention_bundle.js";
import { read, tableOf } from "./safetensors.js";

const FORMAT = "fedrec-serving/2";
const MOST = { places: 1_000, coefficients: 1_024, categories: 64, number: 1e6 };
const ROW_LENGTH = 2 ** 20; // a row is no longer than 1, in steps of the grid: sums stay whole numbers
const TYPES = {
  items: Float32Array,
  bias: Float32Array,
  categories: BigUint64Array,
  rows: Int32Array,
  mean: Float64Array,
  covariance: Float64Array,
  "users.linear": Float32Array,
  "users.offset": Float32Array,
  "users.first": Float32Array,
  "users.first_bias": Float32Array,
  "users.second": Float32Array,
  "ids.content": Uint8Array,
  "ids.ptr": BigInt64Array,
  "titles.content": Uint8Array,
  "titles.ptr": BigInt64Array,
};

/** Of `fedrec.serving.user_map`; a bundle has all of them or none. */
const SIZES = ["clicks", "shares", "mean", "covariance", "matrix"];

/**
 * Of the bytes of a bundle: about, version, m items, B coefficients, arrays; of one that is asked by attention its encoder, else null.
 * Throws RangeError where it cannot be used here.
 */
export function bundleOf(buffer, version) {
  const { metadata, arrays } = read(buffer);
  const about = tableOf(metadata?.about, "what the model says of itself");
  if (about.format !== FORMAT) throw new RangeError(`this page reads ${FORMAT}, not ${about.format}`);
  if (!["additive", "attention"].includes(about.form) || about.unit !== "click") {
    throw new RangeError("questions to this model are of a form that this page does not know; ask it with: fedrec recommend");
  }
  requireWords(about);
  for (const [name, Type] of Object.entries(TYPES)) {
    if (!(valuesOf(arrays, name) instanceof Type)) throw new RangeError(`${name} of the model is not of type ${Type.name}`);
  }
  const [B, D] = shapeOf(arrays, "users.linear", null, null);
  const [m] = shapeOf(arrays, "items", null, D);
  const [h] = shapeOf(arrays, "users.first_bias", null);
  const shapes = { rows: [about.form === "attention" ? 0 : m, B], mean: [B], covariance: [B, B], bias: [m], categories: [m] };
  const ofUsers = { "users.offset": [D], "users.first": [B, h], "users.second": [h, D] };
  for (const [name, shape] of Object.entries({ ...shapes, ...ofUsers })) shapeOf(arrays, name, ...shape);
  const values = (name) => valuesOf(arrays, name);
  requireNumbers(values, B);
  const opened = {
    version,
    about,
    m,
    B,
    D,
    users: usersOf(values),
    items: values("items"),
    bias: values("bias"),
    categories: values("categories"),
    rows: values("rows"),
    mean: values("mean"),
    covariance: values("covariance"),
    sizes: sizesOf(arrays, B),
    ids: textsOf(values, "ids"),
    titles: textsOf(values, "titles"),
  };
  Object.assign(opened, about.form === "attention" ? attentionOf({ arrays, about, m, B, D }) : { encoder: null });
  if (opened.ids.length !== m || opened.titles.length !== m) throw new RangeError("the model does not have one id and one title an item");
  return opened;
}

/** What is said of the model. */
function requireWords({ history, sensitivity, scale, delta, noise, training, categories, name, family, liked = 0 }) {
  const within = (value, low, high) => typeof value === "number" && value >= low && value <= high;
  const right = {
    history: Number.isInteger(history) && within(history, 1, MOST.places),
    sensitivity: within(sensitivity, 1e-12, MOST.number),
    scale: within(scale, 1e-9, 1e9),
    delta: within(delta, 1e-12, 0.5),
    noise: noise === "seeded" || noise === "system",
    training: typeof training === "object" && training !== null && !Array.isArray(training),
    name: typeof name === "string",
    family: ["news", "ratings", "clicks"].includes(family),
    liked: typeof liked === "number" && Number.isFinite(liked),
    categories: Array.isArray(categories) && categories.length <= MOST.categories && categories.every((c) => typeof c === "string"),
  };
  for (const [key, fits] of Object.entries(right)) if (!fits) throw new RangeError(`the model's ${key} cannot be used`);
}

/** Finite, and small enough for every sum and product of them to be. */
function requireNumbers(values, B) {
  if (B > MOST.coefficients) throw new RangeError(`a question to this model has ${B} numbers, at most ${MOST.coefficients} are sent`);
  for (const name of Object.keys(TYPES).filter((name) => TYPES[name] === Float32Array || TYPES[name] === Float64Array)) {
    const largest = name === "mean" || name === "covariance" ? MOST.number : Number.MAX_VALUE;
    if (!values(name).every((value) => Math.abs(value) <= largest)) throw new RangeError(`${name} of the model has a number out of bounds`);
  }
  const rows = values("rows");
  for (let start = 0; start < rows.length; start += B) {
    let square = 0;
    for (let b = 0; b < B; b += 1) square += rows[start + b] ** 2;
    if (square > ROW_LENGTH ** 2) throw new RangeError("a row of the model is longer than 1");
  }
}

/** {shares, mean, covariance, matrix} of G groups of sizes, null where there are none. */
function sizesOf(arrays, B) {
  if (!("sizes.shares" in arrays)) return null;
  const [G] = shapeOf(arrays, "sizes.shares", null);
  const shapes = { clicks: [G], shares: [G], mean: [G, B], covariance: [G, B, B], matrix: [G, B, B] };
  for (const name of SIZES) {
    shapeOf(arrays, `sizes.${name}`, ...shapes[name]);
    const values = valuesOf(arrays, `sizes.${name}`);
    if (!(values instanceof Float64Array)) throw new RangeError(`sizes.${name} of the model is not of type Float64Array`);
    if (!values.every((value) => Math.abs(value) <= MOST.number)) throw new RangeError(`sizes.${name} of the model has a number out of bounds`);
  }
  if (G < 1 || !valuesOf(arrays, "sizes.shares").every((share) => share > 0)) throw new RangeError("a group of sizes has no share of the people");
  return Object.fromEntries(SIZES.map((name) => [name, valuesOf(arrays, `sizes.${name}`)]));
}

/** U = A a + c + W2 gelu(W1 a + c1), the names of `fedrec.serving.user_map`. */
function usersOf(values) {
  return {
    linear: values("users.linear"),
    offset: values("users.offset"),
    first: values("users.first"),
    firstBias: values("users.first_bias"),
    second: values("users.second"),
  };
}

function textsOf(values, name) {
  const content = values(`${name}.content`);
  const starts = Array.from(values(`${name}.ptr`), Number);
  const whole = starts[0] === 0 && starts.at(-1) === content.length && starts.every((start, i) => i === 0 || start >= starts[i - 1]);
  if (!whole) throw new RangeError(`${name} of the model are not whole strings`);
  const decoder = new TextDecoder();
  return Array.from({ length: starts.length - 1 }, (_, i) => decoder.decode(content.subarray(starts[i], starts[i + 1])));
}

function valuesOf(arrays, name) {
  if (!(name in arrays)) throw new RangeError(`the model lacks ${name}`);
  return arrays[name].values;
}

function shapeOf(arrays, name, ...expected) {
  valuesOf(arrays, name);
  const { shape } = arrays[name];
  if (shape.length !== expected.length || expected.some((n, axis) => n !== null && n !== shape[axis])) {
    throw new RangeError(`${name} of the model has shape ${shape}`);
  }
  return shape;
}
