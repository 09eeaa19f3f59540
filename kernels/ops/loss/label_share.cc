// The weight of a slice's sum in a mean over the labels of the whole batch.
#include "lib/indexing/class_labels.h"

namespace minbuild {

// share = rounds / (sum of the weights of all labels [N,D]), once all of them are found to be classes
template <class T, class I>
Status label_share(const Call& call) {
  const Tensor &share = call[0], &given = call[1], &weights = call[2], &rounds = call[3];
  const int classes = call.params[0];
  if (share.count != 1 || rounds.rank != 1 || (weights && weights.count != classes)) return Status::kBadPlan;
  const T* of_class = weights ? weights.as<T>() : nullptr;
  const Labels<T, I> labels = {given.as<I>(), of_class, given.count, classes, 1, call.params[1] != 0, call.params[2]};
  T total = 0;
  for (int i = 0; i < labels.count; ++i) {
    if (labels.names_none(labels.labels[i])) return Status::kBadValue;
    total += labels.weight(labels.labels[i]);
  }
  *share.as<T>() = static_cast<T>(rounds.dims[0]) / (total == 0 ? T(1) : total);
  return Status::kOk;
}

MB_INSTANTIATE_LABEL_SHARE

}  // namespace minbuild
