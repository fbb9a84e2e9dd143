/**
 * The parts of a bundle that attention needs, looked at before any history: those of `fedrec_client.bundle_bounds`.
 *
 * Numbers are small enough for every product of the encoder to be finite, and sizes for a page to work them out at once.
 */

const MOST = { number: 1e6, padding: 0.99, products: 5e8 };
const LEAST_THETA = 1e-6; // the noise is drawn on a grid of its size

/**
 * {news, encoder} of a bundle: news (m + 1, D), the anonymous item last; the weights and numbers of the encoder. Throws RangeError
 * where a question could fail for some titles alone.
 */
export function attentionOf({ arrays, about, m, B, D }) {
  const floats = (name, ...shape) => numbers(arrays, name, Float32Array, shape);
  const scalar = (name, Type) => Number(numbers(arrays, name, Type, [])[0]);
  const [padding, theta, heads] = [scalar("padding", Float64Array), scalar("theta", Float64Array), scalar("heads", BigInt64Array)];
  require("padding", padding >= 0 && padding <= MOST.padding);
  require("theta", theta >= LEAST_THETA && theta <= MOST.number);
  require("heads", heads >= 0 && (heads === 0 || D % heads === 0));
  const moved = Math.SQRT2 * Math.min(theta, 1);
  require("sensitivity", about.sensitivity >= moved * (1 - 1e-12) && about.sensitivity <= moved * (1 + 1e-9));
  const [items, anonymous] = [floats("items", m, D), floats("anonymous", D)];
  floats("users.linear", B, D);
  const Q = arrays["encoder.pool.bias"]?.shape[0] ?? 0;
  require("history", about.history * D * (3 * D + Q + about.history) <= MOST.products);
  const news = new Float32Array((m + 1) * D);
  news.set(items);
  news.set(anonymous, m * D);
  const pool = { dense: floats("encoder.pool.dense", D, Q), bias: floats("encoder.pool.bias", Q), query: floats("encoder.pool.query", Q, 1) };
  const own = heads > 0 ? { project: floats("encoder.attention.project", D, 3 * D) } : averages(arrays, floats, D);
  return { news, encoder: { padding, theta, heads, ...pool, ...own } };
}

/** How averages of news are told apart; those of earlier versions are as published. */
function averages(arrays, floats, D) {
  const [scale] = "encoder.scale" in arrays ? floats("encoder.scale", 1) : [1];
  const [spread] = "encoder.spread" in arrays ? floats("encoder.spread", 1) : [1];
  const centre = "encoder.centre" in arrays ? floats("encoder.centre", D) : new Float32Array(D);
  require("encoder.spread", spread >= 1e-12);
  return { scale, spread, centre };
}

function numbers(arrays, name, Type, shape) {
  if (!(arrays[name]?.values instanceof Type)) throw new RangeError(`${name} of the model is missing, or not of type ${Type.name}`);
  const { values, shape: found } = arrays[name];
  require(name, found.length === shape.length && shape.every((n, axis) => n === found[axis]));
  require(name, values.every((value) => Math.abs(Number(value)) <= MOST.number));
  return values;
}

function require(name, fits) {
  if (!fits) throw new RangeError(`the model's ${name} cannot be used`);
}
