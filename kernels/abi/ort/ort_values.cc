// OrtApi's tensors, their types and shapes, and their memory, which is the processor's.
#include <stdlib.h>
#include <string.h>

#include "abi/ort/ort_functions.h"
#include "abi/ort/ort_types.h"

namespace minbuild::ort {
namespace {

enum { kTensor = 1 };  // ONNX_TYPE_TENSOR

void* heap_alloc(Allocator*, size_t size) { return aligned_alloc(64, (size + 64) & ~size_t{63}); }
void heap_free(Allocator*, void* memory) { free(memory); }
const MemoryInfo* heap_info(const Allocator*) { return &kCpu; }
Allocator heap = {21, heap_alloc, heap_free, heap_info, heap_alloc};

// ---------------------------------------------------------------------------- memory

Status* create_memory_info(const char* name, int type, int id, int memory_type, MemoryInfo** out) {
  if (strcmp(name, "Cpu") != 0) return failure(kInvalidArgument, "memory '", name, "': there is none but Cpu");
  *out = static_cast<MemoryInfo*>(malloc(sizeof(MemoryInfo)));
  if (*out == nullptr) return out_of_memory();
  **out = {id, memory_type, type};
  return nullptr;
}
Status* create_cpu_memory_info(int type, int memory_type, MemoryInfo** out) {
  return create_memory_info("Cpu", type, 0, memory_type, out);
}
void release_memory_info(MemoryInfo* info) { free(info); }
Status* compare_memory_info(const MemoryInfo* a, const MemoryInfo* b, int* out) {
  *out = memcmp(a, b, sizeof *a) == 0 ? 0 : -1;
  return nullptr;
}
Status* memory_name(const MemoryInfo*, const char** out) { return *out = "Cpu", nullptr; }
Status* memory_id(const MemoryInfo* info, int* out) { return *out = info->id, nullptr; }
Status* memory_type(const MemoryInfo* info, int* out) { return *out = info->memory_type, nullptr; }
Status* memory_allocator(const MemoryInfo* info, int* out) { return *out = info->allocator_type, nullptr; }
void memory_device(const MemoryInfo*, int* out) { *out = 0; }

Status* allocator_alloc(Allocator* allocator, size_t size, void** out) {
  *out = allocator->alloc(allocator, size);
  return *out == nullptr ? out_of_memory() : nullptr;
}
Status* allocator_free(Allocator* allocator, void* memory) { return allocator->free(allocator, memory), nullptr; }
Status* allocator_info(const Allocator* allocator, const MemoryInfo** out) {
  return *out = allocator->info(allocator), nullptr;
}
Status* get_default_allocator(Allocator** out) { return *out = &heap, nullptr; }

// ---------------------------------------------------------------------------- types and shapes

Status* create_shape(Shape** out) {
  *out = static_cast<Shape*>(calloc(1, sizeof(Shape)));
  return *out == nullptr ? out_of_memory() : nullptr;
}
void release_shape(Shape* shape) { free(shape); }
Status* copy_shape(const Value* value, Shape** out) {
  Status* status = create_shape(out);
  if (status == nullptr) **out = value->shape;
  return status;
}
Status* cast_to_shape(const Shape* type, const Shape** out) { return *out = type, nullptr; }
Status* set_type(Shape* shape, int type) { return shape->type = type, nullptr; }
Status* set_dims(Shape* shape, const int64_t* dims, size_t rank) {
  if (rank > MB_MAX_RANK) return failure(kInvalidArgument, "a tensor has at most 8 dimensions");
  shape->rank = rank;
  if (rank > 0) memcpy(shape->dims, dims, rank * sizeof *dims);
  return nullptr;
}
Status* get_type(const Shape* shape, int* out) { return *out = shape->type, nullptr; }
Status* get_rank(const Shape* shape, size_t* out) { return *out = shape->rank, nullptr; }
Status* get_dims(const Shape* shape, int64_t* out, size_t count) {
  for (size_t i = 0; i < count && i < shape->rank; ++i) out[i] = shape->dims[i];
  return nullptr;
}
Status* get_symbolic_dims(const Shape* shape, const char** out, size_t count) {
  for (size_t i = 0; i < count && i < shape->rank; ++i) out[i] = "";
  return nullptr;
}
Status* get_count(const Shape* shape, size_t* out) { return *out = count_of(*shape), nullptr; }
Status* is_a_tensor(const Shape*, int* out) { return *out = kTensor, nullptr; }

// ---------------------------------------------------------------------------- tensors

// A tensor without memory yet.
Status* shaped(const int64_t* dims, size_t rank, int32_t type, Value** out) {
  Value made = {};
  if (Status* status = set_dims(&made.shape, dims, rank)) return status;
  made.shape.type = type;
  made.bytes = element_bytes(type);
  if (made.bytes == 0) return failure(kNotImplemented, "tensors hold numbers: their element type is none of those");
  for (size_t i = 0; i < rank; ++i) {
    if (dims[i] < 0) return failure(kInvalidArgument, "a tensor has no negative dimensions");
    if (__builtin_mul_overflow(made.bytes, static_cast<size_t>(dims[i]), &made.bytes))
      return failure(kInvalidArgument, "the tensor is too large");
  }
  *out = static_cast<Value*>(malloc(sizeof(Value)));
  if (*out == nullptr) return out_of_memory();
  **out = made;
  return nullptr;
}
Status* create_tensor_over(const MemoryInfo*, void* data, size_t size, const int64_t* dims, size_t rank, int type,
                           Value** out) {
  Status* status = shaped(dims, rank, type, out);
  if (status != nullptr) return status;
  if ((*out)->bytes > size) {
    free(*out);
    *out = nullptr;
    return failure(kInvalidArgument, "the tensor's shape has more elements than its memory");
  }
  (*out)->data = data;
  return nullptr;
}
Status* create_tensor_in(Allocator* allocator, const int64_t* dims, size_t rank, int type, Value** out) {
  return create_tensor(allocator, dims, rank, type, out);
}
Status* is_tensor(const Value*, int* out) { return *out = 1, nullptr; }
Status* value_type(const Value*, int* out) { return *out = kTensor, nullptr; }
Status* tensor_data(Value* value, void** out) { return *out = value->data, nullptr; }
Status* tensor_memory(const Value*, const MemoryInfo** out) { return *out = &kCpu, nullptr; }
Status* tensor_at(Value* value, const int64_t* place, size_t rank, void** out) {
  if (rank != value->shape.rank)
    return failure(kInvalidArgument, "the place has not as many numbers as the tensor dimensions");
  size_t at = 0;
  for (size_t i = 0; i < rank; ++i) {
    if (place[i] < 0 || place[i] >= value->shape.dims[i])
      return failure(kInvalidArgument, "the place is outside of the tensor");
    at = at * static_cast<size_t>(value->shape.dims[i]) + static_cast<size_t>(place[i]);
  }
  *out = static_cast<char*>(value->data) + at * element_bytes(value->shape.type);
  return nullptr;
}

template <class F>
const void* place_of(F* function) {
  return reinterpret_cast<const void*>(function);
}

}  // namespace

const MemoryInfo kCpu = {0, 0, 0};
Allocator* default_allocator() { return &heap; }

size_t count_of(const Shape& shape) {
  size_t count = 1;
  for (size_t i = 0; i < shape.rank; ++i) count *= static_cast<size_t>(shape.dims[i]);
  return count;
}

size_t element_bytes(int32_t type) {
  static const uint8_t sizes[17] = {0, 4, 1, 1, 2, 2, 4, 8, 0, 1, 2, 8, 4, 8, 0, 0, 2};
  return type > 0 && type < 17 ? sizes[type] : 0;
}

Status* create_tensor(Allocator* allocator, const int64_t* dims, size_t rank, int32_t type, Value** out) {
  Status* status = shaped(dims, rank, type, out);
  if (status != nullptr) return status;
  (*out)->data = allocator->alloc(allocator, (*out)->bytes);
  (*out)->allocator = allocator;
  if ((*out)->data != nullptr) return nullptr;
  free(*out);
  *out = nullptr;
  return out_of_memory();
}

Status* copy_tensor(Allocator* allocator, const mb_tensor& tensor, Value** out) {
  int64_t dims[MB_MAX_RANK];
  for (int32_t i = 0; i < tensor.rank; ++i) dims[i] = tensor.dims[i];
  Status* status = create_tensor(allocator, dims, static_cast<size_t>(tensor.rank), tensor.type, out);
  if (status == nullptr) memcpy((*out)->data, tensor.data, (*out)->bytes);
  return status;
}

void release_tensor(Value* value) {
  if (value != nullptr && value->allocator != nullptr) value->allocator->free(value->allocator, value->data);
  free(value);
}

Status* copy_text(Allocator* allocator, const char* text, char** out) {
  const size_t size = strlen(text) + 1;
  *out = static_cast<char*>(allocator->alloc(allocator, size));
  if (*out == nullptr) return out_of_memory();
  memcpy(*out, text, size);
  return nullptr;
}

void fill_values(const void** table) {
  const struct {
    uint16_t place;
    const void* function;
  } all[] = {
      {kCreateMemoryInfo, place_of(create_memory_info)},
      {kCreateCpuMemoryInfo, place_of(create_cpu_memory_info)},
      {kReleaseMemoryInfo, place_of(release_memory_info)},
      {kCompareMemoryInfo, place_of(compare_memory_info)},
      {kMemoryInfoGetName, place_of(memory_name)},
      {kMemoryInfoGetId, place_of(memory_id)},
      {kMemoryInfoGetMemType, place_of(memory_type)},
      {kMemoryInfoGetType, place_of(memory_allocator)},
      {kMemoryInfoGetDeviceType, place_of(memory_device)},
      {kAllocatorAlloc, place_of(allocator_alloc)},
      {kAllocatorFree, place_of(allocator_free)},
      {kAllocatorGetInfo, place_of(allocator_info)},
      {kGetAllocatorWithDefaultOptions, place_of(get_default_allocator)},
      {kCreateTensorTypeAndShapeInfo, place_of(create_shape)},
      {kReleaseTensorTypeAndShapeInfo, place_of(release_shape)},
      {kReleaseTypeInfo, place_of(release_shape)},
      {kGetTensorTypeAndShape, place_of(copy_shape)},
      {kGetTypeInfo, place_of(copy_shape)},
      {kCastTypeInfoToTensorInfo, place_of(cast_to_shape)},
      {kSetTensorElementType, place_of(set_type)},
      {kSetDimensions, place_of(set_dims)},
      {kGetTensorElementType, place_of(get_type)},
      {kGetDimensionsCount, place_of(get_rank)},
      {kGetDimensions, place_of(get_dims)},
      {kGetSymbolicDimensions, place_of(get_symbolic_dims)},
      {kGetTensorShapeElementCount, place_of(get_count)},
      {kGetOnnxTypeFromTypeInfo, place_of(is_a_tensor)},
      {kCreateTensorAsOrtValue, place_of(create_tensor_in)},
      {kCreateTensorWithDataAsOrtValue, place_of(create_tensor_over)},
      {kReleaseValue, place_of(release_tensor)},
      {kIsTensor, place_of(is_tensor)},
      {kHasValue, place_of(is_tensor)},
      {kGetValueType, place_of(value_type)},
      {kGetTensorMutableData, place_of(tensor_data)},
      {kGetTensorMemoryInfo, place_of(tensor_memory)},
      {kTensorAt, place_of(tensor_at)},
  };
  for (const auto& entry : all) table[entry.place] = entry.function;
}

}  // namespace minbuild::ort
