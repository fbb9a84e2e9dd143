/**
 * Dense linear algebra for one person: matrices are {rows, columns, values} by rows, symmetric ones positive definite.
 *
 * Where numpy solves by LAPACK, this solves by a Cholesky factor of its own: numbers differ in their last bits. What is no
 * positive definite matrix gives numbers that are not finite, which a report refuses.
 */

/** A matrix of zeros, or of these values. */
export function matrix(rows, columns, values = new Float64Array(rows * columns)) {
  return { rows, columns, values };
}

/** left right' by rows: (n, m) of (n, k) and (m, k). */
export function productWithTransposed(left, right) {
  const [k, found] = [left.columns, matrix(left.rows, right.rows)];
  for (let i = 0; i < left.rows; i += 1) {
    for (let j = 0; j < right.rows; j += 1) {
      let sum = 0;
      for (let c = 0; c < k; c += 1) sum += left.values[i * k + c] * right.values[j * k + c];
      found.values[i * right.rows + j] = sum;
    }
  }
  return found;
}

/** left' right: (k, m) of (n, k) and (n, m). */
export function transposedProduct(left, right) {
  const found = matrix(left.columns, right.columns);
  for (let n = 0; n < left.rows; n += 1) {
    for (let i = 0; i < left.columns; i += 1) {
      const factor = left.values[n * left.columns + i];
      for (let j = 0; j < right.columns; j += 1) found.values[i * right.columns + j] += factor * right.values[n * right.columns + j];
    }
  }
  return found;
}

/** With `added(i)` on the diagonal. */
export function withDiagonal(square, added) {
  const found = matrix(square.rows, square.columns, square.values.slice());
  for (let i = 0; i < square.rows; i += 1) found.values[i * square.columns + i] += added(i);
  return found;
}

/** (n,) matrix times vector. */
export function applied({ rows, columns, values }, vector) {
  return Float64Array.from({ length: rows }, (_, i) => {
    let sum = 0;
    for (let j = 0; j < columns; j += 1) sum += values[i * columns + j] * vector[j];
    return sum;
  });
}

/** The rows, or columns too, that `rows` names. */
export function picked({ columns, values }, rows, chosen = null) {
  const width = chosen?.length ?? columns;
  const found = matrix(rows.length, width);
  rows.forEach((row, i) => {
    for (let j = 0; j < width; j += 1) found.values[i * width + j] = values[row * columns + (chosen ? chosen[j] : j)];
  });
  return found;
}

/** The lower factor L of L L'. */
function factorOf({ rows: n, values }) {
  const L = values.slice();
  for (let j = 0; j < n; j += 1) {
    for (let i = j; i < n; i += 1) {
      let sum = L[i * n + j];
      for (let k = 0; k < j; k += 1) sum -= L[i * n + k] * L[j * n + k];
      L[i * n + j] = i === j ? Math.sqrt(sum) : sum / L[j * n + j];
    }
  }
  return L;
}

/** x of A x = b. */
export function solved(A, b) {
  const [n, L, x] = [A.rows, factorOf(A), Float64Array.from(b)];
  for (let i = 0; i < n; i += 1) {
    for (let k = 0; k < i; k += 1) x[i] -= L[i * n + k] * x[k];
    x[i] /= L[i * n + i];
  }
  for (let i = n - 1; i >= 0; i -= 1) {
    for (let k = i + 1; k < n; k += 1) x[i] -= L[k * n + i] * x[k];
    x[i] /= L[i * n + i];
  }
  return x;
}

/** The inverse, of L^-T L^-1. */
export function inverse(A) {
  const [n, L] = [A.rows, factorOf(A)];
  const below = new Float64Array(n * n); // L^-1
  for (let j = 0; j < n; j += 1) {
    for (let i = j; i < n; i += 1) {
      let sum = i === j ? 1 : 0;
      for (let k = j; k < i; k += 1) sum -= L[i * n + k] * below[k * n + j];
      below[i * n + j] = sum / L[i * n + i];
    }
  }
  const found = matrix(n, n);
  for (let i = 0; i < n; i += 1) {
    for (let j = 0; j <= i; j += 1) {
      let sum = 0;
      for (let k = i; k < n; k += 1) sum += below[k * n + i] * below[k * n + j];
      found.values[i * n + j] = sum;
      found.values[j * n + i] = sum;
    }
  }
  return found;
}
