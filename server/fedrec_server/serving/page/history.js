/** The titles that were picked: ids, oldest first, in the browser's storage and nowhere else. */

const KEY = "fedrec.history";

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

  /** Grows with every edit and never goes back, so that an earlier history is not taken for the same. */
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
    this.#storage.setItem(KEY, JSON.stringify({ ids, edit: this.edit + 1 }));
  }
}
