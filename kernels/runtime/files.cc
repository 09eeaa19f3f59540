// The parts of the API that need an operating system: memory of the session's own, sessions from files, and saving.
#include "minbuild/config.h"

#if MB_FILE_IO
#include "runtime/memory.h"
#include "runtime/session.h"
#include "runtime/system.h"

namespace minbuild {
namespace {

#if MB_CHECKPOINT_WRITING || MB_EXPORT
// A file that is being written, and why it could not be: -errno.
struct Output {
  int file;
  int error;
};

int write_all(void* user, const void* bytes, size_t size) {
  Output* output = static_cast<Output*>(user);
  const char* at = static_cast<const char*>(bytes);
  while (size > 0) {
    intptr_t written = system_write(output->file, at, size);
    if (written == -EINTR) continue;
    if (written <= 0) return output->error = written < 0 ? static_cast<int>(written) : -EIO;
    at += written;
    size -= static_cast<size_t>(written);
  }
  return 0;
}

#endif

MB_NOINLINE int open_file(const char* path, int flags) { return system_open(path, flags); }
MB_NOINLINE void* map(size_t size, int flags, int file) { return system_map(size, flags, file); }

#if MB_CHECKPOINT_WRITING || MB_EXPORT
constexpr bool kRefusesToWrite = MB_BUFFERS || MB_EXPORT || MB_FUSED_UPDATES || MB_PROPERTIES || MB_WIDE;

// Leaves the old file or the new one, whole, whatever fails and whenever power does: writes a file of its own beside
// `path` (exclusive, so that processes saving to one path do not share it, and through no link), syncs it, moves it over
// the old one and syncs the folder. Only a regular file is replaced, and the new one has its mode. `write(sink, user)`
// gives the contents, or refuses to.
template <class Write>
MB_INLINE mb_status replace_file(const mb_session* s, const char* path, Write write) {
  const int mode = system_mode_of(path);
  int error = mode < 0 ? mode : -EEXIST;
  if (mode == -ENOENT || (mode & S_IFMT) == S_IFREG) {
    // The system has taken the path, which is therefore not too long for the stack.
    const uint32_t length = length_of(path);
    char *temporary = static_cast<char*>(__builtin_alloca(length + 6)), *end = temporary + length;
    copy_bytes(temporary, path, length);
    __builtin_memcpy(end, ".newA", 6);  // as numbers in the code, which copy_bytes would not make of it
    int file;
    do file = open_file(temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW);
    while (file == -EEXIST && ++end[4] <= 'z');
    error = file;
    MB_OPAQUE(error);  // else -EEXIST takes a register through all of this
    if (file >= 0) {
      error = mode < 0 ? 0 : system_mode(file, mode);
      Output output = {file, 0}, *to = &output;
      MB_OPAQUE(to);  // else each access has the output's distance on the stack
      if (error == 0) {
        const mb_status status = write(write_all, to);
        // Some libraries have reasons to refuse besides a failure of `write_all`, and have said which.
        if (kRefusesToWrite && status != MB_OK && to->error == 0) {
          system_close(to->file);
          system_remove(temporary);
          return status;
        }
        error = to->error;
        if (error == 0) error = system_sync(to->file);
      }
      system_close(to->file);  // has nothing to report that the sync has not
      if (error == 0) error = system_rename(temporary, path);
      if (error != 0) system_remove(temporary);  // else the name may be another process's already
      // The folder: "a/b" becomes "a/.", "b" becomes ".". Where it cannot be synced, the old file may survive.
      while (end != temporary && end[-1] != '/') --end;
      __builtin_memcpy(end, ".", 2);
      const int folder = open_file(temporary, O_RDONLY);
      system_sync(folder);
      system_close(folder);
    }
  }
  return error == 0 ? mb_status{MB_OK} : fail(s, Failure::kWrite, word_of(path), -error);
}
#endif

}  // namespace

void* map_memory(size_t size) {
  void* memory = map(size, MAP_PRIVATE | MAP_ANONYMOUS, -1);
  if (MB_LARGE_PAGES) system_take_large_pages(memory, size);
  return memory;
}
void unmap_memory(Span* spans, int count) {
  while (--count >= 0)
    if (spans[count].data != nullptr) system_unmap(spans[count].data, spans[count].size);
}

}  // namespace minbuild

using namespace minbuild;

extern "C" {

mb_status mb_create_from_files(const char* plan, const char* checkpoint, mb_options* options, mb_session** session) {
  const char* paths[] = {plan, checkpoint};
  Span maps[2] = {};
  mb_status status = MB_OK;
  for (int i = MB_COMPILED ? 1 : 0; i < 2 && status == MB_OK; ++i) {
    if (paths[i] == nullptr) continue;
    int file = open_file(paths[i], O_RDONLY);
    // A file that cannot be opened or has no bytes is not mapped either. Private, so that writes to frozen parameters
    // stay in this process.
    maps[i].size = static_cast<size_t>(system_size(file));
    maps[i].data = static_cast<char*>(map(maps[i].size, MAP_PRIVATE, file));
    // Pages that are not in the system's cache yet are then read as large ones: in fewer pieces, and found sooner.
    if (MB_LARGE_PAGES) system_take_large_pages(maps[i].data, maps[i].size);
    system_close(file);
    mb_session none;
    none.error = options->error;
    if (maps[i].data == nullptr) status = fail(&none, Failure::kRead, word_of(paths[i]));
  }
  if (MB_COMPILED) maps[0].size = plan != nullptr;  // none is wanted
  if (status == MB_OK) status = mb_create(maps[0].data, maps[0].size, maps[1].data, maps[1].size, options, session);
  if (status == MB_OK && session != nullptr) {
    Session* s = static_cast<Session*>(*session);
    if (!MB_COMPILED) s->mapped[1] = maps[0];
    maps[0].data = nullptr;
    if (MB_FROZEN_PARAMETERS && s->keeps_checkpoint) s->mapped[2] = maps[1], maps[1].data = nullptr;
  }
  unmap_memory(maps, 2);
  return status;
}

#if MB_CHECKPOINT_WRITING
mb_status mb_save_checkpoint(mb_session* s, const char* path, int include_optimizer) {
  return replace_file(s, path,
                      [=](mb_sink sink, void* user) { return mb_write_checkpoint(s, include_optimizer, sink, user); });
}
#endif

#if MB_EXPORT
mb_status mb_export_to_file(mb_session* s, const char* template_path, const char* path) {
  int file = open_file(template_path, O_RDONLY);
  const size_t size = static_cast<size_t>(system_size(file));
  void* bytes = map(size, MAP_PRIVATE, file);
  system_close(file);
  Span mapped = {static_cast<char*>(bytes), size};
  if (bytes == nullptr) return fail(s, Failure::kRead, word_of(template_path));
  const mb_status status =
      replace_file(s, path, [=](mb_sink sink, void* user) { return mb_export_model(s, bytes, size, sink, user); });
  unmap_memory(&mapped, 1);
  return status;
}
#endif

}  // extern "C"
#endif
