// The floor of the disk: one small record a transaction, WAL, synchronous FULL, as the head's journal is kept.
// Usage: rayctl_bench_commits FILE COUNT. Prints {"median_us":…,"min_us":…,"max_us":…}.
#include <sqlite3.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

constexpr int kRecordBytes = 200;  // About what a token or a change of a job's state takes.

void Check(int code, sqlite3* db, const char* what) {
  if (code != SQLITE_OK && code != SQLITE_DONE && code != SQLITE_ROW) {
    std::fprintf(stderr, "%s: %s\n", what, sqlite3_errmsg(db));
    std::exit(1);
  }
}

void Execute(sqlite3* db, const char* sql) { Check(sqlite3_exec(db, sql, nullptr, nullptr, nullptr), db, sql); }

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s FILE COUNT\n", argv[0]);
    return 2;
  }
  const int count = std::max(1, std::atoi(argv[2]));
  sqlite3* db = nullptr;
  Check(sqlite3_open(argv[1], &db), db, "open");
  Execute(db, "PRAGMA journal_mode=WAL");
  Execute(db, "PRAGMA synchronous=FULL");
  Execute(db, "CREATE TABLE records (kind INTEGER, id INTEGER, value BLOB, PRIMARY KEY (kind, id)) WITHOUT ROWID");
  sqlite3_stmt* put = nullptr;
  Check(sqlite3_prepare_v2(db, "INSERT OR REPLACE INTO records VALUES (1, ?, ?)", -1, &put, nullptr), db, "prepare");

  const std::string value(kRecordBytes, 'x');
  std::vector<double> micros;
  micros.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    const auto begun = std::chrono::steady_clock::now();
    Execute(db, "BEGIN");
    sqlite3_bind_int(put, 1, i);
    sqlite3_bind_blob(put, 2, value.data(), static_cast<int>(value.size()), SQLITE_STATIC);
    Check(sqlite3_step(put), db, "insert");
    Check(sqlite3_reset(put), db, "reset");
    Execute(db, "COMMIT");
    micros.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begun).count());
  }
  sqlite3_finalize(put);
  sqlite3_close(db);
  std::sort(micros.begin(), micros.end());
  std::printf("{\"median_us\":%.1f,\"min_us\":%.1f,\"max_us\":%.1f}\n", micros[micros.size() / 2], micros.front(),
              micros.back());
  return 0;
}
