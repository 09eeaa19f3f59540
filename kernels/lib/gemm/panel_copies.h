// Panels of B that the first tile packs while it multiplies, where a vector of a row comes from a few places. A
// tile has time for them that a pass of their own would take.
#ifndef MINBUILD_LIB_GEMM_PANEL_COPIES_H_
#define MINBUILD_LIB_GEMM_PANEL_COPIES_H_

#include "lib/simd/vec.h"

namespace minbuild {

// Places that a vector of a row comes from.
constexpr int kMostCopies = 3;

template <class T>
struct PanelCopies {
  int32_t* rows;      // row i begins at x + rows[i]; there is room for those of a block
  int first = -1;     // the row of B that rows[0] is
  bool left = false;  // to the tile
  const T* x = nullptr;
  // Of a vector of each row, the lanes before ends[0] are at x + rows[i] + from[0], those before ends[1] at from[1], and
  // all others at from[2].
  struct Source {
    intptr_t from[kMostCopies];
    int ends[kMostCopies - 1];
  } sources[2] = {};
};

}  // namespace minbuild
#endif  // MINBUILD_LIB_GEMM_PANEL_COPIES_H_
