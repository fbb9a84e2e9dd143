/** The page of a training: what is rated, and rounds that are answered while it is open. */

import { compose, epsilonOf } from "../accounting.js";
import { bundleOf } from "../bundle.js";
import { makePicker, plain } from "../picker.js";
import { bundleBytes, models } from "../server.js";
import { database } from "../storage.js";
import { part, say } from "../views.js";
import { many, short, size } from "../words.js";
import { Device } from "./device.js";
import { BudgetError, LedgerError, TrainingLedger } from "./ledger.js";
import { HttpAggregator } from "./aggregator.js";

const LIMIT = { epsilon: 10, delta: 1e-5 }; // for all trainings of this browser together
const RATINGS = "fedrec.ratings";
const LOOK_MS = 5000;

const state = { ids: [], titles: new Map(), scale: [1, 5], searched: [], takesPart: false };
const ledger = new TrainingLedger(database, LIMIT);
const device = new Device({ ledger, aggregator: new HttpAggregator(document.baseURI), ratings: () => Object.entries(ratings()) });

/** Look for a round, show its catalogue, and make the page work. */
async function begin() {
  const offer = await device.offer();
  if (offer) {
    Object.assign(state, { ids: offer.items, scale: offer.scale, titles: await titlesOf() });
    part("promise").textContent = `The whole training: at most ε\u00a0=\u00a0${short(offer.epsilon)} at δ\u00a0=\u00a0${offer.delta} per person (add/remove), of all your ratings together.`;
    part("training").textContent = `A round of training ${offer.run} is open: ${many(offer.items.length, "title")}, ratings from ${offer.scale.join(" to ")}.`;
  } else {
    part("training").textContent = "No round is open now. You can let the training know that this browser will be there.";
  }
  state.searched = state.ids.map((_, row) => plain(titleOf(row)));
  makePicker({
    input: part("search"),
    list: part("found"),
    searched: () => state.searched,
    titleOf,
    wanted: (row) => !Object.hasOwn(ratings(), state.ids[row]),
    onPick: (row) => rate(state.ids[row], state.scale[1]),
  });
  part("take-part").addEventListener("click", onTakePart);
  part("search").disabled = state.ids.length === 0;
  document.querySelector("main").hidden = false;
  await render();
}

/** Titles by id, of the newest model that this site serves; none where it serves none. */
async function titlesOf() {
  try {
    const { newest, models: offered } = await models();
    const { ids, titles } = bundleOf(await bundleBytes(offered.find(({ version }) => version === newest)), newest);
    return new Map(ids.map((id, row) => [id, titles[row]]));
  } catch {
    return new Map();
  }
}

function titleOf(row) {
  return state.titles.get(state.ids[row]) || state.ids[row];
}

/** {item id: rating}. */
function ratings() {
  return JSON.parse(localStorage.getItem(RATINGS) ?? "{}");
}

function rate(id, value) {
  localStorage.setItem(RATINGS, JSON.stringify({ ...ratings(), [id]: value }));
  return render();
}

function takeOut(id) {
  const { [id]: _, ...kept } = ratings();
  localStorage.setItem(RATINGS, JSON.stringify(kept));
  part("search").focus();
  return render();
}

async function onTakePart() {
  state.takesPart = !state.takesPart;
  await render();
  while (state.takesPart) {
    await answer();
    await render();
    await new Promise((done) => setTimeout(done, LOOK_MS));
  }
}

/** One round. What another try cannot mend ends it. */
async function answer() {
  try {
    const sent = await device.takePart();
    if (!sent) say("No round is open. The training knows that this browser is here.");
    else if (sent.charged) say(`A report of ${size(sent.bytes)} was sent and counted.`);
  } catch (failure) {
    if (failure instanceof BudgetError || failure instanceof LedgerError) state.takesPart = false;
    say(failure.message, { warn: true });
  }
}

async function render() {
  const mine = Object.entries(ratings());
  const rowOf = new Map(state.ids.map((id, row) => [id, row]));
  part("rated").replaceChildren(...mine.map(([id, value]) => line(id, value, rowOf.has(id) ? titleOf(rowOf.get(id)) : id)));
  part("rated-note").textContent = mine.length ? `${many(mine.length, "rating")}, kept in this browser.` : "Nothing rated yet.";
  part("take-part").textContent = state.takesPart ? "Stop taking part" : "Take part";
  try {
    const entries = await ledger.entries();
    const spent = epsilonOf(compose(entries.map(({ mu }) => mu)), LIMIT.delta);
    const words = `Spent: ε\u00a0=\u00a0${short(spent)} of ${LIMIT.epsilon} at δ\u00a0=\u00a0${LIMIT.delta} per person (add/remove), in ${many(entries.length, "round")}.`;
    part("ledger-words").textContent = entries.length ? words : `Nothing spent. The limit of this browser is ε\u00a0=\u00a0${LIMIT.epsilon} at δ\u00a0=\u00a0${LIMIT.delta} per person (add/remove).`;
  } catch (failure) {
    part("ledger-words").textContent = failure.message;
  }
}

/** A title, its rating, and a way to take it out. */
function line(id, value, title) {
  const [low, high] = state.scale;
  const entry = document.createElement("li");
  const name = document.createElement("label");
  const choice = Object.assign(document.createElement("input"), { type: "number", min: low, max: high, step: "any", value });
  const button = Object.assign(document.createElement("button"), { type: "button", className: "plain", textContent: "Take out" });
  name.append(`${title} `, choice);
  choice.addEventListener("change", () => choice.checkValidity() && choice.value !== "" && rate(id, Number(choice.value)));
  button.ariaLabel = `Take out ${title}`;
  button.addEventListener("click", () => takeOut(id));
  entry.append(name, button);
  return entry;
}

begin().catch((failure) => {
  part("training").textContent = failure.message;
  part("training").classList.add("warn");
});
