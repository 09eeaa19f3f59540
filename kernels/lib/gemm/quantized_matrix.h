// Matrices of weights that stay in 4, 8 or 16 bits: they are dequantized block by block, into the panels of a matrix
// product or into a little scratch memory, and multiplied by the loops of gemm.h, in the order of additions that the
// same matrix in float has. No number depends on whether a weight is stored quantized.
#ifndef MINBUILD_LIB_GEMM_QUANTIZED_MATRIX_H_
#define MINBUILD_LIB_GEMM_QUANTIZED_MATRIX_H_

#include "minbuild/kernel.h"
#include "lib/gemm/packed_gemm.h"

namespace minbuild {

// The features of matrices of a library; code for all others compiles away. kSkips: columns are read that are apart.
// kBlocks: some columns of a row share a scale, but not all. kTransposes: products with the transpose of a matrix. kChannels:
// rows of channels (QuantizedRows). kFetches: memory is fetched ahead, of weights that are too many for the nearest cache.
// kOffsets: weights of 8 and 16 bits may be unsigned or have a zero point. kByteTables: codes of 8 bits may number the
// values of a table, as those of narrow real numbers.
enum QuantizedParts : int {
  kFourBits = 1,
  kTables = 2,
  kZeroPoints = 4,
  kColumnScales = 8,
  kEightBits = 16,
  kSkips = 32,
  kBlocks = 64,
  kTransposes = 128,
  kChannels = 256,
  kFetches = 512,
  kOffsets = 1024,
  kSixteenBits = 2048,
  kByteTables = 4096
};

// Numbers of four-bit codes are taken from a table by two, where they then are in vectors; it has 2 KB.
#define MB_CODE_PAIRS (MB_SIMD && !MB_ONE_VARIANT)

// Parameters of a kernel, in this order: bits of the format, columns of the matrix, elements from one row to the next,
// rows and columns that share a scale.
constexpr int kQuantizedParams = 5;
// Bits of the format: four-bit elements, the first of two in the high half; from bit 8 on what the bits of an element
// are changed by to become a number from 0 on, of sixteen bits the higher half; and from bit 16 on the zero point where
// all blocks have the same.
enum QuantizedFormat : int { kIsFourBits = 1, kHighFirst = 2, kIsSixteenBits = 4 };

// Element (row, column) is (code - zero point) * scale, or (table[code] - zero point) * scale.
template <int Parts>
struct QuantizedMatrix {
  const uint8_t *codes, *zeros;  // bytes of codes, and of a zero point beside each scale, or null
  const float *scales, *table;   // table: 16 numbers, or 256 of bytes, or null
  int rows, columns, stride, row_block, column_block, across;  // across: scales of a row
  int flip;
  float zero;
  bool four, high_first, sixteen;
#if MB_CODE_PAIRS
  int64_t pairs[(Parts & kTables) ? 256 : 1];  // by a byte of two four-bit codes: both numbers
#endif

  MB_INLINE bool is_four() const { return (Parts & kFourBits) && (!(Parts & (kEightBits | kSixteenBits)) || four); }
  MB_INLINE bool is_sixteen() const {
    return (Parts & kSixteenBits) && (!(Parts & (kEightBits | kFourBits)) || sixteen);
  }
  MB_INLINE bool is_signed() const { return !(Parts & kOffsets) && !is_four(); }
  // Bytes of so many elements, the first of which begins a byte; and of so many zero points.
  MB_INLINE intptr_t bytes_of(intptr_t elements) const {
    return is_four() ? elements >> 1 : is_sixteen() ? elements << 1 : elements;
  }
  MB_INLINE intptr_t bytes_of_zeros(intptr_t count) const { return is_sixteen() ? count << 1 : count; }
  MB_INLINE bool has_column_scales() const { return (Parts & kColumnScales) && column_block == 1; }
  // The number of a four-bit code.
  MB_INLINE float value(int code) const { return (Parts & kTables) && table ? table[code] : float(code ^ flip); }
  // That of sixteen bits.
  MB_INLINE float wide_number(const uint8_t* at) const {
    uint16_t code;
    __builtin_memcpy(&code, at, sizeof code);
    return is_signed() ? float(int16_t(code)) : float(code ^ flip);
  }
  // That of an element.
  MB_INLINE float number(intptr_t at) const {
    if (is_sixteen()) return wide_number(codes + 2 * at);
    if (is_signed()) return int8_t(codes[at]);
    if (!is_four()) return (Parts & kByteTables) && table ? table[codes[at]] : float(codes[at] ^ flip);
    return value(codes[at >> 1] >> (bool(at & 1) != high_first ? 4 : 0) & 15);
  }
  // The zero points beside a scale, and the number of one.
  MB_INLINE const uint8_t* zeros_at(intptr_t at) const {
    return (Parts & kZeroPoints) && zeros ? zeros + bytes_of_zeros(at) : nullptr;
  }
  MB_INLINE float zero_of(const uint8_t* at) const {
    return is_signed() ? 0 : !at ? zero : is_sixteen() ? wide_number(at) : float(*at ^ flip);
  }

  MB_NOINLINE bool read(const Tensor& q, const Tensor& scale, const Tensor& zero_point, const Tensor& values,
                        const int32_t* params, int row_count) {
    const int format = params[0];
    four = format & kIsFourBits;
    const bool wide = (Parts & kSixteenBits) && (format & (kIsFourBits | kIsSixteenBits)) == kIsSixteenBits;
    if (Parts & kSixteenBits) sixteen = wide;
    if (!(Parts & (four ? kFourBits : wide ? kSixteenBits : kEightBits))) return false;
    if (!(Parts & kOffsets) && !four && format >> 8 != (wide ? -0x7fff80 : 0x8080)) return false;
    high_first = format & kHighFirst;
    flip = format >> 8 & 255;
    zero = float(format >> 16 & 255);
    if (wide) flip <<= 8, zero = float(int(unsigned(format) >> 16));
    rows = row_count, columns = params[1], stride = params[2], row_block = params[3], column_block = params[4];
    constexpr int kMost = 1 << 28;
    if (unsigned(rows - 1) >= kMost || unsigned(columns - 1) >= kMost || unsigned(stride - columns) >= kMost ||
        unsigned(row_block - 1) >= kMost || unsigned(column_block - 1) >= kMost) {
      return false;
    }
    if ((Parts & kBlocks) || has_column_scales()) across = (columns + column_block - 1) / column_block;
    else across = 1;
    if (!(Parts & kBlocks) && !has_column_scales() && column_block < columns) return false;
    const int64_t blocks = int64_t((rows + row_block - 1) / row_block) * across;
    const int64_t elements = int64_t(rows - 1) * stride + columns;
    codes = q.as<uint8_t>(), scales = scale.as<float>();
    zeros = (Parts & kZeroPoints) ? zero_point.as<uint8_t>() : nullptr;
    const bool tables = four ? bool(Parts & kTables) : (Parts & kByteTables) && !wide;
    table = tables ? values.as<float>() : nullptr;
    if (table && values.count != (four ? 16 : 256)) return false;
#if MB_CODE_PAIRS
    for (int i = 0; (Parts & kTables) && four && i < 256; ++i) {
      const float both[] = {value(high_first ? i >> 4 : i & 15), value(high_first ? i & 15 : i >> 4)};
      __builtin_memcpy(pairs + i, both, sizeof both);
    }
#endif
    return scale.count == blocks && (!zeros || zero_point.count == (wide ? 2 * blocks : blocks)) &&
           (wide ? 2 * elements : elements) <= int64_t(q.count) * (four ? 2 : 1);
  }
};

constexpr int kLanes = 8;  // elements that are dequantized at once

// `kLanes` numbers from codes of one type, whose bits `flip` changes.
template <class Code>
MB_INLINE Vec<float, kLanes> widened(const uint8_t* bytes, int flip = 0) {
  typedef Code Codes __attribute__((vector_size(kLanes * sizeof(Code))));
  Codes codes;
  __builtin_memcpy(&codes, bytes, sizeof codes);
  return __builtin_convertvector(codes ^ Code(flip), Vec<float, kLanes>::Raw);
}

// Rows of a matrix, some columns of which share a scale or have one each. Element (r, c) goes to out[r * step + c].
template <class T>
struct QuantizedRun {
  intptr_t rows, columns;
  intptr_t element;      // number of the first one
  intptr_t first, left;  // its scale, and rows until the next one
  T* out;
  intptr_t step;
  intptr_t ahead;  // bytes from codes that are read to others that are fetched meanwhile
  intptr_t end;    // of the columns of the first block, where a row has several
};

// The columns of a run that are whole vectors.
template <class T, int Parts>
struct DequantizeBody {
  using V = Vec<float, kLanes>;

  template <class W>
  static MB_INLINE void run(const QuantizedMatrix<Parts>* matrix, const QuantizedRun<T>* run) {
    // Copies: what is stored could change the originals, for all that compilers see.
    const uint8_t* codes = matrix->codes;
    const bool each = matrix->has_column_scales(), four = matrix->is_four(), sixteen = matrix->is_sixteen();
    const int flip = matrix->flip, down = (Parts & kFourBits) && matrix->high_first ? 4 : 0;
    QuantizedRun<T> at = *run;
    for (; at.rows > 0; --at.rows, at.out += at.step, at.element += matrix->stride) {
      const float* scales = matrix->scales + at.first;
      const uint8_t* zeros = matrix->zeros_at(at.first);
      const uint8_t* first = codes + matrix->bytes_of(at.element);
      if (Parts & kFetches) __builtin_prefetch(first + at.ahead);
      intptr_t i = 0, end = at.end;
      for (;; end += matrix->column_block) {
        const intptr_t stop = (Parts & kBlocks) && end < at.columns ? end : at.columns;
        // Without Vec's way to fill wide vectors, which takes instructions that gcc may not use here.
        V factor = *scales - typename V::Raw{}, nothing = matrix->zero_of(zeros) - typename V::Raw{};
        do {
          const uint8_t* from = first + matrix->bytes_of(i);
          V x;
          if (sixteen) {
            x = matrix->is_signed() ? widened<int16_t>(from) : widened<uint16_t>(from, flip);
          } else if (!four && (Parts & kByteTables) && matrix->table) {
            float lanes[kLanes];
            for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = matrix->table[from[lane]];
            x = V::load(lanes);
          } else if (!four) {
            x = matrix->is_signed() ? widened<int8_t>(from) : widened<uint8_t>(from, flip);
          } else if constexpr (bool(Parts & kTables)) {
            typedef int64_t Pairs __attribute__((vector_size(sizeof(V))));
            const int64_t* table = matrix->pairs;
            const Pairs pairs = {table[from[0]], table[from[1]], table[from[2]], table[from[3]]};
            __builtin_memcpy(&x, &pairs, sizeof x);
          } else {  // the halves of a byte, in a byte each
            typedef uint8_t Bytes __attribute__((vector_size(kLanes / 2)));
            typedef uint16_t Halves __attribute__((vector_size(kLanes)));
            Bytes bytes;
            __builtin_memcpy(&bytes, from, sizeof bytes);
            Halves both = __builtin_convertvector(bytes, Halves);
            both = (both >> uint16_t(down) | both << uint16_t(down + 4)) & uint16_t(0x0f0f);
            uint8_t halves[kLanes];
            __builtin_memcpy(halves, &both, sizeof halves);
            x = widened<uint8_t>(halves, flip);
          }
          if (each) {
            factor = V::load(scales + i);
            if (zeros) nothing = sixteen ? widened<uint16_t>(zeros + 2 * i, flip) : widened<uint8_t>(zeros + i, flip);
          }
          x = (x - nothing) * factor;
          if constexpr (sizeof(T) == sizeof(float)) {
            x.store(at.out + i);
          } else {
            float lanes[kLanes];
            x.store(lanes);
            for (int lane = 0; lane < kLanes; ++lane) at.out[i + lane] = lanes[lane];
          }
          i += kLanes;
        } while (i < stop);
        if (!(Parts & kBlocks) || i >= at.columns) break;
        ++scales;
        if (zeros) zeros += matrix->bytes_of_zeros(1);
      }
      if (--at.left == 0) at.left = matrix->row_block, at.first += matrix->across;
    }
  }
};

// out[r * step + c] = element (row + r, column + c * skip), for r < rows and c < columns.
template <class T, int Parts>
MB_NOINLINE void dequantize_block(const QuantizedMatrix<Parts>& m, intptr_t row, intptr_t column, intptr_t rows,
                                  intptr_t columns, T* out, intptr_t step, intptr_t skip = 1) {
  const bool each = m.has_column_scales();
  if (!(Parts & kSkips)) skip = 1;
#if MB_SIMD && !MB_ONE_VARIANT
  const bool wide = skip == 1 && (!m.is_four() || !(((row * m.stride + column) | (rows > 1 ? m.stride : 0)) & 1)) &&
                    (!MB_DISPATCHES || vector_bytes() >= 32);
#else
  constexpr bool wide = false;
#endif
  const intptr_t block_row = unsigned(row) / unsigned(m.row_block);
  // The columns that may be next, where there are as many as a line of a cache holds; else rows below.
  const intptr_t ahead = !(Parts & kFetches) ? 0 : m.bytes_of(columns >= 64 ? columns : 8 * m.stride);
  // Columns of one block after the other; so that nothing is divided in the loop over rows.
  for (intptr_t count; columns > 0; columns -= count, column += count * skip, out += count) {
    intptr_t first = block_row * m.across, end = columns;
    count = columns;
    if (each) {
      first += column;
    } else if (Parts & kBlocks) {
      const intptr_t block = unsigned(column) / unsigned(m.column_block);
      const intptr_t left = ((block + 1) * m.column_block - column + skip - 1) / skip;
      first += block;
      // Several blocks at once, if all are whole vectors.
      if (count > left && wide && !((left | columns | m.column_block) & (kLanes - 1))) end = left;
      else if (count > left) count = left;
    }
    const intptr_t element = row * m.stride + column, left = (block_row + 1) * m.row_block - row;
    QuantizedRun<T> run = {rows, 0, element, first, left, out, step, ahead, end};
#if MB_SIMD && !MB_ONE_VARIANT
    if (wide && !(m.is_four() && element & 1)) {
      run.columns = count & -kLanes;
      if (run.columns > 0) run_wide<DequantizeBody<T, Parts>>(&m, static_cast<const QuantizedRun<T>*>(&run));
    }
#endif
    if (run.columns == count) continue;
    for (intptr_t r = 0; r < rows; ++r, run.out += step, run.element += m.stride) {
      const float* scales = m.scales + run.first;
      const uint8_t* zeros = m.zeros_at(run.first);
      for (intptr_t i = run.columns; i < count; ++i) {
        const intptr_t own = each ? i * skip : 0;
        run.out[i] = T((m.number(run.element + i * skip) - m.zero_of(zeros ? zeros + m.bytes_of_zeros(own) : nullptr)) *
                       scales[own]);
      }
      if (--run.left == 0) run.left = m.row_block, run.first += m.across;
    }
  }
}

// The A of packed products: rows of the matrix, or of its transpose, from the element on that a pointer would point to if
// the matrix began at `base` and had no gaps.
template <class T, int Parts>
struct QuantizedRows {
  const QuantizedMatrix<Parts>* m;
  const T* base;
  bool transposed;
  int filters = 0, taps = 0;  // where not 0: of rows that are channels, as ExchangedFilters in packed_conv.h has them

  void exchange(int count, int window) { filters = count, taps = window; }
  // Rows of channels: for one filter after the other, those of its weights that read the channel.
  MB_NOINLINE void write_channels(T* to, intptr_t step, intptr_t at, intptr_t count, intptr_t depth) const {
    constexpr int kSome = 512;
    alignas(16) T some[kSome];
    const intptr_t group = at / (intptr_t(filters) * m->columns), row = at % (intptr_t(filters) * m->columns);
    const intptr_t channel = row / (intptr_t(filters) * taps), first = row % (intptr_t(filters) * taps);
    intptr_t filter = group * filters + first / taps, tap = first % taps;
    for (intptr_t now; depth > 0; depth -= now, to += now, tap = 0, ++filter) {
      now = taps - tap < depth ? taps - tap : depth;
      const intptr_t most = taps <= kSome ? kSome / taps : 1;
      for (intptr_t r = 0, rows; r < count; r += rows) {
        rows = count - r < most ? count - r : most;
        const intptr_t column = (channel + r) * taps;
        if (taps > kSome) dequantize_block(*m, filter, column + tap, 1, now, to + r * step, now);
        else dequantize_block(*m, filter, column, 1, rows * taps, some, rows * taps);
        for (intptr_t i = 0; taps <= kSome && i < rows; ++i)
          copy_bytes(to + (r + i) * step, some + i * taps + tap, size_t(now) * sizeof(T));
      }
    }
  }

  MB_INLINE void operator()(T* to, intptr_t step, const T* from, intptr_t count, intptr_t depth) const {
    const intptr_t at = (reinterpret_cast<intptr_t>(from) - reinterpret_cast<intptr_t>(base)) / intptr_t(sizeof(T));
    if ((Parts & kChannels) && filters) return write_channels(to, step, at, count, depth);
    const intptr_t row = at / m->columns, column = at % m->columns;
    if (!transposed) return dequantize_block(*m, row, column, count, depth, to, step);
    constexpr int kSide = 16;
    alignas(16) T rows[kSide * kSide];
    for (intptr_t d = 0; d < depth; d += kSide)
      for (intptr_t c = 0; c < count; c += kSide) {
        const intptr_t deep = depth - d < kSide ? depth - d : kSide, wide = count - c < kSide ? count - c : kSide;
        dequantize_block(*m, row + d, column + c, deep, wide, rows, kSide);
        transpose<T>(rows, kSide, to + c * step + d, step, deep, wide);
      }
  }
};

}  // namespace minbuild
#endif  // MINBUILD_LIB_GEMM_QUANTIZED_MATRIX_H_
