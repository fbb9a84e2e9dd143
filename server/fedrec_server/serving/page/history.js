/** The titles that were picked: ids, oldest first, in the browser's storage and nowhere else. */

const KEY = "fedrec.history";

/** An id as it looks, as `fedrec.data.columns.plain_id`: 7.0 is 7, and blanks and what has no width make no difference. */
export function plainId(id) {
  const composed = id.normalize("NFC").replace(/\ufeff/g, "").replace(/[\uff01-\uffee]/g, (letter) => letter.normalize("NFKC"));
  const blanks = composed.replace(/[\s\x1c-\x1f\x85]+/gu, " ").replace(/[\p{Cc}\p{Cf}]/gu, "");
  const plain = blanks.replace(/ +/g, " ").trim();
  return /^\+?(-?[0-9]+)(\.0+)?$/.exec(plain)?.[1] ?? plain;
}

/** A function from an id to its row, in the form that the model has or in another; undefined where it has none. */
export function rowsById(ids) {
  const rows = new Map(ids.map((id, row) => [id, row]));
  return (id) => rows.get(id) ?? rows.get(plainId(id));
}

/** storage: has getItem and setItem, as localStorage. longest: H, the most that count. */
export class History {
  #storage;

  constructor(storage, longest) {
    this.#storage = storage;
    this.longest = longest;
  }

  get ids() {
    return this.#read().ids;
  }

  /** Another text after every edit, of any tab, so that an earlier history is not taken for the same. */
  get edit() {
    return this.#read().edit;
  }

  has(id) {
    return this.ids.includes(id);
  }

  get full() {
    return this.ids.length >= this.longest;
  }

  add(id) {
    if (!this.has(id) && !this.full) this.#write([...this.ids, id]);
  }

  remove(id) {
    this.#write(this.ids.filter((other) => other !== id));
  }

  forget() {
    this.#write([]);
  }

  #read() {
    return JSON.parse(this.#storage.getItem(KEY) ?? '{"ids": [], "edit": 0}');
  }

  #write(ids) {
    this.#storage.setItem(KEY, JSON.stringify({ ids, edit: crypto.getRandomValues(new Uint32Array(4)).join() }));
  }
}
