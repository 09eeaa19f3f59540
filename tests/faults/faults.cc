// Saves, loads and creates with every call to the system failing in turn, and with power lost before every call.
// argv: plan and checkpoint of a trainer, and how many calls of training go before. Prints a line per experiment that went
// wrong; the exit code is 1 then.
#include <errno.h>

#include <fstream>
#include <iterator>

#include "disk.h"
#include "minbuild/trainer.h"

namespace {

int wrong = 0;

void expect(bool good, const std::string& what) {
  if (good) return;
  ++wrong;
  printf("%s\n", what.c_str());
}

std::string read(const char* path) {
  std::ifstream from(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(from), {}};
}

int append(void* to, const void* bytes, size_t size) {
  static_cast<std::string*>(to)->append(static_cast<const char*>(bytes), size);
  return 0;
}

std::string state(mb_session* s) {
  std::string found;
  mb_write_checkpoint(s, 1, append, &found);
  return found;
}

mb_session* create() {
  mb_options options = {};
  mb_session* s = nullptr;
  mb_status status = mb_create_from_files("plan", "folder/checkpoint", &options, &s);
  if (status != MB_OK) printf("create: %d %s\n", status, options.error);
  return status == MB_OK ? s : nullptr;
}

std::string name(int error) {
  return error == 0 ? "half a write" : error == kNothingWritten ? "nothing written" : strerror(-error);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const std::string plan = read(argv[1]), old = read(argv[2]);
  const uint32_t mode = S_IFREG | 0640;
  auto fresh = [&] {
    disk = Disk();
    disk.put("plan", plan, S_IFREG | 0644);
    disk.put("folder/checkpoint", old, mode);
  };
  fresh();
  mb_session* s = create();
  if (s == nullptr) return 1;
  for (size_t i = 0;; ++i) {  // something else than what is on the disk
    mb_parameter p;
    if (mb_get(s, MB_PARAMETERS, i, &p) != MB_OK) break;
    if (p.kind == MB_TRAINABLE && p.value.type == MB_FLOAT) static_cast<float*>(p.value.data)[0] += 1;
  }
  const std::string now = state(s);
  const int before = disk.call;
  expect(mb_save_checkpoint(s, "folder/checkpoint", 1) == MB_OK, "saving fails where nothing does");
  const int calls = disk.call - before;
  const std::vector<std::string> log(disk.log.begin() + before, disk.log.end());
  expect(disk.files[static_cast<size_t>(disk.names().at("folder/checkpoint"))].bytes == now, "what is saved is not what is there");
  expect(disk.files[static_cast<size_t>(disk.names().at("folder/checkpoint"))].mode == mode, "the mode of the old file is lost");
  expect(disk.history.size() == 1, "the folder is not synced after saving");
  printf("saving makes %d calls\n", calls);

  // Each call fails in turn: an error, the old file, nothing beside it, and nothing changed in the session; or a success
  // with the new file.
  for (int error : {-EIO, -ENOSPC, -EINTR, -EACCES, 0, kNothingWritten})
    for (int i = 0; i < calls; ++i) {
      if (error == kNothingWritten && log[static_cast<size_t>(i)] != "write") continue;
      fresh();
      disk.fails = disk.call + i;
      disk.error = error;
      std::string what = "save, call " + std::to_string(i) + " (" + log[static_cast<size_t>(i)] + ") fails with " + name(error);
      mb_status status = mb_save_checkpoint(s, "folder/checkpoint", 1);
      const std::string& there = disk.files[static_cast<size_t>(disk.names().at("folder/checkpoint"))].bytes;
      if (status == MB_OK) expect(there == now, what + ": success without the new file");
      else expect(there == old, what + ": failure without the old file");
      expect(error != kNothingWritten || status == MB_IO, what + ": success");
      expect(status == MB_OK || status == MB_IO, what + ": status " + std::to_string(status));
      expect(status == MB_OK || strstr(mb_last_error(s), "system error") != nullptr, what + ": " + mb_last_error(s));
      expect(disk.names().size() == 2, what + ": a file is left beside it");
      expect(disk.open.empty(), what + ": a file stays open");
      expect(state(s) == now, what + ": the session changed");
      disk.fails = -1;
      expect(mb_save_checkpoint(s, "folder/checkpoint", 1) == MB_OK, what + ": saving again fails");
    }

  // Power is lost before each call: the old file or the new one, whole.
  for (int i = 0; i <= calls; ++i) {
    fresh();
    disk.keeps = disk.call + i;
    mb_save_checkpoint(s, "folder/checkpoint", 1);
    const Disk at_cut = i == calls ? disk : *disk.kept;
    for (const std::string& found : at_cut.after_power_loss("folder/checkpoint"))
      expect(found == old || found == now, "power lost before call " + std::to_string(i) + ": " + std::to_string(found.size()) +
                                               " bytes that are neither the old nor the new checkpoint");
    if (i == calls)
      for (const std::string& found : at_cut.after_power_loss("folder/checkpoint"))
        expect(found == now, "power lost after saving: the new checkpoint is lost");
  }

  // Only regular files are replaced, and nothing is followed.
  for (uint32_t kind : {uint32_t{S_IFCHR}, uint32_t{S_IFLNK}, uint32_t{S_IFDIR}, uint32_t{S_IFIFO}}) {
    fresh();
    disk.put("folder/other", "theirs", kind | 0666);
    expect(mb_save_checkpoint(s, "folder/other", 1) == MB_IO, "something that is no regular file is replaced");
    expect(disk.files[static_cast<size_t>(disk.names().at("folder/other"))].bytes == "theirs", "its bytes changed");
  }
  // A file of the temporary name is somebody else's.
  fresh();
  disk.put("folder/checkpoint.newA", "theirs", S_IFREG | 0600);
  expect(mb_save_checkpoint(s, "folder/checkpoint", 1) == MB_OK, "saving beside another's temporary file fails");
  expect(disk.files[static_cast<size_t>(disk.names().at("folder/checkpoint.newA"))].bytes == "theirs", "another's file changed");
  mb_destroy(s);

  // Creating from files: an error or a session, nothing open, nothing leaked.
  fresh();
  const int start = disk.call;
  mb_session* whole = create();
  const int creating = disk.call - start;
  mb_destroy(whole);
  for (int i = 0; i < creating; ++i) {
    fresh();
    disk.fails = disk.call + i;
    disk.error = -EIO;
    mb_options options = {};
    mb_session* made = nullptr;
    mb_status status = mb_create_from_files("plan", "folder/checkpoint", &options, &made);
    expect((status == MB_OK) == (made != nullptr), "create, call " + std::to_string(i) + ": status and session disagree");
    expect(status == MB_OK || options.error[0] != 0, "create, call " + std::to_string(i) + ": no text");
    expect(disk.open.empty(), "create, call " + std::to_string(i) + ": a file stays open");
    if (made != nullptr) mb_destroy(made);
  }
  printf("creating makes %d calls\n%d experiments went wrong\n", creating, wrong);
  return wrong != 0;
}
