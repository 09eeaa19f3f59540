// The session and what its parts share. One allocation holds everything: this struct, the resolved dimensions and
// offsets, the persistent region (parameters, gradients, optimizer state), and the arena of temporaries.
#ifndef MINBUILD_RUNTIME_SESSION_H_
#define MINBUILD_RUNTIME_SESSION_H_

#include "minbuild/kernel.h"
#include "minbuild/plan.h"
#include "runtime/flatbuffer.h"

namespace minbuild {

constexpr uint16_t kNone = 65535;
enum Region : uint8_t { kArena, kPersistent, kConstants, kInputs, kFrozen, kExtent };
enum GraphIndex { kTrain, kEvaluate, kOptimize, kGraphs };

template <class T>
struct Span {
  const T* data;
  uint32_t count;
  const T& operator[](uint32_t i) const { return data[i]; }
};

// The plan's vectors, checked to lie inside the plan; the indices in them are checked by `check_plan`.
struct PlanView {
  Span<char> names;
  Span<plan::Symbol> symbols;
  Span<plan::Expr> exprs;
  Span<uint16_t> shapes;
  Span<plan::Tensor> tensors;
  Span<plan::Buffer> buffers;
  Span<plan::Kernel> kernels;
  Span<uint32_t> features;
  Span<plan::Step> steps;
  Span<uint16_t> args;
  Span<int32_t> params;
  Span<plan::Graph> graphs;
  Span<plan::Port> ports;
  Span<plan::Parameter> parameters;
  Span<uint64_t> constants;
  uint32_t trainable_bytes, persistent_bytes, learning_rate_at, step_at;
  uint16_t moments, frozen_count;

  const char* name(uint32_t at) const { return names.data + at; }
};

// Text of a failure, put together without printf. Silently cut where the room ends.
struct Text {
  char* at;
  char* end;  // the last byte, kept for the terminator
  Text& operator<<(const char* text);
  Text& operator<<(int64_t number);
};

// What a layout fills in: the value of every dimension expression, and where each buffer starts.
struct Layout {
  int32_t* dims;
  uint32_t* sizes;
  uint32_t* offsets;
};

struct Session {
  PlanView plan;
  Layout layout;
  int32_t* symbols;       // current size of each free dimension
  uint16_t* kernels;      // plan kernel -> row of the kernel table
  const char** frozen;    // data of each frozen parameter, inside the checkpoint
  uint32_t* frozen_sizes; // and its bytes
  char* persistent;
  char* arena;
  size_t arena_size;      // bytes of temporaries available
  const mb_tensor* inputs;  // of the running step, addressed by port; null between steps
  void* mapped[3];        // what mb_destroy unmaps: arena, plan, checkpoint
  size_t mapped_size[3];
  bool reset_gradients;
  char error[192];

  Tensor resolve(uint16_t index) const;
};

constexpr int kElementSizes[] = {0, 4, 1, 1, 2, 2, 4, 8, 0, 1, 2, 8, 4, 8, 0, 0, 2};
constexpr uint32_t kMaxElementType = 16;

inline size_t align16(size_t n) { return (n + 15) & ~size_t{15}; }

// plan.cc
mb_status read_plan(const void* bytes, size_t size, PlanView* plan, Text error);
mb_status link_kernels(const PlanView& plan, uint16_t* rows, Text error);
// Evaluates all dimensions under `symbols` and places all buffers. `arena` receives the bytes of temporaries.
mb_status lay_out(const PlanView& plan, const int32_t* symbols, const Layout& layout, size_t* arena, Text error);

// Whether every use of a frozen parameter stays within its data.
bool frozen_fit(const Session& session);
// Bytes of a tensor (of an extent: its number of elements); false when a dimension is negative or the size overflows.
bool tensor_bytes(const PlanView& plan, const plan::Tensor& tensor, const int32_t* dims, uint32_t* bytes);

// checkpoint_read.cc
mb_status read_checkpoint(Session* session, const void* bytes, size_t size, Text error);

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

#endif  // MINBUILD_RUNTIME_SESSION_H_
