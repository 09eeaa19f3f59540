// Steps that the session acts on: how often loops run, and whether a round still runs.
#include "minbuild/kernel.h"

namespace minbuild {

// y: the rounds of the loops behind this step, [1]; rounds: an extent of as many.
template <class T>
Status set_rounds(const Call& call) {
  if (call[0].count != 1 || call[1].rank != 1) return Status::kBadPlan;
  *call[0].as<T>() = call[1].dims[0];
  return Status::kSetRounds;
}

// running: whether this round is one of its loop, [].
template <class T>
Status skip_round(const Call& call) {
  if (call[0].count != 1) return Status::kBadPlan;
  if (*call[0].as<T>() != 0) return Status::kOk;
  return Status::kSkipRound;
}

MB_INSTANTIATE_LOOP_CONTROL

}  // namespace minbuild
