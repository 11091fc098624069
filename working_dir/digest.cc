#include "working_dir/digest.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>

#include "base/invariant.h"

namespace rayctl::working_dir {
namespace {

constexpr std::size_t kDigestDigits = 64;

}  // namespace

void Sha256::Free::operator()(evp_md_ctx_st* context) const { ::EVP_MD_CTX_free(context); }

Sha256::Sha256() : context_(::EVP_MD_CTX_new()) {
  Invariant(context_ != nullptr && ::EVP_DigestInit_ex(context_.get(), ::EVP_sha256(), nullptr) == 1,
            "OpenSSL has no SHA-256");
}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::Add(std::string_view bytes) {
  Invariant(::EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1, "SHA-256 takes no bytes");
}

std::string Sha256::Hex() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned length = 0;
  Invariant(::EVP_DigestFinal_ex(context_.get(), digest.data(), &length) == 1, "SHA-256 gives no digest");
  std::string hex;
  for (unsigned i = 0; i < length; ++i) {
    hex += fmt::format("{:02x}", digest[i]);
  }
  return hex;
}

bool IsDigest(std::string_view text) {
  return text.size() == kDigestDigits && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace rayctl::working_dir
