// A kernel that keeps places to read from in scratch must not overwrite them through an output.
#ifndef MINBUILD_LIB_INDEXING_DISJOINT_H_
#define MINBUILD_LIB_INDEXING_DISJOINT_H_

#include "minbuild/kernel.h"

namespace minbuild {

// True if no byte belongs to both tensors, whose elements have these sizes. Only a damaged plan lets them overlap.
MB_INLINE bool disjoint(const Tensor& a, int a_size, const Tensor& b, int b_size) {
  return a.data + intptr_t(a.count) * a_size <= b.data || b.data + intptr_t(b.count) * b_size <= a.data;
}

}  // namespace minbuild
#endif  // MINBUILD_LIB_INDEXING_DISJOINT_H_
