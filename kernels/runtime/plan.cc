// Reads a plan in place, refuses one that could make the session or a kernel touch what is not there, and computes
// the layout that depends on the sizes of the free dimensions.
#include "runtime/session.h"

namespace minbuild {
namespace {

// The `width`-byte member at `offset` of every element of `vector` is an index into `target`.
struct IndexRule {
  uint8_t vector, offset, width, target;
};
#define MB_RULE(vector, type, member, target) \
  {plan::vector, offsetof(plan::type, member), sizeof(plan::type::member), plan::target}
constexpr IndexRule kIndexRules[] = {
    MB_RULE(kSymbols, Symbol, name, kNames),       MB_RULE(kTensors, Tensor, shape, kShapes),
    MB_RULE(kKernels, Kernel, name, kNames),       MB_RULE(kSteps, Step, kernel, kKernels),
    MB_RULE(kPorts, Port, name, kNames),           MB_RULE(kPorts, Port, tensor, kTensors),
    MB_RULE(kParameters, Parameter, name, kNames), MB_RULE(kParameters, Parameter, tensor, kTensors),
};
#undef MB_RULE

bool check_indices(const PlanView& p) {
  for (const IndexRule& rule : kIndexRules) {
    const char* at = p.all<char>(static_cast<plan::VectorIndex>(rule.vector)) + rule.offset;
    for (uint32_t i = 0; i < p.count[rule.vector]; ++i, at += plan::kVectorLayouts[rule.vector].stride) {
      uint32_t index = 0;
      memcpy(&index, at, rule.width);
      if (index >= p.count[rule.target]) return false;
    }
  }
  return true;
}

bool check_exprs(const PlanView& p) {
  for (uint32_t i = 0; i < p.count[plan::kExprs]; ++i) {
    const plan::Expr& e = p.exprs()[i];
    uint32_t a = static_cast<uint32_t>(e.a);
    if (e.op == plan::kExprConstant) continue;
    if (e.op == plan::kExprSymbol ? a >= p.count[plan::kSymbols] : a >= i || e.b >= i || e.op > plan::kExprMin) return false;
  }
  return true;
}

bool check_tensors(const PlanView& p) {
  // How many places each region has; 1 byte past any fixed region is refused by the layout.
  const uint32_t places[] = {p.count[plan::kBuffers], ~0u, ~0u, p.count[plan::kPorts], p.frozen_count, ~0u};
  for (uint32_t i = 0; i < p.count[plan::kTensors]; ++i) {
    const plan::Tensor& t = p.tensor(i);
    const uint16_t* shape = p.shape(t);
    uint32_t rank = shape[0];
    if (rank > MB_MAX_RANK || !inside(t.shape + 1u, rank, p.count[plan::kShapes])) return false;
    for (uint32_t k = 1; k <= rank; ++k)
      if (shape[k] >= p.count[plan::kExprs]) return false;
    if (t.type > kMaxElementType || t.region > kExtent || t.at >= places[t.region]) return false;
    uint32_t size = kElementSizes[t.type];
    bool fixed = t.region == kPersistent || t.region == kConstants;
    if (t.region != kExtent && (size == 0 || (fixed && (t.at & (size - 1)) != 0))) return false;
  }
  return true;
}

bool check_graphs(const PlanView& p) {
  if (p.count[plan::kGraphs] != kGraphs) return false;
  for (uint32_t g = 0; g < kGraphs; ++g) {
    const plan::Graph& graph = p.graph(g);
    if (!inside(graph.steps, graph.step_count, p.count[plan::kSteps]) ||
        !inside(graph.buffers, graph.buffer_count, p.count[plan::kBuffers]) ||
        !inside(graph.ports, graph.input_count + graph.output_count, p.count[plan::kPorts]))
      return false;
  }
  return true;
}

bool check_parameters(const PlanView& p) {
  for (uint32_t i = 0; i < p.count[plan::kParameters]; ++i) {
    const plan::Parameter& q = p.parameter(i);
    if (p.tensor(q.tensor).region != (q.kind == MB_FROZEN ? kFrozen : kPersistent)) return false;
  }
  return uint64_t{p.trainable_bytes} * (2 + p.moments) <= p.persistent_bytes && p.moments < 8 &&
         inside(p.learning_rate_at, 4, p.persistent_bytes) && inside(p.step_at, 8, p.persistent_bytes);
}

}  // namespace

mb_status read_plan(const void* bytes, size_t size, PlanView* p, const ErrorText& error) {
  Flatbuffer file = {static_cast<const uint8_t*>(bytes), static_cast<uint32_t>(size)};
  bool good = bytes != nullptr && size <= 0x7fffffff && reinterpret_cast<uintptr_t>(bytes) % 8 == 0;
  uint32_t root = good ? file.root(plan::kIdentifier) : 0;
  good = root != 0 && file.scalar(root, plan::kTrainer_version, 4) == plan::kVersion;
  uint32_t* numbers[] = {&p->trainable_bytes, &p->persistent_bytes, &p->learning_rate_at,
                         &p->step_at,         &p->moments,          &p->frozen_count};
  uint32_t slot = plan::kTrainer_trainable_bytes;
  for (uint32_t* number : numbers) *number = static_cast<uint32_t>(file.scalar(root, slot, 4)), slot += 2;
  for (int i = 0; i < plan::kVectors; ++i) {
    const plan::VectorLayout& layout = plan::kVectorLayouts[i];
    Vector vector = file.vector(root, layout.slot, layout.stride, layout.align);
    p->data[i] = vector.data;
    p->count[i] = vector.count;
    good &= vector.data != nullptr && vector.count <= 0xfffffff;
  }
  good = good && p->count[plan::kNames] > 0 && *p->name(p->count[plan::kNames] - 1) == 0;
  if (good && check_indices(*p) && check_exprs(*p) && check_tensors(*p) && check_graphs(*p) && check_parameters(*p))
    return MB_OK;
  return error.fail(MB_BAD_PLAN, "not an undamaged, 8-byte aligned plan of version %d", plan::kVersion);
}

namespace {

uint32_t find_key(const void* keys, uint32_t stride, uint32_t count, uint32_t key) {
  const char* at = static_cast<const char*>(keys);
  uint32_t i = 0;
  for (; i < count; ++i, at += stride)
    if (memcmp(at, &key, 4) == 0) break;
  return i;
}

// The arguments a step passes fit what the kernel declares: number, element types, and nothing read-only is written.
bool fits(const PlanView& p, const plan::Graph& graph, const KernelRow& row, const uint16_t* args) {
  for (uint32_t i = 0; i < row.arg_count; ++i) {
    uint8_t slot = kKernelSlots[row.slots + i];
    if (args[i] == kNone) {
      if ((slot & kSlotOptional) == 0) return false;
      continue;
    }
    if (args[i] >= p.count[plan::kTensors]) return false;
    const plan::Tensor& t = p.tensor(args[i]);
    uint8_t type = slot & kSlotType;
    if ((t.region == kExtent ? 0 : t.type) != type) return false;
    if (t.region == kInputs && t.at - graph.ports >= graph.input_count) return false;
    if ((slot & kSlotWritten) != 0 && t.region > kPersistent) return false;
  }
  return true;
}

}  // namespace

mb_status link_kernels(const PlanView& p, uint16_t* rows, const ErrorText& error) {
  const plan::Kernel* kernels = p.all<plan::Kernel>(plan::kKernels);
  for (uint32_t i = 0; i < p.count[plan::kKernels]; ++i) {
    rows[i] = static_cast<uint16_t>(find_key(kKernelRows, sizeof(KernelRow), kKernelRowCount, kernels[i].key));
    if (rows[i] == kKernelRowCount)
      return error.fail(MB_MISSING_KERNEL, "this library has no kernel %s", p.name(kernels[i].name));
  }
  for (uint32_t i = 0; i < p.count[plan::kFeatures]; ++i) {
    if (find_key(kFeatureKeys, 4, kFeatureKeyCount, p.all<uint32_t>(plan::kFeatures)[i]) == kFeatureKeyCount)
      return error.fail(MB_MISSING_KERNEL, "this library lacks a feature of its kernels");
  }
  for (uint32_t g = 0; g < kGraphs; ++g) {
    const plan::Graph& graph = p.graph(g);
    uint32_t arg = graph.args;
    const plan::Step* step = p.all<plan::Step>(plan::kSteps) + graph.steps;
    for (uint32_t s = 0; s < graph.step_count; ++s, ++step) {
      const KernelRow& row = kKernelRows[rows[step->kernel]];
      if (!inside(step->params, row.param_count, p.count[plan::kParams]) ||
          !inside(arg, row.arg_count, p.count[plan::kArgs]) || !fits(p, graph, row, p.all<uint16_t>(plan::kArgs) + arg))
        return error.fail(MB_BAD_PLAN, "the plan is damaged at step %d", s);
      arg += row.arg_count;
    }
  }
  return MB_OK;
}

namespace {

int64_t compute(const plan::Expr& e, const int32_t* symbols, const int32_t* dims) {
  if (e.op == plan::kExprConstant) return e.a;
#if MB_SYMBOLS
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
#else
  (void)symbols, (void)dims;
  return -1;
#endif
}

// Bytes of a tensor (of an extent: its number of elements); ~0 when a dimension is negative or they overflow.
uint32_t tensor_bytes(const PlanView& p, const plan::Tensor& t, const int32_t* dims) {
  int64_t size = t.region == kExtent ? 1 : kElementSizes[t.type];
  const uint16_t* shape = p.shape(t);
  for (uint32_t i = 1; i <= shape[0]; ++i) {
    int64_t dim = dims[shape[i]];
    size = dim < 0 || size > 0x7ffffff0 ? 1ll << 32 : size * dim;
  }
  return size > 0x7ffffff0 ? ~0u : static_cast<uint32_t>(size);
}

// Bytes there are from where tensor `t` starts.
uint32_t room(const PlanView& p, const plan::Tensor& t, const Layout& layout, const uint32_t* frozen_sizes) {
  uint32_t whole = 0x7fffffff, at = 0;
  if (t.region == kPersistent) whole = p.persistent_bytes, at = t.at;
  if (t.region == kConstants) whole = p.count[plan::kConstants] * 8, at = t.at;
  if (t.region == kInputs) whole = tensor_bytes(p, p.tensor(p.port(t.at).tensor), layout.dims);
  if (t.region == kFrozen && frozen_sizes != nullptr) whole = frozen_sizes[t.at];
  return at > whole ? 0 : whole - at;
}

bool size_tensors(const PlanView& p, const Layout& layout, const uint32_t* frozen_sizes) {
  bool good = true;
  memset(layout.sizes, 0, p.count[plan::kBuffers] * sizeof(uint32_t));
  for (uint32_t i = 0; i < p.count[plan::kTensors]; ++i) {
    const plan::Tensor& t = p.tensor(i);
    uint32_t bytes = tensor_bytes(p, t, layout.dims);
    good &= bytes <= room(p, t, layout, frozen_sizes);
    if (t.region == kArena && layout.sizes[t.at] < bytes) layout.sizes[t.at] = bytes;
  }
  for (uint32_t i = 0; i < p.count[plan::kParameters]; ++i) {
    const plan::Tensor& t = p.tensor(p.parameter(i).tensor);
    uint32_t bytes = tensor_bytes(p, t, layout.dims);
    if (p.parameter(i).kind == MB_TRAINABLE) good &= inside(t.at, bytes, p.trainable_bytes);
  }
  return good;
}

}  // namespace

mb_status lay_out(const PlanView& p, const int32_t* symbols, const Layout& layout, const uint32_t* frozen_sizes,
                  size_t* arena, const ErrorText& error) {
  bool good = true;
  for (uint32_t i = 0; i < p.count[plan::kExprs]; ++i) {
    int64_t value = compute(p.exprs()[i], symbols, layout.dims);
    layout.dims[i] = static_cast<int32_t>(value);
    good &= layout.dims[i] == value;
  }
  good = good && size_tensors(p, layout, frozen_sizes);
  uint64_t peak = 0;
  for (uint32_t g = 0; g < kGraphs && good; ++g) {
    const plan::Graph& graph = p.graph(g);
    const plan::Buffer* buffers = p.all<plan::Buffer>(plan::kBuffers);
    uint32_t end = uint32_t{graph.buffers} + graph.buffer_count;
    for (uint32_t i = graph.buffers; i < end; ++i) {
      uint64_t offset = 0;
      for (uint32_t j = graph.buffers; j < i; ++j) {
        bool together = buffers[i].first <= buffers[j].last && buffers[j].first <= buffers[i].last;
        uint64_t top = layout.offsets[j] + align16(layout.sizes[j]);
        if (together && top > offset) offset = top;
      }
      layout.offsets[i] = static_cast<uint32_t>(offset);
      uint64_t top = offset + align16(layout.sizes[i]);
      good &= top <= 0x7fffffff;
      if (top > peak) peak = top;
    }
  }
  *arena = static_cast<size_t>(peak);
  return good ? mb_status{MB_OK} : error.fail(MB_BAD_SHAPE, "the model does not take inputs of these sizes");
}

}  // namespace minbuild
