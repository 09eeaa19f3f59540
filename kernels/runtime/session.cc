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
  tensor->rank = shape[0];
  int32_t count = 1;
  for (int i = 0; i < shape[0]; ++i) count *= tensor->dims[i] = layout.dims[shape[i + 1]];
  tensor->count = count;
  // Kernels write to the first two regions only: the session refuses plans in which they would write elsewhere.
  char* base = nullptr;
  uint32_t at = t.at;
  switch (t.region) {
    case kArena: base = pieces[kTemporaries], at = layout.offsets[at]; break;
    case kPersistent: base = persistent(); break;
    case kConstants: base = const_cast<char*>(plan.all<char>(plan::kConstants)); break;
    case kInputs: base = inputs == nullptr ? nullptr : static_cast<char*>(inputs[at].data), at = 0; break;
    case kFrozen: base = const_cast<char*>(frozen()[at]), at = 0; break;
    default: return;
  }
  tensor->data = base + at;
}

namespace {

// Bytes of every piece of a session's memory but the temporaries.
size_t measure_pieces(const PlanView& p, size_t* sizes) {
  sizes[kSelf] = sizeof(Session);
  sizes[kDims] = p.count[plan::kExprs] * sizeof(int32_t);
  sizes[kSizes] = sizes[kOffsets] = p.count[plan::kBuffers] * sizeof(uint32_t);
  sizes[kSymbolSizes] = p.count[plan::kSymbols] * sizeof(int32_t);
  sizes[kKernelRowsOf] = p.count[plan::kKernels] * sizeof(uint16_t);
  sizes[kFrozenData] = p.frozen_count * sizeof(char*);
  sizes[kFrozenSizes] = p.frozen_count * sizeof(uint32_t);
  sizes[kKept] = p.persistent_bytes;
  size_t total = 0;
  for (int i = 0; i < kTemporaries; ++i) total += sizes[i] = align16(sizes[i]);
  return total;
}

// Bytes of everything, with the layout computed in memory of the stack: this runs before there is an arena.
mb_status measure(const PlanView& p, const int32_t* wanted, size_t count, int32_t* symbols, size_t* bytes, const ErrorText& error) {
  const plan::Symbol* defaults = p.all<plan::Symbol>(plan::kSymbols);
  for (uint32_t i = 0; i < p.count[plan::kSymbols]; ++i) symbols[i] = wanted ? wanted[i] : defaults[i].default_max;
  if (wanted != nullptr && count != p.count[plan::kSymbols])
    return error.fail(MB_INVALID_ARGUMENT, "the plan has %d free dimensions", p.count[plan::kSymbols]);
  size_t exprs = p.count[plan::kExprs], buffers = p.count[plan::kBuffers];
  int32_t* dims = static_cast<int32_t*>(__builtin_alloca((exprs + 2 * buffers) * sizeof(int32_t)));
  uint32_t* sizes = reinterpret_cast<uint32_t*>(dims + exprs);
  size_t arena = 0, pieces[kPieces];
  mb_status status = lay_out(p, symbols, {dims, sizes, sizes + buffers}, nullptr, &arena, error);
  *bytes = measure_pieces(p, pieces) + arena;
  return status;
}

constexpr uint32_t kMostSymbols = 16;      // free dimensions of a plan
constexpr uint32_t kMostWords = 32768;     // of stack to lay out a plan before it has an arena

mb_status open_plan(const void* bytes, size_t size, const mb_options& options, PlanView* p, int32_t* symbols,
                    size_t* need, const ErrorText& error) {
  mb_status status = read_plan(bytes, size, p, error);
  if (status != MB_OK) return status;
  uint64_t words = uint64_t{p->count[plan::kExprs]} + 2 * uint64_t{p->count[plan::kBuffers]};
  if (p->count[plan::kSymbols] > kMostSymbols || words > kMostWords) return error.fail(MB_BAD_PLAN, "the plan is too large");
  return measure(*p, options.symbols, options.symbol_count, symbols, need, error);
}

#if MB_SYMBOLS
// Takes the sizes of the free dimensions from the inputs and lays out anew where they changed.
mb_status adapt(Session* s, const plan::Graph& graph, const mb_tensor* inputs) {
  const PlanView& p = s->plan;
  size_t bytes = p.count[plan::kSymbols] * sizeof(int32_t), arena = 0;
  int32_t sizes[kMostSymbols];
  memcpy(sizes, s->symbols(), bytes);
  for (uint32_t i = 0; i < graph.input_count; ++i) {
    const uint16_t* shape = p.shape(p.tensor(p.port(graph.ports + i).tensor));
    for (int k = 0; k < shape[0] && k < inputs[i].rank; ++k) {
      const plan::Expr& e = p.exprs()[shape[k + 1]];
      if (e.op == plan::kExprSymbol) sizes[e.a] = inputs[i].dims[k];
    }
  }
  if (equal_bytes(sizes, s->symbols(), static_cast<uint32_t>(bytes))) return MB_OK;
  mb_status status = lay_out(p, sizes, s->layout, s->frozen_sizes(), &arena, s->error);
  if (status == MB_OK && arena > s->arena_size)
    status = s->error.fail(MB_OUT_OF_MEMORY, "inputs of these sizes need %d bytes of temporaries, there are %d", arena,
                           s->arena_size);
  if (status != MB_OK) {
    lay_out(p, s->symbols(), s->layout, s->frozen_sizes(), &arena, {nullptr, 0});
    return status;
  }
  memcpy(s->symbols(), sizes, bytes);
  return MB_OK;
}
#endif

mb_status check_input(const Session* s, const plan::Port& port, const mb_tensor& given) {
  Tensor want;
  s->resolve(port.tensor, &want);
  const char* name = s->plan.name(port.name);
  int32_t type = s->plan.tensor(port.tensor).type;
  if (given.type != type || given.rank != want.rank || given.data == nullptr)
    return s->error.fail(MB_BAD_SHAPE, "input %s must have data, type %d and %d dimensions", name, type, want.rank);
  for (int i = 0; i < want.rank; ++i)
    if (given.dims[i] != want.dims[i] || given.dims[i] == 0)
      return s->error.fail(MB_BAD_SHAPE, "dimension %d of input %s must be %d and not 0", i, name, want.dims[i]);
  return MB_OK;
}

mb_status accept(Session* s, const plan::Graph& graph, const mb_tensor* inputs, size_t count) {
  mb_status status = MB_OK;
  if (count != graph.input_count) return s->error.fail(MB_INVALID_ARGUMENT, "expected %d inputs", graph.input_count);
#if MB_SYMBOLS
  status = adapt(s, graph, inputs);
#endif
  for (uint32_t i = 0; i < count && status == MB_OK; ++i) status = check_input(s, s->plan.port(graph.ports + i), inputs[i]);
  return status;
}

mb_status run_steps(Session* s, const plan::Graph& graph) {
  const PlanView& p = s->plan;
  const uint16_t* arg = p.all<uint16_t>(plan::kArgs) + graph.args;
  const plan::Step* step = p.all<plan::Step>(plan::kSteps) + graph.steps;
  for (uint32_t i = 0; i < graph.step_count; ++i, ++step) {
    uint32_t row = s->rows()[step->kernel];
    Tensor tensors[MB_MAX_ARGS];
    for (int k = 0; k < kKernelRows[row].arg_count; ++k) s->resolve(*arg++, &tensors[k]);
    Call call = {tensors, p.all<int32_t>(plan::kParams) + step->params, s->reset_gradients ? 0u : step->accumulate};
    mb_status status = static_cast<mb_status>(run_kernel(row, call));
    if (status != MB_OK) {
      const char* what = status == MB_BAD_VALUE ? "a value is out of range" : "its tensors do not fit together";
      return s->error.fail(status, "%s in step %d: %s", p.name(p.all<plan::Kernel>(plan::kKernels)[step->kernel].name), i, what);
    }
  }
  return MB_OK;
}

mb_status run(Session* s, int which, const mb_tensor* inputs, size_t count) {
  const plan::Graph& graph = s->plan.graph(which);
  if (graph.step_count == 0) return s->error.fail(MB_UNSUPPORTED, "the package has no such graph");
  mb_status status = accept(s, graph, inputs, count);
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
    tensor->dims[i] = input && s->plan.exprs()[shape[i + 1]].op != plan::kExprConstant ? -1 : found.dims[i];
}

size_t port_count(const mb_session* s, int which, bool input) {
  if (which < 0 || which > kEvaluate) return 0;
  const plan::Graph& graph = s->plan.graph(which);
  return input ? graph.input_count : graph.output_count;
}

mb_status find_port(const mb_session* s, int which, bool input, size_t index, const char** name, mb_tensor* tensor) {
  if (index >= port_count(s, which, input)) return MB_INVALID_ARGUMENT;
  const plan::Graph& graph = s->plan.graph(which);
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
  return open_plan(plan, plan_size, options, &view, chosen, bytes, {nullptr, 0});
}

mb_status mb_create(const void* plan, size_t plan_size, const void* checkpoint, size_t checkpoint_size,
                    const mb_options* options, mb_session** session) {
  mb_options chosen = {};
  if (options != nullptr) chosen = *options;
  const ErrorText error = {chosen.error, chosen.error == nullptr ? 0 : chosen.error_size};
  *session = nullptr;
  PlanView view;
  int32_t symbols[kMostSymbols];
  size_t need = 0, arena = 0, sizes[kPieces];
  mb_status status = open_plan(plan, plan_size, chosen, &view, symbols, &need, error);
  if (status != MB_OK) return status;

  bool own = chosen.arena == nullptr;
  size_t size = own ? need : chosen.arena_size;
  char* memory = static_cast<char*>(own ? map_memory(size) : chosen.arena);
  if (memory == nullptr || size < need || reinterpret_cast<uintptr_t>(memory) % 16 != 0)
    return error.fail(MB_OUT_OF_MEMORY, "a session needs %d bytes of 16-byte aligned memory", need);
  size_t fixed = measure_pieces(view, sizes);
  memset(memory, 0, fixed);
  mb_session* s = reinterpret_cast<mb_session*>(memory);
  char* piece = memory;
  for (int i = 0; i < kPieces; ++i) s->pieces[i] = piece, piece += i < kTemporaries ? sizes[i] : 0;
  s->plan = view;
  s->layout = {reinterpret_cast<int32_t*>(s->pieces[kDims]), reinterpret_cast<uint32_t*>(s->pieces[kSizes]),
               reinterpret_cast<uint32_t*>(s->pieces[kOffsets])};
  s->error = {s->error_room, sizeof s->error_room};
  s->arena_size = size - fixed;
  if (own) s->mapped[0] = memory, s->mapped_size[0] = size;
  memcpy(s->symbols(), symbols, view.count[plan::kSymbols] * sizeof(int32_t));
  lay_out(view, symbols, s->layout, nullptr, &arena, error);
  status = link_kernels(view, s->rows(), error);
  if (status == MB_OK && checkpoint != nullptr) status = read_checkpoint(s, checkpoint, checkpoint_size, error);
  if (status == MB_OK && lay_out(view, symbols, s->layout, s->frozen_sizes(), &arena, error) != MB_OK)
    status = error.fail(MB_BAD_CHECKPOINT, "frozen parameters are missing: this model needs its checkpoint");
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
  char* counter = s->persistent() + s->plan.step_at;
  memcpy(counter, &now, sizeof now);
  mb_status status = run(s, kOptimize, nullptr, 0);
  if (status != MB_OK) memcpy(counter, &before, sizeof before);
  return status;
}

void mb_lazy_reset_grad(mb_session* s) { s->reset_gradients = true; }

void mb_set_learning_rate(mb_session* s, float rate) {
  memcpy(s->persistent() + s->plan.learning_rate_at, &rate, sizeof rate);
}

float mb_learning_rate(const mb_session* s) {
  float rate;
  memcpy(&rate, s->persistent() + s->plan.learning_rate_at, sizeof rate);
  return rate;
}

int64_t mb_step_count(const mb_session* s) {
  int64_t step;
  memcpy(&step, s->persistent() + s->plan.step_at, sizeof step);
  return step;
}

size_t mb_input_count(const mb_session* s, int graph) { return port_count(s, graph, true); }
size_t mb_output_count(const mb_session* s, int graph) { return port_count(s, graph, false); }

mb_status mb_input(const mb_session* s, int graph, size_t index, const char** name, mb_tensor* tensor) {
  return find_port(s, graph, true, index, name, tensor);
}

mb_status mb_output(const mb_session* s, int graph, size_t index, const char** name, mb_tensor* tensor) {
  return find_port(s, graph, false, index, name, tensor);
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
  return read_checkpoint(s, checkpoint, size, s->error);
}

}  // extern "C"
