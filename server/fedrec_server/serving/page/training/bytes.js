/** Bytes, digests and keyed digests of the light device, by the browser's own cryptography, which exists on https and on this machine. */

/** A question, plan or report that is not taken. code: as `fedrec.federation.protocol.Refusal`. */
export class RefusedError extends Error {
  constructor(code, cause, remedy = "Nothing was charged and nothing left.") {
    super(`${cause} ${remedy}`);
    this.code = code;
  }
}

/** Hexadecimal digits of bytes. */
export function hexOf(bytes) {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Bytes of hexadecimal digits. */
export function bytesOf(hex) {
  return Uint8Array.from({ length: hex.length / 2 }, (_, at) => Number.parseInt(hex.slice(2 * at, 2 * at + 2), 16));
}

/** UTF-8 bytes of a text. */
export function utf8(text) {
  return new TextEncoder().encode(text);
}

/** All of them, one after the other. */
export function joined(parts) {
  const whole = new Uint8Array(parts.reduce((length, part) => length + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

/** SHA-256 of bytes. */
export async function sha256(bytes) {
  return new Uint8Array(await subtle().digest("SHA-256", bytes));
}

/** HMAC-SHA-256 of bytes under a secret. */
export async function hmac(secret, bytes) {
  const key = await subtle().importKey("raw", secret, { name: "HMAC", hash: "SHA-256" }, false, ["sign"]);
  return new Uint8Array(await subtle().sign("HMAC", key, bytes));
}

/** So many bytes of the browser's cryptographic generator. */
export function randomBytes(count) {
  return globalThis.crypto.getRandomValues(new Uint8Array(count));
}

function subtle() {
  if (!globalThis.crypto?.subtle) throw new Error("This browser computes digests on https alone: nothing was charged and nothing left.");
  return globalThis.crypto.subtle;
}
