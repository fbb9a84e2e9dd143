/** The part of the released model that reads a question: U = A a + c + W2 gelu(W1 a + c1), as `fedrec.serving.user_map`. */

import { gelu } from "./normal.js";

/** (D,) float32 from (B,) centred and scaled coefficients. */
export function userVector({ users, D }, coefficients) {
  const vector = Float64Array.from(users.offset);
  addProduct(vector, coefficients, users.linear, D);
  const h = users.firstBias.length;
  if (h > 0) {
    const hidden = Float64Array.from(users.firstBias);
    addProduct(hidden, coefficients, users.first, h);
    addProduct(vector, hidden.map(gelu), users.second, D);
  }
  return Float32Array.from(vector);
}

/** out += x matrix, for a row-major matrix of `columns` columns. */
function addProduct(out, x, matrix, columns) {
  x.forEach((value, row) => {
    for (let column = 0; column < columns; column += 1) out[column] += value * matrix[row * columns + column];
  });
}
