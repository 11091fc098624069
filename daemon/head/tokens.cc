#include <fmt/format.h>

#include "daemon/head/head_impl.h"

namespace rayctl::head {
namespace {

constexpr std::size_t kSha256Bytes = 32;

}  // namespace

TokenRecord* Head::Impl::FindLivingToken(std::string_view name) {
  const auto found = newest_token_by_name_.find(name);
  if (found == newest_token_by_name_.end()) {
    return nullptr;
  }
  TokenRecord& token = tokens_.at(found->second);
  const bool expired = token.expires_at != WallTime{} && token.expires_at <= now_.wall;
  return token.revoked || expired ? nullptr : &token;
}

void Head::Impl::Handle(const CreateToken& create) {
  if (create.sha256.size() != kSha256Bytes) {
    Fail(create.call, absl::InvalidArgumentError("a token's hash has 32 bytes"));
    return;
  }
  std::string name = create.name;
  if (name.empty()) {
    // A person may have taken the name that would come next.
    for (std::uint64_t number = cluster_.next_token; name.empty() || FindLivingToken(name) != nullptr; ++number) {
      name = fmt::format("{}-{}", Name(create.role), number);
    }
  }
  if (FindLivingToken(name) != nullptr) {
    Fail(create.call,
         absl::AlreadyExistsError(fmt::format("there is a token {} already; choose another name or revoke it", name)));
    return;
  }
  const TokenId id{cluster_.next_token++};
  cluster_touched_ = true;
  TokenRecord& token = tokens_[id];
  token.id = id;
  token.name = name;
  newest_token_by_name_[std::move(name)] = id;
  token.role = create.role;
  token.sha256 = create.sha256;
  token.created_at = now_.wall;
  token.expires_at = create.expires_at;
  touched_tokens_.insert(id);
  Answered(create.call, TokenAnswer{token});
}

void Head::Impl::Handle(const RevokeToken& revoke) {
  TokenRecord* token = FindLivingToken(revoke.name);
  if (token == nullptr) {
    Fail(revoke.call, absl::NotFoundError(fmt::format("there is no living token {}", revoke.name)));
    return;
  }
  token->revoked = true;
  touched_tokens_.insert(token->id);
  Answered(revoke.call, Done{});
}

}  // namespace rayctl::head
