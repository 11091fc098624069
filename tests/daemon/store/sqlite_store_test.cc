#include <fcntl.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>

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

// No file of this process may grow beyond `bytes` while this lives: a disk that is full.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    signal_before_ = ::signal(SIGXFSZ, SIG_IGN);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, signal_before_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
  void (*signal_before_)(int) = nullptr;
};

TEST_CASE("a full disk refuses a commit whole, and it works once there is room", "[store]") {
  const TempDir folder;
  const std::string path = folder.File("journal.db");
  auto store = OpenSqliteStore(path);
  REQUIRE(store.ok());
  REQUIRE((*store)->Commit({head::Record{SampleJob(1)}}).ok());
  head::JobRecord big = SampleJob(2);
  big.message = std::string(1 << 20, 'x');
  {
    const FileSizeLimit full(200'000);
    const absl::Status refused = (*store)->Commit({head::Record{SampleJob(3)}, head::Record{big}});
    CAPTURE(refused.ToString());
    CHECK(refused.code() == absl::StatusCode::kResourceExhausted);
    CHECK((*store)->Load()->size() == 1);
  }
  REQUIRE((*store)->Commit({head::Record{SampleJob(3)}, head::Record{big}}).ok());
  CHECK((*store)->Load()->size() == 3);
  store->reset();
  CHECK((*OpenSqliteStore(path))->Load()->size() == 3);
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
