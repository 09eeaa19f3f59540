// The loss of labels under given logarithms of probabilities, and its gradient.
#include "lib/indexing/class_labels.h"

namespace minbuild {

// Labels [N,D] of scores [N,C,D]; D folds all dimensions after the classes.
template <class T, class I>
MB_INLINE bool read_labels(Labels<T, I>* all, const Tensor& x, const Tensor& given, const Tensor& weights,
                           const int32_t* params) {
  if (x.rank < 2 || x.count == 0) return false;
  const int batch = x.dims[0], classes = x.dims[1], inner = x.count / (batch * classes);
  *all = {given.as<I>(), weights.as<T>(), given.count, classes, inner, params[1] != 0, params[2]};
  return batch * inner == given.count && (!weights || weights.count == classes);
}

// loss = reduce(-weight[label] x[label])
template <class T, class I>
Status nll_loss(const Call& call) {
  const Tensor &loss = call[0], &x = call[1];
  const bool each = call.params[0] == kEach;
  Labels<T, I> all;
  if (!read_labels(&all, x, call[2], call[3], call.params) || loss.count != (each ? all.count : 1))
    return Status::kBadPlan;
  T divisor, sum = 0;
  Status status = all.divisor(call.params[0], &divisor);
  if (status != Status::kOk) return status;
  for (int i = 0; i < all.count; ++i) {
    const I label = all.labels[i];
    if (all.names_none(label)) return Status::kBadValue;
    T one = 0;
    if (!all.ignore(label)) one = -all.weight(label) * x.as<T>()[all.scores(i) + static_cast<int>(label) * all.inner];
    if (each) loss.as<T>()[i] = one;
    sum += one;
  }
  if (!each) *loss.as<T>() = sum / divisor;
  return Status::kOk;
}

// dx = -dy weight[label] / divisor at the labels, and 0 elsewhere
template <class T, class I>
Status nll_loss_grad(const Call& call) {
  const Tensor &dx = call[0], &dy = call[1];
  const bool each = call.params[0] == kEach;
  Labels<T, I> all;
  if (!read_labels(&all, dx, call[2], call[3], call.params) || dy.count != (each ? all.count : 1))
    return Status::kBadPlan;
  T divisor;
  Status status = all.divisor(call.params[0], &divisor);
  if (status != Status::kOk) return status;
  clear_bytes(dx.data, dx.count * sizeof(T));
  for (int i = 0; i < all.count; ++i) {
    const I label = all.labels[i];
    if (all.names_none(label)) return Status::kBadValue;
    if (all.ignore(label)) continue;
    int at = all.scores(i) + static_cast<int>(label) * all.inner;
    dx.as<T>()[at] = -dy.as<T>()[each ? i : 0] * all.weight(label) / divisor;
  }
  return Status::kOk;
}

MB_INSTANTIATE_NEGATIVE_LOG_LIKELIHOOD

}  // namespace minbuild
