// One kernel's work on several threads: a kernel divides its outputs into parts, and the members of a team compute them.
// Parts never share a sum, so that results have the same bits for any number of threads, and for none.
//
// A library has threads where MB_THREADS, the most that may work on a call, is more than 1 (--threads). Without, nothing
// of this is compiled.
#ifndef MINBUILD_LIB_THREADS_PARALLEL_H_
#define MINBUILD_LIB_THREADS_PARALLEL_H_

#include "lib/simd/vec.h"
#include "lib/types/bytes.h"

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

// How many of `all` things, which are so many bytes, each part of a call has: a multiple of `whole`. Two parts for each
// member where they are large, as threads are not equally fast, and come out even; all where dividing costs more than it
// saves.
MB_NOINLINE inline intptr_t things_of_part(const Team* team, intptr_t all, int64_t bytes, intptr_t whole) {
  const intptr_t members = members_of(team);
  if (members == 1 || bytes < 2 * kLeastBytes) return all;
  const intptr_t units = (all + whole - 1) / whole, half = (units + 2 * members - 1) / (2 * members),
                 some = (units + members - 1) / members;
  return (bytes < 2 * members * kLeastBytes || 17 * some < 32 * half ? some : half) * whole;
}

// Calls task(work, first, count) for ranges of `all` things, which are so many bytes, in parts as above.
using RangeTask = void (*)(const void* work, intptr_t first, intptr_t count);
MB_NOINLINE inline void run_ranges(Team* team, intptr_t all, int64_t bytes, intptr_t whole, RangeTask task,
                                   const void* work) {
  const intptr_t some = things_of_part(team, all, bytes, whole);
  if (some >= all) return task(work, 0, all);
  for_parts(team, team->members, (all + some - 1) / some, [&](int32_t part, int32_t) {
    const intptr_t first = part * some;
    task(work, first, all - first < some ? all - first : some);
  });
}

// The same with a lambda (first, count).
template <class Body>
MB_INLINE void for_ranges(Team* team, intptr_t all, int64_t bytes, intptr_t whole, const Body& body) {
  run_ranges(
      team, all, bytes, whole,
      [](const void* work, intptr_t first, intptr_t count) { (*static_cast<const Body*>(work))(first, count); }, &body);
}

#if defined(__x86_64__) && defined(__has_builtin)
#if __has_builtin(__builtin_nontemporal_store)
#define MB_STORES_PAST_CACHES 1
#endif
#endif
#if defined(MB_STORES_PAST_CACHES)
struct ClearBody {
  // Whole lines of the cache.
  template <class W>
  static MB_INLINE void run(char* at, size_t size) {
    using Zeros = int32_t __attribute__((vector_size(W::bytes)));
    for (char* const end = at + size; at != end; at += sizeof(Zeros))
      __builtin_nontemporal_store(Zeros{}, reinterpret_cast<Zeros*>(at));
    __atomic_thread_fence(__ATOMIC_SEQ_CST);  // nothing else orders such stores
  }
};
#endif

// Clears memory that caches would not keep until it is read, such as gradients of a vocabulary: what is overwritten as a
// whole need not be fetched first. By the processor's instruction that takes 1.5 to 3 times as long, for all but pieces of
// the size of the last cache.
MB_NOINLINE inline void clear_past_caches(void* at, size_t size) {
#if defined(MB_STORES_PAST_CACHES)
  constexpr size_t kLine = 64;
  const size_t before = -reinterpret_cast<uintptr_t>(at) % kLine;
  if (size > before) {
    char* const first = static_cast<char*>(at) + before;
    const size_t whole = (size - before) & -kLine;
    clear_bytes(at, before);
    run_at<ClearBody, 64>(widest_bytes(), first, whole);
    at = first + whole, size -= before + whole;
  }
#endif
  clear_bytes(at, size);
}

MB_NOINLINE inline void clear_in_parts(Team* team, void* at, size_t size) {
  for_ranges(team, intptr_t(size), int64_t(size), 4096,
             [&](intptr_t first, intptr_t count) { clear_bytes(static_cast<char*>(at) + first, size_t(count)); });
}

#endif

}  // namespace minbuild
#endif  // MINBUILD_LIB_THREADS_PARALLEL_H_
