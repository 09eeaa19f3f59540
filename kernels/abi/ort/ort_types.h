// The objects behind ONNX Runtime's C interface, as far as training needs them. Programs see pointers only; what they do see,
// OrtAllocator and OrtApiBase, has the layout of the interface. Names follow ONNX Runtime's without "Ort".
#ifndef MINBUILD_ABI_ORT_TYPES_H_
#define MINBUILD_ABI_ORT_TYPES_H_

#include <stddef.h>
#include <stdint.h>

#include "minbuild/trainer.h"

namespace minbuild::ort {

// OrtErrorCode.
enum Code { kFail = 1, kInvalidArgument = 2, kNoSuchFile = 3, kNotImplemented = 9 };

struct Status {
  int code;
  bool owned;  // on the heap, and its text behind it
  const char* text;
};

// A status with a text made of pieces; one that cannot be allocated is a constant.
Status* failure(Code code, const char* a, const char* b = "", const char* c = "", const char* d = "");
Status* out_of_memory();
Status* not_implemented();

struct MemoryInfo {
  int id, memory_type, allocator_type;
};

// OrtAllocator.
struct Allocator {
  uint32_t version;
  void* (*alloc)(Allocator* self, size_t size);
  void (*free)(Allocator* self, void* memory);
  const MemoryInfo* (*info)(const Allocator* self);
  void* (*reserve)(Allocator* self, size_t size);
};
extern const MemoryInfo kCpu;
Allocator* default_allocator();

// OrtTensorTypeAndShapeInfo and OrtTypeInfo.
struct Shape {
  int32_t type;
  size_t rank;
  int64_t dims[MB_MAX_RANK];
};
size_t count_of(const Shape& shape);

struct Value {
  Shape shape;
  void* data;
  size_t bytes;
  Allocator* allocator;  // whose memory `data` is; null where it is the program's
};

size_t element_bytes(int32_t type);
// A tensor with memory of `allocator`.
Status* create_tensor(Allocator* allocator, const int64_t* dims, size_t rank, int32_t type, Value** out);
// A tensor with a copy of what a session has.
Status* copy_tensor(Allocator* allocator, const mb_tensor& tensor, Value** out);
void release_tensor(Value* value);

// A text of the allocator's memory.
Status* copy_text(Allocator* allocator, const char* text, char** out);

// A whole file on the heap, at a multiple of 16; null where it cannot be read.
void* read_file(const char* path, size_t* size);

// Places of functions in the tables.
extern const void* const kNothingToDo;  // accepts what has no meaning here, such as numbers of threads
void fill_values(const void** table);
void fill_settings(const void** table);
void fill_training(const void** table);

}  // namespace minbuild::ort
#endif  // MINBUILD_ABI_ORT_TYPES_H_
