// Export templates of any bytes: refused, or filled with parameters.
#include "session.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::Exact plan(fuzz::file("plan")), checkpoint(fuzz::file("checkpoint"));
  static fuzz::Session made(plan, &checkpoint);
  if (made.session == nullptr) abort();
  fuzz::Exact bytes(data, size);
  uint64_t total = 0;
  mb_export_model(made.session, bytes.data, bytes.size, fuzz::discard, &total);
  return 0;
}
