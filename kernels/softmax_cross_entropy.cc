// Softmax cross-entropy loss and its gradient with respect to the scores.
#include "minbuild/kernel.h"
#include "shared/math.h"
#include "shared/softmax.h"

namespace minbuild {

enum Reduction { kEach, kMean, kSum };

// scores, log_prob: [N,C,D]  labels: [N,D]  weights: [C] or absent. D folds all dimensions after the classes.
template <class T, class I>
struct LossShape {
  int batch, classes, inner;
  const I* labels;
  const T* weights;
  int64_t ignored;
  bool ignores;
  Reduction reduction;

  bool read(const Tensor& scores, const Tensor& label_tensor, const Tensor& weight_tensor, const int32_t* params) {
    reduction = static_cast<Reduction>(params[0]);
    ignores = MB_SOFTMAX_CROSS_ENTROPY_IGNORE && params[1] != 0;
    ignored = params[2];
    if (scores.rank < 2 || scores.count == 0) return false;
    batch = scores.dims[0];
    classes = scores.dims[1];
    inner = scores.count / (batch * classes);
    labels = label_tensor.as<I>();
    weights = MB_SOFTMAX_CROSS_ENTROPY_WEIGHTS ? weight_tensor.as<T>() : nullptr;
    return label_tensor.count == batch * inner && (weights == nullptr || weight_tensor.count == classes);
  }

  // Weight of position i; 0 where its label is ignored. Sets `valid` to false for a label that is no class.
  T weight(int i, bool* valid) const {
    int64_t label = labels[i];
    if (ignores && label == ignored) return 0;
    if (static_cast<uint64_t>(label) >= static_cast<uint64_t>(classes)) {
      *valid = false;
      return 0;
    }
    return weights == nullptr ? T(1) : weights[label];
  }

  // Sum of all weights, the divisor of the mean.
  T total_weight(bool* valid) const {
    T total = 0;
    for (int i = 0; i < batch * inner; ++i) total += weight(i, valid);
    return total;
  }
};

// loss = reduce(-weight[label] * log_softmax(scores)[label]); log_prob = log_softmax(scores)
template <class T, class I>
Status softmax_cross_entropy(const Call& call) {
  const Tensor &loss = call[0], &log_prob = call[1], &scores = call[2];
  LossShape<T, I> shape;
  if (!shape.read(scores, call[3], call[4], call.params) || log_prob.count != scores.count) return Status::kBadPlan;
  int positions = shape.batch * shape.inner;
  if (loss.count != (shape.reduction == kEach ? positions : 1)) return Status::kBadPlan;
  bool valid = true;
  T total_weight = shape.total_weight(&valid);
  if (!valid) return Status::kBadValue;

  log_softmax<T>(log_prob.as<T>(), scores.as<T>(), shape.batch, shape.classes, shape.inner);
  T sum = 0;
  for (int n = 0, i = 0; n < shape.batch; ++n) {
    for (int d = 0; d < shape.inner; ++d, ++i) {
      T weight = shape.weight(i, &valid), each = 0;
      if (weight != 0) each = -weight * log_prob.as<T>()[(n * shape.classes + int(shape.labels[i])) * shape.inner + d];
      sum += each;
      if (MB_SOFTMAX_CROSS_ENTROPY_EACH && shape.reduction == kEach) loss.as<T>()[i] = each;
    }
  }
  // The mean over nothing is 0, as in ORT.
  if (shape.reduction == kMean) sum = total_weight != 0 ? sum / total_weight : T(0);
  if (shape.reduction != kEach) loss.as<T>()[0] = sum;
  return Status::kOk;
}

// d_scores = dy * weight[label] / divisor * (softmax(scores) - onehot(label)), from log_prob
template <class T, class I>
Status softmax_cross_entropy_grad(const Call& call) {
  const Tensor &d_scores = call[0], &dy = call[1], &log_prob = call[2];
  LossShape<T, I> shape;
  if (!shape.read(log_prob, call[3], call[4], call.params) || d_scores.count != log_prob.count) return Status::kBadPlan;
  int positions = shape.batch * shape.inner;
  if (dy.count != (shape.reduction == kEach ? positions : 1)) return Status::kBadPlan;
  bool valid = true;
  T total_weight = shape.total_weight(&valid);
  if (!valid) return Status::kBadValue;

  T divisor = shape.reduction == kMean && total_weight != 0 ? total_weight : T(1);
  exp_range<T>(d_scores.as<T>(), log_prob.as<T>(), log_prob.count);
  for (int n = 0, i = 0; n < shape.batch; ++n) {
    for (int d = 0; d < shape.inner; ++d, ++i) {
      T factor = dy.as<T>()[MB_SOFTMAX_CROSS_ENTROPY_EACH && shape.reduction == kEach ? i : 0] * shape.weight(i, &valid) / divisor;
      T* row = d_scores.as<T>() + n * shape.classes * shape.inner + d;
      if (factor != 0) row[int(shape.labels[i]) * shape.inner] -= T(1);
      for (int c = 0; c < shape.classes; ++c) row[c * shape.inner] *= factor;
    }
  }
  return Status::kOk;
}

MB_INSTANTIATE_SOFTMAX_CROSS_ENTROPY

}  // namespace minbuild
