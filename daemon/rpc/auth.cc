#include "daemon/rpc/auth.h"

#include <grpcpp/security/auth_context.h>
#include <grpcpp/server_context.h>

#include <array>
#include <charconv>
#include <optional>
#include <vector>

#include "base/status_text.h"
#include "base/units.h"
#include "client/channel.h"
#include "client/identity.h"
#include "client/token.h"
#include "fmt/format.h"

namespace rayctl::rpc {
namespace {

using enum CallerKind;

constexpr CallerSet kReaders{kAdmin, kUser, kViewer};
constexpr CallerSet kWriters{kAdmin, kUser};
constexpr CallerSet kAdmins{kAdmin};
constexpr CallerSet kAgents{kAgent};
constexpr CallerSet kJoiners{kAdmin, kJoin};
constexpr CallerSet kAnybodyKnown{kAdmin, kUser, kViewer, kJoin, kAgent};

constexpr std::array kRules{
    Rule{"/rayctl.v1.JobService/SubmitJob", kWriters},
    Rule{"/rayctl.v1.JobService/GetJob", kReaders},
    Rule{"/rayctl.v1.JobService/ListJobs", kReaders},
    Rule{"/rayctl.v1.JobService/ListWorkers", kReaders},
    Rule{"/rayctl.v1.JobService/CancelJob", kWriters},
    Rule{"/rayctl.v1.JobService/WaitJob", kReaders},
    Rule{"/rayctl.v1.JobService/FollowJob", kReaders},
    Rule{"/rayctl.v1.ClusterService/GetStatus", kReaders},
    Rule{"/rayctl.v1.ClusterService/GetVersion", kAnybodyKnown},
    Rule{"/rayctl.v1.ClusterService/ListNodes", kReaders},
    Rule{"/rayctl.v1.TokenService/CreateToken", kAdmins},
    Rule{"/rayctl.v1.TokenService/ListTokens", kAdmins},
    Rule{"/rayctl.v1.TokenService/RevokeToken", kAdmins},
    Rule{"/rayctl.v1.AgentService/Join", kJoiners},
    Rule{"/rayctl.v1.AgentService/Connect", kAgents},
    Rule{"/rayctl.v1.AgentService/SendOutput", kAgents},
    Rule{"/rayctl.v1.WorkingDirService/FindWorkingDir", kWriters},
    Rule{"/rayctl.v1.WorkingDirService/PutWorkingDir", kWriters},
    Rule{"/rayctl.v1.WorkingDirService/GetWorkingDir", kAgents},
};

constexpr char kCommonNameProperty[] = "x509_common_name";  // Of a client certificate that our CA signed.
constexpr std::string_view kBearer = "Bearer ";
constexpr std::string_view kHowToGetToken =
    "`rayctl token create` on the head's machine makes one; give it with --token-file, --token or RAYCTL_TOKEN";

std::string_view View(const grpc::string_ref& text) { return {text.data(), text.size()}; }

grpc::Status Unauthenticated(const std::string& message) { return {grpc::StatusCode::UNAUTHENTICATED, message}; }

std::string_view KindName(CallerKind kind) {
  switch (kind) {
    case kAdmin:
      return "an admin";
    case kUser:
      return "a user";
    case kViewer:
      return "a viewer";
    case kJoin:
      return "a join token";
    case kAgent:
      return "an agent";
  }
  return "a stranger";
}

// "an admin or a user".
std::string Names(CallerSet allowed) {
  std::vector<std::string_view> names;
  for (const CallerKind kind : {kAdmin, kUser, kViewer, kJoin, kAgent}) {
    if (allowed.Contains(kind)) {
      names.push_back(KindName(kind));
    }
  }
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    text += i == 0 ? "" : i + 1 == names.size() ? " or " : ", ";
    text += names[i];
  }
  return text;
}

std::optional<NodeId> ParseNode(std::string_view digits) {
  NodeId node;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), node.value);
  if (error != std::errc() || end != digits.data() + digits.size() || !node) {
    return std::nullopt;
  }
  return node;
}

const Rule* FindRule(std::string_view path) {
  for (const Rule& rule : kRules) {
    if (rule.path == path) {
      return &rule;
    }
  }
  return nullptr;
}

std::string_view MethodOf(std::string_view path) { return path.substr(path.rfind('/') + 1); }

std::optional<std::string> Property(const grpc::AuthContext& context, const char* name) {
  const std::vector<grpc::string_ref> values = context.FindPropertyValues(name);
  return values.size() == 1 ? std::optional(std::string(View(values.front()))) : std::nullopt;
}

}  // namespace

std::span<const Rule> Rules() { return kRules; }

void TokenTable::Put(const head::TokenRecord& token) {
  const std::lock_guard lock(mutex_);
  by_hash_[token.sha256] = {token.name, token.role, token.expires_at, token.revoked};
}

grpc::Status TokenTable::Find(std::string_view bearer, WallTime now, Caller& caller) const {
  const absl::StatusOr<client::Token> token = client::ParseToken(bearer);
  if (!token.ok()) {
    return Unauthenticated(Text(token.status()));
  }
  const std::string hash = client::HashSecret(token->secret);
  const std::shared_lock lock(mutex_);
  const auto found = by_hash_.find(hash);
  if (found == by_hash_.end()) {
    return Unauthenticated(fmt::format("this head does not know the token; {}", kHowToGetToken));
  }
  const Entry& entry = found->second;
  if (entry.revoked) {
    return Unauthenticated(fmt::format("the token {} was revoked; {}", entry.name, kHowToGetToken));
  }
  if (entry.expires_at != WallTime{} && entry.expires_at <= now) {
    return Unauthenticated(
        fmt::format("the token {} expired at {}; {}", entry.name, FormatTime(entry.expires_at), kHowToGetToken));
  }
  caller = {.kind = static_cast<CallerKind>(entry.role), .user = entry.name};
  return grpc::Status::OK;
}

absl::Status Gatekeeper::MayLook(std::string_view bearer) const {
  Caller caller;
  if (const grpc::Status found = tokens_->Find(bearer, clock_->Read().wall, caller); !found.ok()) {
    return absl::UnauthenticatedError(found.error_message());
  }
  if (caller.kind == CallerKind::kJoin) {
    return absl::PermissionDeniedError(
        "a join token only lets machines join; `rayctl token create --role viewer` makes one that may look");
  }
  return absl::OkStatus();
}

grpc::Status Gatekeeper::Identify(const InputMetadata& metadata, const grpc::AuthContext& context,
                                  Caller& caller) const {
  const auto authorization = metadata.find(client::kAuthorizationKey);
  if (authorization != metadata.end()) {
    const std::string_view value = View(authorization->second);
    if (metadata.count(client::kAuthorizationKey) != 1 || value.substr(0, kBearer.size()) != kBearer) {
      return Unauthenticated(fmt::format("expected one header `authorization: Bearer rct_…`; {}", kHowToGetToken));
    }
    return tokens_->Find(value.substr(kBearer.size()), clock_->Read().wall, caller);
  }
  const std::optional<std::string> name =
      context.IsPeerAuthenticated() ? Property(context, kCommonNameProperty) : std::nullopt;
  const std::string_view prefix = client::kAgentNamePrefix;
  const std::optional<NodeId> node =
      name && name->starts_with(prefix) ? ParseNode(std::string_view(*name).substr(prefix.size())) : std::nullopt;
  if (!node) {
    return Unauthenticated(fmt::format("this call needs a token; {}", kHowToGetToken));
  }
  caller = {.kind = kAgent, .node = *node};
  return grpc::Status::OK;
}

grpc::Status Gatekeeper::Process(const InputMetadata& metadata, grpc::AuthContext* context,
                                 OutputMetadata* /*consumed*/, OutputMetadata* /*response*/) {
  Caller caller;
  if (grpc::Status known = Identify(metadata, *context, caller); !known.ok()) {
    return known;
  }
  const auto path = metadata.find(":path");
  const Rule* const rule = path == metadata.end() ? nullptr : FindRule(View(path->second));
  if (rule == nullptr) {
    return {grpc::StatusCode::PERMISSION_DENIED,
            fmt::format("this head knows no call {}; is the client of another version? `rayctl version` shows both",
                        path == metadata.end() ? "without a path" : std::string(View(path->second)))};
  }
  if (!rule->allowed.Contains(caller.kind)) {
    return {
        grpc::StatusCode::PERMISSION_DENIED,
        fmt::format("{} may not call {}, only {}; an admin makes a token for it by `rayctl token create --role ROLE`",
                    KindName(caller.kind), MethodOf(rule->path), Names(rule->allowed))};
  }
  return grpc::Status::OK;
}

Caller InsecureCaller(const grpc::AuthMetadataProcessor::InputMetadata& metadata) {
  Caller caller{.kind = kAdmin, .user = "local"};
  const auto node = metadata.find(client::kInsecureNodeKey);
  if (node != metadata.end()) {
    caller.node = ParseNode(View(node->second)).value_or(NodeId{});
  }
  return caller;
}

}  // namespace rayctl::rpc
