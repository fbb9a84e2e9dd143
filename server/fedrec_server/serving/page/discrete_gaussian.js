/**
 * Discrete Gaussian noise on the integers, P(z) ~ exp(-z^2 / (2 variance)): Canonne, Kamath and Steinke 2020, Alg. 1-3.
 *
 * Whole numbers and rejection only, so the law is exact for uniform bytes. It is not constant-time: who can time a draw to
 * nanoseconds learns about it; an answer leaves only after all of it is drawn.
 */

const POOL_BYTES = 4096;

/** Random bytes of the operating system. */
export function systemBytes(bytes) {
  globalThis.crypto.getRandomValues(bytes);
}

/** Uniform whole numbers. fill: what writes uniform bytes into a Uint8Array of at most 4096. */
export class Uniform {
  #fill;
  #pool = new Uint8Array(POOL_BYTES);
  #at = POOL_BYTES;

  constructor(fill = systemBytes) {
    this.#fill = fill;
  }

  /** 0 .. n - 1, for a BigInt n >= 1. */
  below(n) {
    const bits = (n - 1n).toString(2).length;
    for (;;) {
      const value = this.#bits(bits);
      if (value < n) return value;
    }
  }

  #bits(count) {
    let value = 0n;
    for (let left = count; left > 0; left -= 8) value = (value << 8n) | BigInt(this.#byte());
    return value >> BigInt((8 - (count % 8)) % 8);
  }

  #byte() {
    if (this.#at === POOL_BYTES) {
      this.#fill(this.#pool);
      this.#at = 0;
    }
    const byte = this.#pool[this.#at];
    this.#pool[this.#at] = 0; // used once, kept nowhere
    this.#at += 1;
    return byte;
  }
}

/** One draw; variance: a BigInt >= 1, in squared steps of the grid (Alg. 3). */
export function draw(variance, uniform) {
  const t = squareRoot(variance) + 1n;
  for (;;) {
    const z = laplace(t, uniform);
    const gap = (z < 0n ? -z : z) * t - variance; // (|z| - variance/t)^2 / (2 variance), without fractions
    if (coinOfExp(gap * gap, 2n * variance * t * t, uniform)) return z;
  }
}

/** P(z) ~ exp(-|z| / t) (Alg. 2). */
function laplace(t, uniform) {
  for (;;) {
    const part = uniform.below(t);
    if (!coinOfExp(part, t, uniform)) continue;
    let whole = 0n;
    while (coinOfExp(1n, 1n, uniform)) whole += 1n;
    const size = part + t * whole;
    const negative = uniform.below(2n) === 1n;
    if (!(negative && size === 0n)) return negative ? -size : size;
  }
}

/** True with probability exp(-a / b), a >= 0, b >= 1 (Alg. 1). */
function coinOfExp(a, b, uniform) {
  let rest = a;
  while (rest > b) {
    if (!coinOfSmallExp(1n, 1n, uniform)) return false;
    rest -= b;
  }
  return coinOfSmallExp(rest, b, uniform);
}

/** The same for a <= b: the first k for which a coin of a / (k b) fails is odd with probability sum (-a/b)^k / k!. */
function coinOfSmallExp(a, b, uniform) {
  let k = 1n;
  while (uniform.below(k * b) < a) k += 1n;
  return k % 2n === 1n;
}

/** The whole part of the root of a BigInt >= 1, by Newton's steps from above. */
function squareRoot(n) {
  let root = 1n << BigInt((n.toString(2).length + 1) >> 1);
  for (;;) {
    const next = (root + n / root) >> 1n;
    if (next >= root) return root;
    root = next;
  }
}
