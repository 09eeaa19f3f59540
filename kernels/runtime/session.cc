// Creating a session inside one piece of memory, and running its graphs.
#include "runtime/session.h"

#include "runtime/memory.h"

namespace minbuild {

Tensor Session::resolve(uint16_t index) const {
  Tensor tensor = {};
  if (index == kNone) return tensor;
  const plan::Tensor& t = plan.tensors[index];
  const uint16_t* shape = plan.shapes.data + t.shape;
  tensor.rank = shape[0];
  tensor.count = 1;
  for (int i = 0; i < tensor.rank; ++i) {
    tensor.dims[i] = layout.dims[shape[i + 1]];
    tensor.count *= tensor.dims[i];
  }
  switch (t.region) {
    case kArena: tensor.data = arena + layout.offsets[t.at]; break;
    case kPersistent: tensor.data = persistent + t.at; break;
    // Kernels never write through the next three: the session refuses plans in which they would.
    case kConstants: tensor.data = reinterpret_cast<char*>(const_cast<uint64_t*>(plan.constants.data)) + t.at; break;
    case kInputs: tensor.data = inputs == nullptr ? nullptr : static_cast<char*>(inputs[t.at].data); break;
    case kFrozen: tensor.data = const_cast<char*>(frozen[t.at]); break;
    default: break;
  }
  return tensor;
}

namespace {

Text error_text(Session* s) {
  s->error[0] = 0;
  return {s->error, s->error + sizeof s->error - 1};
}

// Hands out aligned pieces of one allocation; with a null base it only counts.
struct Carver {
  char* base;
  size_t used;
  template <class T>
  T* take(size_t count) {
    T* piece = base == nullptr ? nullptr : reinterpret_cast<T*>(base + used);
    used = align16(used + count * sizeof(T));
    return piece;
  }
};

// Places the session's own tables and the persistent region at the start of its memory; returns bytes used.
size_t carve(const PlanView& p, char* base, Session* s) {
  Carver carver = {base, 0};
  carver.take<Session>(1);
  s->layout.dims = carver.take<int32_t>(p.exprs.count);
  s->layout.sizes = carver.take<uint32_t>(p.buffers.count);
  s->layout.offsets = carver.take<uint32_t>(p.buffers.count);
  s->symbols = carver.take<int32_t>(p.symbols.count);
  s->kernels = carver.take<uint16_t>(p.kernels.count);
  s->frozen = carver.take<const char*>(p.frozen_count);
  s->frozen_sizes = carver.take<uint32_t>(p.frozen_count);
  s->persistent = carver.take<char>(p.persistent_bytes);
  s->arena = base == nullptr ? nullptr : base + carver.used;
  return carver.used;
}

bool choose_symbols(const PlanView& p, const int32_t* wanted, size_t count, int32_t* symbols) {
  for (uint32_t i = 0; i < p.symbols.count; ++i)
    symbols[i] = wanted != nullptr && i < count ? wanted[i] : p.symbols[i].default_max;
  return wanted == nullptr || count == p.symbols.count;
}

// Bytes of everything, with the layout computed in memory of the stack: this runs before there is an arena.
mb_status measure(const PlanView& p, const int32_t* wanted, size_t count, size_t* bytes, Text error) {
  size_t words = size_t{p.exprs.count} + p.buffers.count * size_t{2} + p.symbols.count;
  if (words > 65536) {
    error << "the plan is too large";
    return MB_BAD_PLAN;
  }
  int32_t* memory = static_cast<int32_t*>(__builtin_alloca(words * 4 + 4));
  uint32_t* sizes = reinterpret_cast<uint32_t*>(memory + p.exprs.count);
  int32_t* symbols = reinterpret_cast<int32_t*>(sizes + p.buffers.count * size_t{2});
  if (!choose_symbols(p, wanted, count, symbols)) {
    error << "the plan has " << p.symbols.count << " free dimensions, given are " << static_cast<int64_t>(count);
    return MB_INVALID_ARGUMENT;
  }
  size_t arena = 0;
  mb_status status = lay_out(p, symbols, {memory, sizes, sizes + p.buffers.count}, &arena, error);
  Session unused;
  *bytes = carve(p, nullptr, &unused) + arena;
  return status;
}

// Takes the sizes of free dimensions from the inputs; true when any differs from the current layout.
bool bind_symbols(Session* s, const plan::Graph& graph, const mb_tensor* inputs, int32_t* sizes) {
  const PlanView& p = s->plan;
  bool changed = false;
  for (uint32_t i = 0; i < p.symbols.count; ++i) sizes[i] = s->symbols[i];
  for (uint32_t i = 0; i < graph.input_count; ++i) {
    const uint16_t* shape = p.shapes.data + p.tensors[p.ports[graph.ports + i].tensor].shape;
    for (int k = 0; k < shape[0] && k < inputs[i].rank; ++k) {
      const plan::Expr& e = p.exprs[shape[k + 1]];
      if (e.op != plan::kExprSymbol) continue;
      changed |= sizes[e.a] != inputs[i].dims[k];
      sizes[e.a] = inputs[i].dims[k];
    }
  }
  return changed;
}

void say_shape(Text& text, const int32_t* dims, int rank) {
  text << "[";
  for (int i = 0; i < rank; ++i) {
    if (i != 0) text << ", ";
    text << dims[i];
  }
  text << "]";
}

mb_status check_input(Session* s, const plan::Port& port, const mb_tensor& given) {
  Tensor want = s->resolve(port.tensor);
  bool same = given.rank == want.rank && given.type == s->plan.tensors[port.tensor].type && given.data != nullptr;
  for (int i = 0; i < want.rank && same; ++i) same = given.dims[i] == want.dims[i];
  if (same && want.count > 0) return MB_OK;
  Text text = error_text(s);
  text << "input " << s->plan.name(port.name) << " is type " << given.type << " ";
  say_shape(text, given.dims, given.rank < 0 || given.rank > MB_MAX_RANK ? 0 : given.rank);
  text << ", expected type " << s->plan.tensors[port.tensor].type << " ";
  say_shape(text, want.dims, want.rank);
  return MB_BAD_SHAPE;
}

mb_status accept_inputs(Session* s, const plan::Graph& graph, const mb_tensor* inputs, size_t count) {
  if (count != graph.input_count || (inputs == nullptr && count != 0)) {
    error_text(s) << "expected " << graph.input_count << " inputs, given are " << static_cast<int64_t>(count);
    return MB_INVALID_ARGUMENT;
  }
  const PlanView& p = s->plan;
#if MB_SYMBOLS
  int32_t* sizes = static_cast<int32_t*>(__builtin_alloca(p.symbols.count * sizeof(int32_t) + 4));
  if (bind_symbols(s, graph, inputs, sizes)) {
    size_t arena = 0;
    mb_status status = lay_out(p, sizes, s->layout, &arena, error_text(s));
    if (status == MB_OK && arena > s->arena_size) {
      error_text(s) << "these input sizes need " << static_cast<int64_t>(arena) << " bytes of temporaries, the arena has "
                    << static_cast<int64_t>(s->arena_size);
      status = MB_OUT_OF_MEMORY;
    }
    if (status == MB_OK && !frozen_fit(*s)) status = MB_BAD_PLAN;
    if (status != MB_OK) {
      lay_out(p, s->symbols, s->layout, &arena, {});
      return status;
    }
    memcpy(s->symbols, sizes, p.symbols.count * sizeof(int32_t));
  }
#endif
  for (uint32_t i = 0; i < graph.input_count; ++i) {
    mb_status status = check_input(s, p.ports[graph.ports + i], inputs[i]);
    if (status != MB_OK) return status;
  }
  return MB_OK;
}

mb_status run_steps(Session* s, const plan::Graph& graph) {
  const PlanView& p = s->plan;
  const uint16_t* arg = p.args.data + graph.args;
  for (uint32_t i = graph.steps; i < graph.steps + graph.step_count; ++i) {
    const plan::Step& step = p.steps[i];
    uint32_t row = s->kernels[step.kernel];
    Tensor tensors[MB_MAX_ARGS];
    for (int k = 0; k < kKernelRows[row].arg_count; ++k) tensors[k] = s->resolve(*arg++);
    Call call = {tensors, p.params.data + step.params, s->reset_gradients ? 0u : step.accumulate};
    mb_status status = static_cast<mb_status>(run_kernel(row, call));
    if (status != MB_OK) {
      error_text(s) << p.name(p.kernels[step.kernel].name) << " in step " << i
                    << (status == MB_BAD_VALUE ? ": a value is out of range" : ": its tensors do not fit together");
      return status;
    }
  }
  return MB_OK;
}

mb_status run(Session* s, int which, const mb_tensor* inputs, size_t count) {
  const plan::Graph& graph = s->plan.graphs[which];
  if (graph.step_count == 0) {
    error_text(s) << "this package was built without that graph";
    return MB_UNSUPPORTED;
  }
  mb_status status = accept_inputs(s, graph, inputs, count);
  if (status != MB_OK) return status;
  s->inputs = inputs - graph.ports;
  status = run_steps(s, graph);
  s->inputs = nullptr;
  return status;
}

// Description of a port: `data` null for inputs, free dimensions -1.
void describe(const Session* s, const plan::Port& port, bool input, mb_tensor* tensor) {
  Tensor found = s->resolve(port.tensor);
  tensor->data = input ? nullptr : found.data;
  tensor->type = s->plan.tensors[port.tensor].type;
  tensor->rank = found.rank;
  const uint16_t* shape = s->plan.shapes.data + s->plan.tensors[port.tensor].shape;
  for (int i = 0; i < found.rank; ++i)
    tensor->dims[i] = input && s->plan.exprs[shape[i + 1]].op != plan::kExprConstant ? -1 : found.dims[i];
}

mb_status port(const mb_session* s, int which, bool input, size_t index, const char** name, mb_tensor* tensor) {
  if (which < 0 || which > kEvaluate || name == nullptr || tensor == nullptr) return MB_INVALID_ARGUMENT;
  const plan::Graph& graph = s->plan.graphs[which];
  if (index >= (input ? graph.input_count : graph.output_count)) return MB_INVALID_ARGUMENT;
  const plan::Port& found = s->plan.ports[graph.ports + (input ? 0 : graph.input_count) + static_cast<uint32_t>(index)];
  *name = s->plan.name(found.name);
  describe(s, found, input, tensor);
  return MB_OK;
}

}  // namespace
}  // namespace minbuild

using namespace minbuild;

extern "C" {

mb_status mb_arena_size(const void* plan, size_t plan_size, const int32_t* symbols, size_t symbol_count, size_t* bytes) {
  PlanView view;
  if (bytes == nullptr) return MB_INVALID_ARGUMENT;
  mb_status status = read_plan(plan, plan_size, &view, {});
  return status != MB_OK ? status : measure(view, symbols, symbol_count, bytes, {});
}

mb_status mb_create(const void* plan, size_t plan_size, const void* checkpoint, size_t checkpoint_size,
                    const mb_options* options, mb_session** session) {
  mb_options chosen = {};
  if (options != nullptr) chosen = *options;
  Text error = {};
  if (chosen.error != nullptr && chosen.error_size > 0) {
    error = {chosen.error, chosen.error + chosen.error_size - 1};
    *error.at = 0;
  }
  if (session == nullptr) return MB_INVALID_ARGUMENT;
  *session = nullptr;
  PlanView view;
  size_t need = 0;
  mb_status status = read_plan(plan, plan_size, &view, error);
  if (status == MB_OK) status = measure(view, chosen.symbols, chosen.symbol_count, &need, error);
  if (status != MB_OK) return status;

  bool own = chosen.arena == nullptr;
  size_t size = own ? need : chosen.arena_size;
  char* memory = static_cast<char*>(own ? map_memory(size) : chosen.arena);
  if (memory == nullptr || size < need || reinterpret_cast<uintptr_t>(memory) % 16 != 0) {
    error << "the session needs " << static_cast<int64_t>(need) << " bytes of 16-byte aligned memory";
    return MB_OUT_OF_MEMORY;
  }
  mb_session* s = reinterpret_cast<mb_session*>(memory);
  memset(memory, 0, sizeof(Session));
  s->plan = view;
  size_t fixed = carve(view, memory, s);
  memset(memory + sizeof(Session), 0, fixed - sizeof(Session));
  s->arena_size = size - fixed;
  if (own) s->mapped[0] = memory, s->mapped_size[0] = size;
  choose_symbols(view, chosen.symbols, chosen.symbol_count, s->symbols);
  size_t arena = 0;
  status = lay_out(view, s->symbols, s->layout, &arena, error);
  if (status == MB_OK) status = link_kernels(view, s->kernels, error);
  if (status == MB_OK && checkpoint != nullptr) status = read_checkpoint(s, checkpoint, checkpoint_size, error);
  if (status == MB_OK && !frozen_fit(*s)) {
    error << "this model has frozen parameters, so it needs a checkpoint";
    status = MB_BAD_CHECKPOINT;
  }
  if (status != MB_OK) {
    mb_destroy(s);
    return status;
  }
  s->reset_gradients = true;
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

const char* mb_last_error(const mb_session* s) { return s->error; }

mb_status mb_train_step(mb_session* s, const mb_tensor* inputs, size_t count) {
  mb_status status = run(s, kTrain, inputs, count);
  if (status == MB_OK) s->reset_gradients = false;
  return status;
}

mb_status mb_eval_step(mb_session* s, const mb_tensor* inputs, size_t count) { return run(s, kEvaluate, inputs, count); }

mb_status mb_optimizer_step(mb_session* s) {
  int64_t* step = reinterpret_cast<int64_t*>(s->persistent + s->plan.step_at);
  // ORT counts the step before it updates: the first update sees 1.
  ++*step;
  mb_status status = run(s, kOptimize, nullptr, 0);
  if (status != MB_OK) --*step;
  return status;
}

void mb_lazy_reset_grad(mb_session* s) { s->reset_gradients = true; }

void mb_set_learning_rate(mb_session* s, float rate) {
  memcpy(s->persistent + s->plan.learning_rate_at, &rate, sizeof rate);
}

float mb_learning_rate(const mb_session* s) {
  float rate;
  memcpy(&rate, s->persistent + s->plan.learning_rate_at, sizeof rate);
  return rate;
}

int64_t mb_step_count(const mb_session* s) {
  int64_t step;
  memcpy(&step, s->persistent + s->plan.step_at, sizeof step);
  return step;
}

size_t mb_input_count(const mb_session* s, int graph) {
  return graph < 0 || graph > kEvaluate ? 0 : s->plan.graphs[graph].input_count;
}

size_t mb_output_count(const mb_session* s, int graph) {
  return graph < 0 || graph > kEvaluate ? 0 : s->plan.graphs[graph].output_count;
}

mb_status mb_input(const mb_session* s, int graph, size_t index, const char** name, mb_tensor* tensor) {
  return port(s, graph, true, index, name, tensor);
}

mb_status mb_output(const mb_session* s, int graph, size_t index, const char** name, mb_tensor* tensor) {
  return port(s, graph, false, index, name, tensor);
}

size_t mb_parameter_count(const mb_session* s) { return s->plan.parameters.count; }

mb_status mb_get_parameter(const mb_session* s, size_t index, mb_parameter* parameter) {
  if (index >= s->plan.parameters.count || parameter == nullptr) return MB_INVALID_ARGUMENT;
  const plan::Parameter& found = s->plan.parameters[static_cast<uint32_t>(index)];
  parameter->name = s->plan.name(found.name);
  parameter->kind = found.kind;
  describe(s, {found.name, found.tensor, 0}, false, &parameter->value);
  bool trained = found.kind == MB_TRAINABLE;
  parameter->gradient = trained ? static_cast<char*>(parameter->value.data) + s->plan.trainable_bytes : nullptr;
  return MB_OK;
}

mb_status mb_find_parameter(const mb_session* s, const char* name, mb_parameter* parameter) {
  if (name == nullptr) return MB_INVALID_ARGUMENT;
  for (size_t i = 0; mb_get_parameter(s, i, parameter) == MB_OK; ++i)
    if (strcmp(parameter->name, name) == 0) return MB_OK;
  return MB_INVALID_ARGUMENT;
}

mb_status mb_load_checkpoint(mb_session* s, const void* checkpoint, size_t size) {
  return read_checkpoint(s, checkpoint, size, error_text(s));
}

}  // extern "C"
