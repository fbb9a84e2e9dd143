/**
 * What this device has spent, and the answers it remembers. Kept in the browser's storage, for all models of this site together.
 *
 * An answer is written down with its price before it is sent, in one write, in the place of what was read: if that fails, nothing leaves. The same question
 * (same history, model and epsilon) is the remembered numbers again, byte for byte, and costs nothing. "Same history" means
 * not edited since: a title taken out and put back is an edit, because whether an answer was repeated must not depend on titles.
 *
 * A question says with which probability its titles are hidden (padding), and whether any two histories are as far apart as two that
 * differ in one title (bounded: attention). One answer behind padding costs its own epsilon; several are composed as if nothing was hidden,
 * which is never less than they cost.
 */

import { compose, epsilonBehind, epsilonLeft, epsilonOf, muBehind } from "./accounting.js";

const KEY = "fedrec.ledger";
const UNIT = "click";
const NEIGHBOURS = "replace";
const MOST_PLACES = 1_000; // of a history, in an entry of a version that did not write them
const ROUNDING = 1e-9; // relative; an answer that takes all that is left reaches the limit up to the last bits

/** A question that the limit does not allow. left: the largest epsilon that is still possible. */
export class SpentError extends Error {
  constructor(left) {
    super("the limit of this device does not allow it");
    this.left = left;
  }
}

/** storage: has get and swap, as `database` of storage.js. limit: {epsilon, delta} for all answers together. What is asked is of the last `load` or `ask`. */
export class Ledger {
  #storage;
  #kept = null; // as it is stored

  constructor(storage, limit, now = () => new Date()) {
    this.#storage = storage;
    this.limit = limit;
    this.now = now;
  }

  /** Read what any tab of this site has kept. */
  async load() {
    this.#kept = await this.#storage.get(KEY);
    return this;
  }

  /** [{time, model, version, epsilon, delta, mu, padding, bounded, places, unit, neighbours}], oldest first; mu: behind the padding. */
  get entries() {
    return this.#read().entries;
  }

  /** Epsilon of all answers together, at the limit's delta. */
  get spent() {
    return this.together(this.entries);
  }

  /** The same of some of them. */
  together(entries) {
    return epsilonOfAll(entries, this.limit.delta);
  }

  /** The largest epsilon of one more answer. Less than the difference would say where answers are few, more where many. */
  left(padding = 0) {
    return epsilonLeft(this.limit, compose(this.entries.map(({ mu }) => mu)), padding);
  }

  /** Epsilon of all answers together after one more, a question {epsilon, padding}. */
  after(question) {
    return this.together([...this.entries, this.#price(question)]);
  }

  /**
   * What a person with so many titles pays (unit: user, neighbours: replace; neighbours differ in any number of these titles):
   * {one, together} are the epsilons of one answer and of all answers after it, which costs nothing again. Each title moves the mean that is sent by as much
   * as one title may, and attention is bounded whatever the titles; all of them are hidden with probability padding ** titles.
   */
  ofPerson(titles, question) {
    const { delta } = this.limit;
    const of = ({ mu, padding = 0, bounded = false }) => ({ mu: bounded ? mu : titles * mu, padding: padding ** titles });
    const now = this.#price(question);
    const again = this.remembered(question) !== null;
    const [one, together] = [[now], again ? this.entries : [...this.entries, now]].map((prices) => epsilonOfAll(prices.map(of), delta));
    return { one, together, again };
  }

  /**
   * Epsilon of everything that one person paid in this browser (unit: user, neighbours: replace), as `fedrec account --person`: answers,
   * whatever the history held then, and trainings: mus of releases per user (add/remove), as an exchange is one step out and one in.
   */
  ofEverything(trainings) {
    const answers = this.entries.map(({ mu, bounded = false, places = MOST_PLACES }) => (bounded ? mu : places * mu));
    return epsilonOf(compose([...answers, ...trainings.map((mu) => 2 * mu)]), this.limit.delta);
  }

  /** Whether one more answer is within the limit. */
  allows(question) {
    return this.after(question) <= this.limit.epsilon * (1 + ROUNDING);
  }

  /** The remembered numbers of a question {edit, version, epsilon, padding, bounded}, null where it is new. */
  remembered(question) {
    return this.#read().answers.find((answer) => isSame(answer, question))?.coefficients ?? null;
  }

  /**
   * The numbers of a question: remembered, or drawn now and charged. asked: () -> the question as it stands. fresh: mu, behind the
   * question's padding -> coefficients; where another tab was faster they are drawn again. Throws SpentError past the limit, and what the storage throws;
   * nothing may be sent then.
   */
  async ask(asked, model, fresh) {
    for (;;) {
      await this.load();
      const question = asked();
      const known = this.remembered(question);
      if (known) return { asked: question, coefficients: known, cost: 0 };
      const { epsilon, version, edit } = question;
      if (!this.allows(question)) throw new SpentError(this.left(question.padding));
      const price = this.#price(question);
      const coefficients = Array.from(fresh(price.mu));
      const { entries, answers } = this.#read();
      const entry = { time: this.now().toISOString(), model, version, ...price };
      const kept = [...answers.filter((answer) => answer.edit === edit), { edit, version, epsilon, coefficients }];
      if (await this.#swapped({ entries: [...entries, entry], answers: kept })) return { asked: question, coefficients, cost: epsilon };
    }
  }

  /** Drop the remembered answers. What was spent stays. */
  async forgetAnswers() {
    do await this.load();
    while (!(await this.#swapped({ ...this.#read(), answers: [] })));
  }

  async #swapped(content) {
    const after = JSON.stringify(content);
    const swapped = await this.#storage.swap(KEY, this.#kept, after);
    if (swapped) this.#kept = after;
    return swapped;
  }

  #price({ epsilon, padding = 0, bounded = false, places = MOST_PLACES }) {
    const { delta } = this.limit;
    return { epsilon, delta, mu: muBehind(epsilon, delta, padding), padding, bounded, places, unit: UNIT, neighbours: NEIGHBOURS };
  }

  #read() {
    return JSON.parse(this.#kept ?? '{"entries": [], "answers": []}');
  }
}

/** Epsilon of releases {mu, padding} together. */
function epsilonOfAll(prices, delta) {
  if (prices.length === 1) return epsilonBehind(prices[0].mu, delta, prices[0].padding ?? 0);
  return epsilonOf(compose(prices.map(({ mu }) => mu)), delta);
}

function isSame(one, other) {
  return one.edit === other.edit && one.version === other.version && one.epsilon === other.epsilon;
}
