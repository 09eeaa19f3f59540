// Refused batches in words: which input is what, and what the model takes. models.js, which is generated, describes the
// models of the package.
import { ELEMENTS, MB_BAD_SHAPE, MB_BAD_VALUE, MB_EVAL, MB_OUT_OF_MEMORY, MB_TRAIN } from "./header.js";
import { MODELS } from "./models.js";

const encoder = new TextEncoder();
const TYPES = Object.fromEntries(Object.entries(ELEMENTS).map(([name, number]) => [number, name]));

/** The hash of an input or a parameter, `{ name, type, dims }`, for a model's key. */
function hashOf({ name, type, dims }) {
  const numbers = new DataView(new ArrayBuffer(4 * (1 + dims.length)));
  [ELEMENTS[type], ...dims].forEach((number, i) => numbers.setInt32(4 * i, number, true));
  let hash = 0x811c9dc5;
  for (const byte of [...encoder.encode(name), ...new Uint8Array(numbers.buffer)])
    hash = Math.imul(hash ^ byte, 0x01000193);
  return hash >>> 0;
}

/** The model with these inputs and parameters; undefined where it is none of the package's. */
export function modelOf(described, models = MODELS) {
  const key = described.reduce((sum, each) => (sum + hashOf(each)) >>> 0, 0);
  return models.find((model) => model.key === key);
}

/**
 * The reason in the tensors why a step of `graph` ended with `status`, or "" where they do not explain it. `sizes` are
 * those that the session was created with, if any.
 */
export function refusal(model, graph, status, tensors, sizes) {
  const expected = graph === MB_TRAIN || graph === MB_EVAL ? model?.graphs[graph] : undefined;
  if (expected?.length !== tensors.length) return "";
  if (status === MB_BAD_SHAPE) return unlike(model, expected, tensors);
  if (status === MB_BAD_VALUE) return labelOutside(expected, tensors);
  return status === MB_OUT_OF_MEMORY ? tooLarge(model, expected, tensors, sizes) : "";
}

/** The first input whose type, rank or size is not what the model takes. */
function unlike({ symbols }, expected, tensors) {
  const written = (dims) => `[${dims.map((dim) => (dim >= 0 ? dim : (symbols[-2 - dim]?.name ?? "?"))).join(", ")}]`;
  const found = new Map(); // free dimension -> the input that had it first, and its size there
  for (const [i, { name: named, type, dims }] of expected.entries()) {
    const tensor = tensors[i], name = `input '${named}'`;
    if (ELEMENTS[tensor.type] !== type) return `${name} is ${tensor.type}, the model takes ${TYPES[type]}.`;
    if (tensor.dims.length !== dims.length || dims.some((dim, axis) => dim >= 0 && dim !== tensor.dims[axis]))
      return `${name} has the shape ${written(tensor.dims)}, the model takes ${written(dims)}.`;
    for (const [axis, dim] of dims.entries()) {
      if (dim > -2) continue;
      const size = tensor.dims[axis], along = `along '${symbols[-2 - dim].name}'`;
      if (!found.has(dim)) found.set(dim, [name, size]);
      const [first, before] = found.get(dim);
      if (before !== size) return `${name} has ${size} ${along}, ${first} has ${before}.`;
      if (size === 0) return `${name} is empty ${along}, which is 1 at least.`;
    }
  }
  return "";
}

/** A label of a loss that is no class, where an input has the labels as they are. */
function labelOutside(expected, tensors) {
  for (const [i, { name, classes, ignored }] of expected.entries()) {
    if (!classes) continue;
    const { data, dims } = tensors[i];
    const at = data.findIndex((label) => !(label >= 0 && label < classes) && !(ignored !== null && Number(label) === ignored));
    if (at < 0) continue;
    const place = dims.map((dim, axis) => Math.floor(at / dims.slice(axis + 1).reduce((a, b) => a * b, 1)) % dim);
    const where = dims.length === 1 ? `sample ${at}` : `place [${place.join(", ")}]`;
    return `label ${data[at]} is outside 0..${classes - 1} (${where} of input '${name}').`;
  }
  return "";
}

/** A free dimension that is larger than the session was created for. */
function tooLarge({ symbols }, expected, tensors, sizes) {
  for (const [i, { dims }] of expected.entries())
    for (const [axis, dim] of dims.entries()) {
      if (dim > -2) continue;
      const { name, largest } = symbols[-2 - dim], size = tensors[i].dims[axis], room = sizes?.[-2 - dim] ?? largest;
      if (size > room) return `${name} ${size} is above the ${room} this session has memory for. Create it with larger sizes.`;
    }
  return "";
}
