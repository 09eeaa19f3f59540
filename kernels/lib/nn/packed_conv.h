// Convolutions of real size as packed matrix products (lib/gemm/packed_gemm.h), without gaps between rows of outputs. With
// X[C*taps,outputs] what every tap reads of the padded images, Y[M,outputs], W[M,C*taps] as it lies in memory:
//   output           Y = W * X             X is packed from the planes as it is needed
//   weight gradient  W += Y * X'           likewise, transposed
//   input gradient   X = W' * Y            some rows of X after the other, which are then added to the planes
// Where windows move by one element, input gradients are outputs of another convolution, and computed as such: of Y's
// gradient with the taps in reverse, channels and filters exchanged.
// Every weight is read once a pass, along its rows. Small images pass several at once, so that products stay deep and
// wide: the weights of a layer with 7x7 images are larger than all its images. Products of these leave padding out
// (padded_conv.h).
#ifndef MINBUILD_LIB_NN_PACKED_CONV_H_
#define MINBUILD_LIB_NN_PACKED_CONV_H_

#include "lib/gemm/packed_gemm.h"
#include "lib/indexing/disjoint.h"
#include "lib/nn/conv_packers.h"
#include "lib/nn/padded_conv.h"

namespace minbuild {

// As in conv_layer.py: outputs of one pass at least, and of an image that is multiplied as it lies in memory; elements of X
// made at once, and their columns; elements that copies of whole vectors may reach beyond the planes and beyond the packed
// panels; outputs of an image that are put in an order, at most.
constexpr int kPassOutputs = 256, kPlacedOutputs = 128, kMadeElements = 1 << 16, kMadeColumns = 512, kBeyond = 16;
constexpr int kMostPadded = 512;
constexpr intptr_t kBeyondPanels = 512;

// C: a convolution that has read its shapes. x: [N,G*C,in...]  y: [N,G*M,out...]  w: [G*M,C,taps...]. Where weights are
// stored otherwise, `weights` packs the rows of products that they are (multiply_packed in packed_blocks.h), and w only
// counts elements.
template <class T, class C, class... Weights>
struct PackedConv : Weights... {
  C& c;
  T *planes, *grid, *made, *scratch;
  int* places;
  intptr_t image, in_image, planes_step;  // elements of one image of outputs, of inputs, and of its planes
  int images, channels, filters, depth;   // images of a pass; depth: of W
  intptr_t made_channels;                 // whose rows of X are made at once
  OutputRows rows;
  [[maybe_unused]] OutputOrder order;
  bool in_place;           // one window of one element: the image is its own plane
  bool padded = false;     // outputs in an order (padded_conv.h)
  bool exchanged = false;  // an input gradient that is computed as the outputs of the convolution that `c` has become
  bool adds = true;        // a pass, to the gradients of weights that are there
#if MB_THREADS > 1
  int32_t members = 1;
  intptr_t share = 0;  // elements of `made` and `scratch` for each of them
#endif

  explicit PackedConv(C& of, const Weights&... weights) : Weights(weights)..., c(of) {}

  // The product for `outputs` outputs of y, whose rows are y_step apart. C is what is made: outputs, weights or rows of X.
  Gemm<T> product(intptr_t outputs, const T* y, intptr_t y_step, T* w, T* to, intptr_t to_step) const {
    if (c.propagation == C::kOutputs) return {filters, outputs, depth, w, depth, 1, nullptr, 0, 0, to, to_step};
    if (c.propagation == C::kWeights)
      return {filters, depth, outputs, y, y_step, 1, nullptr, 0, 0, w, depth, 1, 1, adds};
    const intptr_t columns = outputs < kMadeColumns || in_place ? outputs : kMadeColumns;
    return {made_channels * c.taps, columns, filters, w, 1, depth, y, y_step, 1, to, to_step ? to_step : columns};
  }

  // A power of two, as most batches are.
  static int images_of_pass(intptr_t image) {
    int some = 1;
    while (some < kPassOutputs && some * image < kPassOutputs) some *= 2;
    return some;
  }

  // True of an input gradient whose windows move by one element and are not padded by more than they have.
  bool exchanges() const {
    if (!C::kExchanges || c.propagation != C::kInputs) return false;
    if (c.taps == 1 || 2 * int64_t(c.xs.image) * images_of_pass(c.xs.image) < c.ys.channels) return false;
    for (int a = 0; a <= C::kLast; ++a)
      if (c.stride(a) != 1 || c.xs.axes[a].pad > c.span(a)) return false;
    return true;
  }
  // Makes `c` the convolution whose outputs are these gradients. False if its sizes are too large.
  bool exchange_roles() {
    int64_t size = 1;
    for (int a = C::kLast; a >= 0; --a) {
      auto &x = c.xs.axes[a], &y = c.ys.axes[a];
      const int outputs = x.in, span = c.span(a);
      x.in = y.in, x.extent = outputs + span, x.pad = span - x.pad, x.pitch = int(size);
      y.in = y.extent = outputs;
      if ((size *= x.extent) >= 1 << 27) return false;
    }
    c.xs.size = c.xs.step = int(size);
    exchange(c.xs.channels, c.ys.channels);
    exchange(c.xs.image, c.ys.image);
    c.propagation = C::kOutputs;
    return true;
  }

  // True of outputs whose products leave padding out: of small images, some windows of which reach beyond them.
  bool leaves_padding_out() const {
    if (!C::kPadded || sizeof...(Weights) != 0 || c.propagation != C::kOutputs || widest_bytes() < 32) return false;
    if (c.taps > kMostTaps || image > kMostPadded || c.is_line) return false;
    for (int a = 0; a <= C::kLast; ++a) {
      const auto& x = c.xs.axes[a];
      if (x.pad > 0 || (c.ys.axes[a].in - 1) * c.stride(a) + c.span(a) >= x.in + x.pad) return true;
    }
    return false;
  }

  // The block sizes of a product of such a convolution.
  Blocks<T> blocks_of(const Gemm<T>& g) const {
    Blocks<T> blocks(g, widest_bytes());
    if (exchanged || sizeof...(Weights) != 0) blocks.pack_rows = true;
    return blocks;
  }

  bool lay_out(const Tensor& written, const Tensor& bytes) {
    exchanged = exchanges();
    if (exchanged && !exchange_roles()) return false;
    if (C::kExchanges && exchanged) (Weights::exchange(c.xs.channels, c.taps), ...);
    channels = c.xs.channels, filters = c.ys.channels, depth = channels * c.taps;
    image = c.ys.image, in_image = c.xs.image;
    if (channels < 1 || filters < 1 || int64_t(channels) * c.taps >= 1 << 28) return false;
    images = c.pointwise() && image >= kPlacedOutputs ? 1 : images_of_pass(image);
    if (images > c.batch) images = c.batch > 0 ? c.batch : 1;
    in_place = c.pointwise() && images == 1;
    const int64_t step = int64_t(channels) * c.xs.step, all = in_place ? 0 : images * step + kBeyond;
    int64_t outputs = images * image, gathered = images == 1 ? 0 : outputs * filters, units = 0, runs = 0;
    padded = leaves_padding_out();
    if (C::kPadded && padded) {
      const int64_t lines = int64_t(images) * c.ys.axes[0].in;
      units = OutputOrder::most_units(outputs), runs = OutputOrder::most_runs(outputs, lines, 2 * c.window[1]);
      outputs = units * kUnit, gathered = outputs * (filters + kMostPackedRows);
    }
    const int64_t columns = outputs < kMadeColumns ? outputs : kMadeColumns;
    const int64_t most = kMadeElements / (columns * c.taps);
    made_channels = in_place || most > channels ? channels : most < 1 ? 1 : intptr_t(most);
    const int64_t some = c.propagation != C::kInputs || in_place ? 0 : made_channels * c.taps * columns;
    constexpr int64_t kMost = int64_t(1) << 28;  // so that no sum of these overflows
    if (all > kMost || gathered > kMost || some > kMost) return false;
    const int64_t ordered = units * int64_t(sizeof(OutputUnit)) + runs * int64_t(sizeof(OutputRun));
    const int64_t before = int64_t(align16(c.taps * sizeof(int))) + int64_t(align16(size_t(ordered))) +
                           (all + gathered + some) * int64_t(sizeof(T));
    Gemm<T> g = product(intptr_t(outputs), nullptr, 1, nullptr, nullptr, 0);
    const int64_t needed = before + int64_t(blocks_of(g).elements(g)) * int64_t(sizeof(T));
    if (needed + kBeyondPanels > bytes.count || !disjoint(written, sizeof(T), bytes, 1)) return false;
    planes_step = intptr_t(step);
    char* at = reinterpret_cast<char*>(bytes.scratch<T>());
    places = reinterpret_cast<int*>(at);
    at += align16(c.taps * sizeof(int));
    order.units = reinterpret_cast<OutputUnit*>(at);
    order.runs = reinterpret_cast<OutputRun*>(order.units + units);
    at += align16(size_t(ordered));
    planes = reinterpret_cast<T*>(at);
    grid = planes + all;
    made = grid + gathered;
    scratch = reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(made + some) + 63) & -64);
#if MB_THREADS > 1
    if (c.team != nullptr) {
      share = (some + blocks_of(g).elements(g) + kBeyondPanels / intptr_t(sizeof(T)) + 15) & -16;
      const int64_t room = (bytes.data + bytes.count - reinterpret_cast<char*>(made)) / (share * int64_t(sizeof(T)));
      if (room > 1) members = room < c.team->members ? int32_t(room) : c.team->members;
    }
#endif
#if MB_THREADS > 1
    clear_in_parts(c.team, planes, size_t(all) * sizeof(T));
#else
    clear_bytes(planes, size_t(all) * sizeof(T));
#endif
    if (!in_place) c.find_places(places);
    for (int tap = 0; exchanged && tap < c.taps / 2; ++tap) exchange(places[tap], places[c.taps - 1 - tap]);
    constexpr int kRow = C::kLast;
    const auto* y = c.ys.axes;
    const auto* x = c.xs.axes;
    rows = {y[kRow].in, y[kRow - 1].in, 1, x[kRow - 1].pitch, 0, planes_step};
    if (kRow > 1) rows.depth = y[0].in, rows.plane = x[0].pitch;
    if constexpr (C::kPadded) {
      if (padded) order.choose(c, places, rows, images, PaddedProduct<T>::units_of(widest_bytes()));
    }
    return true;
  }

  // Has the first pass write gradients whose every element it reaches, in place of adding to them. True if it does.
  bool overwrite() {
    if (c.propagation == C::kWeights && c.batch > 0) adds = false;
    return !adds || (in_place && c.propagation == C::kInputs);
  }

  template <class... Rows>
  void multiply(const Gemm<T>& g, PackPanels<T> pack, const void* packer, const Rows&... rows) const {
#if MB_THREADS > 1
    Gemm<T> shared = g;
    shared.team = c.team, shared.members = members, shared.share = share;
    if (packer == &g) packer = &shared;  // B is a matrix in memory
    multiply_in_parts<T>(shared, widest_bytes(), scratch, pack, packer, nullptr,
                         costs_of(shared, widest_bytes(), packer == &shared, sizeof...(Weights) + sizeof...(Rows) != 0),
                         static_cast<const Weights&>(*this)..., rows...);
#else
    multiply_packed<T>(g, widest_bytes(), scratch, pack, packer, nullptr, static_cast<const Weights&>(*this)...,
                       rows...);
#endif
  }

  // Small images take less time by vectors than by one instruction for bytes.
  MB_INLINE void copy_image(T* to, const T* from) const {
    using V = Width<kNarrowBytes>::of<T>;
    if (image < V::size) return copy_bytes(to, from, size_t(image) * sizeof(T));
    intptr_t i = 0;
    for (; i < image - V::size; i += V::size) V::load(from + i).store(to + i);
    i = image - V::size;
    V::load(from + i).store(to + i);
  }

  // Rows of outputs of some images side by side, or back.
  void gather_outputs(T* y, intptr_t y_step, int count, bool back) const {
#if MB_THREADS > 1
    const intptr_t rows = intptr_t(filters) * count;
    for_ranges(c.team, rows, rows * image * sizeof(T), 1, [&](intptr_t first, intptr_t some) {
      for (intptr_t row = first; row < first + some; ++row) {
        T *own = y + row % count * y_step + row / count * image, *side = grid + row * image;
        copy_image(back ? own : side, back ? side : own);
      }
    });
#else
    for (int i = 0; i < count; ++i, y += y_step)
      for (int m = 0; m < filters; ++m) {
        T *own = y + m * image, *side = grid + (intptr_t(m) * count + i) * image;
        copy_image(back ? own : side, back ? side : own);
      }
#endif
  }

#if MB_THREADS > 1
  // Some channels of all images of a pass to their planes, or back.
  void move_channels(T* x, intptr_t x_step, intptr_t first, intptr_t some, int count, bool back) const {
    auto part = c.xs;
    part.channels = int(some);
    for (int i = 0; i < count; ++i)
      part.move(x + i * x_step + first * in_image, planes + i * planes_step + first * c.xs.step, back);
  }
  // Input gradients of some channels: rows of X of as many as there is room for, added to their planes.
  MB_NOINLINE void make_inputs(T* x, intptr_t x_step, const T* y, const T* w, int count, intptr_t first, intptr_t some,
                               int32_t member) const {
    const TapRows<T> tap_rows = {planes, places, c.taps, c.xs.step, rows};
    const intptr_t outputs = count * image;
    T* const own = made + member * share;
    for (int i = 0; i < count; ++i)
      clear_bytes(planes + i * planes_step + first * c.xs.step, size_t(some * c.xs.step) * sizeof(T));
    for (intptr_t j = 0; j < outputs; j += kMadeColumns) {
      Gemm<T> g = product(outputs - j, y + j, outputs, const_cast<T*>(w), own, 0);
      for (intptr_t channel = first, now; channel < first + some; channel += now) {
        now = first + some - channel < made_channels ? first + some - channel : made_channels;
        g.m = now * c.taps;
        g.a = w + channel * c.taps;
        multiply_packed<T>(g, widest_bytes(), scratch + member * share, pack_columns<T>, &g, nullptr,
                           static_cast<const Weights&>(*this)...);
        add_made(tap_rows, own, channel, now, j, g.n);
      }
    }
    move_channels(x, x_step, first, some, count, true);
  }
#endif

  // planes += rows of X from `channel` on, at outputs from `first` on
  struct AddMade {
    template <class W>
    static MB_INLINE void run(const TapRows<T>* taps, const T* from, intptr_t channel, intptr_t count, intptr_t first,
                              intptr_t columns) {
      using V = typename W::template of<T>;
      using Short = Width<kNarrowBytes>::of<T>;
      for (intptr_t k = 0; k < count * taps->taps; ++k) {
        T* row = const_cast<T*>(taps->row(int(channel * taps->taps + k)));
        OutputRows::RunIterator iterator(taps->rows, first);
        for (intptr_t left = columns, run; left > 0; left -= run, from += run) {
          run = iterator.run(left);
          T* to = row + iterator.place();
          intptr_t i = 0;
          for (; i <= run - V::size; i += V::size) (V::load(to + i) + V::load(from + i)).store(to + i);
          if (V::size > Short::size)
            for (; i <= run - Short::size; i += Short::size)
              (Short::load(to + i) + Short::load(from + i)).store(to + i);
          for (; i < run; ++i) to[i] += from[i];
          iterator.advance(run);
        }
      }
    }
  };
  static void add_made(const TapRows<T>& taps, const T* from, intptr_t channel, intptr_t count, intptr_t first,
                       intptr_t columns) {
    run_at<AddMade>(vector_bytes(), &taps, from, channel, count, first, columns);
  }

  // One group of all images, each of which is its own plane; neighbours are x_step and y_step apart. Members of a team take
  // images, or some gradients of weights from all images.
  MB_NOINLINE void run_in_place(T* x, intptr_t x_step, T* y, intptr_t y_step, T* w, const T* bias) const {
    const bool weighs = c.propagation == C::kWeights;
    const auto product_of = [&](int i) {
      T *own_x = x + i * x_step, *own_y = y + i * y_step;
      Gemm<T> g = product(image, own_y, image, w, c.propagation == C::kOutputs ? own_y : own_x, image);
      if (c.propagation != C::kInputs) g.b = own_x, g.b_row = image, g.b_col = 1;
      if (weighs) exchange(g.b_row, g.b_col), g.accumulate = adds || i > 0;
      if (c.propagation == C::kOutputs) g.accumulate = start(own_y, image, bias);
      return g;
    };
#if MB_THREADS > 1
    const bool by_images = !weighs && (c.batch % members == 0 || c.batch >= 8 * members);
    if (members > 1 && (weighs || by_images) && int64_t(c.batch) * filters * depth * image >= kLeastWork) {
      Gemm<T> all = product_of(0);
      all.k *= c.batch, all.members = members;
      const PartCosts costs = costs_of(all, widest_bytes(), true, sizeof...(Weights) != 0);
      const Partition parts = partition_of(all, widest_bytes(), 1, costs);
      return for_parts(c.team, members, weighs ? parts.count() : c.batch, [&](int32_t part, int32_t member) {
        const int32_t first = weighs ? 0 : part, end = weighs ? c.batch : part + 1;
        for (int32_t i = first; i < end; ++i) {
          Gemm<T> g = product_of(i);
          if (weighs) g = parts.of(g, part);
          multiply_packed<T>(g, widest_bytes(), scratch + member * share, pack_columns<T>, &g, nullptr,
                             static_cast<const Weights&>(*this)...);
        }
      });
    }
#endif
    for (int i = 0; i < c.batch; ++i) {
      const Gemm<T> g = product_of(i);
      multiply(g, pack_columns<T>, &g);
    }
  }

  // One group of `count` images, whose neighbours are x_step and y_step apart.
  MB_NOINLINE void run(T* x, intptr_t x_step, T* y, intptr_t y_step, T* w, const T* bias, int count) {
    const intptr_t outputs = count * image;
    const TapRows<T> tap_rows = {planes, places, c.taps, c.xs.step, rows};
    T* out = images == 1 ? y : grid;
#if MB_THREADS > 1
    if (c.propagation != C::kInputs)
      for_ranges(c.team, channels, int64_t(count) * planes_step * sizeof(T), 1,
                 [&](intptr_t first, intptr_t some) { move_channels(x, x_step, first, some, count, false); });
#else
    if (c.propagation == C::kInputs) clear_bytes(planes, size_t(count * planes_step) * sizeof(T));
    else
      for (int i = 0; i < count; ++i) c.xs.move(x + i * x_step, planes + i * planes_step, false);
#endif
    if (c.propagation != C::kOutputs && images > 1) gather_outputs(y, y_step, count, false);
    if constexpr (C::kPadded) {
      if (padded) return multiply_padded(tap_rows, w, y, y_step, bias, count);
    }
    if (c.propagation == C::kOutputs) {
      Gemm<T> g = product(outputs, nullptr, 0, w, out, outputs);
      g.accumulate = start(out, outputs, bias);
      const ColumnPacker<T> packer = {tap_rows};
      const ExchangedFilters<T> filters_of = {w, c.ys.channels, c.taps, depth};
      if (C::kExchanges && sizeof...(Weights) == 0 && exchanged)
        multiply(g, pack_panels<T, ColumnPacker<T>>, &packer, filters_of);
      else multiply(g, pack_panels<T, ColumnPacker<T>>, &packer);
      if (images > 1) gather_outputs(y, y_step, count, true);
    } else if (c.propagation == C::kWeights) {
      const TransposedPacker<T> packer = {tap_rows};
      multiply(product(outputs, out, outputs, w, nullptr, 0), pack_panels<T, TransposedPacker<T>>, &packer);
    } else {
#if MB_THREADS > 1
      const int64_t work = int64_t(depth) * filters * outputs;
      const intptr_t parts = members < 2 || work < kLeastWork   ? 1
                             : work < 32 * members * kLeastWork ? members
                                                                : 2 * members;
      const intptr_t some = (channels + parts - 1) / parts;
      const auto make = [&](int32_t part, int32_t member) {
        const intptr_t first = part * some;
        make_inputs(x, x_step, out, w, count, first, channels - first < some ? channels - first : some, member);
      };
      if (parts == 1) make(0, 0);
      else for_parts(c.team, members, (channels + some - 1) / some, make);
#else
      for (intptr_t j = 0; j < outputs; j += kMadeColumns) {
        Gemm<T> g = product(outputs - j, out + j, outputs, w, made, 0);
        for (intptr_t channel = 0, now; channel < channels; channel += now) {
          now = channels - channel < made_channels ? channels - channel : made_channels;
          g.m = now * c.taps;
          g.a = w + channel * c.taps;
          multiply(g, pack_columns<T>, &g);
          add_made(tap_rows, made, channel, now, j, g.n);
        }
      }
      for (int i = 0; i < count; ++i) c.xs.move(x + i * x_step, planes + i * planes_step, true);
#endif
    }
  }

  // Outputs of `count` images, in the order of all images of a pass.
  MB_NOINLINE void multiply_padded(const TapRows<T>& tap_rows, const T* w, T* y, intptr_t y_step, const T* bias,
                                   int count) const {
    PaddedProduct<T> p = {tap_rows, order, w, depth, c.taps, depth, grid, start(grid, order.columns, bias)};
    if (exchanged) p.w_row = c.taps, p.w_step = intptr_t(filters) * c.taps;
#if MB_THREADS > 1
    Gemm<T> g = {filters, order.columns, depth};
    g.team = c.team, g.members = members, g.share = share;
    p.multiply_in_parts(g, scratch);
    for_ranges(c.team, filters, int64_t(filters) * order.columns * sizeof(T), 1, [&](intptr_t first, intptr_t some) {
      for (intptr_t m = first; m < first + some; ++m) p.scatter(grid + m * order.columns, y + m * image, y_step, count);
    });
#else
    p.multiply(0, filters, 0, order.count, scratch);
    for (intptr_t m = 0; m < filters; ++m) p.scatter(grid + m * order.columns, y + m * image, y_step, count);
#endif
  }

  // Rows of outputs begin with their bias, if there is one.
  bool start(T* y, intptr_t columns, const T* bias) const {
    if (!bias) return false;
    for (int m = 0; m < filters; ++m, y += columns)
      for (intptr_t i = 0; i < columns; ++i) y[i] = bias[m];
    return true;
  }
};

// All images by packed products, several at a time.
template <class T, class C, class... Weights>
MB_INLINE void run_images(C& c, PackedConv<T, C, Weights...>& packed, const Tensor& y, const Tensor& x, const Tensor& w,
                          const Tensor& bias) {
  const intptr_t x_size = intptr_t(packed.channels) * packed.in_image, y_size = intptr_t(packed.filters) * packed.image;
  const Tensor &from = packed.exchanged ? y : x, &to = packed.exchanged ? x : y;
  const auto each_group = [&](intptr_t n, auto&& run) MB_LAMBDA {
    for (int g = 0; g < c.groups; ++g) {
      const intptr_t first = n * c.groups + g;
      T* weights = w.as<T>();
      if constexpr (sizeof...(Weights) != 0) weights = const_cast<T*>(packed.base);
      run(from.as<T>() + first * x_size, c.groups * x_size, to.as<T>() + first * y_size, c.groups * y_size,
          weights + g * (w.count / c.groups), bias ? bias.as<T>() + g * packed.filters : nullptr);
    }
  };
  if (c.pointwise() && packed.in_place)
    return each_group(0, [&](auto... args) MB_LAMBDA { packed.run_in_place(args...); });
  for (int n = 0; n < c.batch; n += packed.images) {
    const int count = c.batch - n < packed.images ? c.batch - n : packed.images;
    each_group(n, [&](auto... args) MB_LAMBDA { packed.run(args..., count); });
    packed.adds = true;
  }
}

}  // namespace minbuild
#endif  // MINBUILD_LIB_NN_PACKED_CONV_H_
