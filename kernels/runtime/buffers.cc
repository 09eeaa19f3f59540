// Optional part "buffers": parameters as one flat array of floats in the order of the training graph's inputs, which is
// what federated learning sends about, and nominal checkpoints, which such an array fills.
#include "minbuild/config.h"

#if MB_BUFFERS
#include "runtime/session.h"

using namespace minbuild;

extern "C" mb_status mb_parameter_buffer(mb_session* session, int trainable_only, int what, float* buffer,
                                         size_t* count) {
  Session* s = static_cast<Session*>(session);
#if MB_FUSED_UPDATES
  if (s->broken) return fail(s, Failure::kBroken);
#endif
  const uint32_t parameters = s->count[plan::kParameters], chosen = trainable_only ? s->trained : parameters;
  // The first walk looks whether all can go into a buffer of this size, the second copies.
  for (int walk = 0; walk < 2; ++walk) {
    size_t elements = 0;
    for (uint32_t order = 0; order < parameters; ++order) {
      for (uint32_t i = 0; i < chosen; ++i) {
        const plan::Parameter& parameter = s->parameter(i);
        if (s->order(i) != order) continue;
        Tensor found;
        if (s->resolve(parameter.tensor, &found).type != MB_FLOAT || found.data == nullptr)
          return fail(s, Failure::kBufferType, word_of(s->name(parameter.name)));
        const size_t bytes = static_cast<uint32_t>(found.count) * sizeof(float);
        if (walk > 0 && what == MB_FROM_PARAMETERS) copy_bytes(buffer + elements, found.data, bytes);
        if (walk > 0 && what == MB_TO_PARAMETERS) copy_bytes(found.data, buffer + elements, bytes);
        elements += static_cast<uint32_t>(found.count);
      }
    }
    if (what == MB_COUNT_PARAMETERS) {
      *count = elements;
      return MB_OK;
    }
    if (*count != elements) return fail(s, Failure::kBufferSize, static_cast<intptr_t>(elements));
    if (s->nominal && (what != MB_TO_PARAMETERS || trainable_only)) return fail(s, Failure::kNominal);
  }
  s->nominal = false;
  return MB_OK;
}
#endif
