// Plans of any bytes: refused, or run without touching what is not theirs.
#include "session.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::Exact checkpoint(fuzz::file("checkpoint"));
  fuzz::Exact plan(data, size);
  fuzz::Session made(plan, &checkpoint);
  if (made.session != nullptr) fuzz::exercise(made.session, data, size, size ? data[size - 1] : 0xff);
  return 0;
}
