// Runs calls of the page's modules for the tests: {modules, job, ...} as JSON in, the job's result as JSON out.
import { createCipheriv, createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const asked = JSON.parse(readFileSync(0, "utf8"));
const load = (name) => import(pathToFileURL(`${asked.modules}/${name}.js`).href);

/** A reproducible source of uniform bytes. */
function seeded(seed) {
  const cipher = createCipheriv("aes-256-ctr", createHash("sha256").update(seed).digest(), Buffer.alloc(16));
  return (bytes) => bytes.set(cipher.update(Buffer.alloc(bytes.length)));
}

async function bundle() {
  const { bundleOf } = await load("bundle");
  const file = readFileSync(asked.bundle);
  const { sensitivityOf } = await load("sensitivity");
  const read = bundleOf(file.buffer.slice(file.byteOffset, file.byteOffset + file.length), asked.version);
  return { ...read, sensitivity: sensitivityOf(read) };
}

/** Texts by key as `database` of storage.js keeps them, in a Map. before(): what another tab does between a read and a write. */
function storageOf(kept, before = () => {}) {
  return {
    get: async (key) => kept.get(key) ?? null,
    swap: async (key, old, text) => {
      before();
      const same = (kept.get(key) ?? null) === old;
      if (same) kept.set(key, text);
      return same;
    },
  };
}

const jobs = {
  async calls() {
    const module = await load(asked.module);
    return asked.arguments.map((list) => module[asked.name](...list.map((value) => (value === "inf" ? Infinity : value))));
  },
  async bundle() {
    const { about, m, B, D, version, ids, titles, categories, rows, mean } = await bundle();
    return { about, m, B, D, version, ids, titles, categories: [...categories].map(String), rows: [...rows], mean: [...mean] };
  },
  async answers() {
    const [read, mechanism] = [await bundle(), await load("mechanism")];
    const [{ userVector }, { ranking, scores }] = [await load("user_map"), await load("ranking")];
    return asked.cases.map(({ history, noised, noiseStd, mu }) => {
      const exact = mechanism.exact(read, history);
      const exactQuery = mechanism.sentOf(read, exact, 0);
      const sent = mechanism.sentOf(read, noised, noiseStd);
      const variance = Number(mechanism.noiseVariance(read, mu));
      const scored = scores(read, sent);
      const vectors = { exact, exactQuery, sent, user: userVector(read, sent), scored, order: ranking(scored) };
      return { variance, ...Object.fromEntries(Object.entries(vectors).map(([name, values]) => [name, [...values]])) };
    });
  },
  /** How many titles there are after each that is picked, and whether no more count. */
  async picks() {
    const { History } = await load("history");
    const kept = new Map();
    const storage = { getItem: (key) => kept.get(key) ?? null, setItem: (key, text) => kept.set(key, text) };
    const history = new History(storage, asked.longest);
    return asked.ids.map((id) => (history.add(id), [history.ids.length, history.full]));
  },
  async ties() {
    const { tieKey } = await load("ranking");
    return asked.rows.map(tieKey);
  },
  async told() {
    const [read, { told }] = [await bundle(), await load("mechanism")];
    return asked.cases.map(([titles, noiseStd]) => told(read, titles, noiseStd));
  },
  async toldOfInvented() {
    const [read, { toldOfInvented }] = [await bundle(), await load("invented")];
    return asked.cases.map(([titles, mu]) => toldOfInvented(read, titles, mu));
  },
  async asks() {
    const [read, { ask }, { Uniform }] = [await bundle(), await load("mechanism"), await load("discrete_gaussian")];
    const uniform = new Uniform(seeded(asked.seed));
    return asked.histories.map((history) => {
      const { noised, noiseStd, sent } = ask(read, history, { mu: asked.mu, uniform });
      return { noised: [...noised], noiseStd, sent: [...sent] };
    });
  },
  /** Of each bundle file: null where it can be asked, else why not; what is not a RangeError ends the job. */
  async refusals() {
    const [{ bundleOf }, { sensitivityOf }] = [await load("bundle"), await load("sensitivity")];
    const { rehearse } = await load("mechanism");
    return asked.bundles.map((path) => {
      const file = readFileSync(path);
      try {
        const read = bundleOf(file.buffer.slice(file.byteOffset, file.byteOffset + file.length), "00");
        rehearse({ ...read, sensitivity: sensitivityOf(read) }, 1);
        return null;
      } catch (failure) {
        if (!(failure instanceof RangeError)) throw failure;
        return failure.message;
      }
    });
  },
  /** Numbers sent for each history by a model whose row `bad` is of no whole numbers: as if no bundle had been looked at. */
  async whatever() {
    const [read, { askWhatever }] = [await bundle(), await load("mechanism")];
    const rows = Float64Array.from(read.rows);
    rows.fill(0.5, asked.bad * read.B, (asked.bad + 1) * read.B);
    return asked.histories.map((history) => [...askWhatever({ ...read, rows }, history, { mu: asked.mu }).sent]);
  },
  /** Which of `places` clicks are hidden, in each of `count` answers. */
  async hides() {
    const [{ hidden }, { Uniform }] = [await load("attention"), await load("discrete_gaussian")];
    const uniform = new Uniform(seeded(asked.seed));
    const rows = Array.from({ length: asked.places }, (_, place) => place);
    return Array.from({ length: asked.count }, () => hidden(rows, { padding: asked.padding, anonymous: -7, uniform }));
  },
  async draws() {
    const { draw, Uniform } = await load("discrete_gaussian");
    const uniform = new Uniform(seeded(asked.seed));
    return Array.from({ length: asked.count }, () => Number(draw(BigInt(asked.variance), uniform)));
  },
  async sensitivity() {
    const { sensitivityOf } = await load("sensitivity");
    return asked.cases.map(({ rows, history, sensitivity, pairs }) => {
      const flat = { rows: Int32Array.from(rows.flat()), m: rows.length, B: rows[0].length, about: { history, sensitivity } };
      try {
        return sensitivityOf(flat, pairs);
      } catch (failure) {
        if (!(failure instanceof RangeError)) throw failure;
        return null;
      }
    });
  },
  async bodies() {
    const { questionBody } = await load("server");
    return asked.questions.map((question) => questionBody({ ...question, coefficients: [...Float32Array.from(question.coefficients)] }));
  },
  /** Each step of a ledger in turn: ["ask", question, [numbers that would be drawn]], ["person", titles, question], ["everything", mus], ["forget"], ["fail"], ["work"],
   * ["rival", [entries that another tab writes in the middle of the next question]]. */
  async ledger() {
    const { Ledger, SpentError } = await load("ledger");
    const kept = new Map();
    let working = true;
    let rivals = [];
    const another = () => {
      if (!working) throw new Error("the disk is full");
      for (const entry of rivals.splice(0)) {
        const { entries, answers } = JSON.parse(kept.get("fedrec.ledger") ?? '{"entries": [], "answers": []}');
        kept.set("fedrec.ledger", JSON.stringify({ entries: [...entries, entry], answers }));
      }
    };
    const said = async ([what, question, numbers]) => {
      const ledger = await new Ledger(storageOf(kept, another), asked.limit, () => new Date(0)).load(); // a new one each time: as after a reload
      if (what === "fail" || what === "work") working = what === "work";
      if (what === "rival") rivals = question;
      if (what === "forget") await ledger.forgetAnswers();
      let drawn = 0;
      let outcome = {};
      try {
        if (what === "person") outcome = ledger.ofPerson(question, numbers);
        if (what === "everything") outcome = { together: ledger.ofEverything(question) };
        if (what === "ask") outcome = await ledger.ask(() => question, "model", () => ((drawn += 1), numbers));
      } catch (failure) {
        outcome = { refused: failure instanceof SpentError ? "spent" : failure.message };
      }
      return { ...outcome, drawn, spent: ledger.spent, left: ledger.left(asked.padding), entries: ledger.entries };
    };
    const outcomes = [];
    for (const step of asked.steps) outcomes.push(await said(step));
    return outcomes;
  },
  /**
   * Each case in turn: {files: {digest: base64}, told, user, ratings, limit, storage?, tabs?} to what was posted, charged and refused; each in
   * a storage of its own, or, with `storage`, in the one of that name, which cases may share and `lose` may damage.
   */
  async devices() {
    const [{ Device }, { TrainingLedger }] = [await load("training/device"), await load("training/ledger")];
    const stores = new Map();
    const answers = [];
    for (const { files = {}, told = {}, user = "me", ratings = [], limit, storage, secret, lose, replies = [], tabs = 1 } of asked.cases) {
      const kept = stores.get(storage) ?? new Map(secret ? [["fedrec.training", JSON.stringify({ secret, entries: [] })]] : []);
      if (storage) stores.set(storage, kept);
      if (lose) kept.set("fedrec.training", kept.get("fedrec.training").replace(...lose));
      const posted = [];
      const enrolled = [];
      const aggregator = {
        round: async () => told,
        content: async (digest) => new Uint8Array(Buffer.from(files[digest] ?? "", "base64")),
        enroll: async (token) => enrolled.push(Buffer.from(token).toString("hex")),
        report: async (run, round, batch) => (posted.push(Buffer.from(batch).toString("base64")), replies[posted.length - 1] ?? {}),
      };
      const ledger = new TrainingLedger(storageOf(kept), limit);
      const outcome = {};
      const takePart = () => new Device({ ledger, aggregator, ratings: () => ratings, user }).takePart();
      try {
        const sent = await Promise.all(Array.from({ length: tabs }, takePart));
        outcome.sent = tabs === 1 ? sent[0] : sent;
      } catch (failure) {
        Object.assign(outcome, { refused: failure.message, code: failure.code ?? failure.constructor.name });
      }
      outcome.charged = await ledger.entries().then((entries) => entries.length, () => null);
      answers.push({ ...outcome, posted, enrolled });
    }
    return answers;
  },
  /** Each content, {what, text}, to whether its reader refuses it by a RefusedError. */
  async odd() {
    const [questions, { RefusedError }] = [await load("training/questions"), await load("training/bytes")];
    const readers = { plan: questions.readPlan, terms: questions.readTerms, question: questions.readHeader };
    const refused = [];
    for (const { what, text } of asked.contents) {
      const content = new TextEncoder().encode(text);
      refused.push(
        await (async () => readers[what](content, "digest"))().then(
          () => false,
          (failure) => failure instanceof RefusedError || failure.message,
        ),
      );
    }
    return refused;
  },
  /** Devices with storages of their own take part over HTTP. */
  async visits() {
    const [{ Device }, { TrainingLedger }] = [await load("training/device"), await load("training/ledger")];
    const { HttpAggregator } = await load("training/aggregator");
    const sent = [];
    for (const { user, ratings, secret } of asked.people) {
      const kept = new Map([["fedrec.training", JSON.stringify({ secret, entries: [] })]]);
      const device = new Device({ ledger: new TrainingLedger(storageOf(kept), asked.limit), aggregator: new HttpAggregator(asked.address), ratings: () => ratings, user });
      sent.push([await device.offer(), await device.takePart(), await device.takePart()]);
    }
    return sent;
  },
};

process.stdout.write(JSON.stringify(await jobs[asked.job]()));
