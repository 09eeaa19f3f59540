// Labels of classes, each with the weight of its class, and what a mean over them divides by.
#ifndef MINBUILD_LIB_INDEXING_CLASS_LABELS_H_
#define MINBUILD_LIB_INDEXING_CLASS_LABELS_H_

#include "minbuild/kernel.h"

namespace minbuild {

// The parameters of losses: reduction, whether a label is ignored, and which.
enum LossReduction { kEach, kMean, kSum };

// `count` labels [N,D] of scores [N,C,D]. Flags that are constants cost nothing.
template <class T, class I>
struct Labels {
  const I* labels;
  const T* weights;  // [C], or null
  int count, classes, inner;
  bool ignores;
  int32_t ignored;

  MB_INLINE bool ignore(I label) const { return ignores && label == ignored; }
  // 0 where the label is ignored.
  MB_INLINE T weight(I label) const { return ignore(label) ? T(0) : weights ? weights[label] : T(1); }
  // True if a label is no class. Each is looked at where it is used: a damaged plan may put what is written over them.
  MB_INLINE bool names_none(I label) const {
    return !ignore(label) && static_cast<uint64_t>(label) >= static_cast<uint64_t>(classes);
  }
  // Where the scores of label i begin; they lie `inner` apart.
  MB_INLINE int scores(int i) const { return i / inner * classes * inner + i % inner; }
  // Finds what to divide by: the mean over nothing is 0, as in ORT.
  MB_INLINE Status divisor(int reduction, T* divisor) const {
    const bool alike = !weights && !ignores;
    T total = alike ? T(count) : T(0);
    for (int i = 0; i < count && !alike; ++i) {
      if (names_none(labels[i])) return Status::kBadValue;
      total += weight(labels[i]);
    }
    *divisor = reduction != kMean || total == 0 ? T(1) : total;
    return Status::kOk;
  }
};

}  // namespace minbuild
#endif  // MINBUILD_LIB_INDEXING_CLASS_LABELS_H_
