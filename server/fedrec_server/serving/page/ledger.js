/**
 * What this device has spent, and the answers it remembers. Kept in the browser's storage, for all models of this site together.
 *
 * An answer is written down with its price before it is sent, in one write: if that fails, nothing leaves. The same question
 * (same history, model and epsilon) is the remembered numbers again, byte for byte, and costs nothing. "Same history" means
 * not edited since: a title taken out and put back is an edit, because whether an answer was repeated must not depend on titles.
 */

import { compose, epsilonLeft, epsilonOf, muFor } from "./accounting.js";

const KEY = "fedrec.ledger";
const UNIT = "click";
const NEIGHBOURS = "replace";
const ROUNDING = 1e-9; // relative; an answer that takes all that is left reaches the limit up to the last bits

/** A question that the limit does not allow. left: the largest epsilon that is still possible. */
export class SpentError extends Error {
  constructor(left) {
    super("the limit of this device does not allow it");
    this.left = left;
  }
}

/** storage: has getItem and setItem, as localStorage. limit: {epsilon, delta} for all answers together. */
export class Ledger {
  #storage;

  constructor(storage, limit, now = () => new Date()) {
    this.#storage = storage;
    this.limit = limit;
    this.now = now;
  }

  /** [{time, model, version, epsilon, delta, mu, unit, neighbours}], oldest first. */
  get entries() {
    return this.#read().entries;
  }

  /** Epsilon of all answers together, at the limit's delta. */
  get spent() {
    return epsilonOf(this.#mu(), this.limit.delta);
  }

  /** The largest epsilon of one more answer. Less than the difference would say where answers are few, more where many. */
  get left() {
    return epsilonLeft(this.limit, this.#mu());
  }

  /** Epsilon of all answers together after one more. */
  after(epsilon) {
    return epsilonOf(compose([this.#mu(), muFor(epsilon, this.limit.delta)]), this.limit.delta);
  }

  /**
   * What a person with so many titles pays (unit: user, neighbours: replace; neighbours differ in any number of these titles):
   * {one, together} are the epsilons of one answer and of all answers after it. Each title moves the mean that is sent by as much
   * as one title may.
   */
  ofPerson(titles, epsilon) {
    const { delta } = this.limit;
    const mu = muFor(epsilon, delta);
    const [one, together] = [mu, compose([this.#mu(), mu])].map((each) => epsilonOf(titles * each, delta));
    return { one, together };
  }

  /** Whether one more answer is within the limit. */
  allows(epsilon) {
    return this.after(epsilon) <= this.limit.epsilon * (1 + ROUNDING);
  }

  /** The remembered numbers of a question {edit, version, epsilon}, null where it is new. */
  remembered(question) {
    return this.#read().answers.find((answer) => isSame(answer, question))?.coefficients ?? null;
  }

  /**
   * The numbers of a question: remembered, or drawn now and charged. fresh: mu -> coefficients.
   * Throws SpentError past the limit, and what the storage throws; nothing may be sent then.
   */
  ask(question, model, fresh) {
    const known = this.remembered(question);
    if (known) return { coefficients: known, cost: 0 };
    const { epsilon, version, edit } = question;
    if (!this.allows(epsilon)) throw new SpentError(this.left);
    const mu = muFor(epsilon, this.limit.delta);
    const coefficients = Array.from(fresh(mu));
    const { entries, answers } = this.#read();
    const price = { epsilon, delta: this.limit.delta, mu, unit: UNIT, neighbours: NEIGHBOURS };
    const entry = { time: this.now().toISOString(), model, version, ...price };
    const kept = [...answers.filter((answer) => answer.edit === edit), { ...question, coefficients }];
    this.#storage.setItem(KEY, JSON.stringify({ entries: [...entries, entry], answers: kept }));
    return { coefficients, cost: epsilon };
  }

  /** Drop the remembered answers. What was spent stays. */
  forgetAnswers() {
    this.#storage.setItem(KEY, JSON.stringify({ ...this.#read(), answers: [] }));
  }

  #mu() {
    return compose(this.entries.map((entry) => entry.mu));
  }

  #read() {
    return JSON.parse(this.#storage.getItem(KEY) ?? '{"entries": [], "answers": []}');
  }
}

function isSame(one, other) {
  return one.edit === other.edit && one.version === other.version && one.epsilon === other.epsilon;
}
