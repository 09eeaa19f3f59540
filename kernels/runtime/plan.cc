// Reads a plan in place, refuses one that could make the session or a kernel touch what is not there, and computes
// the layout that depends on the sizes of the free dimensions.
#include "runtime/session.h"

namespace minbuild {

Text& Text::operator<<(const char* text) {
  while (at != end && *text != 0) *at++ = *text++;
  if (at != nullptr) *at = 0;
  return *this;
}

Text& Text::operator<<(int64_t number) {
  char digits[21];
  char* first = digits + 20;
  *first = 0;
  bool negative = number < 0;
  uint64_t rest = negative ? 0 - static_cast<uint64_t>(number) : static_cast<uint64_t>(number);
  do {
    *--first = static_cast<char>('0' + rest % 10);
    rest /= 10;
  } while (rest != 0);
  if (negative) *--first = '-';
  return *this << first;
}

namespace {

template <class T>
bool take(const Flatbuffer& file, uint32_t root, uint32_t slot, Span<T>* span) {
  Vector v = file.vector(root, slot, sizeof(T), alignof(T));
  *span = {reinterpret_cast<const T*>(v.data), v.count};
  return v.data != nullptr && v.count < 65536 * 16;
}

bool inside(uint32_t first, uint32_t count, uint32_t size) { return first <= size && count <= size - first; }

bool check_exprs(const PlanView& p) {
  for (uint32_t i = 0; i < p.exprs.count; ++i) {
    const plan::Expr& e = p.exprs[i];
    if (e.op > plan::kExprMin) return false;
    if (e.op == plan::kExprSymbol && static_cast<uint32_t>(e.a) >= p.symbols.count) return false;
    if (e.op > plan::kExprSymbol && (static_cast<uint32_t>(e.a) >= i || e.b >= i)) return false;
  }
  return true;
}

bool check_tensors(const PlanView& p) {
  for (uint32_t i = 0; i < p.tensors.count; ++i) {
    const plan::Tensor& t = p.tensors[i];
    if (!inside(t.shape, 1, p.shapes.count)) return false;
    uint32_t rank = p.shapes[t.shape];
    if (rank > MB_MAX_RANK || !inside(t.shape + 1u, rank, p.shapes.count)) return false;
    for (uint32_t k = 1; k <= rank; ++k)
      if (p.shapes[t.shape + k] >= p.exprs.count) return false;
    if (t.type > kMaxElementType || t.region > kExtent) return false;
    if (t.region != kExtent && kElementSizes[t.type] == 0) return false;
    if (t.region == kArena && t.at >= p.buffers.count) return false;
    if (t.region == kFrozen && t.at >= p.frozen_count) return false;
    if (t.region == kInputs && t.at >= p.ports.count) return false;
    bool fixed = t.region == kPersistent || t.region == kConstants;
    if (fixed && t.at % static_cast<uint32_t>(kElementSizes[t.type]) != 0) return false;
  }
  return true;
}

bool check_graphs(const PlanView& p) {
  if (p.graphs.count != kGraphs) return false;
  for (uint32_t g = 0; g < kGraphs; ++g) {
    const plan::Graph& graph = p.graphs[g];
    if (!inside(graph.steps, graph.step_count, p.steps.count) || graph.args > p.args.count ||
        !inside(graph.buffers, graph.buffer_count, p.buffers.count) ||
        !inside(graph.ports, uint32_t{graph.input_count} + graph.output_count, p.ports.count))
      return false;
  }
  for (uint32_t i = 0; i < p.ports.count; ++i)
    if (p.ports[i].name >= p.names.count || p.ports[i].tensor >= p.tensors.count) return false;
  for (uint32_t i = 0; i < p.args.count; ++i)
    if (p.args[i] != kNone && p.args[i] >= p.tensors.count) return false;
  return true;
}

bool check_parameters(const PlanView& p) {
  uint64_t repeats = 2 + uint64_t{p.moments};
  if (p.trainable_bytes * repeats > p.persistent_bytes || !inside(p.learning_rate_at, 4, p.persistent_bytes) ||
      !inside(p.step_at, 8, p.persistent_bytes) || p.step_at % 8 != 0)
    return false;
  for (uint32_t i = 0; i < p.parameters.count; ++i) {
    const plan::Parameter& q = p.parameters[i];
    if (q.name >= p.names.count || q.tensor >= p.tensors.count) return false;
    const plan::Tensor& t = p.tensors[q.tensor];
    if (t.region != (q.kind == MB_FROZEN ? kFrozen : kPersistent)) return false;
  }
  for (uint32_t i = 0; i < p.symbols.count; ++i)
    if (p.symbols[i].name >= p.names.count) return false;
  for (uint32_t i = 0; i < p.kernels.count; ++i)
    if (p.kernels[i].name >= p.names.count) return false;
  return p.names.count > 0 && p.names[p.names.count - 1] == 0;
}

}  // namespace

mb_status read_plan(const void* bytes, size_t size, PlanView* p, Text error) {
  Flatbuffer file = {static_cast<const uint8_t*>(bytes), static_cast<uint32_t>(size)};
  if (bytes == nullptr || size > 0x7fffffff || reinterpret_cast<uintptr_t>(bytes) % 8 != 0) {
    error << "the plan must be given as less than 2 GiB of 8-byte aligned memory";
    return MB_INVALID_ARGUMENT;
  }
  uint32_t root = file.root(plan::kIdentifier);
  uint32_t version = static_cast<uint32_t>(file.scalar(root, plan::kTrainer_version, 4));
  if (root == 0 || version != plan::kVersion) {
    error << "not a plan of version " << plan::kVersion << "; make it again with this version of minbuild";
    return MB_BAD_PLAN;
  }
  auto number = [&](uint32_t slot, uint32_t width) { return static_cast<uint32_t>(file.scalar(root, slot, width)); };
  p->trainable_bytes = number(plan::kTrainer_trainable_bytes, 4);
  p->persistent_bytes = number(plan::kTrainer_persistent_bytes, 4);
  p->learning_rate_at = number(plan::kTrainer_learning_rate_at, 4);
  p->step_at = number(plan::kTrainer_step_at, 4);
  p->moments = static_cast<uint16_t>(number(plan::kTrainer_moments, 2));
  p->frozen_count = static_cast<uint16_t>(number(plan::kTrainer_frozen_count, 2));
  bool whole = take(file, root, plan::kTrainer_names, &p->names) & take(file, root, plan::kTrainer_symbols, &p->symbols) &
               take(file, root, plan::kTrainer_exprs, &p->exprs) & take(file, root, plan::kTrainer_shapes, &p->shapes) &
               take(file, root, plan::kTrainer_tensors, &p->tensors) & take(file, root, plan::kTrainer_buffers, &p->buffers) &
               take(file, root, plan::kTrainer_kernels, &p->kernels) & take(file, root, plan::kTrainer_features, &p->features) &
               take(file, root, plan::kTrainer_steps, &p->steps) & take(file, root, plan::kTrainer_args, &p->args) &
               take(file, root, plan::kTrainer_params, &p->params) & take(file, root, plan::kTrainer_graphs, &p->graphs) &
               take(file, root, plan::kTrainer_ports, &p->ports) & take(file, root, plan::kTrainer_parameters, &p->parameters) &
               take(file, root, plan::kTrainer_constants, &p->constants);
  if (!whole || !check_exprs(*p) || !check_tensors(*p) || !check_graphs(*p) || !check_parameters(*p)) {
    error << "the plan is damaged";
    return MB_BAD_PLAN;
  }
  return MB_OK;
}

namespace {

uint32_t find_row(uint32_t key) {
  uint32_t row = 0;
  while (row < kKernelRowCount && kKernelRows[row].key != key) ++row;
  return row;
}

// The arguments a step passes fit what the kernel declares: number, element types, and nothing read-only is written.
bool fits(const PlanView& p, const plan::Graph& graph, const KernelRow& row, const uint16_t* args) {
  for (uint32_t i = 0; i < row.arg_count; ++i) {
    uint8_t slot = kKernelSlots[row.slots + i];
    if (args[i] == kNone) {
      if ((slot & kSlotOptional) == 0) return false;
      continue;
    }
    const plan::Tensor& t = p.tensors[args[i]];
    if ((slot & kSlotType) == 0 ? t.region != kExtent : t.region == kExtent || t.type != (slot & kSlotType)) return false;
    if (t.region == kInputs && (t.at < graph.ports || t.at >= uint32_t{graph.ports} + graph.input_count)) return false;
    if ((slot & kSlotWritten) != 0 && t.region != kArena && t.region != kPersistent) return false;
  }
  return true;
}

}  // namespace

mb_status link_kernels(const PlanView& p, uint16_t* rows, Text error) {
  for (uint32_t i = 0; i < p.kernels.count; ++i) {
    rows[i] = static_cast<uint16_t>(find_row(p.kernels[i].key));
    if (rows[i] == kKernelRowCount) {
      error << "this library has no kernel " << p.name(p.kernels[i].name) << "; build it for this model";
      return MB_MISSING_KERNEL;
    }
  }
  for (uint32_t i = 0; i < p.features.count; ++i) {
    uint32_t k = 0;
    while (k < kFeatureKeyCount && kFeatureKeys[k] != p.features[i]) ++k;
    if (k == kFeatureKeyCount) {
      error << "this library lacks a kernel feature the plan needs; build it for this model";
      return MB_MISSING_KERNEL;
    }
  }
  for (uint32_t g = 0; g < kGraphs; ++g) {
    const plan::Graph& graph = p.graphs[g];
    uint32_t arg = graph.args;
    for (uint32_t s = graph.steps; s < graph.steps + graph.step_count; ++s) {
      const plan::Step& step = p.steps[s];
      bool good = step.kernel < p.kernels.count;
      if (good) {
        const KernelRow& row = kKernelRows[rows[step.kernel]];
        good = inside(step.params, row.param_count, p.params.count) && inside(arg, row.arg_count, p.args.count) &&
               fits(p, graph, row, p.args.data + arg);
        arg += row.arg_count;
      }
      if (!good) {
        error << "the plan is damaged at step " << s;
        return MB_BAD_PLAN;
      }
    }
  }
  return MB_OK;
}

namespace {

int64_t compute(const plan::Expr& e, const int32_t* symbols, const int32_t* dims) {
  if (e.op == plan::kExprConstant) return e.a;
  if (e.op == plan::kExprSymbol) return symbols[e.a];
  int64_t a = dims[e.a], b = dims[e.b];
  switch (e.op) {
    case plan::kExprAdd: return a + b;
    case plan::kExprSubtract: return a - b;
    case plan::kExprMultiply: return a * b;
    case plan::kExprDivide: return b > 0 && a >= 0 ? static_cast<uint32_t>(a) / static_cast<uint32_t>(b) : -1;
    case plan::kExprMax: return a > b ? a : b;
    default: return a < b ? a : b;
  }
}

bool overlap(const plan::Buffer& a, const plan::Buffer& b) { return a.first <= b.last && b.first <= a.last; }

}  // namespace

bool tensor_bytes(const PlanView& p, const plan::Tensor& t, const int32_t* dims, uint32_t* bytes) {
  int64_t size = t.region == kExtent ? 1 : kElementSizes[t.type];
  const uint16_t* shape = p.shapes.data + t.shape;
  for (uint32_t i = 1; i <= shape[0]; ++i) {
    int64_t dim = dims[shape[i]];
    if (dim < 0) return false;
    size *= dim;
    if (size > 0x7ffffff0) return false;
  }
  *bytes = static_cast<uint32_t>(size);
  return true;
}

bool frozen_fit(const Session& s) {
  bool good = true;
  for (uint32_t i = 0; i < s.plan.tensors.count; ++i) {
    const plan::Tensor& t = s.plan.tensors[i];
    uint32_t bytes = 0;
    if (t.region == kFrozen) good &= tensor_bytes(s.plan, t, s.layout.dims, &bytes) && bytes <= s.frozen_sizes[t.at];
  }
  return good;
}

mb_status lay_out(const PlanView& p, const int32_t* symbols, const Layout& layout, size_t* arena, Text error) {
  bool good = true;
  for (uint32_t i = 0; i < p.exprs.count; ++i) {
    int64_t value = compute(p.exprs[i], symbols, layout.dims);
    layout.dims[i] = static_cast<int32_t>(value);
    good &= layout.dims[i] == value;
  }
  for (uint32_t i = 0; i < p.buffers.count; ++i) layout.sizes[i] = 0;
  for (uint32_t i = 0; i < p.tensors.count; ++i) {
    const plan::Tensor& t = p.tensors[i];
    uint32_t bytes = 0;
    good &= tensor_bytes(p, t, layout.dims, &bytes);
    if (t.region == kArena && layout.sizes[t.at] < bytes) layout.sizes[t.at] = bytes;
    if (t.region == kPersistent) good &= inside(t.at, bytes, p.persistent_bytes);
    if (t.region == kConstants) good &= inside(t.at, bytes, p.constants.count * 8);
    // A view of an input stays within the input.
    uint32_t whole = bytes;
    if (t.region == kInputs) good &= tensor_bytes(p, p.tensors[p.ports[t.at].tensor], layout.dims, &whole) && bytes <= whole;
  }
  for (uint32_t i = 0; i < p.parameters.count; ++i) {
    const plan::Tensor& t = p.tensors[p.parameters[i].tensor];
    uint32_t bytes = 0;
    good &= tensor_bytes(p, t, layout.dims, &bytes);
    if (p.parameters[i].kind == MB_TRAINABLE) good &= inside(t.at, bytes, p.trainable_bytes);
  }
  size_t peak = 0;
  for (uint32_t g = 0; g < kGraphs; ++g) {
    const plan::Graph& graph = p.graphs[g];
    for (uint32_t i = graph.buffers; i < graph.buffers + graph.buffer_count; ++i) {
      size_t offset = 0;
      for (uint32_t j = graph.buffers; j < i; ++j) {
        size_t top = layout.offsets[j] + align16(layout.sizes[j]);
        if (top > offset && overlap(p.buffers[i], p.buffers[j])) offset = top;
      }
      layout.offsets[i] = static_cast<uint32_t>(offset);
      size_t top = offset + align16(layout.sizes[i]);
      good &= top <= 0x7fffffff;
      if (top > peak) peak = top;
    }
  }
  if (!good) {
    error << "the sizes of the inputs do not fit this model";
    return MB_BAD_SHAPE;
  }
  *arena = peak;
  return MB_OK;
}

}  // namespace minbuild
