#include "cli/utf8_check.h"

#include <catch2/catch.hpp>
#include <string>

#include "rayctl/v1/job.pb.h"

namespace rayctl::cli {
namespace {

TEST_CASE("text of a request that is not UTF-8 is refused by its field and its bytes", "[cli]") {
  const auto refused = [](const auto& change) {
    v1::SubmitJobRequest request;
    change(*request.mutable_spec());
    return std::string(CheckUtf8(request).message());
  };
  CHECK(refused([](v1::JobSpec& spec) {
          spec.set_name("größe");
          spec.add_argv("echo");
          (*spec.mutable_env_vars())["A"] = "\xF0\x9F\x9A\x80";
        }).empty());
  CHECK(refused([](v1::JobSpec& spec) {
          spec.add_argv("echo");
          spec.add_argv("a\xFF");
        }).find("spec.argv: 'a\\xff' is not UTF-8") == 0);
  CHECK(refused([](v1::JobSpec& spec) { spec.set_name("\xC0\xAF"); }).find("spec.name") == 0);
  CHECK(refused([](v1::JobSpec& spec) { (*spec.mutable_env_vars())["A"] = "\x80"; }).find("spec.env_vars.value") == 0);
  CHECK(refused([](v1::JobSpec& spec) { (*spec.mutable_env_vars())["\x80"] = "x"; }).find("spec.env_vars.key") == 0);
}

}  // namespace
}  // namespace rayctl::cli
