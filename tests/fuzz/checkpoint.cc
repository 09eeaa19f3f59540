// Checkpoints of any bytes, for creation or for loading, as the last byte says: refused, or trained from. Half of those that
// say they are sealed, or compact, get the right checksum, which no fuzzer would find.
#include "runtime/checksum.h"
#include "session.h"

namespace {

void seal(const fuzz::Exact& checkpoint) {
  uint32_t root;
  minbuild::Sums sums = {};
  if (checkpoint.size <= 64) return;
  memcpy(&root, checkpoint.data, sizeof root);
  if (!minbuild::is_sealed(root) && memcmp(checkpoint.data + 4, "MBCP", 4) != 0) return;
  const size_t size = checkpoint.size - sizeof sums;
  sums.add(checkpoint.data, static_cast<uint32_t>(size));
  memcpy(checkpoint.data + size, &sums, sizeof sums);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::Exact plan(fuzz::file("plan")), good(fuzz::file("checkpoint"));
  if (size == 0) return 0;
  const uint8_t choice = data[size - 1];
  fuzz::Exact checkpoint(data, size);
  if ((choice & 32) != 0) seal(checkpoint);
  const bool creates = (choice & 64) != 0;
  fuzz::Session made(plan, creates ? &checkpoint : &good);
  if (made.session == nullptr) return 0;
  if (!creates) mb_load_any_checkpoint(made.session, checkpoint.data, checkpoint.size);
  fuzz::exercise(made.session, data, size, choice);
  return 0;
}
