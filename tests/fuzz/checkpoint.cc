// Checkpoints of any bytes, for creation or for loading, as the last byte says: refused, or trained from.
#include "session.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::Exact plan(fuzz::file("plan")), good(fuzz::file("checkpoint"));
  if (size == 0) return 0;
  const uint8_t choice = data[size - 1];
  fuzz::Exact checkpoint(data, size);
  const bool creates = (choice & 64) != 0;
  fuzz::Session made(plan, creates ? &checkpoint : &good);
  if (made.session == nullptr) return 0;
  if (!creates) mb_load_checkpoint(made.session, checkpoint.data, checkpoint.size);
  fuzz::exercise(made.session, data, size, choice);
  return 0;
}
