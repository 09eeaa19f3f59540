// Creating a session inside one piece of memory, and running its graphs.
#include "runtime/session.h"

#include "runtime/memory.h"

namespace minbuild {
namespace {

constexpr char kTooSmall[] = "needs %d bytes aligned to 16, has %d";

}  // namespace

uintptr_t Session::place(uintptr_t memory) {
  memory += align16(sizeof(Session));
  regions = reinterpret_cast<Span*>(memory);
  region_count = plan.bound(plan.count[plan::kParameters]);
  memory += region_count * sizeof(Span);
  values = reinterpret_cast<int32_t*>(memory);
  memory += align16(plan.count[plan::kExprs] * 4);
  counters = reinterpret_cast<Counters*>((memory + plan.persistent_bytes - sizeof(Counters)) & ~uintptr_t{7});
  return memory;
}

mb_status Session::lay_out() {
  int32_t need = evaluate();
  if (need < 0) return error.fail(MB_BAD_SHAPE, "the model takes no such sizes");
  if (static_cast<size_t>(need) > regions[kArena].size)
    return error.fail(MB_OUT_OF_MEMORY, kTooSmall, need, static_cast<intptr_t>(regions[kArena].size));
  return MB_OK;
}

namespace {

uint32_t find_kernel(uint32_t key) {
  uint32_t row = 0;
  while (kKernelRows[row].key != key && kKernelRows[row].key != 0) ++row;
  return row;
}

// The tensor as users see it. In inputs, free dimensions read -1.
MB_NOINLINE const plan::Tensor& describe(const Session* s, uint32_t index, mb_tensor* tensor, bool input) {
  // Both kinds of tensors have their data, rank and dimensions in the same places.
  const plan::Tensor& t = s->resolve(index, reinterpret_cast<Tensor*>(tensor));
  tensor->type = t.type;
#if MB_SYMBOLS
  const uint16_t* shape = s->plan.shape(t);
  for (int i = 0; input && i < tensor->rank; ++i)
    if (s->plan.expr(*++shape).op != plan::kExprConstant) tensor->dims[i] = -1;
#endif
  return t;
}

// Makes what the caller hands over the regions of a graph's inputs, if it is what the plan expects there. The first walk
// takes the sizes of the free dimensions from it, the second compares.
mb_status bind(Session* s, const plan::Graph& graph, const mb_tensor* inputs) {
  const PlanView& p = s->plan;
  for (int walk = MB_SYMBOLS ? 0 : 1; walk < 2; ++walk) {
    for (uint32_t i = 0; i < graph.input_count; ++i) {
      const plan::Port& port = p.port(graph.ports + i);
      const mb_tensor& input = inputs[i];
      Span* region = &s->regions[kBound + graph.ports + i];
      if (!p.damaged) *region = {static_cast<char*>(input.data), 0x7fffffff};
      Tensor want;
      const plan::Tensor& t = s->resolve(port.tensor, &want);
      if (p.damaged || input.data == nullptr || input.type != t.type || input.rank != want.rank)
        return s->error.fail(MB_BAD_SHAPE, "input %s: expected data of type %d, rank %d", word_of(p.name(port.name)),
                             t.type, want.rank);
#if MB_SYMBOLS
      const uint16_t* shape = p.shape(t);
#endif
      for (int k = 0; k < want.rank; ++k) {
#if MB_SYMBOLS
        const plan::Expr& e = p.expr(*++shape);
        if (walk == 0) {
          if (e.op == plan::kExprSymbol) s->symbols[e.a & (kMostSymbols - 1)] = input.dims[k];
          continue;
        }
#endif
        if (input.dims[k] != want.dims[k])
          return s->error.fail(MB_BAD_SHAPE, "input %s: expected %d as dimension %d", word_of(p.name(port.name)),
                               want.dims[k], k);
      }
      region->size = bytes_of(want, t.type);
    }
#if MB_SYMBOLS
    mb_status status = walk == 0 ? s->lay_out() : mb_status{MB_OK};
    if (status != MB_OK) return status;
#endif
  }
  return MB_OK;
}

mb_status run_steps(Session* s, const plan::Graph& graph) {
  const PlanView& p = s->plan;
  uint32_t arg = graph.args;
  for (uint32_t i = 0; i < graph.step_count; ++i) {
    const plan::Step& step = *static_cast<const plan::Step*>(p.at(plan::kSteps, graph.steps + i));
    const plan::Kernel& kernel = p.kernel(step.kernel);
    uint32_t number = find_kernel(kernel.key);
    const KernelRow& row = kKernelRows[number];
    Tensor tensors[MB_MAX_ARGS];
    const uint8_t* slot = kKernelSlots + row.slots;
    for (uint32_t k = 0; k < row.arg_count; ++k, ++slot) {
      uint32_t index = *static_cast<const uint16_t*>(p.at(plan::kArgs, arg++));
      const plan::Tensor& t = s->resolve(index, &tensors[k]);
      // Of the kernel's type, or absent where that may be; writable where it is written.
      if ((t.type != (*slot & kSlotType) && (t.region != kNothing || (*slot & kSlotOptional) == 0)) ||
          ((*slot & kSlotWritten) != 0 && t.region > kNothing))
        p.damaged = true;
    }
    // One word stands behind the last step's parameters: where it is, all before it are.
    const int32_t* end = static_cast<const int32_t*>(p.at(plan::kParams, step.params + row.param_count));
    Call call = {tensors, end - row.param_count, s->reset_gradients ? 0u : step.accumulate};
    mb_status status = p.damaged ? mb_status{MB_BAD_PLAN} : static_cast<mb_status>(run_kernel(number, call));
    if (status != MB_OK)
      return s->error.fail(status, "step %d, %s: %s", i, word_of(p.name(kernel.name)),
                           word_of(status == MB_BAD_VALUE ? "value out of range" : "shapes do not fit"));
  }
  return MB_OK;
}

mb_status run(Session* s, const mb_tensor* inputs, size_t count, uint32_t which) {
  const plan::Graph& graph = s->plan.graph(which);
  if (graph.step_count + graph.output_count == 0) return s->error.fail(MB_UNSUPPORTED, "no such graph");
  if (count != graph.input_count) return s->error.fail(MB_INVALID_ARGUMENT, "expected %d inputs", graph.input_count);
  s->plan.damaged = false;
#if MB_SYMBOLS
  int32_t before[kMostSymbols];
  memcpy(before, s->symbols, sizeof before);
#endif
  mb_status status = bind(s, graph, inputs);
#if MB_SYMBOLS
  if (status != MB_OK) {
    memcpy(s->symbols, before, sizeof before);
    s->lay_out();
  }
#endif
  if (status == MB_OK) status = run_steps(s, graph);
  memset(s->regions + kBound, 0, s->plan.count[plan::kPorts] * sizeof(Span));
  return status;
}

// Creates a session, or where `session` is null only computes the bytes it needs.
mb_status create(const void* plan, size_t plan_size, const void* checkpoint, size_t checkpoint_size,
                 const mb_options& options, size_t* need, mb_session** session) {
  mb_session first;  // what is known before there is memory for more
  memset(&first, 0, sizeof first);
  first.error = {options.error, options.error == nullptr ? 0 : options.error_size};
  mb_status status = first.plan.read(plan, plan_size, first.error);
  if (status != MB_OK) return status;
  const uint32_t* count = first.plan.count;
  uint32_t free = count[plan::kDefaults];
  if (options.symbols != nullptr && options.symbol_count != free)
    return first.error.fail(MB_INVALID_ARGUMENT, "expected %d symbols", free);
  memcpy(first.symbols, options.symbols != nullptr ? static_cast<const void*>(options.symbols) : first.plan.data[plan::kDefaults],
         free * sizeof(int32_t));
  size_t fixed = first.place(0) + align16(first.plan.persistent_bytes);
  first.values = static_cast<int32_t*>(__builtin_alloca(count[plan::kExprs] * sizeof(int32_t)));
  *need = fixed + static_cast<uint32_t>(first.evaluate());
  if (session == nullptr) return status;

  bool own = options.arena == nullptr;
  size_t size = own ? *need : options.arena_size;
  char* memory = static_cast<char*>(own ? map_memory(size) : options.arena);
  if (memory == nullptr || size < *need || reinterpret_cast<uintptr_t>(memory) % 16 != 0)
    return first.error.fail(MB_OUT_OF_MEMORY, kTooSmall, static_cast<intptr_t>(*need), static_cast<intptr_t>(size));
  if (!own) memset(memory, 0, fixed);  // fresh pages are zero
  mb_session* s = static_cast<mb_session*>(memcpy(memory, &first, sizeof first));
  char* persistent = reinterpret_cast<char*>(s->place(reinterpret_cast<uintptr_t>(memory)));
  s->regions[kArena] = {memory + fixed, size - fixed};
  s->regions[kTrained] = {persistent, s->plan.trainable_bytes};
  s->regions[kPersistent] = {persistent, s->plan.persistent_bytes};
  s->regions[kConstants] = {const_cast<char*>(s->plan.data[plan::kConstants]), count[plan::kConstants] * size_t{8}};
  s->reset_gradients = true;
  if (own) s->mapped[0] = memory, s->mapped_size[0] = size;
  status = s->lay_out();
  for (uint32_t i = 0; i < count[plan::kKernels] && status == MB_OK; ++i) {
    const plan::Kernel& kernel = s->plan.kernel(i);
    if (kKernelRows[find_kernel(kernel.key)].key == 0)
      status = s->error.fail(MB_MISSING_KERNEL, "the library lacks %s", word_of(s->plan.name(kernel.name)));
  }
  if (status == MB_OK) status = read_checkpoint(s, checkpoint, checkpoint_size);
  s->error = {s->error_room, sizeof s->error_room};
  if (status != MB_OK) {
    mb_destroy(s);
    return status;
  }
  mb_set_learning_rate(s, 0.001f);
  *session = s;
  return MB_OK;
}

// The graph users ask about; instead of one they may not, the optimizer's, which has no ports.
const plan::Graph& graph_of(const Session* s, int which) {
  uint32_t graph = static_cast<uint32_t>(which);
  return s->plan.graph(graph < kOptimize ? graph : uint32_t{kOptimize});
}

// Arguments stand as in the functions of the API that end here, which saves moving them.
mb_status find_port(const Session* s, int which, size_t index, const char** name, mb_tensor* tensor, bool input) {
  const plan::Graph& g = graph_of(s, which);
  uint32_t first = g.ports, count = g.input_count;
  if (!input) first += count, count = g.output_count;
  if (index >= count) return MB_INVALID_ARGUMENT;
  const plan::Port& port = s->plan.port(first + static_cast<uint32_t>(index));
  *name = s->plan.name(port.name);
  describe(s, port.tensor, tensor, input);
  return MB_OK;
}

}  // namespace
}  // namespace minbuild

using namespace minbuild;

extern "C" {

mb_status mb_arena_size(const void* plan, size_t plan_size, const int32_t* symbols, size_t symbol_count, size_t* bytes) {
  mb_options options = {};
  options.symbols = symbols;
  options.symbol_count = symbol_count;
  return create(plan, plan_size, nullptr, 0, options, bytes, nullptr);
}

mb_status mb_create(const void* plan, size_t plan_size, const void* checkpoint, size_t checkpoint_size,
                    const mb_options* options, mb_session** session) {
  const mb_options none = {};
  size_t need;
  *session = nullptr;
  return create(plan, plan_size, checkpoint, checkpoint_size, options != nullptr ? *options : none, &need, session);
}

void mb_destroy(mb_session* s) {
  if (s == nullptr) return;
  // The session lies in mapped[0], which therefore goes last.
  for (int i = 2; i >= 0; --i)
    if (s->mapped[i] != nullptr) unmap_memory(s->mapped[i], s->mapped_size[i]);
}

const char* mb_last_error(const mb_session* s) { return s->error_room; }

mb_status mb_train_step(mb_session* s, const mb_tensor* inputs, size_t count) {
  mb_status status = run(s, inputs, count, kTrain);
  if (status == MB_OK) s->reset_gradients = false;
  return status;
}

mb_status mb_eval_step(mb_session* s, const mb_tensor* inputs, size_t count) { return run(s, inputs, count, kEvaluate); }

mb_status mb_optimizer_step(mb_session* s) {
  // ORT counts the step before it updates: the first update sees 1.
  ++s->counters->step;
  mb_status status = run(s, nullptr, 0, kOptimize);
  if (status != MB_OK) --s->counters->step;
  return status;
}

void mb_lazy_reset_grad(mb_session* s) { s->reset_gradients = true; }

void mb_set_learning_rate(mb_session* s, float rate) { s->counters->learning_rate = rate; }

float mb_learning_rate(const mb_session* s) { return s->counters->learning_rate; }

int64_t mb_step_count(const mb_session* s) { return s->counters->step; }

size_t mb_input_count(const mb_session* s, int graph) { return graph_of(s, graph).input_count; }

size_t mb_output_count(const mb_session* s, int graph) { return graph_of(s, graph).output_count; }

mb_status mb_input(const mb_session* s, int graph, size_t index, const char** name, mb_tensor* tensor) {
  return find_port(s, graph, index, name, tensor, true);
}

mb_status mb_output(const mb_session* s, int graph, size_t index, const char** name, mb_tensor* tensor) {
  return find_port(s, graph, index, name, tensor, false);
}

size_t mb_parameter_count(const mb_session* s) { return s->plan.count[plan::kParameters]; }

mb_status mb_get_parameter(const mb_session* s, size_t index, mb_parameter* parameter) {
  if (index >= s->plan.count[plan::kParameters]) return MB_INVALID_ARGUMENT;
  const plan::Parameter& found = s->plan.parameter(static_cast<uint32_t>(index));
  parameter->name = s->plan.name(found.name);
  uint32_t region = describe(s, found.tensor, &parameter->value, false).region;
  parameter->kind = region < kNothing ? region + (MB_TRAINABLE - kTrained) : int32_t{MB_FROZEN};
  char* value = static_cast<char*>(parameter->value.data);
  parameter->gradient = region == kTrained && value != nullptr ? value + s->plan.trainable_bytes : nullptr;
  return MB_OK;
}

mb_status mb_find_parameter(const mb_session* s, const char* name, mb_parameter* parameter) {
  for (size_t i = 0; mb_get_parameter(s, i, parameter) == MB_OK; ++i)
    if (equal_bytes(parameter->name, name, length_of(name) + 1)) return MB_OK;
  return MB_INVALID_ARGUMENT;
}

mb_status mb_load_checkpoint(mb_session* s, const void* checkpoint, size_t size) {
  return read_checkpoint(s, checkpoint, size);
}

}  // extern "C"
