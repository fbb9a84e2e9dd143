/**
 * One person's way through a training, in the browser: the question is checked, the ledger charged, one bounded report posted. The
 * bytes are those of `fedrec_client.device.device`, from the same secret. Nothing random is drawn but that secret, once: the noise is the
 * aggregator's, which is trusted with the report.
 */

import { RefusedError, bytesOf, hexOf, hmac, joined, sha256, utf8 } from "./bytes.js";
import { questionOf, readHeader, readPlan, readTerms, requireRows } from "./questions.js";
import { packed, requireSound, silence } from "./reports.js";
import { STEPS } from "./steps.js";

const TOKEN_BYTES = 16;
const COUNTED = new Set(["replayed", "already-reported"]);

/** One person. ledger: a TrainingLedger. aggregator: an HttpAggregator, or what answers like one. ratings(): [[item id, value], ..]. */
export class Device {
  #enrolled = null;

  constructor({ ledger, aggregator, ratings, user = "me" }) {
    Object.assign(this, { ledger, aggregator, ratings, user });
  }

  /** {run, epsilon, delta, scale, items} of the round that is open, checked and not answered; null where none is. */
  async offer() {
    const open = await this.#open();
    if (!open) return null;
    const { header, promise, terms } = open;
    return { run: header.run, epsilon: promise.epsilon, delta: promise.delta, scale: terms.value_range, items: terms.items };
  }

  /**
   * Answer the round that is open, once; again is the same report, counted once. {bytes, charged} of what was sent; null where nothing
   * is open. Throws RefusedError where question, plan or report is not taken, BudgetError past the limit.
   */
  async takePart() {
    const open = await this.#open();
    const me = await this.#identity();
    if (!open) {
      await this.#enroll(me, "");
      return null;
    }
    const { header, promise, terms, quorum } = open;
    const contents = {};
    for (const [name, { sha256: digest }] of Object.entries(header.arrays)) contents[name] = await this.aggregator.content(digest);
    const question = await questionOf(header, contents);
    const charged = await this.ledger.charge(header, promise, header.releases.map(({ name }) => name), terms.digest); // before anything private is read
    const batch = await this.#answered(me, header, question, terms, quorum);
    await this.#enroll(me, header.run);
    let rejected = await this.aggregator.report(header.run, header.round, batch, me.bearer);
    if ("not-enrolled" in rejected) {
      this.#enrolled = null; // the aggregator was replaced
      await this.#enroll(me, header.run);
      rejected = await this.aggregator.report(header.run, header.round, batch, me.bearer);
    }
    const code = Object.keys(rejected).find((refusal) => !COUNTED.has(refusal));
    if (code) throw new RefusedError(code, "The report was not counted.", "The same report may be sent again.");
    return { bytes: batch.length, charged };
  }

  /** The round that is open, its header, plan and terms checked; null where none is. */
  async #open() {
    const told = await this.aggregator.round();
    if (!told.question) return null;
    if (typeof told.question !== "string" || typeof told.terms !== "string") throw new RefusedError("malformed", "A question has a digest, and its terms.");
    const quorum = told.quorum ?? 0;
    if (!Number.isSafeInteger(quorum) || quorum < 0) throw new RefusedError("malformed", "A quorum is a number of users.");
    const header = await readHeader(await this.#content(told.question));
    const promise = readPlan(await this.#content(header.plan), header.plan);
    const unplanned = header.releases.find(({ name }) => !Object.hasOwn(promise.mus, name));
    if (unplanned) throw new RefusedError("wrong-plan", `The plan has no release ${unplanned.name}.`);
    const terms = readTerms(await this.#content(told.terms), told.terms);
    if (terms.run !== header.run) throw new RefusedError("wrong-question", "The terms are of another run than the question.");
    if (!Object.hasOwn(STEPS, header.step)) throw new RefusedError("malformed", `This page does not know the step ${header.step}.`, "Load the page again.");
    requireRows(header, terms.items.length);
    return { header, promise, terms, quorum };
  }

  /** Bytes of that digest: whoever carries them can change nothing. */
  async #content(digest) {
    const bytes = await this.aggregator.content(digest);
    if (hexOf(await sha256(bytes)) !== digest) throw new RefusedError("wrong-question", "Other bytes came than were asked for.");
    return bytes;
  }

  async #identity() {
    const secret = await this.ledger.secret();
    const token = (await hmac(secret, utf8(`fedrec/1/user/${this.user}`))).slice(0, TOKEN_BYTES);
    return { secret, token, bearer: hexOf(await hmac(secret, utf8("fedrec/1/bearer"))) };
  }

  /** Once for each run, and before the first: a server counts on those who are known when a run begins. */
  async #enroll({ token, bearer }, run) {
    if (this.#enrolled === run) return;
    await this.aggregator.enroll(token, bearer);
    this.#enrolled = run;
  }

  async #answered({ secret, token }, header, question, terms, quorum) {
    const mine = translated(this.ratings(), terms);
    let answer;
    try {
      answer = STEPS[header.step](question, mine);
      requireSound(answer.items, answer.parts, question.releases);
    } catch {
      // whatever hostile arrays bring about must not show in whether a report comes: it is empty then
      answer = { items: [], parts: silence(question.blocks) };
    }
    const purpose = joined([utf8(`fedrec/1/report/${header.run}/${header.round}/${header.digest}/`), token]);
    const reportId = (await hmac(secret, purpose)).slice(0, TOKEN_BYTES);
    return packed(await named(header.digest, quorum), reportId, token, answer.items, answer.parts);
  }
}

/** By the run's item numbers, rising, and on the scale [-2, 2]; what the catalogue or the scale does not have is left out. */
function translated(ratings, { items: ids, value_range: [low, high] }) {
  const place = new Map(ids.map((id, j) => [id, j]));
  const known = new Map(ratings.filter(([id]) => place.has(id)).map(([id, value]) => [place.get(id), Math.fround(value)]));
  const inside = [...known].filter(([, value]) => value >= Math.fround(low) && value <= Math.fround(high)).sort(([one], [other]) => one - other);
  const x = Float64Array.from(inside, ([, value]) => (value - (low + high) / 2) * (4 / (high - low)));
  return { items: Int32Array.from(inside, ([item]) => item), x, count: ids.length };
}

/** What a report names: the question's digest, and the quorum it was promised. */
async function named(digest, quorum) {
  if (!quorum) return bytesOf(digest);
  const count = new DataView(new ArrayBuffer(8));
  count.setBigUint64(0, BigInt(quorum));
  return sha256(joined([utf8("fedrec/quorum"), bytesOf(digest), new Uint8Array(count.buffer)]));
}
