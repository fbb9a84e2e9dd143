/**
 * Ledgers in the browser's database, where a transaction is the lock: no other tab writes between what it reads and what it writes.
 * localStorage has no such thing. Each process of a browser has a copy of it, which is behind even while the Web Lock of the writer is held.
 */

const NAME = "fedrec";
const STORE = "kept";

/** Told after each change that another tab made: `changes.onmessage`. */
export const changes = new BroadcastChannel(NAME);

/** What two ledgers ask of a storage. localStorage has what versions before this one kept. */
export const database = {
  /** The text of a key, null where there is none. Rejects where the browser does not let it be read. */
  async get(key) {
    const reading = (await opened()).transaction(STORE).objectStore(STORE).get(key);
    return (await settled(reading, "success")).result ?? localStorage.getItem(key);
  },

  /** Write `after` in the place of `before`, onto the disk; false, and nothing is written, where something else is there. */
  async swap(key, before, after) {
    const transaction = (await opened()).transaction(STORE, "readwrite", { durability: "strict" });
    const store = transaction.objectStore(STORE);
    const reading = store.get(key);
    let same = false;
    reading.onsuccess = () => {
      same = (reading.result ?? localStorage.getItem(key)) === before;
      if (same) store.put(after, key);
    };
    await settled(transaction, "complete");
    if (same) localStorage.removeItem(key);
    if (same) changes.postMessage(key);
    return same;
  },
};

let connection;

async function opened() {
  if (!connection) {
    const asked = indexedDB.open(NAME, 1);
    asked.onupgradeneeded = () => asked.result.createObjectStore(STORE);
    connection = (await settled(asked, "success")).result;
  }
  return connection;
}

/** The request or transaction once that event came. Rejects with its error where another ended it. */
function settled(asked, event) {
  return new Promise((resolve, reject) => {
    asked.addEventListener(event, () => resolve(asked));
    for (const end of ["error", "abort", "blocked"]) asked.addEventListener(end, () => reject(asked.error ?? new Error("the browser's storage is not free")));
  });
}
