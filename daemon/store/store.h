#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/head/records.h"

namespace rayctl::store {

// A change to the journal.
using Write = std::variant<head::Record, head::RecordKey>;  // A record to put, or a key to erase.

// Where the head's records live. Head loop only.
class Store {
 public:
  virtual ~Store() = default;
  // All of `writes` or none, durable when it returns OK. RESOURCE_EXHAUSTED: the disk is full. UNAVAILABLE: cannot be
  // written now. After an error nothing of it is there and it may be tried again.
  virtual absl::Status Commit(const std::vector<Write>& writes) = 0;
  // Everything, in key order. DATA_LOSS: a record cannot be read. FAILED_PRECONDITION: a newer format.
  virtual absl::StatusOr<std::vector<head::Record>> Load() = 0;
};

std::unique_ptr<Store> MakeMemoryStore();

// WAL, synchronous FULL. `path`: the database file; made if absent. ALREADY_EXISTS: another process holds it.
absl::StatusOr<std::unique_ptr<Store>> OpenSqliteStore(const std::string& path);

// One record as journal.proto bytes, and back. DATA_LOSS: not such a record.
std::string Encode(const head::Record& record);
absl::StatusOr<head::Record> Decode(head::RecordKind kind, std::string_view bytes);

}  // namespace rayctl::store
