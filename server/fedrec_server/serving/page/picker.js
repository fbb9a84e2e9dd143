/** Search and pick titles: the combobox pattern of WAI-ARIA, by keyboard or pointer. */

const SHOWN = 8;

/** Lower case without accents, so that "amelie" finds "Amélie". */
export function plain(text) {
  return text.normalize("NFD").replace(/\p{M}/gu, "").toLowerCase();
}

/** Rows whose title holds the words: titles that begin with them first, then words that do, then the rest. titles: `plain` ones. */
function found(titles, words, wanted) {
  const sought = plain(words.trim());
  if (!sought) return [];
  const places = [[], [], []];
  for (let row = 0; row < titles.length && places[0].length < SHOWN; row += 1) {
    const at = titles[row].indexOf(sought);
    if (at < 0 || !wanted(row)) continue;
    places[at === 0 ? 0 : /\P{L}/u.test(titles[row][at - 1]) ? 1 : 2].push(row);
  }
  return places.flat().slice(0, SHOWN);
}

/**
 * Makes an input and its list search. searched(): the `plain` titles as they are now; titleOf(row): how one is shown;
 * wanted(row): whether it may be picked; onPick(row): called with one that was.
 */
export function makePicker({ input, list, searched, titleOf, wanted, onPick }) {
  let rows = [];
  let active = -1;

  const show = () => {
    list.replaceChildren(...rows.map((row, at) => option(titleOf(row), at)));
    list.hidden = rows.length === 0;
    input.setAttribute("aria-expanded", String(rows.length > 0));
    move(rows.length ? 0 : -1);
  };
  const option = (title, at) => {
    const entry = document.createElement("li");
    entry.id = `${list.id}-${at}`;
    entry.role = "option";
    entry.textContent = title;
    entry.addEventListener("pointerdown", (event) => event.preventDefault()); // the input keeps the focus
    entry.addEventListener("click", () => pick(at));
    return entry;
  };
  const move = (to) => {
    active = to;
    [...list.children].forEach((entry, at) => entry.setAttribute("aria-selected", String(at === active)));
    if (active < 0) input.removeAttribute("aria-activedescendant");
    else input.setAttribute("aria-activedescendant", list.children[active].id);
    list.children[active]?.scrollIntoView({ block: "nearest" });
  };
  const close = () => {
    rows = [];
    show();
  };
  const pick = (at) => {
    const row = rows[at];
    input.value = "";
    close();
    input.focus();
    onPick(row);
  };
  const keys = {
    ArrowDown: () => move((active + 1) % rows.length),
    ArrowUp: () => move((active - 1 + rows.length) % rows.length),
    Enter: () => pick(active),
    Escape: close,
  };

  input.addEventListener("input", () => {
    rows = found(searched(), input.value, wanted);
    show();
  });
  input.addEventListener("keydown", (event) => {
    if (!rows.length || !(event.key in keys) || event.isComposing) return;
    event.preventDefault();
    keys[event.key]();
  });
  input.addEventListener("blur", close);
}
