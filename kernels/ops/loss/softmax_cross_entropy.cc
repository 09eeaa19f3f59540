// Softmax cross-entropy loss and its gradient with respect to the scores.
#include "lib/indexing/class_labels.h"
#include "lib/simd/math.h"

namespace minbuild {

// Softmax over scores that lie `stride` apart. Vectors of 16 bytes are wide enough for many classes, and single elements
// for few: far more time goes into making the scores. Both give the same bits.
template <class T>
struct SoftmaxRow {
  using V = typename Width<MB_SOFTMAX_CROSS_ENTROPY_MANY ? kNarrowBytes : int(sizeof(T))>::template of<T>;
  static constexpr int kChunk = V::size;

  // Without gradient: y = x - log(sum over the classes of e^x), below the maximum so that nothing overflows.
  // With it x is that already, and y = factor * (e^x - onehot(label)).
  static MB_NOINLINE void run(T* y, const T* x, bool gradient, int label, T factor, int classes, int stride) {
    const int step = MB_SOFTMAX_CROSS_ENTROPY_INNER ? stride : 1;
    T largest = 0, sum = 0;
    if (!gradient) {
      largest = *x;
      for (int c = 0; c < classes; ++c) largest = x[c * step] > largest ? x[c * step] : largest;
    }
    for (int first = 0; first < classes; first += kChunk) {
      T chunk[kChunk] = {};
      int count = classes - first < kChunk ? classes - first : kChunk;
      for (int i = 0; i < count; ++i) chunk[i] = x[(first + i) * step] - largest;
      exp_of_negative(V::load(chunk)).store(chunk);
      for (int i = 0; i < count; ++i) {
        sum += chunk[i];
        if (gradient) y[(first + i) * step] = factor * (chunk[i] - (first + i == label));
      }
    }
    if (gradient) return;
    // In this order nothing cancels: at the largest score the result is the logarithm alone.
    T log_sum = log_of_one(sum);
    for (int c = 0; c < classes; ++c) y[c * step] = x[c * step] - largest - log_sum;
  }
};

// Both kernels have their arguments at the same places but for the outputs: scores (or log probabilities) x: [N,C,D],
// labels: [N,D], weights: [C] or absent; `wide`: [N,C,D], `narrow`: the loss, or its gradient. D folds all dimensions
// after the classes.
template <class T, class I>
MB_NOINLINE Status cross_entropy(const Call& call, bool gradient) {
  const Tensor &narrow = call[gradient], &wide = call[!gradient], &x = call[2], &given = call[3], &weights = call[4];
  const int reduction = call.params[0];
  const bool each = MB_SOFTMAX_CROSS_ENTROPY_EACH && reduction == kEach;
  const bool weighs = MB_SOFTMAX_CROSS_ENTROPY_WEIGHTS && weights;
  if (x.rank < 2 || x.count == 0 || wide.count != x.count) return Status::kBadPlan;
  const int classes = x.dims[1], stride = MB_SOFTMAX_CROSS_ENTROPY_INNER ? x.count / (x.dims[0] * classes) : 1;
  const int block = classes * stride, count = given.count;
  if (x.dims[0] * block != x.count || x.dims[0] * stride != count || narrow.count != (each ? count : 1) ||
      (weighs && weights.count != classes))
    return Status::kBadPlan;

  const bool ignores = MB_SOFTMAX_CROSS_ENTROPY_IGNORE && call.params[1] != 0;
  const T* of_class = weighs ? weights.as<T>() : nullptr;
  const Labels<T, I> labels = {given.as<I>(), of_class, count, classes, stride, ignores, call.params[2]};
  T total;
  Status status = labels.divisor(reduction, &total);
  if (status != Status::kOk) return status;

  T sum = 0;
  T* small = narrow.as<T>();
  for (int i = 0; i < count; ++i) {
    const int at = labels.scores(i);
    const I given_label = labels.labels[i];
    if (labels.names_none(given_label)) return Status::kBadValue;
    const int label = static_cast<int>(given_label);
    const T counts = labels.weight(given_label);
    T* y = wide.as<T>() + at;
    // Without gradient nobody reads the factor.
    SoftmaxRow<T>::run(y, x.as<T>() + at, gradient, label, small[each ? i : 0] * counts / total, classes, stride);
    if (gradient) continue;
    T loss = counts != 0 ? counts * y[label * stride] : T(0);
    sum -= loss;
    if (each) small[i] = -loss;
  }
  if (!gradient && !each) *small = sum / total;
  return Status::kOk;
}

// loss = reduce(-weight[label] * log_softmax(scores)[label]); log_prob = log_softmax(scores)
template <class T, class I>
Status softmax_cross_entropy(const Call& call) {
  return cross_entropy<T, I>(call, false);
}

// d_scores = dy * weight[label] / divisor * (softmax(scores) - onehot(label)), from log_prob
template <class T, class I>
Status softmax_cross_entropy_grad(const Call& call) {
  return cross_entropy<T, I>(call, true);
}

MB_INSTANTIATE_SOFTMAX_CROSS_ENTROPY

}  // namespace minbuild
