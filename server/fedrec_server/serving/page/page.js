/** The page: what is picked, asked and shown. Everything it knows is in `state`; every change ends in `render`. */

import { muBehind, rightGuesses } from "./accounting.js";
import { bundleOf } from "./bundle.js";
import { History, rowsById } from "./history.js";
import { toldOfInvented } from "./invented.js";
import { Ledger, SpentError } from "./ledger.js";
import { askWhatever, exact, noiseStdOf, rehearse, sentOf, told } from "./mechanism.js";
import { makePicker, plain } from "./picker.js";
import { ranking, scores } from "./ranking.js";
import { sensitivityOf } from "./sensitivity.js";
import { bundleBytes, models, questionBody, recommend, ServerError } from "./server.js";
import { changes, database } from "./storage.js";
import { TrainingLedger } from "./training/ledger.js";
import { NOTHING_LEFT, part, say, showBytes, showLedger, showList, showModel, showPicked, showPrivate, showSlope } from "./views.js";
import { HIDDEN, howMade, inWords, short, size, whatShows } from "./words.js";

const EPSILONS = [0.1, 0.2, 0.5, 1, 2, 3, 5, 7, 10, 15, 20];
const BEGINNING = 5;
const LIMIT = 20; // for all answers of this device together
const LARGEST_DELTA = 1e-5; // whatever the model says
const SHOWN = 10;
const DEVICE_BYTES = 20e6; // of a public model that is ranked here without being asked to, as `fedrec_client.recommending`

const state = { epsilon: BEGINNING, category: null, answer: null, asking: false };

/** Load the newest model and make the page work with it. */
async function begin() {
  await Promise.all([load(), readTrainings()]);
  setUpControls();
  document.querySelector("main").hidden = false;
  render();
}

/** What trainings of this browser cost (the page at /training), mus of releases; null where its ledger is damaged. */
async function readTrainings() {
  const read = new TrainingLedger(database).entries();
  state.trainings = await read.then((entries) => entries.map(({ mu }) => mu), () => null);
}

async function load() {
  const { newest, models: offered } = await models();
  const model = offered.find(({ version }) => version === newest);
  if (!model) throw new ServerError({ code: "no-model", cause: "The server has no model.", remedy: "Come back later." });
  part("model").textContent = `Loading the public model, ${size(model.bundle_bytes)}…`;
  const bundle = bundleOf(await bundleBytes(model), newest);
  const usable = { ...bundle, sensitivity: sensitivityOf(bundle) };
  state.here = model.bundle_bytes <= DEVICE_BYTES; // of the model alone, never of what is picked
  const limit = { epsilon: LIMIT, delta: Math.min(bundle.about.delta, LARGEST_DELTA) };
  for (const epsilon of [EPSILONS[0], EPSILONS.at(-1)]) rehearse(usable, muBehind(epsilon, limit.delta, paddingOf(usable)));
  state.bundle = usable;
  state.rowOf = rowsById(bundle.ids);
  state.history = new History(localStorage, bundle.about.history);
  state.ledger = await new Ledger(database, limit).load();
  state.searched = bundle.ids.map((_, row) => plain(titleOf(row)));
  showModel(bundle, state.here, model.verified);
  showCategories(bundle.about.categories);
}

function setUpControls() {
  makePicker({
    input: part("search"),
    list: part("found"),
    searched: () => state.searched,
    titleOf,
    wanted: (row) => !state.history.has(state.bundle.ids[row]),
    onPick,
  });
  part("forget").addEventListener("click", forget);
  part("ask").addEventListener("click", onAsk);
  part("epsilon").max = String(EPSILONS.length - 1);
  part("epsilon").value = String(EPSILONS.indexOf(state.epsilon));
  part("epsilon").addEventListener("input", () => change({ epsilon: EPSILONS[Number(part("epsilon").value)] }));
  part("category").addEventListener("change", () => change({ category: part("category").value || null }));
  addEventListener("storage", render); // another tab picked
  changes.addEventListener("message", () => Promise.all([readTrainings(), state.ledger.load()]).then(render)); // or paid
  addEventListener("resize", renderAnswer);
}

function showCategories(names) {
  if (!names.includes(state.category)) state.category = null;
  part("category-part").hidden = names.length === 0;
  part("category").replaceChildren(...["every category", ...names].map((name, at) => new Option(name, at === 0 ? "" : name)));
  part("category").value = state.category ?? "";
}

function change(to) {
  Object.assign(state, to);
  render();
}

function edit(how, said) {
  how();
  say(said);
  render();
}

function onPick(row) {
  if (state.history.full) return say("No more titles count. Take one out first.", { warn: true });
  return edit(() => state.history.add(state.bundle.ids[row]), `Added ${titleOf(row)}.`);
}

async function forget() {
  await state.ledger.forgetAnswers();
  edit(() => state.history.forget(), "Your titles are forgotten. The ledger stays.");
  part("search").focus();
}

/** The question as it stands: what decides whether an earlier answer may be repeated. */
function question() {
  return { ...priced(state.epsilon), edit: state.history.edit, version: state.bundle.version };
}

/** What decides on the price of an answer: epsilon, the padding of the model, and whether its numbers are bounded as attention is, and of how many titles. */
function priced(epsilon) {
  const { about, encoder } = state.bundle;
  return { epsilon, padding: paddingOf(state.bundle), bounded: encoder !== null, places: about.history };
}

/** With which probability the model hides a title. */
function paddingOf({ encoder }) {
  return encoder?.padding ?? 0;
}

/** The answer that is here, where it is one to the question as it stands. */
function answerNow() {
  const { answer, category } = state;
  return answer && answer.asked === JSON.stringify([question(), category]) ? answer : null;
}

async function onAsk() {
  if (state.asking) return;
  state.asking = true;
  try {
    const asked = askServer(); // begun before anything is drawn: what this page shows must not decide whether a question leaves
    render();
    await asked;
  } catch (failure) {
    await explain(failure);
  } finally {
    state.asking = false;
    render();
  }
}

/** Charge and draw, or remember; send; keep what came back. */
async function askServer() {
  const { bundle, ledger, category } = state;
  const fresh = (mu) => askWhatever(bundle, rowsOfHistory(), { mu }).sent;
  const { asked, coefficients, cost } = await ledger.ask(question, bundle.about.name, fresh).catch((failure) => {
    throw failure instanceof SpentError ? failure : new Error(`Nothing was sent: ${failure.message}`);
  });
  const k = Math.min(SHOWN + bundle.about.history, bundle.m); // always as many: what is picked is taken out here
  const body = questionBody({ version: bundle.version, coefficients, k, category });
  showLedger(ledger, paddingOf(bundle), state.trainings);
  const reply = await recommend(body);
  if (!isListOf(bundle, reply.items, k)) {
    throw new ServerError({ code: "damaged", cause: "The server's list is not one of this model.", remedy: "Do not use this server." });
  }
  const picked = rowsOfHistory();
  const mu = muBehind(asked.epsilon, ledger.limit.delta, paddingOf(bundle));
  const drowned = shareTold(knownOf(picked), mu) < HIDDEN; // a list at random: everybody's is shown
  const items = drowned ? ranking(scores(bundle, nobodyOf(bundle)), allowed()).slice(0, k) : reply.items;
  state.answer = { asked: JSON.stringify([asked, category]), items, drowned, coefficients, cost, body };
  say(cost ? `Answered. This cost ε\u00a0=\u00a0${short(cost)} per title.` : "Answered again: the same bytes were sent, and nothing was spent.");
}

/** Whether these are different rows of the model, at most k. */
function isListOf({ m }, items, k) {
  if (!Array.isArray(items) || items.length > k || new Set(items).size !== items.length) return false;
  return items.every((row) => Number.isInteger(row) && row >= 0 && row < m);
}

async function explain(failure) {
  if (failure instanceof SpentError) {
    const fits = EPSILONS.filter((epsilon) => state.ledger.allows(priced(epsilon))).at(-1);
    const choice = fits ? `ε\u00a0=\u00a0${short(fits)} per title still fits.` : "Nothing more fits.";
    const cause = `Not asked: ε\u00a0=\u00a0${state.epsilon} per title is more than is left.`;
    return say(`${cause} ${choice} The list of your own device costs nothing.`, { warn: true });
  }
  if (failure instanceof ServerError && failure.code === "wrong-version") {
    await load();
    return say("The server has a new model, which is loaded now. Asking it is a new question.", { warn: true });
  }
  if (failure instanceof ServerError) return say(`${failure.message} Asking again is the same question: it costs nothing.`, { warn: true });
  return say(failure.message, { warn: true });
}

function titleOf(row) {
  return state.bundle.titles[row] || state.bundle.ids[row];
}

/** Item rows of the picked titles, oldest first; -1 where this model does not have one. */
function rowsOfHistory() {
  return state.history.ids.map((id) => state.rowOf(id) ?? -1);
}

/** How many of these rows the model knows. */
function knownOf(rows) {
  return rows.filter((row) => row >= 0).length;
}

/** The numbers of a reader of whom nothing is known, `fedrec_client.public_model.everybodys`. */
function nobodyOf(bundle) {
  return bundle.encoder ? sentOf(bundle, exact(bundle, []), 0) : new Float32Array(bundle.B);
}

/** Whether a row may be listed: of the category, and not picked. */
function allowed() {
  const { bundle, category } = state;
  const seen = new Set(rowsOfHistory());
  const bit = 1n << BigInt(Math.max(0, bundle.about.categories.indexOf(category)));
  return (row) => !seen.has(row) && (category === null || (bundle.categories[row] & bit) !== 0n);
}

/** What the server does, here, without noise: rows by rank, without those that were picked. Only where something changed. */
function rankHere() {
  const { bundle, category, history } = state;
  const of = JSON.stringify([bundle.version, history.edit, category]);
  if (state.rankedOf === of) return;
  const rows = rowsOfHistory();
  const exactQuery = knownOf(rows) ? sentOf(bundle, exact(bundle, rows), 0) : nobodyOf(bundle);
  const exactOrder = history.ids.length ? ranking(scores(bundle, exactQuery), allowed()) : [];
  Object.assign(state, { exactQuery, exactOrder, rankedOf: of });
}

function render() {
  const picked = state.history.ids.map((id) => ({ id, title: state.rowOf(id) === undefined ? id : titleOf(state.rowOf(id)) }));
  showPicked(picked, { longest: state.history.longest, bounded: priced(state.epsilon).bounded, onRemove: takeOut });
  renderPrice(picked.length);
  showLedger(state.ledger, paddingOf(state.bundle), state.trainings);
  rankHere();
  showList("exact", state.exactOrder.slice(0, SHOWN).map((row) => ({ title: titleOf(row) })), state.history.ids.length ? NOTHING_LEFT : "Pick a title to see this list.");
  renderAnswer();
}

function takeOut(id) {
  edit(() => state.history.remove(id), "Taken out.");
  part("search").focus();
}

function renderPrice(picked) {
  const { epsilon, ledger, asking } = state;
  const padding = paddingOf(state.bundle);
  const mu = muBehind(epsilon, ledger.limit.delta, padding);
  part("epsilon-value").textContent = `ε\u00a0=\u00a0${epsilon} per title`;
  part("epsilon").ariaValueText = `epsilon ${epsilon}`;
  part("epsilon-words").textContent = inWords(rightGuesses(mu, padding));
  part("promise").textContent =
    `(ε,\u00a0δ)\u00a0=\u00a0(${epsilon},\u00a0${ledger.limit.delta}) for one answer; unit: one title of your history; neighbours: replaced by another. ` +
    `When you picked is not hidden${state.bundle.encoder ? "" : ", and many titles together are hidden far less than one"}.`;
  part("ask").disabled = picked === 0 || asking;
  part("ask").textContent = asking ? "Asking…" : "Ask the server";
  part("price").textContent = priceInWords(picked);
  part("person").textContent = picked === 0 ? "" : personInWords(picked);
  part("shows").textContent = whatShows(shareTold(knownOf(rowsOfHistory()), mu), picked, epsilon);
}

/** Which share of what so many known titles say an answer leaves, by public numbers; kept, as readers are invented for some models. */
function shareTold(titles, mu) {
  if (titles === 0) return 0;
  const of = JSON.stringify([state.bundle.version, titles, mu]);
  if (state.toldOf !== of) {
    const share = told(state.bundle, titles, noiseStdOf(state.bundle, mu)) ?? toldOfInvented(state.bundle, titles, mu);
    Object.assign(state, { toldOf: of, share });
  }
  return state.share;
}

function priceInWords(picked) {
  const { epsilon, ledger, bundle } = state;
  if (picked === 0) return "Pick at least one title.";
  if (ledger.remembered(question())) return "Asked before, and nothing has changed: the same bytes, no cost.";
  if (!ledger.allows(priced(epsilon))) return `More than is left: at most ε\u00a0=\u00a0${short(ledger.left(paddingOf(bundle)))} per title.`;
  const together = `${short(ledger.spent)} → ${short(ledger.after(priced(epsilon)))} of ${ledger.limit.epsilon}`;
  return `Costs ε\u00a0=\u00a0${epsilon} per title. All answers together: ${together}.`;
}

function personInWords(titles) {
  const { one, together, again } = state.ledger.ofPerson(titles, question());
  const whole = titles === 1 ? "with one title, whichever it is" : `with ${titles} titles, whichever they are`;
  return `For a person ${whole}: at most ε\u00a0=\u00a0${short(one)} for one answer, ${short(together)} for all answers${again ? "" : " and this one"}.`;
}

function renderAnswer() {
  const { bundle, exactQuery } = state;
  const answer = answerNow();
  part("private-part").hidden = state.here && answer === null;
  part("ledger-part").hidden = state.here && state.ledger.entries.length === 0 && !state.trainings?.length;
  part("private-title").textContent = answer?.drowned ? "Everybody's: the noise leaves too little of yours" : "By the server, from noised numbers";
  for (const id of ["slope-part", "bytes-part"]) part(id).hidden = answer === null;
  if (answer === null) return showList("private", [], state.history.ids.length ? "Not asked yet." : "Pick a title, then ask.");
  const listed = new Set(state.exactOrder);
  const released = answer.items.filter((row) => listed.has(row));
  showPrivate(released, state.exactOrder, SHOWN, titleOf);
  showSlope({ exact: state.exactOrder, released, k: Math.min(SHOWN, released.length), titleOf });
  const noiseStd = noiseStdOf(bundle, muBehind(state.epsilon, state.ledger.limit.delta, paddingOf(bundle)));
  const titles = rowsOfHistory().map((row) => (row < 0 ? "a title that this model lacks" : titleOf(row)));
  const { coefficients: sent, body, cost } = answer;
  return showBytes({ exact: [...exactQuery], sent, howMade: howMade(bundle, noiseStd), titles, body, cost });
}

begin().catch((failure) => {
  part("model").textContent = failure.message;
  part("model").classList.add("warn");
});
