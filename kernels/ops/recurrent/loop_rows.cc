// Rows of stacks whose place changes from round to round. A loop of many rounds keeps its states at every k-th round, the
// checkpoints, counted from the last round back, and those of its last k rounds. A later loop runs the rounds from the
// last to the first, k of them to a chunk: while it is in one chunk, it computes the states of the one before a second
// time, from its checkpoint on. Their rows take the places of those that were read, so that both chunks share k rows.
#include "minbuild/kernel.h"

namespace minbuild {

enum Place { kNext, kCheckpoint, kRecent, kAgain, kAgainBackward, kPlaces };
constexpr int32_t kMostRows = 1 << 20;  // of a chunk: no sum of two numbers below overflows

// places: the number of the next round, zero before the first, then the rows of the round, negative for none: among
// checkpoints, among those of a chunk, and in stacks of all rounds, forward and backward, that of the round that is
// computed a second time; rounds: an extent of as many. Parameters: the rounds of a chunk, and whether rounds are computed
// a second time.
template <class>
Status next_rows(const Call& call) {
  const int32_t every = call.params[0];
  if (call[0].count != kPlaces || call[1].rank != 1 || every < 1 || every > kMostRows) return Status::kBadPlan;
  int32_t* places = call[0].as<int32_t>();
  const int32_t rounds = call[1].dims[0], round = places[kNext];
  if (round < 0 || round >= rounds) return Status::kBadPlan;
  places[kNext] = round + 1;
  const int32_t left = rounds - round;  // with this one
  if (!call.params[1]) {
    places[kCheckpoint] = left % every == 0 || round == 0 ? (left - 1) / every - 1 : -1;
    places[kRecent] = every - left;
    return Status::kOk;
  }
  const int32_t chunk = round / every, behind = every - round % every, first = (rounds - 1) / every - 1;
  const int32_t again = left - 2 * behind;
  places[kCheckpoint] = behind != every && again > 0 ? -1 : chunk < first ? chunk : first;
  places[kRecent] = chunk % 2 == 0 ? behind - 1 : every - behind;
  places[kAgain] = again > 0 ? again : 0;
  places[kAgainBackward] = rounds - 1 - places[kAgain];
  return Status::kOk;
}

// Copies a row of the larger one of y and x from or to the smaller one. places: rows, see next_rows; parameter: which of
// them it is.
template <class T>
Status move_row(const Call& call) {
  const Tensor &y = call[0], &x = call[1], &places = call[2];
  const uint32_t place = static_cast<uint32_t>(call.params[0]);
  if (place >= static_cast<uint32_t>(places.count)) return Status::kBadPlan;
  const int32_t row = places.as<int32_t>()[place];
  const bool takes = x.count > y.count;
  const uint32_t count = static_cast<uint32_t>(takes ? y.count : x.count);
  if (row < 0 || count == 0) return Status::kOk;
  if (static_cast<uint32_t>(row) >= static_cast<uint32_t>(takes ? x.count : y.count) / count) return Status::kBadPlan;
  const size_t at = size_t{count} * static_cast<uint32_t>(row) * sizeof(T);
  copy_bytes(y.data + (takes ? 0 : at), x.data + (takes ? at : 0), count * sizeof(T));
  return Status::kOk;
}

MB_INSTANTIATE_LOOP_ROWS

}  // namespace minbuild
