/**
 * What one person has spent on trainings, and the secret behind the pseudonym, in the browser's storage: as `fedrec_client.device.ledger`.
 *
 * A round is written down before its report leaves, in one write, in the place of what was read, in a SHA-256 chain. Unit: user, neighbours: add/remove: it does not
 * add up with what questions to a served model cost, which is per title (`../ledger.js`). The storage is weaker than a file: whoever
 * clears it takes part as somebody else, with nothing spent.
 */

import { compose, deltaOf } from "../accounting.js";
import { bytesOf, hexOf, randomBytes, sha256, utf8 } from "./bytes.js";

const KEY = "fedrec.training";
const GENESIS = "fedrec browser ledger 1";
const ROUNDING = 1e-9;
const SECRET_BYTES = 32;

/** Past the person's limit, or past what the plan holds. Nothing was sent. */
export class BudgetError extends Error {}

/** The ledger is damaged, or another question, or another plan, was charged in this one's place. Nothing was sent. */
export class LedgerError extends Error {}

/** storage: has get and swap, as `database` of ../storage.js. limit: {epsilon, delta} for all trainings together. */
export class TrainingLedger {
  #storage;

  constructor(storage, limit) {
    this.#storage = storage;
    this.limit = limit;
  }

  /** The person's secret, drawn by the browser's cryptographic generator when it is first needed. */
  async secret() {
    for (;;) {
      const [kept, before] = await this.#read();
      if (kept.secret) return bytesOf(kept.secret);
      await this.#swapped(before, { ...kept, secret: hexOf(randomBytes(SECRET_BYTES)) });
    }
  }

  /** [{run, round, question, plan, mu, terms, head}], oldest first. Throws LedgerError where the chain is broken. */
  async entries() {
    return (await this.#read())[0].entries;
  }

  /**
   * Charge these releases. false where this was charged before: a resend. There must be room for all that is left of the plan.
   * terms: their digest, pinned by the run's first charge: under another order of items two reports could be compared. Throws BudgetError, LedgerError, and what the storage throws.
   */
  async charge(question, promise, releases, terms) {
    for (;;) {
      const [kept, before] = await this.#read();
      const entries = await this.#after(kept.entries, question, promise, releases, terms);
      if (entries === null) return false;
      if (await this.#swapped(before, { ...kept, entries })) return true;
    }
  }

  /** The entries with this charge; null where it is among them. */
  async #after(entries, { run, round, digest: question }, promise, releases, terms) {
    const ofRun = entries.filter((entry) => entry.run === run);
    if (ofRun.some((entry) => entry.plan !== promise.digest)) throw new LedgerError("This run was charged under another plan: do not take part.");
    if (ofRun.some((entry) => (entry.terms ?? terms) !== terms)) throw new LedgerError("This run was charged under other terms: do not take part.");
    const same = ofRun.find((entry) => entry.round === round);
    if (same && same.question === question) return null;
    if (same) throw new LedgerError("This round was charged for another question: do not take part.");
    const whole = compose(Object.values(promise.mus));
    const others = compose(entries.filter((entry) => entry.run !== run).map((entry) => entry.mu));
    const { epsilon, delta } = this.limit;
    if (!(deltaOf(compose([others, whole]) * (1 - ROUNDING), epsilon) <= delta)) {
      throw new BudgetError(`This training would pass ε = ${epsilon} at δ = ${delta} per person (add/remove). Nothing was sent.`);
    }
    const mu = compose(releases.map((name) => promise.mus[name]));
    if (!(compose([mu, ...ofRun.map((entry) => entry.mu)]) <= whole * (1 + ROUNDING))) {
      throw new BudgetError("This training asks for more than its plan holds. Nothing was sent.");
    }
    const entry = { run, round, question, plan: promise.digest, mu, terms };
    const head = await next(entries.at(-1)?.head ?? GENESIS, entry);
    return [...entries, { ...entry, head }];
  }

  #swapped(before, kept) {
    return this.#storage.swap(KEY, before, JSON.stringify(kept));
  }

  /** What is kept, and as it is stored. */
  async #read() {
    const stored = await this.#storage.get(KEY);
    let kept;
    try {
      kept = JSON.parse(stored ?? '{"secret": "", "entries": []}');
      let head = GENESIS;
      for (const { head: claimed, ...entry } of kept.entries) {
        head = await next(head, entry);
        if (claimed !== head) throw new RangeError();
      }
    } catch {
      throw new LedgerError("What was spent is not known, because the ledger in this browser is damaged: do not take part.");
    }
    if (kept.entries.length && !kept.secret) throw new LedgerError("The secret is missing: reports would be counted twice.");
    return [kept, stored];
  }
}

/** terms: absent in an entry of a version that did not pin them. */
async function next(head, { run, round, question, plan, mu, terms }) {
  const pinned = terms === undefined ? [] : [terms];
  return hexOf(await sha256(utf8(JSON.stringify([head, run, round, question, plan, mu, ...pinned]))));
}
