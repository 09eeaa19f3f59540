// Copies a slice of the channels of every image to its place among all channels, or takes it from there.
#include "minbuild/kernel.h"

namespace minbuild {

// One of y and x is a slice [N,C,...] of the other, which has a multiple of C channels; number: that of the slice.
template <class T>
Status move_channels(const Call& call) {
  const Tensor &y = call[0], &x = call[1];
  const bool takes = x.count > y.count;
  const Tensor &whole = takes ? x : y, &slice = takes ? y : x;
  if (slice.rank < 2 || call[2].count != 1) return Status::kBadPlan;
  if (slice.count == 0) return Status::kOk;
  const uint32_t images = static_cast<uint32_t>(slice.dims[0]), number = *call[2].as<uint32_t>();
  const uint32_t width = static_cast<uint32_t>(slice.count) / images,
                 stride = static_cast<uint32_t>(whole.count) / images;
  if (stride * images != static_cast<uint32_t>(whole.count) || number >= stride / width) return Status::kBadPlan;
  const size_t bytes = size_t{width} * sizeof(T), step = size_t{stride} * sizeof(T), at = number * bytes;
  char *to = y.data + (takes ? 0 : at), *from = x.data + (takes ? at : 0);
  for (uint32_t i = 0; i < images; ++i, to += takes ? bytes : step, from += takes ? step : bytes)
    copy_bytes(to, from, bytes);
  return Status::kOk;
}

MB_INSTANTIATE_CHANNEL_SLICE

}  // namespace minbuild
