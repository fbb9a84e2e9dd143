/** Reads the safetensors format: an 8-byte length, a JSON header of names, types, shapes and places, then the numbers. */

const TYPES = {
  F32: Float32Array,
  F64: Float64Array,
  I32: Int32Array,
  I64: BigInt64Array,
  U8: Uint8Array,
  U64: BigUint64Array,
};

/** {metadata, arrays: {name: {shape, values}}} of an ArrayBuffer, little-endian. Throws RangeError where it is no such file. */
export function read(buffer) {
  const header = headerOf(buffer);
  const { __metadata__: metadata = {}, ...entries } = header.content;
  const arrays = {};
  for (const [name, entry] of Object.entries(entries)) {
    if (Object.hasOwn(TYPES, entry?.dtype)) arrays[name] = arrayOf(buffer, header.end, name, entry);
  }
  return { metadata, arrays };
}

function headerOf(buffer) {
  const length = buffer.byteLength < 8 ? NaN : Number(new DataView(buffer).getBigUint64(0, true));
  if (!(length <= buffer.byteLength - 8)) throw new RangeError("no safetensors file: its header does not fit");
  const text = new TextDecoder().decode(new Uint8Array(buffer, 8, length));
  const content = tableOf(text, "no safetensors file: its header");
  return { content, end: 8 + length };
}

function arrayOf(buffer, origin, name, { dtype, shape, data_offsets: offsets }) {
  // a string would be a number in one place and text in another
  const counts = Array.isArray(shape) && Array.isArray(offsets) && offsets.length === 2 && [...shape, ...offsets].every(isCount);
  if (!counts) throw new RangeError(`no safetensors file: ${name} has no shape and place`);
  const [start, stop] = offsets;
  const Type = TYPES[dtype];
  const size = shape.reduce((product, n) => product * n, 1);
  const first = origin + start;
  if (size * Type.BYTES_PER_ELEMENT !== stop - start || origin + stop > buffer.byteLength) {
    throw new RangeError(`no safetensors file: ${name} does not fit its shape`);
  }
  const aligned = first % Type.BYTES_PER_ELEMENT === 0;
  const values = aligned ? new Type(buffer, first, size) : new Type(buffer.slice(first, origin + stop));
  return { shape, values };
}

/** The object of a JSON text. Throws RangeError, which says what it is of. */
export function tableOf(text, what) {
  let content = null;
  try {
    content = JSON.parse(text);
  } catch {
    // said below
  }
  if (content === null || typeof content !== "object" || Array.isArray(content)) throw new RangeError(`${what} is no object`);
  return content;
}

function isCount(value) {
  return Number.isSafeInteger(value) && value >= 0;
}
