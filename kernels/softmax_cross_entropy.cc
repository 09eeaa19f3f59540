// Softmax cross-entropy loss and its gradient with respect to the scores.
#include "minbuild/kernel.h"
#include "shared/math.h"
#include "shared/softmax.h"

namespace minbuild {

enum Reduction { kEach, kMean, kSum };

// scores, log_prob: [N,C,D]  labels: [N,D]  weights: [C] or absent. D folds all dimensions after the classes.
template <class T, class I>
struct Labels {
  int batch, classes, inner;
  const I* labels;
  const T* weights;
  int ignored;
  bool ignores;
  Reduction reduction;
  T total_weight;  // of all labels: the divisor of the mean, 1 where there is nothing to divide

  // Weight of label i; 0 where it is ignored.
  T weight(int i) const {
    if (ignores && labels[i] == ignored) return 0;
    return weights == nullptr ? T(1) : weights[labels[i]];
  }

  MB_NOINLINE Status read(const Tensor& scores, const Tensor& given, const Tensor& class_weights, const int32_t* params) {
    reduction = static_cast<Reduction>(params[0]);
    ignores = MB_SOFTMAX_CROSS_ENTROPY_IGNORE && params[1] != 0;
    ignored = params[2];
    if (scores.rank < 2 || scores.count == 0) return Status::kBadPlan;
    batch = scores.dims[0];
    classes = scores.dims[1];
    inner = scores.count / (batch * classes);
    labels = given.as<I>();
    weights = MB_SOFTMAX_CROSS_ENTROPY_WEIGHTS ? class_weights.as<T>() : nullptr;
    if (given.count != batch * inner || (weights != nullptr && class_weights.count != classes)) return Status::kBadPlan;
    T total = 0;
    for (int i = 0; i < given.count; ++i) {
      bool counts = !(ignores && labels[i] == ignored);
      if (counts && static_cast<uint64_t>(labels[i]) >= static_cast<uint64_t>(classes)) return Status::kBadValue;
      total += weight(i);
    }
    total_weight = reduction == kMean && total != 0 ? total : T(1);
    return Status::kOk;
  }
};

// loss = reduce(-weight[label] * log_softmax(scores)[label]); log_prob = log_softmax(scores)
template <class T, class I>
Status softmax_cross_entropy(const Call& call) {
  const Tensor &loss = call[0], &log_prob = call[1], &scores = call[2];
  Labels<T, I> shape;
  Status status = shape.read(scores, call[3], call[4], call.params);
  if (status != Status::kOk) return status;
  bool each_one = MB_SOFTMAX_CROSS_ENTROPY_EACH && shape.reduction == kEach;
  if (log_prob.count != scores.count || loss.count != (each_one ? call[3].count : 1)) return Status::kBadPlan;

  log_softmax<T>(log_prob.as<T>(), scores.as<T>(), shape.batch, shape.classes, shape.inner);
  T sum = 0;
  for (int n = 0, i = 0; n < shape.batch; ++n) {
    for (int d = 0; d < shape.inner; ++d, ++i) {
      T weight = shape.weight(i), each = 0;
      if (weight != 0) each = weight * log_prob.as<T>()[(n * shape.classes + int(shape.labels[i])) * shape.inner + d];
      sum -= each;
      if (each_one) loss.as<T>()[i] = -each;
    }
  }
  // The mean over nothing is 0, as in ORT.
  if (!each_one) loss.as<T>()[0] = sum / shape.total_weight;
  return Status::kOk;
}

// d_scores = dy * weight[label] / divisor * (softmax(scores) - onehot(label)), from log_prob
template <class T, class I>
Status softmax_cross_entropy_grad(const Call& call) {
  const Tensor &d_scores = call[0], &dy = call[1], &log_prob = call[2];
  Labels<T, I> shape;
  Status status = shape.read(log_prob, call[3], call[4], call.params);
  if (status != Status::kOk) return status;
  bool each_one = MB_SOFTMAX_CROSS_ENTROPY_EACH && shape.reduction == kEach;
  if (d_scores.count != log_prob.count || dy.count != (each_one ? call[3].count : 1)) return Status::kBadPlan;

  exp_range<T>(d_scores.as<T>(), log_prob.as<T>(), log_prob.count);
  for (int n = 0, i = 0; n < shape.batch; ++n) {
    for (int d = 0; d < shape.inner; ++d, ++i) {
      T factor = dy.as<T>()[each_one ? i : 0] * shape.weight(i) / shape.total_weight;
      T* row = d_scores.as<T>() + n * shape.classes * shape.inner + d;
      if (factor != 0) row[int(shape.labels[i]) * shape.inner] -= T(1);
      for (int c = 0; c < shape.classes; ++c) row[c * shape.inner] *= factor;
    }
  }
  return Status::kOk;
}

MB_INSTANTIATE_SOFTMAX_CROSS_ENTROPY

}  // namespace minbuild
