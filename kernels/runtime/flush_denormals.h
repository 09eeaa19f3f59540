// The mode of the processor in which denormal numbers are zero, for the time of a call.
#ifndef MINBUILD_RUNTIME_FLUSH_DENORMALS_H_
#define MINBUILD_RUNTIME_FLUSH_DENORMALS_H_

#include "minbuild/kernel.h"

namespace minbuild {

#if MB_FLUSH && (defined(__x86_64__) || defined(__aarch64__) || (defined(__arm__) && defined(__ARM_FP)))
// For as long as it lives, results and operands that are denormal are zero: processors take many times longer for those.
// Then the caller's own choice holds again.
class FlushDenormals {
#if defined(__x86_64__)
  uint32_t before_ = __builtin_ia32_stmxcsr();
  static MB_INLINE void set(uint32_t control) { __builtin_ia32_ldmxcsr(control); }
  static constexpr uint32_t kFlush = 0x8040;
#else
#if defined(__aarch64__)
#define MB_FP_READ "mrs %0, fpcr"
#define MB_FP_WRITE "msr fpcr, %0"
  using Word = uint64_t;
#else
#define MB_FP_READ "vmrs %0, fpscr"
#define MB_FP_WRITE "vmsr fpscr, %0"
  using Word = uint32_t;
#endif
  Word before_ = get();
  static MB_INLINE Word get() {
    Word control;
    __asm__ volatile(MB_FP_READ : "=r"(control));
    return control;
  }
  static MB_INLINE void set(Word control) { __asm__ volatile(MB_FP_WRITE : : "r"(control)); }
  static constexpr uint32_t kFlush = 1 << 24;
#endif

 public:
  MB_INLINE FlushDenormals() { set(before_ | kFlush); }
  MB_INLINE ~FlushDenormals() { set(before_); }
};
#else
struct FlushDenormals {};  // WebAssembly and RISC-V have no such mode
#endif

}  // namespace minbuild

#endif
