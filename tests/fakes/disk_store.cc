#include "tests/fakes/disk_store.h"

#include <utility>

#include "base/invariant.h"

namespace rayctl::fakes {

void DiskStore::Write(const std::vector<store::Write>& writes) {
  Invariant(pending_.empty(), "one commit at a time");
  for (const store::Write& write : writes) {
    if (const auto* record = std::get_if<head::Record>(&write)) {
      pending_.emplace_back(head::KeyOf(*record), store::Encode(*record));
      Invariant(!pending_.back().second.empty(), "a record has bytes");
    } else {
      pending_.emplace_back(std::get<head::RecordKey>(write), std::string());
    }
  }
}

void DiskStore::Sync() {
  for (auto& [key, bytes] : pending_) {
    if (bytes.empty()) {
      durable_.erase(key);
    } else {
      durable_[key] = std::move(bytes);
    }
  }
  pending_.clear();
}

void DiskStore::Lose() { pending_.clear(); }

absl::Status DiskStore::Commit(const std::vector<store::Write>& writes) {
  Write(writes);
  Sync();
  return absl::OkStatus();
}

absl::StatusOr<std::vector<head::Record>> DiskStore::Load() {
  std::vector<head::Record> records;
  for (const auto& [key, bytes] : durable_) {
    absl::StatusOr<head::Record> record = store::Decode(key.kind, bytes);
    if (!record.ok()) {
      return record.status();
    }
    records.push_back(*std::move(record));
  }
  return records;
}

}  // namespace rayctl::fakes
