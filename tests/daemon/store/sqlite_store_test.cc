#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <iterator>

#include "base/unique_fd.h"
#include "daemon/store/store.h"
#include "tests/daemon/store/sample_records.h"
#include "tests/daemon/store/temp_dir.h"

namespace rayctl::store {
namespace {

TEST_CASE("a journal is there when it is opened again, and only for its user", "[store]") {
  const TempDir folder;
  const std::string path = folder.File("journal.db");
  {
    auto store = OpenSqliteStore(path);
    REQUIRE(store.ok());
    REQUIRE((*store)->Commit({head::Record{SampleJob()}}).ok());
  }
  struct stat info {};
  REQUIRE(::stat(path.c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0600);
  auto store = OpenSqliteStore(path);
  REQUIRE(store.ok());
  const auto records = (*store)->Load();
  REQUIRE(records.ok());
  REQUIRE(records->size() == 1);
  CHECK(std::get<head::JobRecord>(records->front()).spec == SampleJob().spec);
}

TEST_CASE("a second holder is refused", "[store]") {
  const TempDir folder;
  auto first = OpenSqliteStore(folder.File("journal.db"));
  REQUIRE(first.ok());
  CHECK(OpenSqliteStore(folder.File("journal.db")).status().code() == absl::StatusCode::kAlreadyExists);
  // Another process too, since locks of one process do not exclude each other by themselves.
  const pid_t child = ::fork();
  if (child == 0) {
    ::_exit(OpenSqliteStore(folder.File("journal.db")).status().code() == absl::StatusCode::kAlreadyExists ? 0 : 1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  first->reset();
  CHECK(OpenSqliteStore(folder.File("journal.db")).ok());
}

TEST_CASE("the lock of an open journal is there for others to see, and nothing lies beside it", "[store]") {
  const TempDir folder;
  const std::string path = folder.File("journal.db");
  for (const bool is_new : {true, false}) {
    CAPTURE(is_new);
    auto store = OpenSqliteStore(path);
    REQUIRE(store.ok());
    REQUIRE((*store)->Commit({head::Record{SampleJob()}}).ok());
    const pid_t child = ::fork();
    if (child == 0) {  // A process never sees its own locks.
      const UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
      struct flock lock {};
      lock.l_type = F_WRLCK;
      lock.l_whence = SEEK_SET;
      ::_exit(::fcntl(file.get(), F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK ? 0 : 1);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
  }
  const std::filesystem::directory_iterator files(std::filesystem::path(path).parent_path());
  CHECK(std::distance(begin(files), end(files)) == 1);
}

TEST_CASE("what is no journal, or a newer one, is refused", "[store]") {
  const TempDir folder;
  const std::string newer = folder.File("newer.db");
  {
    sqlite3* database = nullptr;
    REQUIRE(sqlite3_open(newer.c_str(), &database) == SQLITE_OK);
    REQUIRE(sqlite3_exec(database, "PRAGMA user_version=2", nullptr, nullptr, nullptr) == SQLITE_OK);
    sqlite3_close(database);
  }
  CHECK(OpenSqliteStore(newer).status().code() == absl::StatusCode::kFailedPrecondition);

  const std::string text = folder.File("text.db");
  {
    std::FILE* file = std::fopen(text.c_str(), "w");
    REQUIRE(file != nullptr);
    std::fputs("this is a long enough text that is no database at all, by any means whatsoever, and never was.....",
               file);
    std::fclose(file);
  }
  CHECK(OpenSqliteStore(text).status().code() == absl::StatusCode::kDataLoss);

  const std::string damaged = folder.File("damaged.db");
  REQUIRE((*OpenSqliteStore(damaged))->Commit({head::Record{SampleJob()}}).ok());
  {
    sqlite3* database = nullptr;
    REQUIRE(sqlite3_open(damaged.c_str(), &database) == SQLITE_OK);
    REQUIRE(sqlite3_exec(database, "UPDATE records SET bytes = x'ffff'", nullptr, nullptr, nullptr) == SQLITE_OK);
    sqlite3_close(database);
  }
  auto store = OpenSqliteStore(damaged);
  REQUIRE(store.ok());
  CHECK((*store)->Load().status().code() == absl::StatusCode::kDataLoss);
}

// What went wrong in the child that had the small disk.
enum class SmallDisk : int { kFine = 0, kNoNamespace = 1, kNoMount, kNoRoom, kWrongCode, kHalfThere, kNoRetry, kLost };

bool WriteProc(const char* path, const std::string& text) {
  const UniqueFd file(::open(path, O_WRONLY | O_CLOEXEC));
  return file.valid() && ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

// In namespaces of its own, so that the mount needs no root and goes with the process.
SmallDisk FillSmallDisk(const std::string& folder) {
  const std::string user = std::to_string(::geteuid());
  const std::string group = std::to_string(::getegid());
  if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0 || !WriteProc("/proc/self/setgroups", "deny") ||
      !WriteProc("/proc/self/uid_map", "0 " + user + " 1") || !WriteProc("/proc/self/gid_map", "0 " + group + " 1")) {
    return SmallDisk::kNoNamespace;
  }
  if (::mount("tmpfs", folder.c_str(), "tmpfs", 0, "size=4m") != 0) {
    return SmallDisk::kNoMount;
  }
  const std::string path = folder + "/journal.db";
  const std::string ballast = folder + "/ballast";
  auto store = OpenSqliteStore(path);
  if (!store.ok() || !(*store)->Commit({head::Record{SampleJob(1)}}).ok()) {
    return SmallDisk::kNoRoom;
  }
  const UniqueFd file(::open(ballast.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  const std::string block(4096, 'x');
  while (::write(file.get(), block.data(), block.size()) > 0) {
  }
  head::JobRecord big = SampleJob(2);
  big.message = std::string(1 << 20, 'x');
  const std::vector<Write> writes = {head::Record{SampleJob(3)}, head::Record{big}};
  if ((*store)->Commit(writes).code() != absl::StatusCode::kResourceExhausted) {
    return SmallDisk::kWrongCode;
  }
  if ((*store)->Load()->size() != 1) {
    return SmallDisk::kHalfThere;
  }
  if (::truncate(ballast.c_str(), 0) != 0 || !(*store)->Commit(writes).ok()) {
    return SmallDisk::kNoRetry;
  }
  store->reset();
  store = OpenSqliteStore(path);
  return store.ok() && (*store)->Load()->size() == 3 ? SmallDisk::kFine : SmallDisk::kLost;
}

TEST_CASE("a full disk refuses a commit whole, and it works once there is room", "[store]") {
  const TempDir folder;
  const pid_t child = ::fork();
  if (child == 0) {
    ::_exit(static_cast<int>(FillSmallDisk(folder.File("."))));
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  const auto result = static_cast<SmallDisk>(WEXITSTATUS(status));
  if (result == SmallDisk::kNoNamespace || result == SmallDisk::kNoMount) {
    WARN("no user namespaces here: a full disk was not tried");
    return;
  }
  CHECK(static_cast<int>(result) == static_cast<int>(SmallDisk::kFine));
}

// Commits pairs of jobs one after the other and writes a byte for each commit that returned, until it is killed.
[[noreturn]] void WriteUntilKilled(const std::string& path, int acknowledged) {
  auto store = OpenSqliteStore(path);
  if (!store.ok()) {
    ::_exit(2);
  }
  for (std::uint64_t pair = 0;; ++pair) {
    if (!(*store)->Commit({head::Record{SampleJob(2 * pair + 1)}, head::Record{SampleJob(2 * pair + 2)}}).ok()) {
      ::_exit(3);
    }
    const char byte = 1;
    if (::write(acknowledged, &byte, 1) != 1) {
      ::_exit(4);
    }
  }
}

TEST_CASE("no commit that returned is lost to kill -9, and none is half there", "[store]") {
  for (const std::size_t kill_after : {1u, 2u, 7u, 40u, 300u}) {
    CAPTURE(kill_after);
    const TempDir folder;
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    UniqueFd reader(ends[0]);
    UniqueFd writer(ends[1]);
    const pid_t child = ::fork();
    if (child == 0) {
      reader.Reset();
      WriteUntilKilled(folder.File("journal.db"), writer.get());
    }
    writer.Reset();
    std::size_t acknowledged = 0;
    char byte = 0;
    while (acknowledged < kill_after && ::read(reader.get(), &byte, 1) == 1) {
      ++acknowledged;
    }
    ::kill(child, SIGKILL);
    while (::read(reader.get(), &byte, 1) == 1) {
      ++acknowledged;
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status));
    REQUIRE(acknowledged >= kill_after);

    auto store = OpenSqliteStore(folder.File("journal.db"));
    REQUIRE(store.ok());
    const auto records = (*store)->Load();
    REQUIRE(records.ok());
    CHECK(records->size() >= 2 * acknowledged);
    CHECK(records->size() <= 2 * acknowledged + 2);
    CHECK(records->size() % 2 == 0);
    for (std::size_t i = 0; i < records->size(); ++i) {
      CHECK(head::KeyOf(records->at(i)).id == i + 1);
    }
  }
}

}  // namespace
}  // namespace rayctl::store
