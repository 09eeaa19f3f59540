// Convolutions of real size with windows of 3 x 3 that move by one element, and their gradients, by Winograd's minimal
// filtering (lib/nn/winograd.h). The gradient of the input is the outputs of another convolution: of the outputs'
// gradient, with windows in reverse, channels and filters exchanged. The plan chooses between this and conv.cc.
#include "lib/gemm/packed_gemm.h"
#include "lib/nn/propagation.h"
#include "lib/nn/winograd_windows.h"
#include "minbuild/kernel.h"

namespace minbuild {

// As in winograd_conv.py: elements of windows up to which all lines are computed at once; elements of a block of
// transformed tiles; columns that it has a multiple of; elements between its rows, and beyond all that is written.
constexpr intptr_t kWholeWindows = 1 << 14, kBlockElements = 1 << 17, kWindowColumns = 32, kApart = 16,
                   kBeyondWindows = 128, kLine = 16;

template <class T>
struct WinogradConv {
  Propagation propagation;
  TiledImages<T> x, y;  // what windows see, and outputs
  Windows<T> w;
  int batch;
  intptr_t tiles, most;  // of all images, and of a block
  TileBlock block;
  intptr_t of_windows, of_seen, of_made;  // elements of a matrix
  T *windows, *seen, *made, *scratch;     // matrices of windows, of inputs, of outputs; of a packed product
  intptr_t share;                         // elements that each thread has of `seen`, `made` and `scratch`
#if MB_THREADS > 1
  Team* team;
  int32_t members = 1;
#endif

  bool weighs() const { return MB_WINOGRAD_CONV_WEIGHT_GRADIENT && propagation == kWeightGradient; }
  bool reverses() const { return MB_WINOGRAD_CONV_INPUT_GRADIENT && propagation == kInputGradient; }

  // [N,M,out,out], [N,C,in,in] and [M,C,3,3] as tensors of the convolution that is computed.
  bool read(const Tensor& out, const Tensor& in, const Tensor& window, int pad_down, int pad_across) {
    if (MB_WRONG(out.rank != 4 || in.rank != 4 || window.rank != 4 || out.dims[0] != in.dims[0])) return false;
    if (MB_WRONG(window.dims[2] != kWindow || window.dims[3] != kWindow)) return false;
    const int filters = out.dims[1], channels = in.dims[1];
    if (MB_WRONG(window.dims[reverses()] != filters || window.dims[!reverses()] != channels)) return false;
    if (MB_WRONG(unsigned(pad_down) >= kWindow || unsigned(pad_across) >= kWindow || filters < 1 || channels < 1))
      return false;
    constexpr intptr_t kTaps = kWindow * kWindow;
    batch = out.dims[0];
    y = {out.as<T>(), filters, out.dims[2], out.dims[3], (out.dims[2] + 1) / 2, (out.dims[3] + 1) / 2, 0, 0};
    x = {in.as<T>(), channels, in.dims[2], in.dims[3], y.down, y.across, pad_down, pad_across};
    w = {window.as<T>(), channels * kTaps, kTaps, filters, channels, reverses()};
    if (reverses()) {
      x.pad_down = kWindow - 1 - pad_down, x.pad_across = kWindow - 1 - pad_across;
      w.row_step = kTaps, w.column_step = filters * kTaps;
    }
    tiles = intptr_t(batch) * y.down * y.across;
    return true;
  }

  // Elements from a matrix to the next: such that lines of 16 of them do not share sets of the nearest cache.
  static intptr_t apart(intptr_t elements) {
    constexpr intptr_t kSets = 4096 / sizeof(T), kLines = 320 / sizeof(T);
    return ((elements + kSets - 1) & -kSets) + kLines;
  }

  // The product of `count` tiles and some rows; matrices are given by the first of them.
  Gemm<T> product(intptr_t rows, intptr_t count) const {
    if (weighs()) return {rows, w.columns, count, nullptr, block.pitch, 1, nullptr, 1, block.pitch, nullptr, w.columns};
    return {rows, count, w.columns, nullptr, w.columns, 1, nullptr, block.pitch, 1, nullptr, block.pitch};
  }

  bool lay_out(const Tensor& bytes) {
    constexpr int64_t kMost = int64_t(1) << 28;  // so that no sum of these overflows
    const int64_t elements = int64_t(w.rows) * w.columns, lines_of_all = w.rows + int64_t(w.columns);
    if (elements > kMost / 16 || lines_of_all > kMost / 16 / (kWindowColumns + kApart)) return false;
    block.line = 0, block.lines = elements <= kWholeWindows ? kTileLines : 1;
    const intptr_t each = kTileLines * block.lines, whole = (tiles + kWindowColumns - 1) & -kWindowColumns;
    const intptr_t of_block = weighs() ? kTileLines : each;
    most = kBlockElements / (of_block * intptr_t(lines_of_all)) & -kWindowColumns;
    if (most < kWindowColumns) most = kWindowColumns;
    if (most > whole) most = whole;
    block.pitch = most + kApart;
    const Gemm<T> g = product(w.rows, most);
    of_windows = apart(elements), of_seen = apart(w.columns * block.pitch), of_made = apart(w.rows * block.pitch);
    const intptr_t of_tiles = of_block * (of_seen + of_made);
    const int64_t room = bytes.count / int64_t(sizeof(T)) - kLine - each * of_windows;
    if (share < of_tiles + Blocks<T>(g, widest_bytes()).elements(g) + kBeyondWindows || share > kMost || room < share)
      return false;
    windows = reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(bytes.scratch<T>()) + 63) & -64);
    seen = windows + each * of_windows;
    made = seen + of_block * of_seen;
    scratch = seen + of_tiles;
#if MB_THREADS > 1
    share &= -kLine;
    members = room / share < members_of(team) ? int32_t(room / share) : members_of(team);
#endif
    return true;
  }

  // body(first, count) for some of `all` things, which are so many elements together.
  template <class Body>
  void in_ranges(intptr_t all, [[maybe_unused]] int64_t elements, const Body& body) const {
#if MB_THREADS > 1
    for_ranges(team, all, elements * int64_t(sizeof(T)), 1, body);
#else
    body(0, all);
#endif
  }

  void multiply(Gemm<T> g, const T* a, const T* b, T* c, T* own) const {
    g.a = a, g.b = b, g.c = c;
    multiply_packed<T>(g, widest_bytes(), own, pack_columns<T>, &g, nullptr);
  }

  // Outputs of some filters at `count` tiles.
  void make(intptr_t first, intptr_t count, int filter, int filters, const T* bias, intptr_t own) const {
    const int bytes = widest_bytes();
    TileBlock some = block;
    some.first = first, some.count = count;
    T *const from = seen + own, *const to = made + own;
    run_at<TransformImages<T, false>, 64>(bytes, &x, &some, 0, w.columns, from, of_seen);
    for (int i = 0; i < kTileLines * block.lines; ++i)
      multiply(product(filters, count), windows + i * of_windows + intptr_t(filter) * w.columns, from + i * of_seen,
               to + i * of_made, scratch + own);
    run_at<FinishOutputs<T>, 64>(bytes, &y, &some, filter, filters, static_cast<const T*>(to), of_made, bias);
  }

  void make_blocks(intptr_t first, intptr_t count, int filter, int filters, const T* bias, intptr_t own) const {
    for (; count > 0; first += most, count -= most)
      make(first, count < most ? count : most, filter, filters, bias, own);
  }

  // Windows of some filters, and outputs of these.
  void transform_windows(intptr_t filter, intptr_t filters) const {
    run_at<TransformWindows<T>>(vector_bytes(), &w, &block, int(filter), int(filters), windows, of_windows);
  }

  void make_all(const T* bias) {
#if MB_THREADS > 1
    if (members > 1) return make_in_parts(bias);
#endif
    for (; block.line < kTileLines; block.line += block.lines) {
      transform_windows(0, w.rows);
      make_blocks(0, tiles, 0, w.rows, bias, 0);
    }
  }

#if MB_THREADS > 1
  // For each member some blocks of tiles, then some filters at some tiles of the rest, which every part transforms by itself.
  // Where no part shares its windows with others, these too.
  void make_in_parts(const T* bias) {
    constexpr int32_t kTransforming = 40;  // multiplications that take as long as transforming an element of a tile
    const int32_t own_blocks = int32_t(tiles / (most * members)), blocks = own_blocks * members;
    const intptr_t rest = tiles - blocks * most;
    Gemm<T> g = product(w.rows, rest);
    g.members = members;
    const Partition parts = partition_of(g, widest_bytes(), 1, {kPackingWork, kTransforming, 0});
    const bool own_windows = blocks == 0 && parts.columns.count == 1;
    const int32_t all = rest > 0 ? parts.count() : 0, own_parts = (all + members - 1) / members,
                  own = own_blocks + own_parts;
    for (; block.line < kTileLines; block.line += own_windows ? kTileLines : block.lines) {
      if (!own_windows)
        in_ranges(w.rows, kTileLines * block.lines * of_windows,
                  [&](intptr_t first, intptr_t count) { transform_windows(first, count); });
      for_parts(team, members, own * members, [&](int32_t number, int32_t member) {
        const intptr_t room = member * share;
        const int32_t of = number / own, i = number % own, part = of * own_parts + i - own_blocks;
        if (i < own_blocks) return make((of * own_blocks + i) * most, most, 0, w.rows, bias, room);
        if (part >= all) return;
        const int32_t down = parts.down(part), across = parts.across(part), filter = parts.rows.at(down),
                      filters = parts.rows.length(down);
        WinogradConv some = *this;
        do {
          if (own_windows) some.transform_windows(filter, filters);
          some.make_blocks(blocks * most + parts.columns.at(across), parts.columns.length(across), filter, filters,
                           bias, room);
        } while (own_windows && (some.block.line += some.block.lines) < kTileLines);
      });
    }
  }
#endif

  // Adds to the products that a line of tiles has, which gradients of weights are made of, for some filters and channels.
  void weigh_line(int line, intptr_t filter, intptr_t filters, intptr_t channel, intptr_t channels,
                  intptr_t own) const {
    const int bytes = widest_bytes();
    TileBlock some = block;
    some.line = line, some.lines = 1;
    T *const from = seen + own, *const to = made + own,
             *const sums = windows + (line - block.line) * kTileLines * of_windows + filter * w.columns + channel;
    for (some.first = 0; some.first < tiles; some.first += most) {
      some.count = tiles - some.first < most ? tiles - some.first : most;
      run_at<TransformImages<T, false>, 64>(bytes, &x, &some, int(channel), int(channels), from, of_seen);
      run_at<TransformImages<T, true>, 64>(bytes, &y, &some, int(filter), int(filters), to, of_made);
      Gemm<T> g = product(filters, some.count);
      g.n = channels, g.accumulate = some.first > 0;
      for (int i = 0; i < kTileLines; ++i)
        multiply(g, to + i * of_made, from + i * of_seen, sums + i * of_windows, scratch + own);
    }
  }

  // Gradients of weights, which may be added to what is there. All products have a matrix of their own.
  void weigh(T* weights, bool adds) {
    for (; block.line < kTileLines; block.line += block.lines) {
      weigh_lines();
      in_ranges(w.rows, kTileLines * block.lines * of_windows, [&](intptr_t first, intptr_t count) {
        run_at<FinishWeights<T>>(vector_bytes(), &block, w.columns, int(count),
                                 static_cast<const T*>(windows + first * w.columns), of_windows,
                                 weights + first * w.columns * kWindow * kWindow, adds || block.line > 0);
      });
    }
  }

  void weigh_lines() const {
#if MB_THREADS > 1
    if (members > 1) {
      constexpr int32_t kTransforming = 48;  // as above, and packing it
      Gemm<T> g = product(w.rows, tiles);
      g.members = members;
      const Partition parts = partition_of(g, widest_bytes(), block.lines, {kTransforming, kTransforming, 0});
      return for_parts(team, members, block.lines * parts.count(), [&](int32_t part, int32_t member) {
        const int32_t of_line = part / block.lines, down = parts.down(of_line), across = parts.across(of_line);
        weigh_line(block.line + part % block.lines, parts.rows.at(down), parts.rows.length(down),
                   parts.columns.at(across), parts.columns.length(across), member * share);
      });
    }
#endif
    for (int line = block.line; line < block.line + block.lines; ++line) weigh_line(line, 0, w.rows, 0, w.columns, 0);
  }
};

// Arguments as those of conv; parameters: the tensor to compute, pads before the image, elements of scratch memory of each
// thread.
template <class T>
Status winograd_conv_packed(const Call& call) {
  WinogradConv<T> c;
  c.propagation = Propagation(call.params[0]);
  c.share = call.params[3];
  const Tensor &result = call[0], &bias = call[3];
  if (unsigned(c.propagation) > kWeightGradient || (c.propagation == kWeightGradient && !c.weighs()) ||
      (c.propagation == kInputGradient && !c.reverses()))
    return Status::kBadPlan;
  const Tensor &out = c.weighs() ? call[2] : result, &window = c.weighs() ? result : call[2];
#if MB_THREADS > 1
  c.team = call.team;
#endif
  if (!c.read(out, call[1], window, call.params[1], call.params[2])) return Status::kBadPlan;
  if (bias && (!MB_WINOGRAD_CONV_BIAS || c.propagation != kOutput || bias.count != c.w.rows)) return Status::kBadPlan;
  if (c.tiles == 0) {
    if (c.weighs() && !call.adds(0)) clear_bytes(result.data, result.count * sizeof(T));
    return Status::kOk;
  }
  if (!c.lay_out(call[4])) return Status::kTooLarge;
  if (c.weighs()) c.weigh(result.as<T>(), call.adds(0));
  else c.make_all(MB_WINOGRAD_CONV_BIAS ? bias.as<T>() : nullptr);
  return Status::kOk;
}

MB_INSTANTIATE_WINOGRAD_CONV

}  // namespace minbuild
