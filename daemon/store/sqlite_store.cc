#include <fcntl.h>
#include <fmt/format.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/unique_fd.h"
#include "daemon/store/store.h"

namespace rayctl::store {
namespace {

constexpr int kFormat = 1;  // PRAGMA user_version: only ever raised when an older head could not read the journal.

constexpr char kTable[] =
    "CREATE TABLE IF NOT EXISTS records (kind INTEGER NOT NULL, id INTEGER NOT NULL, bytes BLOB NOT NULL, "
    "PRIMARY KEY (kind, id)) WITHOUT ROWID";

struct CloseDatabase {
  void operator()(sqlite3* database) const { sqlite3_close(database); }
};
struct FinalizeStatement {
  void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
};
using Database = std::unique_ptr<sqlite3, CloseDatabase>;
using Statement = std::unique_ptr<sqlite3_stmt, FinalizeStatement>;

absl::Status Failure(sqlite3* database, int result, std::string_view what) {
  const std::string message = fmt::format("{}: {}", what, sqlite3_errmsg(database));
  switch (result & 0xff) {  // The primary code of an extended one.
    case SQLITE_FULL:
      return absl::ResourceExhaustedError(message + "; free some space on that disk");
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return absl::DataLossError(message);
    default:
      return absl::UnavailableError(message);
  }
}

class SqliteStore final : public Store {
 public:
  static absl::StatusOr<std::unique_ptr<Store>> Open(const std::string& path) {
    struct stat info {};
    if (::stat(path.c_str(), &info) != 0 && errno == ENOENT) {
      if (absl::Status made = Make(path); !made.ok()) {
        return made;
      }
    }
    absl::StatusOr<Database> database = OpenFile(path);
    if (!database.ok()) {
      return database.status();
    }
    auto store = std::unique_ptr<SqliteStore>(new SqliteStore(path, *std::move(database)));
    if (absl::Status ok = store->Prepare(); !ok.ok()) {
      return ok;
    }
    return store;
  }

  absl::Status Commit(const std::vector<Write>& writes) override {
    if (writes.empty()) {
      return absl::OkStatus();
    }
    absl::Status ok = Run("BEGIN IMMEDIATE");
    for (auto write = writes.begin(); ok.ok() && write != writes.end(); ++write) {
      ok = Apply(*write);
    }
    if (ok.ok()) {
      ok = Run("COMMIT");
    }
    if (!ok.ok() && sqlite3_get_autocommit(database_.get()) == 0) {
      // Some errors roll back by themselves, others leave that to us.
      if (absl::Status undone = Run("ROLLBACK"); !undone.ok()) {
        return absl::UnavailableError(
            fmt::format("{}; then {}", std::string(ok.message()), std::string(undone.message())));
      }
    }
    return ok;
  }

  absl::StatusOr<std::vector<head::Record>> Load() override {
    std::vector<head::Record> records;
    sqlite3_stmt* statement = load_.get();
    int result = SQLITE_ROW;
    absl::Status ok;
    while (ok.ok() && (result = sqlite3_step(statement)) == SQLITE_ROW) {
      const auto kind = sqlite3_column_int(statement, 0);
      const auto id = sqlite3_column_int64(statement, 1);
      const void* bytes = sqlite3_column_blob(statement, 2);
      const int size = sqlite3_column_bytes(statement, 2);
      auto record =
          Decode(static_cast<head::RecordKind>(kind),
                 bytes == nullptr ? std::string_view{}
                                  : std::string_view(static_cast<const char*>(bytes), static_cast<std::size_t>(size)));
      if (!record.ok()) {
        ok = absl::DataLossError(
            fmt::format("{}: record {} of kind {}: {}", path_, id, kind, std::string(record.status().message())));
        break;
      }
      records.push_back(*std::move(record));
    }
    if (ok.ok() && result != SQLITE_DONE) {
      ok = Failure(database_.get(), result, fmt::format("reading the journal {}", path_));
    }
    sqlite3_reset(statement);
    if (!ok.ok()) {
      return ok;
    }
    return records;
  }

 private:
  static absl::StatusOr<Database> OpenFile(const std::string& path) {
    sqlite3* raw = nullptr;
    const int opened = sqlite3_open_v2(path.c_str(), &raw, SQLITE_OPEN_READWRITE, nullptr);
    Database database(raw);
    if (opened != SQLITE_OK) {
      return Failure(database.get(), opened, fmt::format("opening the journal {}", path));
    }
    return database;
  }

  // An empty journal, made aside and without SQLite's many syncs, then synced once and put in place whole. Where two
  // heads make one, the first stays and the other finds it locked. Its name is made durable by the first commit, which
  // creates the write-ahead log in the same folder and syncs that.
  static absl::Status Make(const std::string& path) {
    const std::string aside = fmt::format("{}.{}.new", path, ::getpid());
    const auto failed = [&](std::string_view what) {
      absl::Status status = absl::UnavailableError(fmt::format("{} {}: {}", what, aside, std::strerror(errno)));
      ::unlink(aside.c_str());
      return status;
    };
    // Made here, so that nobody else may read it from the first moment on.
    if (!UniqueFd(::open(aside.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, S_IRUSR | S_IWUSR)).valid()) {
      return failed("making the journal");
    }
    absl::StatusOr<Database> database = OpenFile(aside);
    if (database.ok()) {
      const std::string setup = fmt::format(
          "PRAGMA locking_mode=EXCLUSIVE; PRAGMA synchronous=OFF; PRAGMA journal_mode=WAL; {}; PRAGMA user_version={}",
          kTable, kFormat);
      const int result = sqlite3_exec(database->get(), setup.c_str(), nullptr, nullptr, nullptr);
      if (result != SQLITE_OK) {
        absl::Status status = Failure(database->get(), result, fmt::format("making the journal {}", aside));
        database->reset();
        ::unlink(aside.c_str());
        return status;
      }
      database->reset();  // Moves what the write-ahead log has into the file and removes the log.
    } else {
      ::unlink(aside.c_str());
      return database.status();
    }
    const UniqueFd file(::open(aside.c_str(), O_RDWR | O_CLOEXEC));
    if (!file.valid() || ::fsync(file.get()) != 0) {
      return failed("syncing the journal");
    }
    if (::link(aside.c_str(), path.c_str()) != 0 && errno != EEXIST) {
      return failed("putting the journal in place from");
    }
    ::unlink(aside.c_str());
    return absl::OkStatus();
  }

  SqliteStore(std::string path, Database database) : path_(std::move(path)), database_(std::move(database)) {}

  absl::Status Run(const char* sql) {
    const int result = sqlite3_exec(database_.get(), sql, nullptr, nullptr, nullptr);
    return result == SQLITE_OK ? absl::OkStatus()
                               : Failure(database_.get(), result, fmt::format("writing the journal {}", path_));
  }

  absl::StatusOr<Statement> Compile(const char* sql) {
    sqlite3_stmt* statement = nullptr;
    const int result = sqlite3_prepare_v3(database_.get(), sql, -1, SQLITE_PREPARE_PERSISTENT, &statement, nullptr);
    if (result != SQLITE_OK) {
      return Failure(database_.get(), result, fmt::format("opening the journal {}", path_));
    }
    return Statement(statement);
  }

  absl::Status Prepare() {
    sqlite3_extended_result_codes(database_.get(), 1);
    // One process for as long as it lives; set before WAL, so that no shared memory is needed either.
    for (const char* sql : {"PRAGMA locking_mode=EXCLUSIVE", "BEGIN EXCLUSIVE", "COMMIT"}) {
      const int result = sqlite3_exec(database_.get(), sql, nullptr, nullptr, nullptr);
      if ((result & 0xff) == SQLITE_BUSY || (result & 0xff) == SQLITE_LOCKED) {
        return absl::AlreadyExistsError(
            fmt::format("the journal {} is held by another process; stop that head first", path_));
      }
      if (result != SQLITE_OK) {
        return Failure(database_.get(), result, fmt::format("opening the journal {}", path_));
      }
    }
    auto version = Compile("PRAGMA user_version");
    if (!version.ok()) {
      return version.status();
    }
    const int step = sqlite3_step(version->get());
    if (step != SQLITE_ROW) {
      return Failure(database_.get(), step, fmt::format("opening the journal {}", path_));
    }
    const int format = sqlite3_column_int(version->get(), 0);
    version->reset();
    if (format > kFormat) {
      return absl::FailedPreconditionError(fmt::format(
          "the journal {} has format {} and this head knows {}; run a newer rayctl", path_, format, kFormat));
    }
    for (const char* sql :
         {"PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL", "PRAGMA journal_size_limit=67108864", kTable}) {
      if (absl::Status ok = Run(sql); !ok.ok()) {
        return ok;
      }
    }
    if (format < kFormat) {  // Made by something else than Make, an empty file for instance.
      if (absl::Status ok = Run(fmt::format("PRAGMA user_version={}", kFormat).c_str()); !ok.ok()) {
        return ok;
      }
    }
    for (const auto& [sql, statement] : {std::pair{"INSERT INTO records (kind, id, bytes) VALUES (?1, ?2, ?3) "
                                                   "ON CONFLICT (kind, id) DO UPDATE SET bytes = excluded.bytes",
                                                   &put_},
                                         std::pair{"DELETE FROM records WHERE kind = ?1 AND id = ?2", &erase_},
                                         std::pair{"SELECT kind, id, bytes FROM records ORDER BY kind, id", &load_}}) {
      auto compiled = Compile(sql);
      if (!compiled.ok()) {
        return compiled.status();
      }
      *statement = *std::move(compiled);
    }
    return absl::OkStatus();
  }

  absl::Status Apply(const Write& write) {
    const auto* record = std::get_if<head::Record>(&write);
    const head::RecordKey key = record != nullptr ? head::KeyOf(*record) : std::get<head::RecordKey>(write);
    sqlite3_stmt* statement = record != nullptr ? put_.get() : erase_.get();
    const std::string bytes = record != nullptr ? Encode(*record) : "";
    sqlite3_bind_int(statement, 1, static_cast<int>(key.kind));
    sqlite3_bind_int64(statement, 2, static_cast<sqlite3_int64>(key.id));
    if (record != nullptr) {
      sqlite3_bind_blob64(statement, 3, bytes.data(), bytes.size(), SQLITE_STATIC);
    }
    const int result = sqlite3_step(statement);
    absl::Status ok;
    if (result != SQLITE_DONE) {
      ok = Failure(database_.get(), result, fmt::format("writing the journal {}", path_));
    }
    sqlite3_reset(statement);
    sqlite3_clear_bindings(statement);
    return ok;
  }

  std::string path_;
  Database database_;
  Statement put_;
  Statement erase_;
  Statement load_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> OpenSqliteStore(const std::string& path) { return SqliteStore::Open(path); }

}  // namespace rayctl::store
