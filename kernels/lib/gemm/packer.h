// Panels of B on the stack, and what fills them.
#ifndef MINBUILD_LIB_GEMM_PACKER_H_
#define MINBUILD_LIB_GEMM_PACKER_H_

#include "lib/gemm/microkernel.h"

#ifndef MINBUILD_SMALL_STACK  // 1: panels of 1 KB instead of 16 KB
#if defined(__ARM_ARCH_PROFILE) && __ARM_ARCH_PROFILE == 'M'
#define MINBUILD_SMALL_STACK 1
#else
#define MINBUILD_SMALL_STACK 0
#endif
#endif

#ifndef MB_PANEL_BYTES
#define MB_PANEL_BYTES 0  // of a panel, where --stack-budget says
#endif

namespace minbuild {

constexpr int kPanelBytes = MB_PANEL_BYTES ? MB_PANEL_BYTES : MINBUILD_SMALL_STACK || MB_ONE_VARIANT ? 1024 : 16384;

// Packs a panel of B: panel[i*width + j] = B(k + i, j0 + j) for i < depth, j < columns; columns from `columns` up to
// `width` are zero already and may be left alone. Any type with such a call operator may stand for B, such as an image
// under convolution; it is called without its type, so that the walk below exists once.
template <class T>
using Pack = void (*)(const void* packer, T* panel, int k, int depth, int j0, int columns, int width);
template <class T, class Packer>
void pack_with(const void* packer, T* panel, int k, int depth, int j, int columns, int width) {
  (*static_cast<const Packer*>(packer))(panel, k, depth, j, columns, width);
}

}  // namespace minbuild
#endif  // MINBUILD_LIB_GEMM_PACKER_H_
