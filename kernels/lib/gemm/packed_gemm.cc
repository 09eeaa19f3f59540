// The packed products of a library, for all of its kernels.
#include "lib/gemm/packed_gemm.h"

namespace minbuild {

#define MB_DEFINE_PRODUCTS(T) MB_PACKED_PRODUCTS(template, T)
MB_PRODUCT_TYPES(MB_DEFINE_PRODUCTS)

}  // namespace minbuild
