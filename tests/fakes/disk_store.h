#pragma once

#include <map>
#include <string>
#include <vector>

#include "daemon/store/store.h"

namespace rayctl::fakes {

// A journal on a disk that may lose power: what was written is there after a crash only once it was synced. Keeps the
// bytes of journal.proto, so that whatever goes through it goes through the format on disk.
class DiskStore final : public store::Store {
 public:
  // Written, not yet durable. One commit at a time may be on its way.
  void Write(const std::vector<store::Write>& writes);
  void Sync();  // What was written is durable.
  void Lose();  // The crash: what was not synced is gone, whole.

  absl::Status Commit(const std::vector<store::Write>& writes) override;
  absl::StatusOr<std::vector<head::Record>> Load() override;

 private:
  std::map<head::RecordKey, std::string> durable_;
  std::vector<std::pair<head::RecordKey, std::string>> pending_;  // Empty bytes: erased.
};

}  // namespace rayctl::fakes
