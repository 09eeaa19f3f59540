// Takes the place of kernels/runtime/system.h in tests: a file system in memory whose calls fail on demand and whose power
// is cut between any two of them (tests/faults/disk.h).
#ifndef MINBUILD_TESTS_FAULTS_SYSTEM_H_
#define MINBUILD_TESTS_FAULTS_SYSTEM_H_

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

namespace minbuild {
int system_open(const char* path, int flags);
intptr_t system_size(int file);
intptr_t system_write(int file, const void* from, size_t size);
void* system_map(size_t size, int flags, int file);
void system_unmap(void* memory, size_t size);
inline void system_take_large_pages(void*, size_t) {}
int system_sync(int file);
int system_close(int file);
int system_rename(const char* from, const char* to);
int system_mode_of(const char* path);
int system_mode(int file, int mode);
void system_remove(const char* path);
}  // namespace minbuild
#endif  // MINBUILD_TESTS_FAULTS_SYSTEM_H_
