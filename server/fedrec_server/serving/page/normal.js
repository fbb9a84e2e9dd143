/**
 * The standard normal distribution to about 1e-13 relative, without tables: a series where |x| is small, a continued fraction beyond.
 */

const SPLIT = 2;
const SQRT_2 = Math.SQRT2;
const SQRT_PI = Math.sqrt(Math.PI);

/** erf(x) for 0 <= x < SPLIT: 2/sqrt(pi) exp(-x^2) sum 2^n x^(2n+1) / (2n+1)!!, whose terms are all positive. */
function erfSeries(x) {
  let term = x;
  let sum = x;
  for (let n = 1; term > 1e-17 * sum; n += 1) {
    term *= (2 * x * x) / (2 * n + 1);
    sum += term;
  }
  return ((2 * sum) / SQRT_PI) * Math.exp(-x * x);
}

/** exp(x^2) erfc(x) for x >= SPLIT: 1/sqrt(pi) 1/(x + (1/2)/(x + (2/2)/(x + (3/2)/(x + ...)))), from its tail. */
function scaledErfc(x) {
  let tail = x;
  for (let n = 120; n > 0; n -= 1) tail = x + n / 2 / tail;
  return 1 / (SQRT_PI * tail);
}

/** Phi(x). */
export function ndtr(x) {
  const z = Math.abs(x) / SQRT_2;
  const upper = z < SPLIT ? (1 - erfSeries(z)) / 2 : (scaledErfc(z) * Math.exp(-z * z)) / 2;
  return x > 0 ? 1 - upper : upper;
}

/** log Phi(x), also where Phi(x) is too small for a number. */
export function logNdtr(x) {
  const z = -x / SQRT_2;
  return z < SPLIT ? Math.log(ndtr(x)) : Math.log(scaledErfc(z) / 2) - z * z;
}

/** x Phi(x): the exact gelu, as in training. */
export function gelu(x) {
  return x * ndtr(x);
}
