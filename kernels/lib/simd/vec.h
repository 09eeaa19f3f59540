// Vectors by compiler extension, and the choice between vector widths at run time. A hot loop is written once, as a
// body over a width W; on x86-64 it exists twice (SSE2, AVX2 with FMA) and dispatch<Body>() picks; elsewhere once.
//
//   struct Relu {
//     template <class W>
//     static MB_INLINE void run(const float* x, float* y, int n) {
//       using V = typename W::template of<float>;
//       for (; n > 0; n -= V::size, x += V::size, y += V::size) max(V(0.f), V::load(x, n)).store(y, n);
//     }
//   };
//   dispatch<Relu>(x, y, n);
#ifndef MINBUILD_LIB_SIMD_VEC_H_
#define MINBUILD_LIB_SIMD_VEC_H_

#include <stddef.h>
#include <stdint.h>

#if __has_include("minbuild/config.h")
#include "minbuild/config.h"
#endif

// As in minbuild/kernel.h, so that this header also stands alone.
#define MB_INLINE inline __attribute__((always_inline))
#define MB_NOINLINE __attribute__((noinline))
// MB_INLINE for what thousands of vectors pass through. clang keeps the body of an inlined function that other files may
// have, with all that it calls, until it has compiled the file: gigabytes.
#if defined(__clang__)
#define MB_INTERNAL inline __attribute__((always_inline, internal_linkage))
#else
#define MB_INTERNAL MB_INLINE
#endif
#define MB_LAMBDA __attribute__((always_inline))  // [&](auto i) MB_LAMBDA { ... }

// Hides where the value of `x` (an integer or pointer) comes from. Compilers copy a hot loop for each value that they
// know `x` may have, precompute addresses, or turn masks into branches; without this, results are
// the same, and mlp's trainer is 80 bytes larger.
#define MB_OPAQUE(x) __asm__("" : "+r"(x))

#ifndef MINBUILD_DISPATCH
#define MINBUILD_DISPATCH 1  // 0: compile for the machine of the compiler flags only
#endif
#ifndef MINBUILD_AVX512
#define MINBUILD_AVX512 0  // 1: a third level for bodies that ask for it
#endif

#ifndef MB_ONE_VARIANT
#define MB_ONE_VARIANT 0  // 1: every loop once, for the vectors that all processors have, in few bytes
#endif

#if MINBUILD_DISPATCH && !MB_ONE_VARIANT && defined(__x86_64__) && !defined(__AVX2__)
#define MB_DISPATCHES 1
#else
#define MB_DISPATCHES 0
#endif

// Vectors of float of Cortex-M: eight registers, and products with what a general register holds.
#if defined(__ARM_FEATURE_MVE) && (__ARM_FEATURE_MVE & 2)
#define MB_HELIUM 1
#else
#define MB_HELIUM 0
#endif

#ifndef MB_SIMD  // whether vectors live in vector registers; else they are four scalars
#if defined(__SSE2__) || defined(__ARM_NEON) || defined(__wasm_simd128__) || defined(__loongarch_sx) || MB_HELIUM
#define MB_SIMD 1
#else
#define MB_SIMD 0
#endif
#endif

// On Cortex-M4F a product and a sum take a cycle each, and VMLA, which rounds like them and is shorter, three. Compilers
// that look for few bytes take VMLA all the same, unless they cannot see that the product is one.
// Cortex-M7 has FPv5, which clang and gcc tell by one macro each, and a timing of its own.
#if !MB_ONE_VARIANT && defined(__ARM_ARCH_7EM__) && defined(__ARM_FP) && !defined(__ARM_FPV5__) && \
    !defined(__ARM_FEATURE_DIRECTED_ROUNDING)
#define MB_SPLIT_MULADD 1
#else
#define MB_SPLIT_MULADD 0
#endif

// Inner loops keep their steps in registers and end with one jump. Cortex-M waits for memory, and a branch takes three
// cycles; engines of WebAssembly move what a loop does not change out of it only if it has no jump but the last.
#if !MB_ONE_VARIANT && \
    (defined(__wasm_simd128__) || (defined(__ARM_FP) && defined(__ARM_ARCH_PROFILE) && __ARM_ARCH_PROFILE == 'M'))
#define MB_TIGHT_LOOPS 1
#else
#define MB_TIGHT_LOOPS 0
#endif

// The module with relaxed SIMD is for speed; those without run in every engine and take fewer bytes.
#if defined(__wasm_relaxed_simd__) && !MB_ONE_VARIANT
#define MB_FAST_WASM 1
#else
#define MB_FAST_WASM 0
#endif

// True where lanes of two vectors can be put in any order.
#if MB_SIMD && (defined(__clang__) || __GNUC__ >= 12)
#define MB_SHUFFLES 1
#else
#define MB_SHUFFLES 0
#endif

#if defined(__GNUC__)                     // clang too
#pragma GCC diagnostic ignored "-Wpsabi"  // wide vectors never cross a call: everything that takes one is inlined
#endif

namespace minbuild {

template <class T>
struct LaneBits;  // the integer of the same size, which comparisons give
// clang-format off
template <>
struct LaneBits<float> { using type = int32_t; };
template <>
struct LaneBits<double> { using type = int64_t; };
template <>
struct LaneBits<int32_t> { using type = int32_t; };
template <>
struct LaneBits<uint32_t> { using type = int32_t; };
template <>
struct LaneBits<int64_t> { using type = int64_t; };
// clang-format on

// A struct of its own: inside Vec, gcc takes a dependent vector type for its element.
template <class T, int N>
struct RawVec {
  typedef T type __attribute__((vector_size(N * sizeof(T))));
  typedef T loose __attribute__((vector_size(N * sizeof(T)), aligned(alignof(T)), may_alias));
};

// N lanes of T. A struct, because clang refuses to pass bare wide vectors between functions of different targets,
// inlined or not.
template <class T, int N>
struct Vec {
  using Raw = typename RawVec<T, N>::type;
  using Loose = typename RawVec<T, N>::loose;
  using Bits = Vec<typename LaneBits<T>::type, N>;
  static constexpr int size = N;
  Raw v;

  Vec() = default;
  MB_INLINE Vec(Raw raw) : v(raw) {}
  MB_INLINE Vec(T x) : v(splat(x)) {}

  // Lane by lane: gcc would split `x - Raw{}` into halves before it knows the target. It would also fill wide ones
  // lane by lane, so there it is told. Without the instruction results are the same.
  template <class... Lanes>
  static MB_INLINE Raw splat(T x, Lanes... lanes) {
#if defined(__x86_64__) && !defined(__clang__)
    if (sizeof(Raw) > 16 && !__builtin_constant_p(x)) {
      Raw all;
      if constexpr (sizeof(T) == 4) {
        __asm__("vbroadcastss %1, %0" : "=v"(all) : "m"(x));
      } else {
        __asm__("vbroadcastsd %1, %0" : "=v"(all) : "m"(x));
      }
      return all;
    }
#endif
#if defined(__wasm_simd128__)  // a constant vector takes 18 bytes, a number and what repeats it seven
    if constexpr (__is_same(T, float) && sizeof...(Lanes) == 0) {
      if (__builtin_constant_p(x) && x != 0) __asm__("" : "+r"(x));
    }
#endif
    if constexpr (sizeof...(Lanes) == N) {
      return Raw{lanes...};
    } else {
      return splat(x, x, lanes...);
    }
  }

  static MB_INLINE Vec load(const T* p) { return Raw(*reinterpret_cast<const Loose*>(p)); }
  MB_INLINE void store(T* p) const { *reinterpret_cast<Loose*>(p) = v; }
  // The first `left` lanes, or all of them if more are left: a loop over n elements is
  //   for (; n > 0; n -= V::size, x += V::size, y += V::size) f(V::load(x, n)).store(y, n);
  // with one copy of f. Lanes beyond read as zero and are not written.
  static MB_INLINE Vec load(const T* p, int left) {
    if (__builtin_expect(left >= N, 1)) return load(p);
    T lanes[N];
    Vec(T(0)).store(lanes);
    for (int i = 0; i < left; ++i) lanes[i] = p[i];
    return load(lanes);
  }
  MB_INLINE void store(T* p, int left) const {
    if (__builtin_expect(left >= N, 1)) return store(p);
    T lanes[N];
    store(lanes);
    for (int i = 0; i < left; ++i) p[i] = lanes[i];
  }

  friend MB_INLINE Vec operator+(Vec a, Vec b) { return a.v + b.v; }
  friend MB_INLINE Vec operator-(Vec a, Vec b) { return a.v - b.v; }
  friend MB_INLINE Vec operator*(Vec a, Vec b) { return a.v * b.v; }
  friend MB_INLINE Vec operator/(Vec a, Vec b) { return a.v / b.v; }
  friend MB_INLINE Vec operator-(Vec a) { return -a.v; }
  friend MB_INLINE Vec operator&(Vec a, Vec b) { return a.v & b.v; }
  friend MB_INLINE Vec operator|(Vec a, Vec b) { return a.v | b.v; }
  friend MB_INLINE Vec operator^(Vec a, Vec b) { return a.v ^ b.v; }
  friend MB_INLINE Vec operator~(Vec a) { return ~a.v; }
  friend MB_INLINE Vec operator<<(Vec a, int bits) { return a.v << bits; }
  friend MB_INLINE Vec operator>>(Vec a, int bits) { return a.v >> bits; }
  friend MB_INLINE Bits operator<(Vec a, Vec b) { return typename Bits::Raw(a.v < b.v); }
  friend MB_INLINE Bits operator>(Vec a, Vec b) { return typename Bits::Raw(a.v > b.v); }
  friend MB_INLINE Bits operator<=(Vec a, Vec b) { return typename Bits::Raw(a.v <= b.v); }
  friend MB_INLINE Bits operator>=(Vec a, Vec b) { return typename Bits::Raw(a.v >= b.v); }
  friend MB_INLINE Bits operator==(Vec a, Vec b) { return typename Bits::Raw(a.v == b.v); }
  friend MB_INLINE Bits operator!=(Vec a, Vec b) { return typename Bits::Raw(a.v != b.v); }
};

// Integer constants for unroll().
template <int I>
struct Constant {
  constexpr operator int() const { return I; }
};
template <class, int... I>
struct Constants {};
#if defined(__clang__)
template <int N>
using ConstantsUpTo = __make_integer_seq<Constants, int, N>;
#else
template <int N>
using ConstantsUpTo = Constants<int, __integer_pack(N)...>;
#endif
template <class Body, int... I>
MB_INTERNAL void unroll_each(Body&& body, Constants<int, I...>) {
  (body(Constant<I>{}), ...);
}
// body(0), body(1), ..., body(N - 1) as straight code, so that arrays indexed by the argument live in registers. Not by
// recursion: before compilers drop inlined functions, each level has a copy of all that it calls.
template <int N, class Body>
MB_INTERNAL void unroll(Body&& body) {
  unroll_each(body, ConstantsUpTo<N>{});
}

#if MB_SPLIT_MULADD
// The products of lanes I and those behind it are added to `c`: four products first, as a sum waits for the one before.
template <int I, class T, int N>
MB_INLINE Vec<T, N> add_products(Vec<T, N> a, Vec<T, N> b, Vec<T, N> c) {
  if constexpr (I + 4 <= N) {
    T product[4];
    unroll<4>([&](auto i) MB_LAMBDA { product[i] = a.v[I + i] * b.v[I + i]; });
    __asm__("" : "+t"(product[0]), "+t"(product[1]), "+t"(product[2]), "+t"(product[3]));
    unroll<4>([&](auto i) MB_LAMBDA { c.v[I + i] = product[i] + c.v[I + i]; });
    return add_products<I + 4>(a, b, c);
  } else if constexpr (I < N) {
    T product = a.v[I] * b.v[I];
    __asm__("" : "+t"(product));
    c.v[I] = product + c.v[I];
    return add_products<I + 1>(a, b, c);
  } else {
    return c;
  }
}
#endif

// a*b + c, fused where the target fuses. Written out because compilers contract within one expression only.
template <class T, int N>
MB_INLINE Vec<T, N> muladd(Vec<T, N> a, Vec<T, N> b, Vec<T, N> c) {
#if MB_SPLIT_MULADD
  if constexpr (sizeof(T) == 4) {
    return add_products<0>(a, b, c);
  }
#endif
#if defined(__wasm_relaxed_simd__)
  if constexpr (N == 4 && __is_same(T, float)) return __builtin_wasm_relaxed_madd_f32x4(a.v, b.v, c.v);
#endif
  return a.v * b.v + c.v;
}

template <class T, int N>
MB_INLINE Vec<T, N> select(Vec<typename LaneBits<T>::type, N> mask, Vec<T, N> yes, Vec<T, N> no) {
#if defined(__aarch64__) || defined(__wasm__)  // fewer instructions for a single lane; elsewhere more
  if constexpr (N == 1) return mask.v[0] ? yes.v[0] : no.v[0];
#endif
  return mask.v ? yes.v : no.v;
}

// A NaN in `a` gives `b`; a NaN in `b` stays.
template <class T, int N>
MB_INLINE Vec<T, N> min(Vec<T, N> a, Vec<T, N> b) {
  if constexpr (N == 1) return a.v[0] < b.v[0] ? a.v[0] : b.v[0];
  return a.v < b.v ? a.v : b.v;
}
template <class T, int N>
MB_INLINE Vec<T, N> max(Vec<T, N> a, Vec<T, N> b) {
#if defined(__wasm_simd128__)  // engines choose between single numbers by a jump
  if constexpr (N == 1 && __is_same(T, float)) {
    using Four = Vec<T, 4>;
    return max(Four(a.v[0]), Four(b.v[0])).v[0];
  }
#endif
  if constexpr (N == 1) return a.v[0] > b.v[0] ? a.v[0] : b.v[0];
  return a.v > b.v ? a.v : b.v;
}

// The same bits under another type, and the same values under another type (towards zero).
template <class To, class T, int N>
MB_INLINE Vec<To, N> bits_as(Vec<T, N> x) {
  static_assert(sizeof(To) == sizeof(T), "lanes keep their size");
  return typename Vec<To, N>::Raw(x.v);
}
template <class To, class T, int N>
MB_INLINE Vec<To, N> convert(Vec<T, N> x) {
  return __builtin_convertvector(x.v, typename Vec<To, N>::Raw);
}

// Adds lanes in a fixed tree: halves onto halves.
template <class T, int N>
MB_INLINE T sum(Vec<T, N> x) {
  if constexpr (N == 1) {
    return x.v[0];
  } else if constexpr (N == 2) {
    return x.v[0] + x.v[1];
  } else {
    using Half = Vec<T, N / 2>;
    Half half[2];
    __builtin_memcpy(half, &x, sizeof x);
    return sum(half[0] + half[1]);
  }
}

// The widths a body is compiled for: Width<16>::of<float> is four floats. A vector has at least one element.
template <int Bytes>
struct Width {
  static constexpr int bytes = Bytes;
  template <class T>
  using of = Vec<T, (Bytes > int(sizeof(T)) ? Bytes / int(sizeof(T)) : 1)>;
};
// Elements of a vector of so many bytes.
template <class T>
MB_INLINE constexpr int lanes_of(int bytes) {
  return MB_ONE_VARIANT && unsigned(bytes) < sizeof(T) ? 1 : int(unsigned(bytes) / sizeof(T));
}
// Bytes of the vectors that every processor has. Where vectors are but scalars, single elements take the fewest bytes.
constexpr int kNarrowBytes = MB_ONE_VARIANT && !MB_SIMD ? 4 : 16;

#if MB_DISPATCHES

// Bytes of the widest vectors of this processor; 0 until asked. cpuid traps in virtual machines (tens of microseconds), so
// once.
inline uint8_t vector_bytes_found;

// A call of this is smaller than a look at what was found, and costs a kernel nothing.
MB_NOINLINE inline int widest_bytes() {
  uint8_t bytes = __atomic_load_n(&vector_bytes_found, __ATOMIC_RELAXED);
  if (bytes != 0) return bytes;
  uint32_t a, b, c, d, state;
  bytes = 16;
  __asm__ volatile("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(1), "c"(0));
  constexpr uint32_t kFmaXsaveAvx = 1u << 12 | 1u << 27 | 1u << 28;
  if ((c & kFmaXsaveAvx) == kFmaXsaveAvx) {                      // XSAVE is described in leaf 13, so there is a leaf 7
    __asm__ volatile("xgetbv" : "=a"(state), "=d"(d) : "c"(0));  // which registers the system saves
    __asm__ volatile("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(7), "c"(0));
    if ((state & 0x06) == 0x06 && b & 1u << 5) bytes = 32;
#if MINBUILD_AVX512
    constexpr uint32_t kFDqVl = 1u << 16 | 1u << 17 | 1u << 31;
    if ((state & 0xe6) == 0xe6 && (b & kFDqVl) == kFDqVl) bytes = 64;
#endif
  }
  __atomic_store_n(&vector_bytes_found, bytes, __ATOMIC_RELAXED);
  return bytes;
}
// Bytes of the vectors of all loops but those of packed products and what transforms tiles for them.
MB_INLINE int vector_bytes() {
#if MINBUILD_AVX512
  return widest_bytes() < 32 ? 16 : 32;
#else
  return widest_bytes();
#endif
}

// gcc leaves vzeroupper out at -Os, after which SSE code runs many times slower. clang always emits it.
#if defined(__clang__)
#define MB_END_WIDE()
#else
#define MB_END_WIDE() __builtin_ia32_vzeroupper()
#endif

#define MB_WIDE_CALL(name, features, bytes)                                               \
  template <class Body, class... Args>                                                    \
  __attribute__((target(features))) MB_NOINLINE void run_apart_##name(Args... args) {     \
    Body::template run<Width<bytes>>(args...);                                            \
  }                                                                                       \
  template <class Body, class... Args>                                                    \
  __attribute__((target(features))) MB_NOINLINE auto run_##name(Args... args) {           \
    if constexpr (__is_same(decltype(Body::template run<Width<bytes>>(args...)), void)) { \
      Body::template run<Width<bytes>>(args...);                                          \
      MB_END_WIDE();                                                                      \
    } else {                                                                              \
      auto result = Body::template run<Width<bytes>>(args...);                            \
      MB_END_WIDE();                                                                      \
      return result;                                                                      \
    }                                                                                     \
  }
MB_WIDE_CALL(avx2, "avx2,fma", 32)
#if MINBUILD_AVX512
MB_WIDE_CALL(avx512, "avx2,fma,avx512f,avx512dq,avx512vl", 64)
#endif
#undef MB_WIDE_CALL
template <class Body, class... Args>
MB_NOINLINE auto run_sse2(Args... args) {
  return Body::template run<Width<16>>(args...);
}

// Body::run<W>(args...) at W of `bytes`, which is what widest_bytes() said, or less. Arguments go by value: pass
// pointers, numbers, or a pointer to a struct, not vectors. Level 64 exists for bodies with MaxBytes 64 only.
template <class Body, int MaxBytes = 32, class... Args>
MB_INLINE auto run_at(int bytes, Args... args) {
#if MINBUILD_AVX512
  if (MaxBytes >= 64 && bytes == 64) return run_avx512<Body>(args...);
#endif
  return bytes >= 32 ? run_avx2<Body>(args...) : run_sse2<Body>(args...);
}
// Body::run<W>(args...) as a function of its own, for code that runs at W already. The end of a wide call is not here: the
// caller may have vectors in registers.
template <class Body, class W, class... Args>
MB_INLINE void run_apart(Args... args) {
#if MINBUILD_AVX512
  if constexpr (W::bytes == 64) return run_apart_avx512<Body>(args...);
#endif
  if constexpr (W::bytes == 32) run_apart_avx2<Body>(args...);
  else run_sse2<Body>(args...);
}
#if MINBUILD_AVX512
// A body for vectors of 64 bytes alone, where widest_bytes() said so.
template <class Body, class... Args>
MB_INLINE void run_widest(Args... args) {
  run_avx512<Body>(args...);
}
#endif

#else  // one instantiation

#if defined(__AVX2__) || (defined(__AVX512F__) && MINBUILD_AVX512)
constexpr int kNativeBytes = 32;
#else
constexpr int kNativeBytes = kNarrowBytes;
#endif
#if defined(__AVX512F__) && MINBUILD_AVX512
constexpr int kWidestBytes = 64;
#else
constexpr int kWidestBytes = kNativeBytes;
#endif

MB_INLINE int vector_bytes() { return kNativeBytes; }
MB_INLINE int widest_bytes() { return kWidestBytes; }

template <class Body, int Bytes, class... Args>
MB_NOINLINE auto run_native(Args... args) {
  return Body::template run<Width<Bytes>>(args...);
}
template <class Body, int MaxBytes = 32, class... Args>
MB_INLINE auto run_at(int, Args... args) {
  return run_native<Body, (MaxBytes > 32 ? kWidestBytes : kNativeBytes < MaxBytes ? kNativeBytes : MaxBytes)>(args...);
}
template <class Body, class W, class... Args>
MB_INLINE void run_apart(Args... args) {
  run_native<Body, W::bytes>(args...);
}
template <class Body, class... Args>
MB_INLINE void run_widest(Args... args) {
  run_native<Body, kWidestBytes>(args...);
}

#endif

// Body::run<W>(args...) at the widest W of this processor up to MaxBytes.
template <class Body, int MaxBytes = 32, class... Args>
MB_INLINE auto dispatch(Args... args) {
  return run_at<Body, MaxBytes>(vector_bytes(), args...);
}

// The same where a fallback for processors without wide vectors need not be fast: it works on single elements of T.
template <class Body, class T, class... Args>
MB_INLINE auto dispatch_or_single(Args... args) {
#if MB_DISPATCHES
  if (vector_bytes() >= 32) return run_avx2<Body>(args...);
  return Body::template run<Width<sizeof(T)>>(args...);
#else
  return dispatch<Body>(args...);
#endif
}

}  // namespace minbuild
#endif  // MINBUILD_LIB_SIMD_VEC_H_
