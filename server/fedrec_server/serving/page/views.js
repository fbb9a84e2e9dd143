/** The parts of the page, each drawn from what it is given. Titles come from outside, so they are only ever text. */

import { bars, slopeChart } from "./drawing.js";
import { many, ordinal, short, size, whatMoved } from "./words.js";

const ENTRIES_SHOWN = 12;

/** Where a list is empty though titles are picked. */
export const NOTHING_LEFT = "Nothing is left that you have not picked.";

export const part = (id) => document.getElementById(id);

/** An element with text. */
function element(name, text = "", attributes = {}) {
  const made = document.createElement(name);
  made.textContent = text;
  Object.assign(made, attributes);
  return made;
}

/** The line under the heading. */
export function showModel({ about, m, B, version, encoder }, here, verified) {
  part("lead-here").hidden = !here;
  part("lead-asks").hidden = here;
  part("asking").open ||= !here; // and never shut while somebody asks
  part("model").textContent =
    `Model ${about.name}: ${many(m, "title")}, ${B} numbers a question${asked(encoder)}, ${trained(about)}. Version ${version}. The server says of its certificate: ${verified || "not verified yet"}.`;
  part("experiment").hidden = about.noise !== "seeded";
  for (const place of document.querySelectorAll("[data-of=coefficients]")) place.textContent = String(B);
}

function asked(encoder) {
  if (encoder === null) return "";
  const { padding } = encoder;
  return ` (attention over as many public vectors${padding > 0 ? `, each title hidden with probability ${short(padding)}` : ""})`;
}

function trained({ noise, training: { epsilon, unit, established } }) {
  if (noise === "seeded") return "an experiment, trained with seeded noise";
  if (!Number.isFinite(Number(epsilon))) return "trained without privacy";
  if (established === false) return "trained with no established privacy";
  return `trained at ε\u00a0=\u00a0${epsilon} per ${unit}`;
}

/** The picked titles, each with a button that takes it out. bounded: whether one answer tells of many no more than of one. */
export function showPicked(picked, { longest, bounded, onRemove }) {
  part("picked").replaceChildren(
    ...picked.map(({ id, title }) => {
      const chip = element("li");
      const button = element("button", "×", { type: "button", ariaLabel: `Take out ${title}` });
      button.addEventListener("click", () => onRemove(id));
      chip.append(element("span", title), button);
      return chip;
    }),
  );
  part("picked-note").textContent = picked.length
    ? `${many(picked.length, "title")} of at most ${longest}, kept in this browser only.${bounded ? "" : " The more you pick, the less the noise hides."}`
    : `Nothing picked. Up to ${longest} titles count, and they stay in this browser.`;
  part("forget").hidden = picked.length === 0;
}

/** A list of {title, note, moved}, or a line that says why there is none. */
export function showList(id, entries, empty) {
  const lines = entries.map(({ title, note = "", moved = false }) => {
    const line = element("li", "", { className: moved ? "moved" : "" });
    line.append(element("span", title), element("small", note));
    return line;
  });
  part(id).replaceChildren(...(lines.length ? lines : [element("li", empty, { className: "empty" })]));
}

/** The first k of the private ranking, each with its place in the exact one. */
export function showPrivate(answer, exactOrder, k, titleOf) {
  const entries = answer.slice(0, k).map((row) => {
    const place = exactOrder.indexOf(row) + 1;
    return { title: titleOf(row), note: `exact: ${ordinal(place)}`, moved: place > k };
  });
  showList("private", entries, NOTHING_LEFT);
}

/** The chart and its sentence. */
export function showSlope(chart) {
  part("slope-words").textContent = whatMoved(chart.exact, chart.released, chart.k, chart.titleOf);
  part("slope").replaceChildren(slopeChart({ ...chart, width: Math.max(300, part("slope").clientWidth) }));
}

/** What stayed and what left: exact and sent coefficients on one scale, and the body. */
export function showBytes({ exact, sent, howMade, titles, body, cost }) {
  const largest = Math.max(...exact.map(Math.abs), ...sent.map(Math.abs), 1e-9);
  part("stays-titles").textContent = `${many(titles.length, "title")}: ${titles.join(", ")}.`;
  part("stays-noise").textContent = howMade;
  const bytes = new TextEncoder().encode(body).length;
  part("saw-words").textContent = `One request of ${size(bytes)}${cost ? "" : ", the same as before"}: this, and nothing else.`;
  part("saw-bytes").textContent = body;
  for (const [id, values, kind, title] of [
    ["bars-exact", exact, "kept", `${exact.length} exact coefficients`],
    ["bars-sent", sent, "sent", `${sent.length} sent coefficients`],
  ]) {
    part(id).replaceChildren(bars(values, { largest, width: Math.max(240, part(id).clientWidth), title, kind }));
  }
}

/** Spent, left, and each answer with what all of them came to by then. trainings: what they cost, null where nobody knows. */
export function showLedger(ledger, padding, trainings) {
  const { entries, spent, limit } = ledger;
  part("ledger-words").textContent = entries.length
    ? `Spent: ε\u00a0=\u00a0${short(spent)} of ${limit.epsilon} per title in ${many(entries.length, "answer")}. One more answer may have ε\u00a0=\u00a0${short(ledger.left(padding))}.`
    : `Nothing spent. The limit of this device is ε\u00a0=\u00a0${limit.epsilon} per title for all answers together.`;
  part("everything").textContent = everything(ledger, trainings);
  const meter = part("meter");
  meter.ariaValueMax = String(limit.epsilon);
  meter.ariaValueNow = String(Math.round(spent * 100) / 100);
  meter.ariaValueText = `${short(spent)} of ${limit.epsilon} spent`;
  meter.firstElementChild.style.width = `${Math.min(100, (100 * spent) / limit.epsilon)}%`;
  const lines = entries.map((entry, at) => {
    const together = ledger.together(entries.slice(0, at + 1));
    const line = element("tr");
    const cells = [moment(entry.time), short(entry.epsilon), short(together), entry.model];
    line.append(...cells.map((text) => element("td", text)));
    return line;
  });
  part("entries").replaceChildren(...lines.slice(-ENTRIES_SHOWN).reverse());
  document.querySelector(".scroll").hidden = entries.length === 0;
}

/** One sum of all that left this browser. */
function everything(ledger, trainings) {
  if (trainings === null) return "What trainings cost is not known: their ledger in this browser is damaged.";
  const answers = ledger.entries.length;
  if (!answers && !trainings.length) return "";
  const rounds = trainings.length ? ` and ${many(trainings.length, "round")} of trainings` : "";
  const sum = short(ledger.ofEverything(trainings));
  return `Everything that left this browser, ${many(answers, "answer")}${rounds}: at most ε\u00a0=\u00a0${sum} at δ = ${ledger.limit.delta} per person (all data replaced by any other).`;
}

function moment(time) {
  return new Date(time).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
}

/** Say something to everybody, screen readers too. */
export function say(text, { warn = false } = {}) {
  part("said").textContent = text;
  part("said").className = warn ? "warn" : "";
}
