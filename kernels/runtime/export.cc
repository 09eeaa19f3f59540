// Optional part "export": an ONNX model for inference with the parameters as they are. The file was prepared when the
// trainer was built, with holes where parameters go; here it is written out with the holes filled.
#include "minbuild/config.h"

#if MB_EXPORT
#include "runtime/session.h"

namespace minbuild {
namespace {

// The template: this identifier, the number of pieces, the pieces, then the bytes of all that are no parameters.
constexpr char kExportTemplate[] = "MBIM";
constexpr uint32_t kHead = 8, kPiece = 8;  // a piece: its bytes, and the parameter's number plus one or 0

}  // namespace
}  // namespace minbuild

using namespace minbuild;

extern "C" mb_status mb_export_model(const mb_session* session, const void* template_bytes, size_t template_size,
                                     mb_sink sink, void* user) {
  const Session* s = static_cast<const Session*>(session);
  // Loads from it are checked.
  const Flatbuffer file = {static_cast<const uint8_t*>(template_bytes), static_cast<uint32_t>(template_size)};
  uint32_t id;
  __builtin_memcpy(&id, kExportTemplate, sizeof id);
  const uint32_t pieces = static_cast<uint32_t>(file.u32(4));
  bool good = template_size < 0x80000000 && file.u32(0) == id && pieces <= (file.size - kHead) / kPiece;
#if MB_BUFFERS
  if (s->nominal) return fail(s, Failure::kNominal);
#endif
#if MB_FUSED_UPDATES
  if (s->broken) return fail(s, Failure::kBroken);
#endif
  // The first walk looks whether all is there, the second writes.
  for (int walk = 0; walk < 2; ++walk) {
    uint32_t at = kHead + pieces * kPiece;
    for (uint32_t i = 0; i < pieces && good; ++i) {
      const uint32_t bytes = static_cast<uint32_t>(file.u32(kHead + kPiece * i));
      const uint32_t number = static_cast<uint32_t>(file.u32(kHead + kPiece * i + 4));
      const void* data = file.data + at;
      if (number == 0) {
        good = bytes <= file.size - at;
        at += bytes;
      } else {
        good = number <= s->count[plan::kParameters];
        if (!good) break;
        Tensor found;
        const uint32_t type = s->resolve(s->parameter(number - 1).tensor, &found).type;
        data = found.data;
        good = data != nullptr && bytes == bytes_of(found, type);
      }
      if (walk > 0 && sink(user, data, bytes) != 0) return fail(s, Failure::kSink);
    }
    if (!good || at != file.size) return fail(s, Failure::kExportTemplate);
  }
  return MB_OK;
}
#endif
