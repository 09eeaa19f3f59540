// Runs a plan that is compiled in: finds its tensors and walks through its code. Nothing in it has to be checked.
#include "runtime/expressions.h"
#include "runtime/loop_rounds.h"
#include "runtime/memory.h"

namespace minbuild {

#if MB_SYMBOLS > 1
constexpr int64_t kMostBytes = 0x7fffffef;  // of a tensor, and of all memory
#endif

plan::Tensor Session::resolve(uint32_t index, Tensor* tensor) const {
  const plan::Record& record = plan::kTensors[index];
  plan::Tensor found = {};
  found.shape = plan::kNumbered ? plan::kShapeAt[record.shape] : record.shape;
  const plan::DimIndex* dims = plan::kShapes + found.shape;
  uint32_t rank = *dims;
#if MB_LOOPS
  const bool walks = (rank & 128) != 0;
#if MB_LOOPS > 1
  const bool backward = (rank & 64) != 0;
  rank &= 63;
#else
  rank &= 127;
#endif
#endif
  found.type = static_cast<uint8_t>(*++dims);
  int32_t elements = 1;
  for (uint32_t i = 0; i < rank; ++i) elements *= tensor->dims[i] = size_of(*++dims);
  tensor->rank = static_cast<int32_t>(rank);
  tensor->count = elements;
  uint32_t region = record.at, at = 0;
  if (region >= plan::kPlaceCount) {
    region -= plan::kPlaceCount - kNothing;
    tensor->data = regions[region].data;
  } else {
    at = plan::kPlaces[region];
    if (region < plan::kFreePlaces) {
#if MB_SYMBOLS > 1
      at = static_cast<uint32_t>(symbols[at]);
#else
      at = static_cast<uint32_t>(align16(at * static_cast<uint32_t>(symbols[0])));
      if (region < plan::kMorePlaces) at += plan::kMore[region] * uint32_t{kAlignment};
#endif
    }
    region = region >= plan::kMemoryPlaces ? kConstants
             : region < plan::kArenaPlaces ? kArena
             : at < trainable_bytes        ? kTrained
                                           : kPersistent;
    tensor->data = regions[region].data + at;
  }
#if MB_LOOPS
#if MB_LOOPS > 1
  const int32_t round = backward ? last_sample - sample : sample;
#else
  const int32_t round = sample;
#endif
  if (walks) tensor->data += static_cast<uint32_t>(round * elements) * element_size(found.type);
#endif
  found.region = static_cast<uint16_t>(region);
  return found;
}

#if MB_SYMBOLS > 1
Size Session::temporaries(int32_t* values) {
  constexpr uint32_t kFree = plan::kCounts[plan::kDefaults];
  for (uint32_t i = 0; i < plan::kValues; ++i) {
    if (i >= kFree) {
      const plan::Operation& o = plan::kOperations[i - kFree];
      const int64_t value = operate(o.op, size_in(values, o.a), size_in(values, o.b));
      if (!is_value(value)) return -1;
      values[i] = static_cast<int32_t>(value);
    } else if (values[i] <= 0) {
      return -1;
    }
  }
  // What callers bring and what only has a size has no place that was counted.
  for (const plan::Record& record : plan::kTensors) {
    const plan::DimIndex* dims = plan::kShapes + (plan::kNumbered ? plan::kShapeAt[record.shape] : record.shape);
    int rank = *dims & 15;
    const uint32_t element = element_size(*++dims);
    int64_t bytes = element != 0 ? element : 1;
    for (; rank > 0; --rank) {
      const int32_t size = size_in(values, *++dims);
      bytes *= size;
      if (size < 0 || bytes > kMostBytes) return -1;
    }
  }
  const int32_t need = size_in(values, plan::kPeak);
  return need <= kMostBytes - static_cast<int64_t>(plan::kPersistentBytes) - 0x10000 ? need : -1;
}
#endif

namespace {

// Parameters as they are, and packed ones as `words`.
MB_INLINE const int32_t* params_at(const int32_t* params, int32_t*) { return params; }
MB_INLINE const int32_t* params_at(const uint8_t* params, int32_t* words) {
  for (uint32_t i = 0; i < plan::kMostParams; ++i) words[i] = plan::kParamValues[params[i]];
  return words;
}

}  // namespace

// Makes what the caller hands over the regions of a graph's inputs, if it is what the plan expects there under the size
// of the free dimension, which one of them has.
mb_status bind(Session* s, const plan::Graph& graph, const mb_tensor* inputs) {
#if MB_SYMBOLS > 1
  for (uint32_t i = 0; i < plan::kCounts[plan::kDefaults]; ++i)
    if (graph.symbols[i] != 0)
      s->symbols[i] = (inputs + graph.symbols[i] / MB_MAX_RANK)[-1].dims[graph.symbols[i] % MB_MAX_RANK];
  if (mb_status status = s->lay_out(); status != MB_OK) return status;
#elif MB_SYMBOLS
  if (graph.symbol != 0) {
    s->symbols[0] = (inputs + graph.symbol / MB_MAX_RANK)[-1].dims[graph.symbol % MB_MAX_RANK];
    mb_status status = s->lay_out();
    if (status != MB_OK) return status;
  }
#endif
  for (uint32_t i = 0; i < graph.input_count; ++i, ++inputs) {
    const uint32_t index = graph.ports + i;
    const plan::Port& port = s->port(index);
    s->regions[kBound + index].data = static_cast<char*>(inputs->data);
    Tensor tensor;
    // From here on as callers see it: a type, a rank, dimensions.
    tensor.count = s->resolve(port.tensor, &tensor).type;
    const int32_t *expected = &tensor.count, *given = &inputs->type;
    int k = 0;
    do {
      if (inputs->data == nullptr || given[k] != expected[k])
        return fail(s, Failure::kInput, word_of(s->name(port.name)), expected[k], k + 1);
    } while (++k < 2 + tensor.rank);
  }
  return MB_OK;
}

mb_status run_steps(Session* s, const plan::Graph& graph) {
  const uint8_t* code = plan::kCode + graph.code;
  uint32_t newest = graph.newest;
  begin_rounds(s, graph);
  for (uint32_t i = 0; i < graph.step_count; ++i) {
    const plan::Kind& kind = plan::kKinds[*code++];
    Tensor tensors[MB_MAX_ARGS > Call::kMiddle ? MB_MAX_ARGS : Call::kMiddle];
    for (uint32_t k = 0; k < kind.args; ++k) {
      uint32_t index = *code++;
      if (plan::kRelative) {
        if (index == 0) index = newest++;
        else if (index < 255) index = newest - index;
        else index = code[0] | code[1] << 8, code += 2;
      }
      s->resolve(index, &tensors[k]);
    }
    bool replaces = s->replaces_gradients != 0;
    replaces &= in_first_round(s);
    int32_t words[plan::kMostParams];
    Call call = {tensors + Call::kMiddle, params_at(plan::kParams + kind.params, words),
                 replaces ? 0u : kind.accumulate};
    const bool runs = !skips_step(s);
    mb_status status = MB_OK;
#if MB_THREADS > 1
    call.team = &s->team;
    if (runs) status = static_cast<mb_status>(run_divided(&s->team, call, kind.row));
#elif MB_STRAIGHT
    if (runs)
      status = static_cast<mb_status>(kind.row < plan::kStraightRow
                                          ? run_kernel(call, kind.row)
                                          : run_straight(s, kind.row - plan::kStraightRow, call.accumulate));
#else
    if (runs) status = static_cast<mb_status>(run_kernel(call, kind.row));
#endif
    status = control_rounds(s, status, tensors[0]);
#if MB_LOSS_SCALING
    if (status == kSkipUpdateStatus) return status;
#endif
    if (status != MB_OK) {
#if MB_ERROR_MESSAGES
      const char* kernel = Session::name(plan::kKernelNames[kind.row]);
#else
      const char* kernel = "";
#endif
#if MB_FUSED_UPDATES
      return fail_step(s, status, tensors, i, kernel);
#endif
      return fail(s, status == MB_BAD_VALUE ? Failure::kStepValues : Failure::kStepShapes, i, word_of(kernel));
    }
#if MB_LOOPS
    if (kind.loop != 0) {
      const plan::Loop& loop = plan::kLoops[kind.loop - 1];
      if (goes_on(s, graph)) code = plan::kCode + loop.code, newest = loop.newest, i -= loop.steps;
    }
#endif
  }
  return MB_OK;
}

}  // namespace minbuild

using namespace minbuild;

extern "C" mb_status mb_create(const void*, size_t plan_size, const void* checkpoint, size_t checkpoint_size,
                               mb_options* options, mb_session** session) {
  mb_session none;
  none.error = options->error;
  if (plan_size != 0) return fail(&none, Failure::kPlan);
  constexpr uint32_t kFree = plan::kCounts[plan::kDefaults];
#if MB_SYMBOLS > 1
  int32_t symbol[plan::kValues];
  const bool given = options->symbols != nullptr;
  if (given && options->symbol_count != kFree) return fail(&none, Failure::kSymbolCount, kFree);
  copy_bytes(symbol, given ? options->symbols : plan::kDefaultSizes, kFree * sizeof(int32_t));
#else
  int32_t symbol = plan::kDefaultSizes[0];
  if (options->symbols != nullptr) {
    if (options->symbol_count != kFree) return fail(&none, Failure::kSymbolCount, kFree);
    if (kFree != 0) symbol = *options->symbols;
  }
#endif
  constexpr size_t kFixed = align_region(align16(align_region(align16(sizeof(Session))) + plan::kPersistentBytes +
                                                 (MB_ROLLBACK ? plan::kRollbackBytes : 0)))
#if MB_THREADS > 1
                            + kStacksBytes
#endif
      ;
  const Size temporaries = Session::temporaries(symbol);
  if (temporaries < 0) return fail(&none, Failure::kSizes);
  const size_t need = kFixed + static_cast<size_t>(temporaries);
  char* memory = static_cast<char*>(options->arena);
  size_t size = options->arena_size;
  options->arena_size = need;
  if (session == nullptr) return MB_OK;

  const bool own = memory == nullptr;
  if (own) memory = static_cast<char*>(map_memory(size = need));
  // Kernels load whole vectors from the arena and round scratch down to 16.
  if (memory == nullptr || size < need || reinterpret_cast<uintptr_t>(memory) % kAlignment != 0)
    return fail(&none, Failure::kRoom, static_cast<intptr_t>(need), static_cast<intptr_t>(size));
  if (!own) clear_bytes(memory, kFixed);  // fresh pages are zero, and take no room before they are touched
  Session* s = reinterpret_cast<Session*>(memory);
  s->error = options->error;
#if MB_FINGERPRINT
  s->accepts_any_checkpoint = options->accept_any_checkpoint;
#endif
#if MB_THREADS > 1
  s->team.set_up(options, memory + kFixed - kStacksBytes);
#endif
#if MB_SYMBOLS > 1
  copy_bytes(s->symbols, symbol, sizeof symbol);
#else
  s->symbols[0] = symbol;
#endif
  char* persistent = reinterpret_cast<char*>(s->place(reinterpret_cast<uintptr_t>(memory)));
  s->regions[kArena] = {memory + kFixed, size - kFixed};
  s->regions[kTrained].data = s->regions[kPersistent].data = persistent;
  if (plan::kCounts[plan::kConstants] != 0)
    s->regions[kConstants].data = reinterpret_cast<char*>(const_cast<uint64_t*>(plan::kConstantTable));
  s->replaces_gradients = true;
  s->progress->learning_rate = 0.001f;
  if (own) s->mapped[0] = {memory, size};
  const mb_status status = read_checkpoint(s, checkpoint, checkpoint_size);
  if (status == MB_OK) {
    s->error = s->error_room;
    *session = s;
  } else {
    mb_destroy(s);
  }
  return status;
}
