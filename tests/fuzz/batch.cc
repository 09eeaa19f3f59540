// Batches of any bytes, types, ranks and sizes: refused, or trained on. The first bytes choose the shape.
#include "session.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::Exact plan(fuzz::file("plan")), checkpoint(fuzz::file("checkpoint"));
  static fuzz::Session made(plan, &checkpoint);
  if (made.session == nullptr) abort();
  if (size < 4) return 0;
  fuzz::exercise(made.session, data, size, size ? data[size - 1] : 0xff);
  for (int graph : {MB_TRAIN, MB_EVAL}) {
    fuzz::Inputs inputs(made.session, graph, data, size);
    if (inputs.tensors.empty()) continue;
    mb_tensor& changed = inputs.tensors[data[0] % inputs.tensors.size()];
    int32_t value = static_cast<int32_t>(data[1]) - 3;
    if (data[2] % 4 == 0) changed.type = value;
    if (data[2] % 4 == 1) changed.rank = value;
    // Only smaller sizes: the caller promises that its data are as large as it says.
    if (data[2] % 4 == 2 && changed.rank > 0) {
      int32_t& dim = changed.dims[data[3] % changed.rank];
      if (value < dim) dim = value;
    }
    mb_run(made.session, graph, inputs.tensors.data(), data[2] % 4 == 3 ? data[3] % 3 : inputs.tensors.size());
  }
  return 0;
}
