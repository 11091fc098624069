#include "client/token.h"

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace rayctl::client {
namespace {

std::string CaHash(char digit) { return std::string(64, digit); }

class TempFolder {
 public:
  TempFolder() {
    std::string path = "/tmp/rayctl-test-XXXXXX";
    path_ = ::mkdtemp(path.data());
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  std::string Write(const std::string& name, const std::string& text, mode_t mode) const {
    std::string path = path_ + "/" + name;
    std::ofstream(path) << text;
    REQUIRE(::chmod(path.c_str(), mode) == 0);
    return path;
  }
  std::string path(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

TEST_CASE("a token survives being written and read", "[token]") {
  const auto token = MakeToken(CaHash('a'));
  REQUIRE(token.ok());
  CHECK(token->secret.size() == kSecretBytes);
  const std::string text = FormatToken(*token);
  CHECK(text.size() == 4 + 64 + 1 + 64);
  CHECK(text.substr(0, 4) == "rct_");
  const auto parsed = ParseToken("  " + text + "\n");
  REQUIRE(parsed.ok());
  CHECK(parsed->secret == token->secret);
  CHECK(parsed->ca_sha256 == CaHash('a'));
}

TEST_CASE("two tokens differ", "[token]") { CHECK(MakeToken(CaHash('a'))->secret != MakeToken(CaHash('a'))->secret); }

TEST_CASE("what is no token is refused without repeating it", "[token]") {
  const std::string good = FormatToken(*MakeToken(CaHash('b')));
  for (const std::string& bad :
       {std::string(), std::string("hello"), good.substr(1), good + "0", good.substr(0, good.size() - 1),
        std::string(good).replace(10, 1, "G"), std::string(good).replace(4 + 64, 1, "-")}) {
    CAPTURE(bad);
    const auto parsed = ParseToken(bad);
    CHECK(absl::IsInvalidArgument(parsed.status()));
    if (bad.size() > 8) {
      CHECK(std::string(parsed.status().message()).find(bad) == std::string::npos);
    }
  }
  CHECK_FALSE(MakeToken("abc").ok());
}

TEST_CASE("the hash of a secret is SHA-256 of its bytes", "[token]") {
  CHECK(ToHex(HashSecret("abc")) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST_CASE("hex and back", "[token]") {
  CHECK(*FromHex("00FFab") == std::string("\x00\xff\xab", 3));
  CHECK_FALSE(FromHex("0").ok());
  CHECK_FALSE(FromHex("zz").ok());
}

TEST_CASE("a token file must be its owner's alone", "[token]") {
  const TempFolder folder;
  const std::string text = FormatToken(*MakeToken(CaHash('c')));
  CHECK(*ReadTokenFile(folder.Write("good", text + "\n", 0600)) == text);
  CHECK(absl::IsPermissionDenied(ReadTokenFile(folder.Write("group", text, 0640)).status()));
  CHECK(absl::IsPermissionDenied(ReadTokenFile(folder.Write("others", text, 0604)).status()));
  CHECK(absl::IsNotFound(ReadTokenFile(folder.path("absent")).status()));
  CHECK(absl::IsInvalidArgument(ReadTokenFile(folder.Write("noise", "no token", 0600)).status()));
}

}  // namespace
}  // namespace rayctl::client
