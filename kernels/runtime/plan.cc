// Reads a plan in place, refuses one that could make the session or a kernel touch what is not there, and computes
// what depends on the sizes of the free dimensions.
#include "runtime/session.h"

namespace minbuild {

const void* PlanView::at(plan::VectorIndex vector, uint32_t index) const {
  return data[vector] + (index < count[vector] ? index * size_t{plan::kVectorLayouts[vector].stride} : 0);
}

mb_status read_plan(const void* bytes, size_t size, PlanView* p, const ErrorText& error) {
  Flatbuffer file = {static_cast<const uint8_t*>(bytes), static_cast<uint32_t>(size)};
  bool good = reinterpret_cast<uintptr_t>(bytes) % 8 == 0 && size < 0x7fffffff;
  uint32_t root = good ? file.root(plan::kIdentifier) : 0;
  good = root != 0 && file.scalar(root, plan::kTrainer_version, 4) == plan::kVersion;
  // The scalars follow one another in the schema as they do here.
  uint32_t* number = &p->trainable_bytes;
  for (uint32_t slot = plan::kTrainer_trainable_bytes; slot <= plan::kTrainer_arena; slot += 2)
    *number++ = static_cast<uint32_t>(file.scalar(root, slot, 4));
  for (int i = 0; i < plan::kVectors; ++i) {
    const plan::VectorLayout& layout = plan::kVectorLayouts[i];
    Vector vector = file.vector(root, layout.slot, layout.stride, layout.align);
    p->data[i] = reinterpret_cast<const char*>(vector.data);
    p->count[i] = vector.count;
    // Constants, symbols and parameters of kernels may be none; nothing looks at element 0 of those unasked.
    good &= vector.data != nullptr && (vector.count > 0 || layout.may_be_empty);
  }
  good = good && p->data[plan::kNames][p->count[plan::kNames] - 1] == 0 && p->count[plan::kGraphs] == kGraphs &&
         p->count[plan::kSymbols] <= kMostSymbols && p->count[plan::kExprs] <= 65536 && p->moments < 8 &&
         p->arena < p->count[plan::kExprs] && p->trainable_bytes * (2 + uint64_t{p->moments}) <= p->persistent_bytes &&
         inside(p->learning_rate_at, 4, p->persistent_bytes) && inside(p->step_at, 8, p->persistent_bytes);
  return good ? mb_status{MB_OK} : error.fail(MB_BAD_PLAN, "not an undamaged, aligned plan of version %d", plan::kVersion);
}

namespace {

// The value of expression i, from those before it. What overflows or cannot be becomes -1, which no dimension may be.
int64_t compute(const plan::Expr& e, uint32_t i, const PlanView& p, const int32_t* symbols, const int32_t* values) {
  if (e.op == plan::kExprConstant) return e.a;
  uint32_t left = static_cast<uint32_t>(e.a);
  if (e.op == plan::kExprSymbol) return left < p.count[plan::kSymbols] ? symbols[left] : -1;
  if (left >= i || e.b >= i) return -1;
  int64_t a = values[left], b = values[e.b];
  switch (e.op) {
    case plan::kExprAdd: return a + b;
#if MB_SYMBOLS
    case plan::kExprSubtract: return a - b;
    case plan::kExprMultiply: return a * b;
    case plan::kExprDivide: return b > 0 && a >= 0 ? static_cast<uint32_t>(a) / static_cast<uint32_t>(b) : -1;
    case plan::kExprMin: return a < b ? a : b;
#endif
    case plan::kExprMax: return a > b ? a : b;
    default: return a < 0 || b < 0 ? -1 : a + align16(static_cast<uint32_t>(b));
  }
}

// Bytes of a tensor, of an extent its number of elements; ~0 when it is malformed or too large.
uint32_t bytes_of(const PlanView& p, const plan::Tensor& t, const int32_t* values) {
  const uint16_t* shape = p.shape(t);
  uint32_t rank = shape[0], limit = p.count[plan::kShapes];
  bool good = t.type <= kMaxElementType && rank <= MB_MAX_RANK && t.shape < limit && rank < limit - t.shape;
  uint64_t size = t.region == kExtent ? 1 : good ? kElementSizes[t.type] : 0;
  good &= size != 0;
  for (uint32_t i = 1; good && i <= rank; ++i) {
    int32_t dim = shape[i] < p.count[plan::kExprs] ? values[shape[i]] : -1;
    size *= static_cast<uint32_t>(dim);
    good = dim >= 0 && size < 0x7ffffff0;
  }
  return good ? static_cast<uint32_t>(size) : ~0u;
}

// Whether a tensor of that size lies within its region.
bool lies_within(const PlanView& p, const plan::Tensor& t, uint32_t bytes, const int32_t* values) {
  uint32_t at = t.at, room = 0x7fffffff;
  switch (t.region) {
    case kArena:
      if (at >= p.count[plan::kExprs] || values[at] < 0) return false;
      at = static_cast<uint32_t>(values[at]);
      room = static_cast<uint32_t>(values[p.arena]);
      break;
    case kPersistent: room = p.persistent_bytes; break;
    case kConstants: room = p.count[plan::kConstants] * 8; break;
    // A view lies within the whole, and that is a tensor of the same region, so not itself a view of something else.
    case kInputs: room = bytes_of(p, p.tensor(p.port(at).tensor), values), at = 0; break;
    case kFrozen:
      if (at >= p.count[plan::kParameters] || p.parameter(at).kind != MB_FROZEN) return false;
      room = bytes_of(p, p.tensor(p.parameter(at).tensor), values), at = 0;
      break;
    case kExtent: at = 0; break;
    default: return false;
  }
  return room <= 0x7fffffff && inside(at, bytes, room) && (at & (kElementSizes[t.type] - 1)) == 0;
}

}  // namespace

mb_status lay_out(const PlanView& p, const int32_t* symbols, int32_t* values, const ErrorText& error) {
  for (uint32_t i = 0; i < p.count[plan::kExprs]; ++i) {
    int64_t value = compute(p.exprs()[i], i, p, symbols, values);
    values[i] = value < 0x7ffffff0 ? static_cast<int32_t>(value) : -1;
  }
  bool good = values[p.arena] >= 0;
  for (uint32_t i = 0; i < p.count[plan::kTensors]; ++i) {
    const plan::Tensor& t = p.tensor(i);
    uint32_t bytes = bytes_of(p, t, values);
    good = good && bytes != ~0u && lies_within(p, t, bytes, values);
  }
  for (uint32_t i = 0; i < p.count[plan::kParameters]; ++i) {
    const plan::Parameter& q = p.parameter(i);
    const plan::Tensor& t = p.tensor(q.tensor);
    good &= t.region == (q.kind == MB_FROZEN ? kFrozen : kPersistent) &&
            (q.kind != MB_TRAINABLE || inside(t.at, bytes_of(p, t, values), p.trainable_bytes));
  }
  return good ? mb_status{MB_OK} : error.fail(MB_BAD_SHAPE, "the model does not take inputs of these sizes");
}

uint32_t find_kernel(uint32_t key) {
  uint32_t row = 0;
  while (row < kKernelRowCount && kKernelRows[row].key != key) ++row;
  return row;
}

namespace {

// An argument fits the kernel's slot: element type, and nothing read-only is written.
bool fits(const PlanView& p, const plan::Graph& graph, uint32_t arg, uint8_t slot) {
  if (arg == kNone) return (slot & kSlotOptional) != 0;
  const plan::Tensor& t = p.tensor(arg);
  return (t.region == kExtent ? 0 : t.type) == (slot & kSlotType) &&
         (t.region != kInputs || t.at - graph.ports < graph.input_count) &&
         ((slot & kSlotWritten) == 0 || t.region <= kPersistent);
}

}  // namespace

mb_status check_steps(const PlanView& p, const ErrorText& error) {
  for (uint32_t i = 0; i < p.count[plan::kKernels]; ++i)
    if (find_kernel(p.kernel(i).key) == kKernelRowCount)
      return error.fail(MB_MISSING_KERNEL, "this library lacks %s", word_of(p.name(p.kernel(i).name)));
  for (uint32_t g = 0; g < kGraphs; ++g) {
    const plan::Graph& graph = p.graph(g);
    const uint16_t* args = reinterpret_cast<const uint16_t*>(p.data[plan::kArgs]);
    uint32_t arg = graph.args;
    bool good = inside(graph.steps, graph.step_count, p.count[plan::kSteps]);
    for (uint32_t s = 0; good && s < graph.step_count; ++s) {
      const plan::Step& step = *static_cast<const plan::Step*>(p.at(plan::kSteps, graph.steps + s));
      const KernelRow& row = kKernelRows[find_kernel(p.kernel(step.kernel).key)];
      good = inside(step.params, row.param_count, p.count[plan::kParams]) && inside(arg, row.arg_count, p.count[plan::kArgs]);
      for (uint32_t i = 0; good && i < row.arg_count; ++i) good = fits(p, graph, args[arg++], kKernelSlots[row.slots + i]);
    }
    if (!good) return error.fail(MB_BAD_PLAN, "the plan is damaged");
  }
  return MB_OK;
}

}  // namespace minbuild
