// One kernel's work on several threads: a kernel divides its outputs into parts, and the members of a team compute them.
// Parts never share a sum, so that results have the same bits for any number of threads, and for none.
//
// A library has threads where MB_THREADS, the most that may work on a call, is more than 1 (--threads). Without, nothing
// of this is compiled.
#ifndef MINBUILD_LIB_THREADS_PARALLEL_H_
#define MINBUILD_LIB_THREADS_PARALLEL_H_

#include "lib/simd/vec.h"

#if __has_include("minbuild/config.h")
#include "minbuild/config.h"
#else  // this header stands alone
#define MB_THREADS 1
#endif

namespace minbuild {

// Multiplications below which dividing a product costs more than it saves, and bytes of memory to write.
constexpr int64_t kLeastWork = 1 << 20, kLeastBytes = 1 << 16;

#if MB_THREADS > 1

// The threads of one call, its own among them. runtime/threads.h has the rest of it.
struct Team {
  int32_t members;
};
// `member` is less than the number of members, and no other of that number works meanwhile: it may have memory of its own.
using Part = void (*)(const void* work, int32_t part, int32_t member);

// Calls task(work, part, member) for each part below `parts`, by as many members, and returns when all are done. Parts
// are not divided further: what they call gets no team.
void run_parts(Team* team, int32_t members, int32_t parts, Part task, const void* work);

// The same with a lambda (part, member).
template <class Body>
MB_INLINE void for_parts(Team* team, int32_t members, intptr_t parts, const Body& body) {
  run_parts(
      team, members, int32_t(parts),
      [](const void* work, int32_t part, int32_t member) { (*static_cast<const Body*>(work))(part, member); }, &body);
}

MB_INLINE int32_t members_of(const Team* team) { return team == nullptr ? 1 : team->members; }

#endif

}  // namespace minbuild
#endif  // MINBUILD_LIB_THREADS_PARALLEL_H_
