/**
 * User encoders of news models (`fedrec.encoders.news`): vectors of clicked news in, one vector out. Both see a history as a set.
 *
 *     NRMS, PLM-NR (heads > 0)    self-attention among the news, then additive attention over them
 *     NAML (heads = 0)            additive attention, less what all averages have in common, over their spread
 *
 * Everything is double precision, and finite for every model within the bounds of `attention_bundle.js`.
 */

/** (D,) the vector of a user whose clicks are these rows of `news` (rows, D); zeros for none. */
export function userVector({ news, D, encoder }, rows) {
  if (rows.length === 0) return new Float64Array(D);
  const clicked = rows.map((row) => news.subarray(row * D, (row + 1) * D));
  if (encoder.heads > 0) return pooled(encoder, contexts(encoder, clicked, D), D);
  const { scale, centre, spread } = encoder;
  return pooled(encoder, clicked, D).map((value, d) => (scale / spread) * (value - centre[d]));
}

/** The shares of softmax(x): positive, of sum 1. */
export function softmax(x) {
  const largest = x.reduce((most, value) => Math.max(most, value), -Infinity);
  const weights = Float64Array.from(x, (value) => Math.exp(value - largest));
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  return weights.map((weight) => weight / total);
}

/** sum_i w_i h_i with w = softmax_i(q' tanh(W h_i + c)). */
function pooled({ dense, bias, query }, vectors, D) {
  const shares = softmax(vectors.map((h) => dot(query, times(h, dense, bias.length).map((value, j) => Math.tanh(value + bias[j])))));
  return mean(shares, vectors, 0, D);
}

/** Each of the vectors in the light of all: heads side by side, each of D / heads numbers. */
function contexts({ project, heads }, vectors, D) {
  const width = D / heads;
  const [queries, keys, values] = [0, 1, 2].map((part) => vectors.map((x) => times(x, project, D, part * D, 3 * D)));
  return vectors.map((_, i) => {
    const context = new Float64Array(D);
    for (let start = 0; start < D; start += width) {
      const here = queries[i].subarray(start, start + width);
      const shares = softmax(keys.map((key) => dot(here, key.subarray(start, start + width)) / Math.sqrt(width)));
      context.set(mean(shares, values, start, width), start);
    }
    return context;
  });
}

/** (columns,) x M, for `columns` columns from `first` on of a row-major matrix that has `stride`. */
function times(x, matrix, columns, first = 0, stride = columns) {
  const product = new Float64Array(columns);
  for (let row = 0; row < x.length; row += 1) {
    for (let column = 0; column < columns; column += 1) product[column] += x[row] * matrix[row * stride + first + column];
  }
  return product;
}

function mean(shares, vectors, start, length) {
  const total = new Float64Array(length);
  vectors.forEach((vector, i) => {
    for (let d = 0; d < length; d += 1) total[d] += shares[i] * vector[start + d];
  });
  return total;
}

function dot(one, other) {
  let sum = 0;
  for (let d = 0; d < one.length; d += 1) sum += one[d] * other[d];
  return sum;
}
