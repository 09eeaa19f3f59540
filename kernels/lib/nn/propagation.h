// The tensor that a kernel of convolutions computes, as its parameter says it.
#ifndef MINBUILD_LIB_NN_PROPAGATION_H_
#define MINBUILD_LIB_NN_PROPAGATION_H_

namespace minbuild {

enum Propagation : int { kOutput, kInputGradient, kWeightGradient };

}  // namespace minbuild
#endif  // MINBUILD_LIB_NN_PROPAGATION_H_
