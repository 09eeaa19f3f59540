// The parts of the API that need an operating system: memory of the session's own, sessions from files, and saving.
#include "minbuild/config.h"

#if MB_FILES
#include "runtime/memory.h"
#include "runtime/session.h"
#include "runtime/system.h"

namespace minbuild {
namespace {

#if MB_SAVING || MB_EXPORT
// Where what is saved goes; `user` is the file.
int write_all(void* user, const void* bytes, size_t size) {
  const char* at = static_cast<const char*>(bytes);
  while (size > 0) {
    intptr_t written = system_write(*static_cast<int*>(user), at, size);
    if (written <= 0) return 1;
    at += written;
    size -= static_cast<size_t>(written);
  }
  return 0;
}

#endif

MB_NOINLINE void* map(size_t size, int flags, int file) { return system_map(size, flags, file); }

#if MB_SAVING || MB_EXPORT
// Writes a file beside `path`, syncs it, and moves it over it. `write(sink, user)` is asked for the contents.
template <class Write>
MB_INLINE mb_status replace_file(const mb_session* s, const char* path, Write write) {
  char temporary[1024];
  uint32_t length = length_of(path);
  mb_status status = MB_IO;
  if (length + 5 <= sizeof temporary) {
    copy_bytes(temporary, path, length);
    copy_bytes(temporary + length, ".new", 5);
    int file = system_open(temporary, O_WRONLY | O_CREAT | O_TRUNC);
    if (file >= 0) {
      status = write(write_all, &file);
      bool synced = system_sync(file);
      if (!system_close(file) || !synced || status != MB_OK || !system_rename(temporary, path)) {
        status = MB_IO;
        system_remove(temporary);
      }
    }
  }
  return status == MB_OK ? status : fail(s, Failure::kWrite, word_of(path));
}
#endif

}  // namespace

void* map_memory(size_t size) { return map(size, MAP_PRIVATE | MAP_ANONYMOUS, -1); }
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
  for (int i = 0; i < 2; ++i) {
    if (paths[i] == nullptr || status != MB_OK) continue;
    int file = system_open(paths[i], O_RDONLY);
    // A file that cannot be opened or has no bytes is not mapped either. Private, so that writes to frozen parameters
    // stay in this process.
    maps[i].size = static_cast<size_t>(system_size(file));
    maps[i].data = static_cast<char*>(map(maps[i].size, MAP_PRIVATE, file));
    system_close(file);
    mb_session none;
    none.error = options->error;
    if (maps[i].data == nullptr) status = fail(&none, Failure::kRead, word_of(paths[i]));
  }
  if (status == MB_OK) status = mb_create(maps[0].data, maps[0].size, maps[1].data, maps[1].size, options, session);
  if (status == MB_OK) {
    Session* s = static_cast<Session*>(*session);
    s->mapped[1] = maps[0];
    maps[0] = {};
    if (s->keeps_checkpoint) s->mapped[2] = maps[1], maps[1] = {};
  }
  unmap_memory(maps, 2);
  return status;
}

#if MB_SAVING
mb_status mb_save_checkpoint(mb_session* s, const char* path, int include_optimizer) {
#if MB_BUFFERS
  if (static_cast<Session*>(s)->nominal) return fail(s, Failure::kNominal);
#endif
  return replace_file(s, path, [=](mb_sink sink, void* user) { return mb_write_checkpoint(s, include_optimizer, sink, user); });
}
#endif

#if MB_EXPORT
mb_status mb_export_to_file(mb_session* s, const char* template_path, const char* path) {
  int file = system_open(template_path, O_RDONLY);
  const size_t size = static_cast<size_t>(system_size(file));
  void* bytes = map(size, MAP_PRIVATE, file);
  system_close(file);
  Span mapped = {static_cast<char*>(bytes), size};
  if (bytes == nullptr) return fail(s, Failure::kRead, word_of(template_path));
  // First into nowhere, for an error that says what is wrong with the template.
  mb_status status = mb_export_model(s, bytes, size, [](void*, const void*, size_t) { return 0; }, nullptr);
  if (status == MB_OK)
    status = replace_file(s, path, [=](mb_sink sink, void* user) { return mb_export_model(s, bytes, size, sink, user); });
  unmap_memory(&mapped, 1);
  return status;
}
#endif

}  // extern "C"
#endif
