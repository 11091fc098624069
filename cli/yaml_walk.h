#pragma once

#include <yaml-cpp/yaml.h>

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"

// Reads YAML node by node, so that what YAML readers disagree on (duplicate keys, 012, yes, 1:30) is refused with its
// line and column and never guessed.
namespace rayctl::cli {

// A node and the path to it: "scaling_config.num_workers[0]".
struct Place {
  YAML::Node node;
  std::string path;
  std::optional<YAML::Mark> key;  // Where its name stands; a value of nothing has no place of its own.
};

class YamlWalk {
 public:
  using Reader = std::function<void(const Place&)>;
  struct Field {
    std::string name;
    Reader read;
  };

  explicit YamlWalk(std::string file) : file_(std::move(file)) {}

  // The one document of `text`; nullopt after a Fail.
  std::optional<Place> Load(std::string_view text);

  // Remembers the first mistake: `FILE:LINE:COL: PATH: what`. Reading may go on; nothing read then counts.
  void Fail(const Place& place, std::string_view what);
  bool ok() const { return status_.ok(); }
  const absl::Status& status() const { return status_; }

  // Calls the reader of each field that is there. Unknown and repeated names are mistakes.
  void Fields(const Place& place, const std::vector<Field>& fields);
  // The members of a mapping with free names. Repeated names and names that are no scalar are mistakes.
  std::vector<std::pair<std::string, Place>> Members(const Place& place, std::string_view expected);
  std::vector<Place> Items(const Place& place, std::string_view expected);

  // Each gives a plain default after a mistake.
  std::string Text(const Place& place);     // Text; a bare number or true is a mistake.
  std::string Written(const Place& place);  // Any scalar but null, as it stands in the file.
  bool Boolean(const Place& place);
  std::int64_t Whole(const Place& place, std::int64_t least, std::int64_t most);
  double Number(const Place& place);
  std::int64_t Nanoseconds(const Place& place);  // 90, 90s, 5m, 2h, 1d.
  std::int64_t Bytes(const Place& place);        // Bytes or 2GiB.
  std::string OneOf(const Place& place, const std::vector<std::string>& names);
  nlohmann::ordered_json Json(const Place& place);  // Whatever it is, types kept.

 private:
  struct Scalar;
  std::optional<Scalar> Read(const Place& place, std::string_view expected);
  nlohmann::ordered_json JsonAt(const Place& place, int depth);
  void FailAt(const YAML::Mark& mark, std::string_view path, std::string_view what);

  std::string file_;
  absl::Status status_;
  int nodes_ = 0;  // That Json() went through.
};

}  // namespace rayctl::cli
