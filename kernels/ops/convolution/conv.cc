// Convolution over one to three spatial axes, and its gradients, in four forms that compute the same: on padded planes
// (lib/nn/plane_conv.h), by packed products, which pay at real sizes (lib/nn/packed_conv.h), and both of these with
// weights that stay in 4, 8 or 16 bits. The plan chooses between them.
#include "lib/nn/packed_conv.h"
#include "lib/nn/plane_conv.h"

namespace minbuild {

// The features of all convolutions in this library.
struct ConvFeatures {
  static constexpr bool kVolume = MB_CONV_VOLUME, kLines = MB_CONV_LINES;  // three spatial axes, one
  static constexpr bool kStrides = MB_CONV_STRIDES, kDilations = MB_CONV_DILATIONS, kGroups = MB_CONV_GROUPS;
  static constexpr bool kPointwise = MB_CONV_POINTWISE, kDepthwise = MB_CONV_DEPTHWISE, kBias = MB_CONV_BIAS;
  static constexpr bool kExchanged = MB_CONV_EXCHANGED, kPadded = MB_CONV_PADDED && kPacksInTiles;
  // Weights that stay in 4, 8 or 16 bits (lib/gemm/quantized_matrix.h).
  static constexpr bool kDequantize = MB_CONV_DEQUANTIZE, kPieces = kPointwise || MB_CONV_DEQUANTIZE_TRANSPOSED;
  static constexpr int kParts = (MB_CONV_FOUR_BITS ? kFourBits : 0) | (MB_CONV_TABLE ? kTables : 0) |
                                (MB_CONV_ZERO_POINTS ? kZeroPoints : 0) | (MB_CONV_COLUMN_SCALES ? kColumnScales : 0) |
                                (MB_CONV_EIGHT_BITS ? kEightBits : 0) | (MB_CONV_OFFSETS ? kOffsets : 0) |
                                (MB_CONV_DEQUANTIZE_TRANSPOSED ? kSkips : 0) | (MB_CONV_COLUMN_BLOCKS ? kBlocks : 0) |
                                (MB_CONV_EXCHANGED ? kChannels : 0) | (MB_CONV_SIXTEEN_BITS ? kSixteenBits : 0) |
                                (MB_CONV_BYTE_TABLE ? kByteTables : 0);
};
template <class T>
using Conv = PlaneConv<T, ConvFeatures>;
using StoredMatrix = QuantizedMatrix<ConvFeatures::kParts>;

// `layout` is `c` itself, or a PackedConv over it. Parameter 0 is the propagation, which selects the tensor to compute;
// Conv reads the others. Gradients permute (y, x, w): the tensor to compute is argument 0, and y takes its place among
// the inputs.
template <class T, class Layout>
MB_INLINE Status convolve(const Call& call, Conv<T>& c, Layout& layout) {
  c.propagation = Propagation(call.params[0]);
  const Tensor &out = call[0], &bias = call[3];
  const Tensor *y = &out, *x = &call[1], *w = &call[2];
  if (c.propagation == kInputGradient) exchange(y, x);
  if (c.propagation == kWeightGradient) exchange(y, w);
  if (unsigned(c.propagation) > kWeightGradient) return Status::kBadPlan;
#if MB_THREADS > 1
  c.team = call.team;
#endif
  if (!c.read(*x, *y, *w, call.params + 1)) return Status::kTooLarge;
  if (!layout.lay_out(out, call[4])) return Status::kTooLarge;
  if (bias && (!MB_CONV_BIAS || c.propagation != kOutput || bias.count != y->dims[1])) return Status::kBadPlan;
  // Sums start at zero, and inputs that no tap reads have no gradient.
  if (c.propagation != kOutput && !call.adds(0) && !layout.overwrite()) {
#if MB_THREADS > 1
    clear_in_parts(c.team, out.data, out.count * sizeof(T));
#else
    clear_bytes(out.data, out.count * sizeof(T));
#endif
  }
  run_images(c, layout, *y, *x, *w, bias);
  return Status::kOk;
}

template <class T>
Status conv(const Call& call) {
  Conv<T> c;
  return convolve(call, c, c);
}

// For sizes where packing pays (lib/nn/packed_conv.h).
template <class T>
Status conv_packed(const Call& call) {
  Conv<T> c;
  PackedConv<T, Conv<T>> packed(c);
  return convolve(call, c, packed);
}

constexpr int kWindowParams = 11;

// Ranks are checked by convolve.
MB_INLINE bool read_weights(StoredMatrix& m, const Call& call) {
  const Tensor& w = call[2];
  return w.dims[0] > 0 && m.read(call[5], call[6], call[7], call[8], call.params + kWindowParams, w.dims[0]) &&
         int64_t(m.rows) * m.columns == w.count;
}

template <class T>
Status conv_dequantize(const Call& call) {
  Conv<T> c;
  StoredMatrix m;
  if (!read_weights(m, call) || call.params[0] == kWeightGradient) return Status::kTooLarge;
  if constexpr (ConvFeatures::kDequantize) c.matrix = &m, c.row = &call[9], c.base = call[0].as<T>();
  return convolve(call, c, c);
}

// By packed products, whose rows are dequantized as they are packed.
template <class T>
Status conv_dequantize_packed(const Call& call) {
  using Rows = QuantizedRows<T, ConvFeatures::kParts>;
  Conv<T> c;
  StoredMatrix m;
  if (!read_weights(m, call) || call.params[0] == kWeightGradient) return Status::kTooLarge;
  PackedConv<T, Conv<T>, Rows> packed(c, Rows{&m, call[4].as<T>(), call.params[0] == kInputGradient});
  return convolve(call, c, packed);
}

MB_INSTANTIATE_CONV

}  // namespace minbuild
