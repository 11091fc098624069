#include <algorithm>
#include <catch2/catch.hpp>

#include "cli/verbs.h"

namespace rayctl::cli {
namespace {

bool Has(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

TEST_CASE("every verb completes its own options", "[cli]") {
  for (const std::string& verb : VerbNames()) {
    CAPTURE(verb);
    if (verb == "token" || verb == "job") {
      for (const std::string& second : Complete({verb, ""})) {
        CAPTURE(second);
        CHECK(Has(Complete({verb, second, "-"}), "--help"));
      }
    } else {
      CHECK(Has(Complete({verb, "--"}), "--help"));
    }
  }
  CHECK(Has(Complete({"submit", "--n"}), "--num-workers"));
  CHECK(Has(Complete({"token", "create", "--r"}), "--role"));
  CHECK_FALSE(Has(Complete({"token", "list", "--r"}), "--role"));
}

TEST_CASE("verbs, their first words, and nothing in a job's own command", "[cli]") {
  CHECK(Complete({}) == VerbNames());
  CHECK(Complete({"su"}) == VerbNames());
  CHECK(Complete({"list", ""}) == std::vector<std::string>{"nodes", "jobs", "workers"});
  CHECK(Complete({"submit", ""}).empty());
  CHECK(Complete({"submit", "--", "ls", "-"}).empty());
  CHECK(Complete({"frobnicate", ""}).empty());
}

}  // namespace
}  // namespace rayctl::cli
