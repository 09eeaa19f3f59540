// The interface of a kernel: its tensors, its parameters, and nothing else. See kernels/README.md for the contract.
#ifndef MINBUILD_KERNEL_H_
#define MINBUILD_KERNEL_H_

#include <stddef.h>
#include <stdint.h>

#include "minbuild/config.h"
#include "minbuild/trainer.h"
#include "lib/types/align.h"
#include "lib/types/bytes.h"
#include "lib/simd/vec.h"
#include "lib/threads/parallel.h"

// Calls between files stay inside the library.
#pragma GCC visibility push(hidden)
namespace minbuild {

struct half;  // lib/types/half.h
struct bfloat16;

// In libraries whose training steps update parameters, a gradient that is not finite has a status of its own: the session
// has to be given up then.
constexpr mb_status kNotFiniteStatus = MB_FUSED_UPDATES ? MB_BAD_VALUE + 128 : MB_BAD_VALUE;
// No failures: the session acts on them.
constexpr mb_status kSkipRoundStatus = 64, kSetRoundsStatus = 65, kSkipUpdateStatus = 66;

#if !MB_COMPILED
enum class Status : uint8_t {
  kOk = MB_OK,
  kBadPlan = MB_BAD_PLAN,           // shapes or parameters that no correct plan contains
  kTooLarge = MB_BAD_PLAN,          // shapes or parameters that a model may have and the kernel cannot count with
  kBadValue = MB_BAD_VALUE,         // data out of range
  kNotFinite = kNotFiniteStatus,    // a gradient is infinite or no number
  kSkipRound = kSkipRoundStatus,    // the rest of the round of a loop does not run
  kSetRounds = kSetRoundsStatus,    // the loops that follow have as many rounds as the first argument says
  kSkipUpdate = kSkipUpdateStatus,  // the rest of an optimizer step does not run, and it does not count
};
// MB_WRONG(condition): a condition that no correct plan meets, where its check shares the answer with limits. A macro:
// as a function it would be evaluated to a number first, which takes up to 21 bytes.
#define MB_WRONG(condition) (condition)
#else
// A compiled plan is correct: compilers leave out every check that ends in kBadPlan. The others stay.
struct Status {
  struct Never {
    [[noreturn]] MB_INLINE operator Status() const { __builtin_unreachable(); }
  };
  uint8_t value;
  static const Status kOk, kTooLarge, kBadValue, kNotFinite, kSkipRound, kSetRounds, kSkipUpdate;
  static const Never kBadPlan;
  explicit constexpr operator mb_status() const { return value; }
  constexpr bool operator==(Status other) const { return value == other.value; }
  constexpr bool operator!=(Status other) const { return value != other.value; }
};
inline constexpr Status Status::kOk{MB_OK}, Status::kTooLarge{MB_BAD_PLAN}, Status::kBadValue{MB_BAD_VALUE};
inline constexpr Status Status::kNotFinite{kNotFiniteStatus};
inline constexpr Status Status::kSkipRound{kSkipRoundStatus}, Status::kSetRounds{kSetRoundsStatus};
inline constexpr Status Status::kSkipUpdate{kSkipUpdateStatus};
inline constexpr Status::Never Status::kBadPlan{};
MB_INLINE bool never(bool condition) {
  if (condition) __builtin_unreachable();
  return false;
}
#define MB_WRONG(condition) never(condition)
#endif

// A dense row-major tensor with its dimensions known. `data` is null for an absent optional argument.
struct Tensor {
  char* data;
  int32_t count;  // number of elements
  int32_t rank;
  int32_t dims[MB_MAX_RANK];

  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data);
  }
  // Scratch memory for elements of T. Good plans have it at multiples of 16; of others, which may have it anywhere, at
  // the last one before, where its region is still.
  template <class T>
  T* scratch() const {
    return reinterpret_cast<T*>(align_down(reinterpret_cast<uintptr_t>(data)));
  }
  explicit operator bool() const { return data != nullptr; }
};

// One call of a kernel. The session has checked the number of arguments and parameters, the element types, and that
// outputs are writable; the kernel checks every relation between shapes and parameters before it touches data.
struct Call {
  static constexpr int kMiddle = 2;
  // Argument kMiddle rather than argument 0: x86-64 encodes offsets of -128 to 127 bytes in one byte, larger ones in
  // four. With 48 bytes a tensor, arguments 0 to 4 are in reach; an access outside of it takes 3 bytes more.
  // With 0 in place of 2 mlp's trainer is 32 bytes larger.
  const Tensor* middle;
  const int32_t* params;  // attributes; floats as their bits
  uint32_t accumulate;    // bit i: add to output i instead of replacing it
#if MB_THREADS > 1
  Team* team;  // the threads that may compute parts of it (lib/threads/parallel.h), or null
#endif

  // Outputs first, then inputs, then scratch.
  const Tensor& operator[](int i) const { return middle[i - kMiddle]; }
  bool adds(int output) const { return (accumulate >> output) & 1; }
  float real(int i) const {
    float value;
    __builtin_memcpy(&value, params + i, sizeof value);
    return value;
  }
};

}  // namespace minbuild
#pragma GCC visibility pop
#endif  // MINBUILD_KERNEL_H_
