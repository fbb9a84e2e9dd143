/** The two pictures, as inline SVG: how noise moved the ranking, and the numbers before and after it. */

const SVG = "http://www.w3.org/2000/svg";
const LETTER = 7.6; // width of an average letter at 13 pixels, in a wide font
const ROW = 28;

/** An SVG element; numbers are rounded to a tenth. */
function shape(name, attributes = {}, ...content) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) {
    element.setAttribute(key, typeof value === "number" ? String(Math.round(value * 10) / 10) : value);
  }
  element.append(...content);
  return element;
}

function picture(width, height, title, ...content) {
  const frame = { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": title };
  return shape("svg", frame, ...content);
}

function fitted(text, width) {
  const most = Math.max(4, Math.floor(width / LETTER));
  return text.length <= most ? text : `${text.slice(0, most - 1).trimEnd()}…`;
}

/**
 * A slope chart. exact, released: rows of items, best first, of which the first k are drawn; titleOf(row).
 * An item that left or entered the first k ends in the line below them, "further down".
 */
export function slopeChart({ exact, released, k, titleOf, width }) {
  const [left, right] = [exact.slice(0, k), released.slice(0, k)];
  const labels = Math.min(260, width * 0.32);
  const [x1, x2] = [labels + 28, width - labels - 28];
  const y = (at) => 44 + ROW * (at < 0 ? k : at);
  const slopes = [...new Set([...left, ...right])].map((row) => {
    const [from, to] = [left.indexOf(row), right.indexOf(row)];
    const kind = from < 0 ? "came" : to < 0 ? "went" : "stayed";
    return { row, from, to, kind };
  });
  const lines = slopes.map(({ row, from, to, kind }) => {
    const bend = (x2 - x1) * 0.4;
    const d = `M${x1} ${y(from)}C${x1 + bend} ${y(from)} ${x2 - bend} ${y(to)} ${x2} ${y(to)}`;
    return shape("path", { d, class: `slope ${kind}` }, shape("title", {}, titleOf(row)));
  });
  const side = (rows, x, anchor) =>
    rows.flatMap((row, at) => {
      const kind = left.includes(row) && right.includes(row) ? "stayed" : rows === left ? "went" : "came";
      const out = anchor === "end" ? -1 : 1;
      const text = (from, to, words, kinds) => shape("text", { x: x + from * out, y: y(at) + 4.5, "text-anchor": to, class: kinds }, words);
      const name = text(28, anchor, fitted(titleOf(row), labels), `name ${kind}`);
      const rank = text(14, "middle", String(at + 1), "rank");
      return [name, rank, shape("circle", { cx: x, cy: y(at), r: 3.5, class: kind })];
    });
  const below = [
    [x1 - 12, "end"],
    [x2 + 12, "start"],
  ].map(([x, anchor]) => shape("text", { x, y: y(-1) + 4.5, "text-anchor": anchor, class: "below" }, "further down"));
  const further = slopes.some(({ kind }) => kind !== "stayed") ? below : [];
  const heads = [
    [x1, "end", "on your device"],
    [x2, "start", "from the server"],
  ].map(([x, anchor, words]) => shape("text", { x, y: 16, "text-anchor": anchor, class: "head" }, words));
  const title = `How noise moved the ranking of ${slopes.length} titles; the two lists say the same in words`;
  return picture(width, y(-1) + 18, title, ...heads, ...lines, ...side(left, x1, "end"), ...side(right, x2, "start"), ...further);
}

/** Numbers as bars around zero; `largest` is the size of a full bar. */
export function bars(values, { largest, width, title, kind }) {
  const [height, middle] = [72, 36];
  const pitch = width / values.length;
  const drawn = Array.from(values, (value, at) => {
    const length = Math.max(0.5, Math.min(1, Math.abs(value) / largest) * (middle - 2));
    const top = value > 0 ? middle - length : middle;
    return shape("rect", { x: at * pitch + pitch * 0.15, y: top, width: pitch * 0.7, height: length, rx: 1 });
  });
  const axis = shape("line", { x1: 0, x2: width, y1: middle, y2: middle });
  const image = picture(width, height, title, ...drawn, axis);
  image.classList.add("bars", kind);
  return image;
}
