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
  static constexpr bool kVectors = MB_SIMD && kChunk > 1 && !MB_SOFTMAX_CROSS_ENTROPY_INNER;  // in memory

  // Without gradient: y = x - log(sum over the classes of e^x), below the maximum so that nothing overflows.
  // With it x is that already, and y = factor * (e^x - onehot(label)).
  static MB_NOINLINE void run(T* y, const T* x, bool gradient, int label, T factor, int classes, int stride) {
    const int step = MB_SOFTMAX_CROSS_ENTROPY_INNER ? stride : 1;
    T largest = 0, sum = 0;
    if (!gradient) {
      largest = *x;
      for (int c = 0; c < classes; ++c) largest = x[c * step] > largest ? x[c * step] : largest;
    }
    if constexpr (kVectors) return run_vectors(y, x, gradient, label, factor, classes, largest);
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

  // The same of scores side by side, by whole vectors: once for the sum, unless it is known, and once for y.
  static MB_INLINE void run_vectors(T* y, const T* x, bool gradient, int label, T factor, int classes, T largest) {
    T sum = 0, log_sum = 0;
    for (bool writes = gradient;; writes = true) {
      for (int first = 0; first < classes; first += kChunk) {
        const int left = classes - first;
        V each = V::load(x + first, left) - V(largest);
        if (gradient || !writes) {
          T chunk[kChunk];
          exp_of_negative(each).store(chunk);
          for (int i = 0; i < kChunk && i < left; ++i) sum += chunk[i];
          if (unsigned(label - first) < unsigned(kChunk)) chunk[label - first] -= 1;
          each = V(factor) * V::load(chunk);
        } else {
          each = each - V(log_sum);
        }
        if (writes) each.store(y + first, left);
      }
      if (writes) return;
      log_sum = log_of_one(sum);
    }
  }
};

#if MB_SOFTMAX_CROSS_ENTROPY_LONG
constexpr int kLong = 1024;  // classes from which on rows are computed by wide vectors, and divided among threads

// The largest of a row's scores, and the sum of e^(score - largest): in many sums, each of few numbers, which keeps
// roundings from adding up.
template <class T>
struct ScoreSumsBody {
  static constexpr int kChains = 4, kBlock = kLong;

  template <class W>
  static MB_INLINE void run(const T* x, intptr_t classes, T* largest, T* sum_of_powers) {
    using V = typename W::template of<T>;
    constexpr int kStep = kChains * V::size;
    constexpr T kLeast = -static_cast<T>(__builtin_inff());
    T lanes[kStep], top = kLeast;
    const auto vectors_at = [&](intptr_t c) MB_LAMBDA -> const T* {
      if (classes - c >= kStep) return x + c;
      for (int i = 0; i < kStep; ++i) lanes[i] = i < classes - c ? x[c + i] : kLeast;
      return lanes;
    };
    V tops[kChains], total = T(0);
    unroll<kChains>([&](auto i) MB_LAMBDA { tops[i] = kLeast; });
    for (intptr_t c = 0; c < classes; c += kStep) {
      const T* from = vectors_at(c);
      unroll<kChains>([&](auto i) MB_LAMBDA { tops[i] = max(V::load(from + i * V::size), tops[i]); });
    }
    unroll<kChains>([&](auto i) MB_LAMBDA { tops[0] = max(tops[i], tops[0]); });
    tops[0].store(lanes);
    for (int i = 0; i < V::size; ++i) top = lanes[i] > top ? lanes[i] : top;
    for (intptr_t block = 0; block < classes; block += kBlock) {
      V sums[kChains];
      unroll<kChains>([&](auto i) MB_LAMBDA { sums[i] = T(0); });
      const intptr_t end = classes - block < kBlock ? classes : block + kBlock;
      for (intptr_t c = block; c < end; c += kStep) {
        const T* from = vectors_at(c);
        unroll<kChains>([&](auto i)
                            MB_LAMBDA { sums[i] = sums[i] + exp_of_negative(V::load(from + i * V::size) - V(top)); });
      }
      unroll<kChains>([&](auto i) MB_LAMBDA { total = total + sums[i]; });
    }
    *largest = top;
    *sum_of_powers = sum(total);
  }
};

// y = x - largest - log_sum. y may be x.
template <class T>
struct LogProbBody {
  template <class W>
  static MB_INLINE void run(T* y, const T* x, intptr_t classes, T largest, T log_sum) {
    using V = typename W::template of<T>;
    for (intptr_t c = 0; c < classes; c += V::size) {
      const int left = classes - c < V::size ? int(classes - c) : V::size;
      (V::load(x + c, left) - V(largest) - V(log_sum)).store(y + c, left);
    }
  }
};

// y = factor * e^x. y may be x.
template <class T>
struct PowersBody {
  template <class W>
  static MB_INLINE void run(T* y, const T* x, intptr_t classes, T factor) {
    using V = typename W::template of<T>;
    for (intptr_t c = 0; c < classes; c += V::size) {
      const int left = classes - c < V::size ? int(classes - c) : V::size;
      (V(factor) * exp_of_negative(V::load(x + c, left))).store(y + c, left);
    }
  }
};

// Rows of cross_entropy, with its arguments. Labels that are no classes are left to it.
template <class T, class I>
struct LongRows {
  const Labels<T, I>& labels;
  const T* x;
  T* y;
  const T* dy;  // null without gradient
  bool each;    // dy has a number for each row
  bool narrow;  // y is the logarithm at each row's label alone
  T total;      // what the mean divides by

  void run(intptr_t first, intptr_t count) const {
    const int bytes = widest_bytes(), classes = labels.classes;
    for (intptr_t i = first; i < first + count; ++i) {
      const I label = labels.labels[i];
      const bool usable = !labels.names_none(label);
      const T counts = usable ? labels.weight(label) : T(0);
      const T* from = x + i * classes;
      T* to = narrow ? y + i : y + i * classes;
      if ((dy || narrow) && counts == 0) {
        clear_bytes(to, (narrow ? 1 : classes) * sizeof(T));
      } else if (dy) {
        const T factor = dy[each ? i : 0] * counts / total;
        run_at<PowersBody<T>, 64>(bytes, to, from, intptr_t(classes), factor);
        to[label] -= factor;
      } else {
        T largest, sum;
        run_at<ScoreSumsBody<T>, 64>(bytes, from, intptr_t(classes), &largest, &sum);
        const T log_sum = log_of_one(sum);
        if (narrow) *to = from[label] - largest - log_sum;
        else run_at<LogProbBody<T>, 64>(bytes, to, from, intptr_t(classes), largest, log_sum);
      }
    }
  }
};
#endif

// Both kernels have their arguments at the same places but for the outputs: scores (or log probabilities) x: [N,C,D],
// labels: [N,D], weights: [C] or absent; `wide`: [N,C,D], `narrow`: the loss, or its gradient. D folds all dimensions
// after the classes. Of long rows of which nobody reads the log probabilities, `wide` has those of the labels: [N].
template <class T, class I>
MB_NOINLINE Status cross_entropy(const Call& call, bool gradient) {
  const Tensor &narrow = call[gradient], &wide = call[!gradient], &x = call[2], &given = call[3], &weights = call[4];
  const int reduction = call.params[0];
  const bool each = MB_SOFTMAX_CROSS_ENTROPY_EACH && reduction == kEach;
  const bool weighs = MB_SOFTMAX_CROSS_ENTROPY_WEIGHTS && weights;
  if (x.rank < 2 || x.count == 0) return Status::kBadPlan;
#if MB_SOFTMAX_CROSS_ENTROPY_LONG
  const bool rows = x.rank == 2 && x.dims[1] >= kLong, chosen = rows && !gradient && wide.count != x.count;
#else
  constexpr bool rows = false, chosen = false;
#endif
  if (wide.count != (chosen ? given.count : x.count)) return Status::kBadPlan;
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
#if MB_SOFTMAX_CROSS_ENTROPY_LONG
  if (rows) {
    const LongRows<T, I> all = {labels, x.as<T>(), wide.as<T>(), gradient ? small : nullptr, each, chosen, total};
#if MB_THREADS > 1
    for_ranges(call.team, count, x.count * int64_t(sizeof(T)), 1,
               [&](intptr_t first, intptr_t some) { all.run(first, some); });
#else
    all.run(0, count);
#endif
  }
#endif
  for (int i = 0; i < count; ++i) {
    const int at = labels.scores(i);
    const I given_label = labels.labels[i];
    if (labels.names_none(given_label)) return Status::kBadValue;
    const int label = static_cast<int>(given_label);
    const T counts = labels.weight(given_label);
    T* y = wide.as<T>() + at;
    // Without gradient nobody reads the factor.
    if (!rows)
      SoftmaxRow<T>::run(y, x.as<T>() + at, gradient, label, small[each ? i : 0] * counts / total, classes, stride);
    if (gradient) continue;
    T loss = counts != 0 ? counts * (chosen ? wide.as<T>()[i] : y[label * stride]) : T(0);
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
