/** How the page says numbers. */

/** A number with three digits at most, without an exponent. */
export function short(value) {
  if (value === 0) return "0";
  return Number(value.toPrecision(value < 10 ? 2 : 3)).toLocaleString("en", { maximumFractionDigits: 4 });
}

/** 1st, 2nd, 3rd, 4th, .. */
export function ordinal(n) {
  const ending = { one: "st", two: "nd", few: "rd", other: "th" };
  return n.toLocaleString("en") + ending[new Intl.PluralRules("en", { type: "ordinal" }).select(n)];
}

/** "1 title", "5 titles". */
export function many(n, noun) {
  return `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;
}

/** Bytes for people. */
export function size(bytes) {
  return bytes < 1e4 ? `${bytes.toLocaleString("en")} bytes` : bytes < 1e6 ? `${short(bytes / 1e3)} kB` : `${short(bytes / 1e6)} MB`;
}

/** What (epsilon, delta) at a rate of right guesses means for one title. */
export function inWords(rightGuesses) {
  const percent = 100 * rightGuesses;
  return (
    `Whoever knows all your other titles, and has to guess which of two is the remaining one, is right at most ` +
    `${percent > 99 ? short(Math.ceil(percent * 10) / 10) : Math.ceil(percent)} times in 100. A coin is right 50 times.`
  );
}

/** How the numbers that were sent were made of the titles. */
export function howMade({ encoder, B }, noiseStd) {
  const noise = `discrete Gaussian noise of standard deviation ${short(noiseStd)}, drawn by the browser's cryptographic generator`;
  if (encoder === null) {
    return `To each number of the average the device added ${noise}, and then took what is to be expected given that and public numbers.`;
  }
  const hidden = encoder.padding > 0 ? `Each title was first hidden behind an anonymous one with probability ${short(encoder.padding)}; which ones were is kept nowhere. ` : "";
  return `${hidden}The model's own encoder then gave each of ${B} public vectors a share of attention. To each share the device added ${noise}, and sent the result as positive shares of 1.`;
}

/** Share of what titles say below which the list is everybody's, `fedrec.serving.asking.HIDDEN`. */
export const HIDDEN = 0.1;

/** What a list can show of so many titles at this noise; share: by public numbers, no number where nobody knows. */
export function whatShows(share, titles, epsilon) {
  if (!Number.isFinite(share) || titles === 0) return "";
  const left = `Noise of ε\u00a0=\u00a0${epsilon} per title leaves about ${Math.round(100 * share)}% of what ${titles === 1 ? "1 title says" : `${titles} titles say`} about your list`;
  return share >= HIDDEN ? `${left}.` : `${left}: the answer will be what everybody gets. More titles, a larger ε or the list of your own device show yours.`;
}

/** The sentence under the chart. exact, released: rows, best first. */
export function whatMoved(exact, released, k, titleOf) {
  const first = new Set(exact.slice(0, k));
  const shared = released.slice(0, k).filter((row) => first.has(row)).length;
  if (!shared) return `None of the first ${k} is the same: at this ε the noise outweighs your taste.`;
  const moves = released.slice(0, k).map((row, at) => ({ row, from: exact.indexOf(row) + 1, to: at + 1 }));
  const largest = moves.reduce((most, move) => (Math.abs(move.from - move.to) > Math.abs(most.from - most.to) ? move : most));
  const same = shared === k ? `All of the first ${k} are the same.` : `${shared} of the first ${k} are the same.`;
  if (largest.from === largest.to) return `${same} Nothing moved.`;
  return `${same} The longest way went ${titleOf(largest.row)}: from ${ordinal(largest.from)} to ${ordinal(largest.to)}.`;
}
