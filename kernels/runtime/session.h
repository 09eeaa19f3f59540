// The session and what its parts share. One piece of memory holds everything: this struct, the values of the plan's
// expressions, the persistent region (parameters, gradients, optimizer state), and the arena of temporaries.
#ifndef MINBUILD_RUNTIME_SESSION_H_
#define MINBUILD_RUNTIME_SESSION_H_

#include "minbuild/kernel.h"
#include "minbuild/plan.h"
#include "runtime/flatbuffer.h"

#pragma GCC visibility push(hidden)
namespace minbuild {

constexpr uint16_t kNone = 65535;
constexpr uint32_t kMostSymbols = 8;
enum Region : uint8_t { kArena, kPersistent, kConstants, kInputs, kFrozen, kExtent, kRegions };
enum GraphIndex { kTrain, kEvaluate, kOptimize, kGraphs };

// The plan, in place. No index in it is trusted: `at` answers one that is out of range with element 0, which every
// vector that is indexed has, so that a damaged plan leads to wrong tensors, which are checked, never out of the plan.
struct PlanView {
  const char* data[plan::kVectors];
  uint32_t count[plan::kVectors];
  uint32_t trainable_bytes, persistent_bytes, learning_rate_at, step_at, moments, arena;

  MB_NOINLINE const void* at(plan::VectorIndex vector, uint32_t index) const;
  const char* name(uint32_t i) const { return static_cast<const char*>(at(plan::kNames, i)); }
  const plan::Tensor& tensor(uint32_t i) const { return *static_cast<const plan::Tensor*>(at(plan::kTensors, i)); }
  const plan::Port& port(uint32_t i) const { return *static_cast<const plan::Port*>(at(plan::kPorts, i)); }
  const plan::Parameter& parameter(uint32_t i) const {
    return *static_cast<const plan::Parameter*>(at(plan::kParameters, i));
  }
  const plan::Kernel& kernel(uint32_t i) const { return *static_cast<const plan::Kernel*>(at(plan::kKernels, i)); }
  const plan::Graph& graph(uint32_t i) const { return *static_cast<const plan::Graph*>(at(plan::kGraphs, i)); }
  const plan::Expr* exprs() const { return reinterpret_cast<const plan::Expr*>(data[plan::kExprs]); }
  const uint16_t* shape(const plan::Tensor& t) const { return static_cast<const uint16_t*>(at(plan::kShapes, t.shape)); }
};

// Where the text of a failure goes, put together without printf and silently cut where the room ends.
struct ErrorText {
  char* text;
  size_t room;  // 0: nobody reads it

  // Writes `format`, in which `%s` takes a string and `%d` a number from a, b, c in order. Returns `status`.
  mb_status fail(mb_status status, const char* format, intptr_t a = 0, intptr_t b = 0, intptr_t c = 0) const;
};
MB_INLINE intptr_t word_of(const char* text) { return reinterpret_cast<intptr_t>(text); }

struct Session {
  PlanView plan;
  int32_t* values;          // of the plan's expressions
  const char** frozen;      // data of each frozen parameter, inside the checkpoint; null for other parameters
  char* regions[kRegions];  // where the first three start
  const mb_tensor* inputs;  // of the running step, by port; null between steps
  size_t arena_size;        // bytes of temporaries there is room for
  bool reset_gradients;
  int32_t symbols[kMostSymbols];
  ErrorText error;
  void* mapped[3];          // what mb_destroy unmaps: the session itself, plan, checkpoint
  size_t mapped_size[3];
  char error_room[160];

  void resolve(uint32_t index, Tensor* tensor) const;
};

constexpr uint32_t kMaxElementType = 16;
// Bytes of one element by type number; 0: no such type.
inline constexpr uint8_t kElementSizes[kMaxElementType + 1] = {0, 4, 1, 1, 2, 2, 4, 8, 0, 1, 2, 8, 4, 8, 0, 0, 2};

MB_INLINE uint32_t align16(uint32_t n) { return (n + 15) & ~15u; }
MB_INLINE bool inside(uint64_t first, uint64_t count, uint32_t size) { return first + count <= size; }

// plan.cc
mb_status read_plan(const void* bytes, size_t size, PlanView* plan, const ErrorText& error);
// Evaluates all expressions under `symbols`, and refuses when any tensor would not lie within its region.
mb_status lay_out(const PlanView& plan, const int32_t* symbols, int32_t* values, const ErrorText& error);
// Whether the library has all kernels, and every step calls one with tensors that fit it.
mb_status check_steps(const PlanView& plan, const ErrorText& error);
uint32_t find_kernel(uint32_t key);

// checkpoint_read.cc
mb_status read_checkpoint(Session* session, const void* bytes, size_t size);

// kernel_table.cc, generated. Features stand behind the kernels, as rows that cannot be run.
struct KernelRow {
  uint32_t key;
  uint16_t slots;  // first entry in kKernelSlots
  uint8_t arg_count;
  uint8_t param_count;
};
// An argument slot: element type number, and flags.
constexpr uint8_t kSlotType = 31, kSlotWritten = 32, kSlotOptional = 64;
extern const KernelRow kKernelRows[];
extern const uint8_t kKernelSlots[];
extern const uint32_t kKernelRowCount;
Status run_kernel(uint32_t row, const Call& call);

}  // namespace minbuild

struct mb_session : minbuild::Session {};
#pragma GCC visibility pop

#endif  // MINBUILD_RUNTIME_SESSION_H_
