// The operators of sizes: how a plan makes sizes and places of the free dimensions.
#ifndef MINBUILD_RUNTIME_EXPRESSIONS_H_
#define MINBUILD_RUNTIME_EXPRESSIONS_H_

#include "runtime/session.h"

namespace minbuild {

// a * b; of 31 bits each it fits.
MB_INLINE int64_t product(int64_t a, int64_t b) {
  int64_t result = 0;
  if (sizeof(Size) == 4 || sizeof(void*) == 4) return a * b;
  return __builtin_mul_overflow(a, b, &result) ? kNoValue : result;
}

// The result of an operator of the plan that this library was made for, or of any; kNoValue where it is not defined.
MB_INLINE int64_t operate(uint16_t op, int64_t a, int64_t b) {
  switch (op) {
#if MB_EXPR_ADD
    case plan::kExprAdd: return a + b;
#endif
#if MB_EXPR_MULTIPLY
    case plan::kExprMultiply: return product(a, b);
#endif
#if MB_EXPR_DIVIDE
    case plan::kExprDivide: return a >= 0 && b > 0 ? static_cast<Divisor>(a) / static_cast<Divisor>(b) : kNoValue;
#endif
#if MB_EXPR_MAX
    case plan::kExprMax: return a > b ? a : b;
#endif
#if MB_EXPR_MIN
    case plan::kExprMin: return a < b ? a : b;
#endif
#if MB_EXPR_STACK
    case plan::kExprStack: return a < 0 || b < 0 ? kNoValue : static_cast<int64_t>(a + align16(static_cast<Bytes>(b)));
#endif
  }
  return kNoValue;
}

}  // namespace minbuild

#endif  // MINBUILD_RUNTIME_EXPRESSIONS_H_
