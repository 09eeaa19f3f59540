// The session and what its parts share. One piece of memory holds everything: this struct, its tables, the persistent
// region (parameters, gradients, optimizer state), and the arena of temporaries.
#ifndef MINBUILD_RUNTIME_SESSION_H_
#define MINBUILD_RUNTIME_SESSION_H_

#include "minbuild/kernel.h"
#include "minbuild/plan.h"
#include "runtime/flatbuffer.h"

#pragma GCC visibility push(hidden)
namespace minbuild {

constexpr uint16_t kNone = 65535;
enum Region : uint8_t { kArena, kPersistent, kConstants, kInputs, kFrozen, kExtent };
enum GraphIndex { kTrain, kEvaluate, kOptimize, kGraphs };

// The plan's vectors, in place. `read_plan` has checked that they lie inside the plan and which indices are in range.
struct PlanView {
  const void* data[plan::kVectors];
  uint32_t count[plan::kVectors];
  uint32_t trainable_bytes, persistent_bytes, learning_rate_at, step_at, moments, frozen_count;

  template <class T>
  const T* all(plan::VectorIndex vector) const {
    return static_cast<const T*>(data[vector]);
  }
  const char* name(uint32_t at) const { return all<char>(plan::kNames) + at; }
  const plan::Expr* exprs() const { return all<plan::Expr>(plan::kExprs); }
  const uint16_t* shape(const plan::Tensor& t) const { return all<uint16_t>(plan::kShapes) + t.shape; }
  const plan::Tensor& tensor(uint32_t i) const { return all<plan::Tensor>(plan::kTensors)[i]; }
  const plan::Graph& graph(uint32_t i) const { return all<plan::Graph>(plan::kGraphs)[i]; }
  const plan::Port& port(uint32_t i) const { return all<plan::Port>(plan::kPorts)[i]; }
  const plan::Parameter& parameter(uint32_t i) const { return all<plan::Parameter>(plan::kParameters)[i]; }
};

// Where the text of a failure goes, put together without printf and silently cut where the room ends.
struct ErrorText {
  char* text;
  size_t room;  // 0: nobody reads it

  // Writes `format`, in which each `%s` takes a string and each `%d` a number from what follows; returns `status`.
  template <class... Parts>
  MB_INLINE mb_status fail(mb_status status, const char* format, Parts... parts) const {
    const intptr_t list[] = {0, (intptr_t)parts...};
    write(format, list + 1);
    return status;
  }
  void write(const char* format, const intptr_t* parts) const;
};

// What depends on the sizes of the free dimensions: the value of every expression, size and place of every buffer.
struct Layout {
  int32_t* dims;
  uint32_t* sizes;
  uint32_t* offsets;
};

// The pieces of a session's memory, in order.
enum Piece { kSelf, kDims, kSizes, kOffsets, kSymbolSizes, kKernelRowsOf, kFrozenData, kFrozenSizes, kKept, kTemporaries, kPieces };

struct Session {
  char* pieces[kPieces];
  const mb_tensor* inputs;  // of the running step, by port; null between steps
  size_t arena_size;        // bytes of temporaries there is room for
  bool reset_gradients;
  void* mapped[3];          // what mb_destroy unmaps: the session itself, plan, checkpoint
  size_t mapped_size[3];
  Layout layout;
  ErrorText error;
  PlanView plan;
  char error_room[160];

  int32_t* symbols() const { return reinterpret_cast<int32_t*>(pieces[kSymbolSizes]); }
  uint16_t* rows() const { return reinterpret_cast<uint16_t*>(pieces[kKernelRowsOf]); }
  const char** frozen() const { return reinterpret_cast<const char**>(pieces[kFrozenData]); }
  uint32_t* frozen_sizes() const { return reinterpret_cast<uint32_t*>(pieces[kFrozenSizes]); }
  char* persistent() const { return pieces[kKept]; }

  void resolve(uint32_t index, Tensor* tensor) const;
};

constexpr uint32_t kMaxElementType = 16;
// Bytes of one element by type number; 0: no such type.
inline constexpr uint8_t kElementSizes[] = {0, 4, 1, 1, 2, 2, 4, 8, 0, 1, 2, 8, 4, 8, 0, 0, 2};

MB_INLINE size_t align16(size_t n) { return (n + 15) & ~size_t{15}; }
MB_INLINE bool inside(uint32_t first, uint64_t count, uint32_t size) { return first + count <= size; }

// plan.cc
mb_status read_plan(const void* bytes, size_t size, PlanView* plan, const ErrorText& error);
mb_status link_kernels(const PlanView& plan, uint16_t* rows, const ErrorText& error);
// Evaluates all dimensions under `symbols` and places all buffers. `arena` receives the bytes of temporaries.
// `frozen_sizes`, once known, bounds every use of a frozen parameter.
mb_status lay_out(const PlanView& plan, const int32_t* symbols, const Layout& layout, const uint32_t* frozen_sizes,
                  size_t* arena, const ErrorText& error);

// checkpoint_read.cc
mb_status read_checkpoint(Session* session, const void* bytes, size_t size, const ErrorText& error);

// kernel_table.cc, generated
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
extern const uint32_t kFeatureKeys[];
extern const uint32_t kKernelRowCount, kFeatureKeyCount;
Status run_kernel(uint32_t row, const Call& call);

}  // namespace minbuild

struct mb_session : minbuild::Session {};
#pragma GCC visibility pop

#endif  // MINBUILD_RUNTIME_SESSION_H_
