// Runs a plan that is compiled in: finds its tensors and walks through its code. Nothing in it has to be checked.
#include "runtime/session.h"

namespace minbuild {

plan::Tensor Session::resolve(uint32_t index, Tensor* tensor) const {
  const plan::Record& record = plan::kTensors[index];
  plan::Tensor found = {};
  found.shape = plan::kNumbered ? plan::kShapeAt[record.shape] : record.shape;
  const plan::DimIndex* dims = plan::kShapes + found.shape;
  uint32_t rank = *dims;
#if MB_LOOPS
  const bool walks = (rank & 128) != 0;
  rank &= 127;
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
      at = static_cast<uint32_t>(align16(at * static_cast<uint32_t>(symbols[0])));
      if (region < plan::kMorePlaces) at += plan::kMore[region] * uint32_t{kAlignment};
    }
    region = region >= plan::kMemoryPlaces ? kConstants
             : region < plan::kArenaPlaces ? kArena
             : at < trainable_bytes        ? kTrained
                                           : kPersistent;
    tensor->data = regions[region].data + at;
  }
#if MB_LOOPS
  if (walks) tensor->data += static_cast<uint32_t>(sample * elements) * element_size(found.type);
#endif
  found.region = static_cast<uint16_t>(region);
  return found;
}

namespace {

// Parameters as they are, and packed ones as `words`.
MB_INLINE const int32_t* params_at(const int32_t* params, int32_t*) { return params; }
MB_INLINE const int32_t* params_at(const uint8_t* params, int32_t* words) {
  for (uint32_t i = 0; i < plan::kMostParams; ++i) words[i] = plan::kParamValues[params[i]];
  return words;
}

}  // namespace

mb_status run_steps(Session* s, const plan::Graph& graph) {
  const uint8_t* code = plan::kCode + graph.code;
  uint32_t newest = graph.newest;
#if MB_LOOPS
  s->sample = 0;
#endif
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
#if MB_LOOPS
    replaces &= s->sample == 0;
#endif
    int32_t words[plan::kMostParams];
    Call call = {tensors + Call::kMiddle, params_at(plan::kParams + kind.params, words),
                 replaces ? 0u : kind.accumulate};
    mb_status status = static_cast<mb_status>(run_kernel(call, kind.row));
    if (status != MB_OK) {
#if MB_ERROR_MESSAGES
      const char* kernel = Session::name(plan::kKernelNames[kind.row]);
#else
      const char* kernel = "";
#endif
      return fail(s, status == MB_BAD_VALUE ? Failure::kStepValues : Failure::kStepShapes, i, word_of(kernel));
    }
#if MB_LOOPS
    if (kind.loop != 0) {
      const plan::Loop& loop = plan::kLoops[kind.loop - 1];
      if (++s->sample < s->samples(graph)) code = plan::kCode + loop.code, newest = loop.newest, i -= loop.steps;
      else s->sample = 0;
    }
#endif
  }
  return MB_OK;
}

}  // namespace minbuild
