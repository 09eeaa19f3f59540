// Convolutions whose weights stay in four or eight bits (lib/gemm/quantized_matrix.h): each group dequantizes as many
// filters at a time as scratch memory has room for, and convolves all images with them.
#ifndef MINBUILD_LIB_NN_DEQUANTIZING_CONV_H_
#define MINBUILD_LIB_NN_DEQUANTIZING_CONV_H_

#include "lib/gemm/quantized_matrix.h"
#include "lib/nn/plane_conv.h"

namespace minbuild {

// Filters or channels at a time, at least: packing images again costs less than that many read them.
constexpr int kLeastPart = 8;

// A convolution whose weights are dequantized for some filters, or for some channels of the input gradient, at a time.
template <class T, class Features, int Parts>
struct DequantizingConv {
  PlaneConv<T, Features>& c;
  const QuantizedMatrix<Parts>& m;
  const Tensor& weights;  // scratch memory for them

  MB_INLINE intptr_t elements() const {
    return intptr_t(c.propagation == kOutput ? c.xs.channels : c.ys.channels) * c.taps;
  }
  MB_INLINE int all() const { return c.propagation == kOutput ? c.ys.channels : c.xs.channels; }
  MB_INLINE intptr_t most() const { return intptr_t(weights.count / sizeof(T)) / elements(); }
  bool lay_out(const Tensor& written, const Tensor& bytes) {
    if (c.propagation == kWeightGradient || c.xs.channels < 1 || c.ys.channels < 1) return false;
    if (most() < all() && most() < 2 * kLeastPart) return false;
    return c.lay_out(written, bytes) && disjoint(written, sizeof(T), weights, 1);
  }
};

template <class T, class Features, int Parts>
MB_INLINE void run_images(PlaneConv<T, Features>& c, DequantizingConv<T, Features, Parts>& part, const Tensor& y,
                          const Tensor& x, const Tensor&, const Tensor& bias) {
  const bool outputs = c.propagation == kOutput;
  const int filters = c.ys.channels, channels = c.xs.channels, taps = c.taps, all = part.all();
  const intptr_t x_size = intptr_t(channels) * c.xs.image, y_size = intptr_t(filters) * c.ys.image;
  const intptr_t elements = part.elements(), most = part.most();
  T* weights = part.weights.template scratch<T>();
  for (int g = 0; g < c.groups; ++g) {
    for (int at = 0, now; at < all; at += now) {
      const int left = all - at;
      // Never so few at the end that another loop would compute them.
      now = left <= most ? left : left - most < kLeastPart ? left - kLeastPart : int(most);
      if (outputs) {
        dequantize_block(part.m, intptr_t(g) * filters + at, 0, now, elements, weights, elements);
        c.ys.channels = now;
      } else {
        const intptr_t columns = intptr_t(now) * taps;
        dequantize_block(part.m, intptr_t(g) * filters, intptr_t(at) * taps, filters, columns, weights, columns);
        c.xs.channels = now;
      }
      T* image = x.as<T>() + g * x_size + (outputs ? 0 : at * c.xs.image);
      T* output = y.as<T>() + g * y_size + (outputs ? at * c.ys.image : 0);
      const T* biases = Features::kBias && bias ? bias.as<T>() + intptr_t(g) * filters + at : nullptr;
      for (int n = 0; n < c.batch; ++n, image += c.groups * x_size, output += c.groups * y_size)
        c.run(image, output, weights, biases);
    }
  }
}

}  // namespace minbuild
#endif  // MINBUILD_LIB_NN_DEQUANTIZING_CONV_H_
