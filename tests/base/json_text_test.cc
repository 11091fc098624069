#include "base/json_text.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace rayctl {
namespace {

using nlohmann::ordered_json;

TEST_CASE("JSON is written as Python's json writes it", "[base]") {
  ordered_json value;
  value["b"] = 1;
  value["a"] = {1.0, std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::infinity(), nullptr,
                "x\n"};
  value["empty"] = ordered_json::object();
  CHECK(JsonText(value, NonFinite::kPython) == R"({"b": 1, "a": [1.0, NaN, -Infinity, null, "x\n"], "empty": {}})");
  CHECK(JsonText(value, NonFinite::kStrings) ==
        R"({"b": 1, "a": [1.0, "NaN", "-Infinity", null, "x\n"], "empty": {}})");
  CHECK(JsonText(ordered_json{{"a", {1, 2}}}, NonFinite::kPython, 2) == "{\n  \"a\": [\n    1,\n    2\n  ]\n}");
}

TEST_CASE("bytes that are no UTF-8 are replaced, not thrown", "[base]") {
  CHECK(JsonText(ordered_json("\xFF"), NonFinite::kPython) == "\"\xEF\xBF\xBD\"");
}

TEST_CASE("Python's bare NaN and infinities are read, in strings they stay text", "[base]") {
  const absl::StatusOr<ordered_json> value =
      ParseJsonText(R"({"z": NaN, "a": [Infinity, -Infinity], "s": "NaN \" NaN"})");
  REQUIRE(value.ok());
  CHECK(std::isnan((*value)["z"].get<double>()));
  CHECK((*value)["a"][0] == std::numeric_limits<double>::infinity());
  CHECK((*value)["a"][1] == -std::numeric_limits<double>::infinity());
  CHECK((*value)["s"] == "NaN \" NaN");
  CHECK(JsonText(*value, NonFinite::kPython) == R"({"z": NaN, "a": [Infinity, -Infinity], "s": "NaN \" NaN"})");
  CHECK_FALSE(ParseJsonText("{").ok());
  CHECK_FALSE(ParseJsonText("nan").ok());
}

}  // namespace
}  // namespace rayctl
