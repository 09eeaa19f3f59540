// Labels of classes, each with the weight of its class, and what a mean over them divides by.
#ifndef MINBUILD_SHARED_LABELS_H_
#define MINBUILD_SHARED_LABELS_H_

#include "minbuild/kernel.h"

namespace minbuild {

// The parameters of losses: reduction, whether a label is ignored, and which.
enum Reduction { kEach, kMean, kSum };

// `count` labels [N,D] of scores [N,C,D]. Flags that are constants cost nothing.
template <class T, class I>
struct Labels {
  const I* labels;
  const T* weights;  // [C], or null
  int count, classes, inner;
  bool ignores;
  int32_t ignored;

  MB_INLINE bool ignore(int i) const { return ignores && labels[i] == ignored; }
  // 0 where the label is ignored.
  MB_INLINE T weight(int i) const { return ignore(i) ? T(0) : weights ? weights[labels[i]] : T(1); }
  // Where the scores of label i begin; they lie `inner` apart.
  MB_INLINE int scores(int i) const { return i / inner * classes * inner + i % inner; }
  // Checks all labels, and finds what to divide by: the mean over nothing is 0, as in ORT.
  MB_INLINE Status divisor(int reduction, T* divisor) const {
    const bool alike = !weights && !ignores;
    T total = alike ? T(count) : T(0);
    for (int i = 0; i < count; ++i) {
      if (!ignore(i) && static_cast<uint64_t>(labels[i]) >= static_cast<uint64_t>(classes)) return Status::kBadValue;
      if (!alike) total += weight(i);
    }
    *divisor = reduction != kMean || total == 0 ? T(1) : total;
    return Status::kOk;
  }
};

}  // namespace minbuild
#endif  // MINBUILD_SHARED_LABELS_H_
