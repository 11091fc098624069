#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

struct evp_md_ctx_st;

namespace rayctl::working_dir {

// What may be in one packed folder. The archive is larger than its contents by a header for each entry.
inline constexpr std::uint64_t kContentBytesMax = std::uint64_t{500} << 20;
inline constexpr std::uint64_t kEntriesMax = 200'000;
inline constexpr std::size_t kDepthMax = 256;  // Of folders in folders.
inline constexpr std::uint64_t kArchiveBytesMax = std::uint64_t{1} << 30;

// SHA-256 of what was added.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  void Add(std::string_view bytes);
  std::string Hex();  // Once, after all was added.

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

// Whether `text` is a digest as the API writes it: 64 hex digits in lower case.
bool IsDigest(std::string_view text);

}  // namespace rayctl::working_dir
