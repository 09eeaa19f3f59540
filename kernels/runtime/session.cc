// Creating a session inside one piece of memory, and running its graphs.
#include "runtime/session.h"

#include "runtime/memory.h"

namespace minbuild {

void Session::resolve(uint32_t index, Tensor* tensor) const {
  tensor->data = nullptr;
  tensor->count = tensor->rank = 0;
  if (index == kNone) return;
  const plan::Tensor& t = plan.tensor(index);
  const uint16_t* shape = plan.shape(t);
  tensor->rank = *shape;
  int32_t count = 1;
  for (int i = 0; i < tensor->rank; ++i) count *= tensor->dims[i] = values[*++shape];
  tensor->count = count;
  // Kernels write to the first two regions only: `check_steps` refuses plans in which they would write elsewhere.
  if (t.region == kInputs) {
    if (inputs != nullptr) tensor->data = static_cast<char*>(inputs[t.at].data);
  } else if (t.region == kFrozen) {
    tensor->data = const_cast<char*>(frozen[t.at]);
  } else if (t.region != kExtent) {
    tensor->data = regions[t.region] + (t.region == kArena ? static_cast<uint32_t>(values[t.at]) : t.at);
  }
}

namespace {

// Bytes of a session without temporaries: the struct, then values, frozen pointers and the persistent region.
size_t fixed_bytes(const PlanView& p, uint32_t* frozen_at, uint32_t* persistent_at) {
  *frozen_at = align16(sizeof(Session)) + align16(p.count[plan::kExprs] * 4);
  *persistent_at = *frozen_at + align16(p.count[plan::kParameters] * static_cast<uint32_t>(sizeof(char*)));
  return *persistent_at + size_t{align16(p.persistent_bytes)};
}

// Reads a plan and computes the bytes a session needs, with the layout on the stack: there is no arena yet.
mb_status measure(const void* bytes, size_t size, const mb_options& options, PlanView* p, int32_t* symbols, size_t* need,
                  const ErrorText& error) {
  mb_status status = read_plan(bytes, size, p, error);
  if (status != MB_OK) return status;
  uint32_t free = p->count[plan::kSymbols], frozen_at, persistent_at;
  const plan::Symbol* defaults = reinterpret_cast<const plan::Symbol*>(p->data[plan::kSymbols]);
  if (options.symbols != nullptr && options.symbol_count != free)
    return error.fail(MB_INVALID_ARGUMENT, "the plan has %d free dimensions", free);
  for (uint32_t i = 0; i < free; ++i) symbols[i] = options.symbols ? options.symbols[i] : defaults[i].default_max;
  int32_t* values = static_cast<int32_t*>(__builtin_alloca(p->count[plan::kExprs] * sizeof(int32_t)));
  status = lay_out(*p, symbols, values, error);
  *need = fixed_bytes(*p, &frozen_at, &persistent_at) + static_cast<uint32_t>(values[p->arena]);
  return status;
}

#if MB_SYMBOLS
// Takes the sizes of the free dimensions from the inputs and lays out anew where they changed.
mb_status adapt(Session* s, const plan::Graph& graph, const mb_tensor* inputs) {
  const PlanView& p = s->plan;
  int32_t sizes[kMostSymbols];
  memcpy(sizes, s->symbols, sizeof sizes);
  for (uint32_t i = 0; i < graph.input_count; ++i) {
    const uint16_t* shape = p.shape(p.tensor(p.port(graph.ports + i).tensor));
    for (int k = 0; k < shape[0] && k < inputs[i].rank; ++k) {
      const plan::Expr& e = p.exprs()[shape[k + 1]];
      if (e.op == plan::kExprSymbol) sizes[e.a] = inputs[i].dims[k];
    }
  }
  if (equal_bytes(sizes, s->symbols, sizeof sizes)) return MB_OK;
  mb_status status = lay_out(p, sizes, s->values, s->error);
  size_t arena = static_cast<uint32_t>(s->values[p.arena]);
  if (status == MB_OK && arena > s->arena_size)
    status = s->error.fail(MB_OUT_OF_MEMORY, "inputs of these sizes need %d bytes of temporaries, there are %d",
                           static_cast<intptr_t>(arena), static_cast<intptr_t>(s->arena_size));
  if (status != MB_OK) {
    lay_out(p, s->symbols, s->values, s->error);
    return status;
  }
  memcpy(s->symbols, sizes, sizeof sizes);
  return MB_OK;
}
#endif

mb_status check_input(const Session* s, const plan::Port& port, const mb_tensor& given) {
  Tensor want;
  s->resolve(port.tensor, &want);
  intptr_t name = word_of(s->plan.name(port.name));
  int32_t type = s->plan.tensor(port.tensor).type;
  if (given.type != type || given.rank != want.rank || given.data == nullptr)
    return s->error.fail(MB_BAD_SHAPE, "input %s must have data, type %d and %d dimensions", name, type, want.rank);
  for (int i = 0; i < want.rank; ++i)
    if (given.dims[i] != want.dims[i] || given.dims[i] == 0)
      return s->error.fail(MB_BAD_SHAPE, "input %s: dimension %d must be %d and not 0", name, i, want.dims[i]);
  return MB_OK;
}

mb_status run_steps(Session* s, const plan::Graph& graph) {
  const PlanView& p = s->plan;
  const uint16_t* arg = static_cast<const uint16_t*>(p.at(plan::kArgs, graph.args));
  const plan::Step* step = static_cast<const plan::Step*>(p.at(plan::kSteps, graph.steps));
  for (uint32_t i = 0; i < graph.step_count; ++i, ++step) {
    const plan::Kernel& kernel = p.kernel(step->kernel);
    uint32_t row = find_kernel(kernel.key);
    Tensor tensors[MB_MAX_ARGS];
    for (int k = 0; k < kKernelRows[row].arg_count; ++k) s->resolve(*arg++, &tensors[k]);
    Call call = {tensors, reinterpret_cast<const int32_t*>(p.data[plan::kParams]) + step->params,
                 s->reset_gradients ? 0u : step->accumulate};
    mb_status status = static_cast<mb_status>(run_kernel(row, call));
    if (status != MB_OK)
      return s->error.fail(status, status == MB_BAD_VALUE ? "%s in step %d: a value is out of range"
                                                          : "%s in step %d: its tensors do not fit together",
                           word_of(p.name(kernel.name)), i);
  }
  return MB_OK;
}

mb_status run(Session* s, int which, const mb_tensor* inputs, size_t count) {
  const plan::Graph& graph = s->plan.graph(which);
  if (graph.step_count == 0) return s->error.fail(MB_UNSUPPORTED, "the package has no such graph");
  if (count != graph.input_count) return s->error.fail(MB_INVALID_ARGUMENT, "expected %d inputs", graph.input_count);
  mb_status status = MB_OK;
#if MB_SYMBOLS
  status = adapt(s, graph, inputs);
#endif
  for (uint32_t i = 0; i < count && status == MB_OK; ++i) status = check_input(s, s->plan.port(graph.ports + i), inputs[i]);
  if (status != MB_OK) return status;
  s->inputs = inputs - graph.ports;
  status = run_steps(s, graph);
  s->inputs = nullptr;
  return status;
}

// Description of a tensor; free dimensions of inputs read -1.
void describe(const Session* s, uint32_t index, bool input, mb_tensor* tensor) {
  Tensor found;
  s->resolve(index, &found);
  tensor->data = found.data;
  tensor->type = s->plan.tensor(index).type;
  tensor->rank = found.rank;
  const uint16_t* shape = s->plan.shape(s->plan.tensor(index));
  for (int i = 0; i < found.rank; ++i)
    tensor->dims[i] = input && s->plan.exprs()[*++shape].op != plan::kExprConstant ? -1 : found.dims[i];
}

mb_status find_port(const mb_session* s, uint32_t which, bool input, size_t index, const char** name, mb_tensor* tensor) {
  const plan::Graph& graph = s->plan.graph(which);
  if (which > kEvaluate || index >= (input ? graph.input_count : graph.output_count)) return MB_INVALID_ARGUMENT;
  const plan::Port& port = s->plan.port(graph.ports + (input ? 0 : graph.input_count) + static_cast<uint32_t>(index));
  *name = s->plan.name(port.name);
  describe(s, port.tensor, input, tensor);
  return MB_OK;
}

}  // namespace
}  // namespace minbuild

using namespace minbuild;

extern "C" {

mb_status mb_arena_size(const void* plan, size_t plan_size, const int32_t* symbols, size_t symbol_count, size_t* bytes) {
  PlanView view;
  mb_options options = {};
  options.symbols = symbols;
  options.symbol_count = symbol_count;
  int32_t chosen[kMostSymbols];
  return measure(plan, plan_size, options, &view, chosen, bytes, {nullptr, 0});
}

mb_status mb_create(const void* plan, size_t plan_size, const void* checkpoint, size_t checkpoint_size,
                    const mb_options* options, mb_session** session) {
  const mb_options none = {};
  if (options == nullptr) options = &none;
  const ErrorText error = {options->error, options->error == nullptr ? 0 : options->error_size};
  *session = nullptr;
  PlanView view;
  int32_t symbols[kMostSymbols] = {};
  size_t need = 0;
  mb_status status = measure(plan, plan_size, *options, &view, symbols, &need, error);
  if (status == MB_OK) status = check_steps(view, error);
  if (status != MB_OK) return status;

  bool own = options->arena == nullptr;
  size_t size = own ? need : options->arena_size;
  char* memory = static_cast<char*>(own ? map_memory(size) : options->arena);
  if (memory == nullptr || size < need || reinterpret_cast<uintptr_t>(memory) % 16 != 0)
    return error.fail(MB_OUT_OF_MEMORY, "a session needs %d bytes of 16-byte aligned memory", static_cast<intptr_t>(need));
  uint32_t frozen_at, persistent_at;
  size_t fixed = fixed_bytes(view, &frozen_at, &persistent_at);
  memset(memory, 0, fixed);
  mb_session* s = reinterpret_cast<mb_session*>(memory);
  s->plan = view;
  s->values = reinterpret_cast<int32_t*>(memory + align16(sizeof(Session)));
  s->frozen = reinterpret_cast<const char**>(memory + frozen_at);
  s->regions[kArena] = memory + fixed;
  s->regions[kPersistent] = memory + persistent_at;
  s->regions[kConstants] = const_cast<char*>(view.data[plan::kConstants]);
  s->arena_size = size - fixed;
  s->reset_gradients = true;
  memcpy(s->symbols, symbols, sizeof symbols);
  if (own) s->mapped[0] = memory, s->mapped_size[0] = size;
  s->error = error;
  lay_out(view, symbols, s->values, error);
  status = read_checkpoint(s, checkpoint, checkpoint_size);
  s->error = {s->error_room, sizeof s->error_room};
  if (status != MB_OK) {
    mb_destroy(s);
    return status;
  }
  mb_set_learning_rate(s, 0.001f);
  *session = s;
  return MB_OK;
}

void mb_destroy(mb_session* s) {
  if (s == nullptr) return;
  // The session lies in mapped[0], which therefore goes last.
  for (int i = 2; i >= 0; --i)
    if (s->mapped[i] != nullptr) unmap_memory(s->mapped[i], s->mapped_size[i]);
}

const char* mb_last_error(const mb_session* s) { return s->error_room; }

mb_status mb_train_step(mb_session* s, const mb_tensor* inputs, size_t count) {
  mb_status status = run(s, kTrain, inputs, count);
  if (status == MB_OK) s->reset_gradients = false;
  return status;
}

mb_status mb_eval_step(mb_session* s, const mb_tensor* inputs, size_t count) { return run(s, kEvaluate, inputs, count); }

mb_status mb_optimizer_step(mb_session* s) {
  // ORT counts the step before it updates: the first update sees 1.
  int64_t before = mb_step_count(s), now = before + 1;
  char* counter = s->regions[kPersistent] + s->plan.step_at;
  memcpy(counter, &now, sizeof now);
  mb_status status = run(s, kOptimize, nullptr, 0);
  if (status != MB_OK) memcpy(counter, &before, sizeof before);
  return status;
}

void mb_lazy_reset_grad(mb_session* s) { s->reset_gradients = true; }

void mb_set_learning_rate(mb_session* s, float rate) {
  memcpy(s->regions[kPersistent] + s->plan.learning_rate_at, &rate, sizeof rate);
}

float mb_learning_rate(const mb_session* s) {
  float rate;
  memcpy(&rate, s->regions[kPersistent] + s->plan.learning_rate_at, sizeof rate);
  return rate;
}

int64_t mb_step_count(const mb_session* s) {
  int64_t step;
  memcpy(&step, s->regions[kPersistent] + s->plan.step_at, sizeof step);
  return step;
}

size_t mb_input_count(const mb_session* s, int graph) {
  return static_cast<uint32_t>(graph) > kEvaluate ? 0 : s->plan.graph(graph).input_count;
}

size_t mb_output_count(const mb_session* s, int graph) {
  return static_cast<uint32_t>(graph) > kEvaluate ? 0 : s->plan.graph(graph).output_count;
}

mb_status mb_input(const mb_session* s, int graph, size_t index, const char** name, mb_tensor* tensor) {
  return find_port(s, static_cast<uint32_t>(graph), true, index, name, tensor);
}

mb_status mb_output(const mb_session* s, int graph, size_t index, const char** name, mb_tensor* tensor) {
  return find_port(s, static_cast<uint32_t>(graph), false, index, name, tensor);
}

size_t mb_parameter_count(const mb_session* s) { return s->plan.count[plan::kParameters]; }

mb_status mb_get_parameter(const mb_session* s, size_t index, mb_parameter* parameter) {
  if (index >= s->plan.count[plan::kParameters]) return MB_INVALID_ARGUMENT;
  const plan::Parameter& found = s->plan.parameter(static_cast<uint32_t>(index));
  parameter->name = s->plan.name(found.name);
  parameter->kind = found.kind;
  describe(s, found.tensor, false, &parameter->value);
  char* value = static_cast<char*>(parameter->value.data);
  parameter->gradient = found.kind == MB_TRAINABLE ? value + s->plan.trainable_bytes : nullptr;
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
