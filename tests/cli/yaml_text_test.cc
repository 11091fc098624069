#include "cli/yaml_text.h"

#include <yaml-cpp/yaml.h>

#include <catch2/catch.hpp>
#include <limits>
#include <nlohmann/json.hpp>

namespace rayctl::cli {
namespace {

TEST_CASE("YAML says what JSON says, and no text is taken for something else", "[cli]") {
  const nlohmann::ordered_json value{{"id", 7},
                                     {"name", "no"},
                                     {"message", nullptr},
                                     {"labels", {{"yes", "1"}, {"a: b", "~"}, {"", "x\ny"}}},
                                     {"nodes", nlohmann::ordered_json::array({"a", "b"})},
                                     {"empty", nlohmann::ordered_json::array()},
                                     {"none", nlohmann::ordered_json::object()},
                                     {"ready", true},
                                     {"half", 0.5},
                                     {"big", std::numeric_limits<std::uint64_t>::max()},
                                     {"loss", std::numeric_limits<double>::quiet_NaN()}};
  const YAML::Node read = YAML::Load(YamlText(value));
  CHECK(read["id"].as<int>() == 7);
  CHECK(read["id"].Tag() == "?");
  CHECK(read["name"].Tag() == "!");  // Quoted: a text for every reader.
  CHECK(read["name"].as<std::string>() == "no");
  CHECK(read["message"].IsNull());
  CHECK(read["labels"]["yes"].as<std::string>() == "1");
  CHECK(read["labels"]["yes"].Tag() == "!");
  CHECK(read["labels"]["a: b"].as<std::string>() == "~");
  CHECK(read["labels"][""].as<std::string>() == "x\ny");
  CHECK(read["nodes"].size() == 2);
  CHECK(read["empty"].IsSequence());
  CHECK(read["none"].IsMap());
  CHECK(read["ready"].as<bool>());
  CHECK(read["half"].as<double>() == 0.5);
  CHECK(read["big"].as<std::uint64_t>() == std::numeric_limits<std::uint64_t>::max());
  CHECK(read["loss"].as<std::string>() == "NaN");
  CHECK(read["loss"].Tag() == "!");
}

}  // namespace
}  // namespace rayctl::cli
