/** The requests of a light device to its aggregator: the routes of `fedrec_client.device.service`. No cookies, no referrer. */

import { RefusedError } from "./bytes.js";

const OPTIONS = { credentials: "omit", referrerPolicy: "no-referrer", redirect: "error" };

/** It did not answer, or not as it should. What was charged is not charged twice. */
export class UnreachableError extends Error {}

/** base: the URL under which the routes v1/... lie, of this page's own site where the page's policy allows no other. */
export class HttpAggregator {
  #base;

  constructor(base) {
    this.#base = base;
  }

  /** Where training is: {run, round, question, quorum, terms}; {} where no round is open. */
  async round() {
    return (await this.#asked("v1/round", { cache: "no-store" })).json();
  }

  /** What it has under that digest, which the device checks; any cache may keep it. */
  async content(digest) {
    return new Uint8Array(await (await this.#asked(`v1/content/${digest}`, {})).arrayBuffer());
  }

  /** Make the person known. */
  async enroll(token, bearer) {
    await this.#asked("v1/users", posted(token, bearer));
  }

  /** {code: count} of what was refused: nothing where the report was counted. */
  async report(run, round, batch, bearer) {
    return (await (await this.#asked(`v1/reports/${encodeURIComponent(run)}/${round}`, posted(batch, bearer))).json()).rejected;
  }

  async #asked(path, options) {
    let response;
    try {
      response = await fetch(new URL(path, this.#base), { ...OPTIONS, ...options });
    } catch {
      throw new UnreachableError("The training cannot be reached. Try again later.");
    }
    if (response.ok) return response;
    if (response.status === 404 && path === "v1/round") throw new UnreachableError("This site has no training to take part in.");
    const told = await response.json().catch(() => null);
    if (told?.code) throw new RefusedError(told.code, `${told.cause}.`, "Nothing was counted.");
    throw new UnreachableError(`The training answered with status ${response.status}. Try again later.`);
  }
}

function posted(body, bearer) {
  return { method: "POST", body, cache: "no-store", headers: { authorization: `Bearer ${bearer}`, "content-type": "application/octet-stream" } };
}
