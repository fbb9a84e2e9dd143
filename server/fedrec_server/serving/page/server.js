/** The three requests of this page: which models there are, the public bundle, and a question. No cookies, no referrer. */

const OPTIONS = { credentials: "omit", referrerPolicy: "no-referrer", cache: "no-store" };

/** What the server said no with: a stable code, the cause, the remedy. */
export class ServerError extends Error {
  constructor({ code = "unknown", cause = "the server's answer cannot be read", remedy = "Try again." }) {
    super(`${cause} ${remedy}`);
    this.code = code;
  }
}

/** {newest, models: [..]}, each with its version and SHA-256 as text. Throws ServerError. */
export async function models() {
  const told = await (await request("v1/models")).json();
  const named = Array.isArray(told?.models) && told.models.every((one) => typeof one?.version === "string" && typeof one.sha256 === "string");
  if (!named) throw new ServerError({});
  return told;
}

/** Bytes of the bundle of a version, checked against its SHA-256 where the browser can: on https and on this machine. */
export async function bundleBytes({ version, sha256 }) {
  const response = await request(`v1/models/${version}/bundle`, { cache: "default" });
  const bytes = await response.arrayBuffer();
  if (globalThis.crypto.subtle) {
    const digest = new Uint8Array(await globalThis.crypto.subtle.digest("SHA-256", bytes));
    const found = Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
    if (found !== sha256 || !sha256.startsWith(version)) {
      throw new ServerError({ code: "damaged", cause: "The model is not what its version says.", remedy: "Load the page again." });
    }
  }
  return bytes;
}

/** The whole body of a question. There is nothing else that a question could say. */
export function questionBody({ version, coefficients, k, category = null }) {
  const numbers = coefficients.map(shortest).join(",");
  const filter = category === null ? "" : `,"categories":${JSON.stringify([category])}`;
  return `{"version":"${version}","coefficients":[${numbers}],"k":${k}${filter}}`;
}

/** {version, items, scores} for a body. Throws ServerError. */
export async function recommend(body) {
  const headers = { "content-type": "application/json" };
  return (await request("v1/recommend", { method: "POST", headers, body })).json();
}

/** The shortest decimal that is the same float32. */
function shortest(value) {
  for (let digits = 1; digits < 9; digits += 1) {
    const text = Number(value.toPrecision(digits));
    if (Math.fround(text) === value) return JSON.stringify(text);
  }
  return JSON.stringify(Number(value.toPrecision(9)));
}

async function request(path, options = {}) {
  let response;
  try {
    response = await fetch(new URL(path, document.baseURI), { ...OPTIONS, ...options });
  } catch {
    throw new ServerError({ code: "unreachable", cause: "The server cannot be reached.", remedy: "Check that it runs, then try again." });
  }
  if (response.ok) return response;
  throw new ServerError(await response.json().catch(() => ({})));
}
