// Functions of one or two operands, in one loop that looks up at every vector which of them it computes: each further
// one takes a few instructions, where a kernel of its own takes a loop.
#include "lib/loops/broadcast.h"
#include "lib/loops/elementwise_functions.h"

namespace minbuild {

// As merged_elementwise.py numbers them.
enum Operation : int {
  kAdd,
  kSub,
  kMul,
  kDiv,
  kRelu,
  kReluGrad,
  kSigmoidGrad,
  kTanhGrad,
  kNeg,
  kAbs,
  kSign,
  kSqrt,
  kReciprocal
};

template <class V>
MB_INLINE V merged_of(int operation, V a, V b) {
#define MB_FUNCTION(NAME, name, result) \
  if (MB_MERGED_ELEMENTWISE_##NAME && operation == name) return result;
  MB_FUNCTION(ADD, kAdd, AddOf{}(a, b))
  MB_FUNCTION(SUB, kSub, SubOf{}(a, b))
  MB_FUNCTION(MUL, kMul, MulOf{}(a, b))
  MB_FUNCTION(DIV, kDiv, DivOf{}(a, b))
  MB_FUNCTION(RELU, kRelu, ReluOf{}(a))
  MB_FUNCTION(RELU_GRAD, kReluGrad, ReluGradOf{}(a, b))
  MB_FUNCTION(SIGMOID_GRAD, kSigmoidGrad, SigmoidGradOf{}(a, b))
  MB_FUNCTION(TANH_GRAD, kTanhGrad, TanhGradOf{}(a, b))
  MB_FUNCTION(NEG, kNeg, NegOf{}(a))
  MB_FUNCTION(ABS, kAbs, AbsOf{}(a))
  MB_FUNCTION(SIGN, kSign, SignOf{}(a))
  MB_FUNCTION(SQRT, kSqrt, SqrtOf{}(a))
  MB_FUNCTION(RECIPROCAL, kReciprocal, ReciprocalOf{}(a))
#undef MB_FUNCTION
  return a;
}

template <class T>
struct MergedBody {
  template <class V>
  static MB_INLINE void step(int i, int operation, T* y, const T* a, int a_mask, const T* b, int b_mask) {
    merged_of(operation, V::load(a + (i & a_mask)), V::load(b + (i & b_mask))).store(y + i);
  }
};
// The inner loop of broadcast.h over a stretch.
template <class T>
struct MergedLoop {
  int operation;

  MB_NOINLINE void operator()(void* y, const void* a, int a_mask, const void* b, int b_mask, int count) const {
    for_range<kBaseline, T, MergedBody<T>>(count, operation, static_cast<T*>(y), static_cast<const T*>(a), a_mask,
                                           static_cast<const T*>(b), b_mask);
  }
};

// y = operation(a, b); functions of one operand are given it twice. params: the axes of the operands, the operation
template <class T>
Status merged(const Call& call) {
  constexpr bool kShapes = MB_MERGED_ELEMENTWISE_BROADCAST, kScalars = MB_MERGED_ELEMENTWISE_SCALAR;
  const MergedLoop<T> loop = {call.params[2]};
  if constexpr (kShapes || kScalars) {
    return broadcast<kShapes, 2>(call, &call[1], sizes_of(sizeof(T), sizeof(T), sizeof(T)), loop);
  } else {
    const Tensor &y = call[0], &a = call[1], &b = call[2];
    if (a.count != y.count || b.count != y.count) return Status::kBadPlan;
    loop(y.data, a.data, -1, b.data, -1, y.count);
    return Status::kOk;
  }
}

MB_INSTANTIATE_MERGED_ELEMENTWISE

}  // namespace minbuild
