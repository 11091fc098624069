#pragma once

#include <map>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_text.h"
#include "fmt/format.h"

// What the translation of one message is made of. For translate*.cc alone.
namespace rayctl::rpc {

inline absl::Status Wrong(std::string_view field, std::string_view why) {
  return absl::InvalidArgumentError(fmt::format("{}: {}", field, why));
}

// The first failure of a message's parts, so that a translation reads as one list.
class Checked {
 public:
  // Assigns the value, or notes the failure under the field's name.
  template <class T, class U>
  void Set(T& out, absl::StatusOr<U> value, std::string_view field) {
    if (!value.ok()) {
      Note(value.status(), field);
    } else {
      out = *std::move(value);
    }
  }
  void Require(bool condition, std::string_view field, std::string_view why) {
    if (!condition && status_.ok()) {
      status_ = Wrong(field, why);
    }
  }
  void Note(const absl::Status& status, std::string_view field) {
    if (status_.ok()) {
      status_ = Annotate(absl::InvalidArgumentError(status.message()), field);
    }
  }
  const absl::Status& status() const { return status_; }

 private:
  absl::Status status_;
};

template <class T>
absl::StatusOr<T> Result(const Checked& check, T value) {
  if (!check.status().ok()) {
    return check.status();
  }
  return value;
}

template <class Map>
auto ToMap(const Map& proto) {
  return std::map<std::string, std::string>(proto.begin(), proto.end());
}

}  // namespace rayctl::rpc
