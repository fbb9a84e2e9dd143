/** The public bundle (`fedrec.serving.bundle`): everything a question is made with, and everything the exact list is made with. */

import { read } from "./safetensors.js";

const FORMAT = "fedrec-serving/1";

/**
 * Of the bytes of a bundle: about, version, m items, B coefficients, arrays. Throws RangeError where it cannot be used here.
 */
export function bundleOf(buffer, version) {
  const { metadata, arrays } = read(buffer);
  const about = JSON.parse(metadata.about ?? "{}");
  if (about.format !== FORMAT) throw new RangeError(`this page reads ${FORMAT}, not ${about.format}`);
  if (about.form !== "additive" || about.unit !== "click") {
    throw new RangeError("questions to this model need an encoder that a browser does not have; ask it with: fedrec recommend");
  }
  const [B, D] = shapeOf(arrays, "users.linear");
  const [m] = shapeOf(arrays, "items", null, D);
  shapeOf(arrays, "rows", m, B);
  shapeOf(arrays, "covariance", B, B);
  const values = (name) => valuesOf(arrays, name);
  return {
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
    ids: textsOf(values, "ids"),
    titles: textsOf(values, "titles"),
  };
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
  const starts = values(`${name}.ptr`);
  const decoder = new TextDecoder();
  return Array.from({ length: starts.length - 1 }, (_, i) =>
    decoder.decode(content.subarray(Number(starts[i]), Number(starts[i + 1]))),
  );
}

function valuesOf(arrays, name) {
  if (!(name in arrays)) throw new RangeError(`the model lacks ${name}`);
  return arrays[name].values;
}

function shapeOf(arrays, name, ...expected) {
  valuesOf(arrays, name);
  const { shape } = arrays[name];
  if (shape.length !== 2 || expected.some((n, axis) => n !== null && n !== shape[axis])) {
    throw new RangeError(`${name} of the model has shape ${shape}`);
  }
  return shape;
}
