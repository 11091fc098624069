#include <map>

#include "daemon/store/store.h"

namespace rayctl::store {
namespace {

class MemoryStore final : public Store {
 public:
  absl::Status Commit(const std::vector<Write>& writes) override {
    for (const Write& write : writes) {
      if (const auto* record = std::get_if<head::Record>(&write)) {
        records_.insert_or_assign(head::KeyOf(*record), *record);
      } else {
        records_.erase(std::get<head::RecordKey>(write));
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<head::Record>> Load() override {
    std::vector<head::Record> records;
    records.reserve(records_.size());
    for (const auto& [key, record] : records_) {
      records.push_back(record);
    }
    return records;
  }

 private:
  std::map<head::RecordKey, head::Record> records_;
};

}  // namespace

std::unique_ptr<Store> MakeMemoryStore() { return std::make_unique<MemoryStore>(); }

}  // namespace rayctl::store
