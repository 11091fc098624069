#include <fmt/format.h>

#include <chrono>
#include <map>

#include "base/status_text.h"
#include "base/units.h"
#include "cli/call.h"
#include "cli/output.h"
#include "cli/render.h"
#include "cli/verbs.h"
#include "client/json_shapes.h"

namespace rayctl::cli {
namespace {

const std::map<std::string, v1::Role>& Roles() {
  static const std::map<std::string, v1::Role> kRoles{
      {"admin", v1::ROLE_ADMIN}, {"user", v1::ROLE_USER}, {"viewer", v1::ROLE_VIEWER}, {"join", v1::ROLE_JOIN}};
  return kRoles;
}

int Create(const Arguments& arguments) {
  CommandLine line("token create",
                   "Make a token and print it, the only time that it is told. Who holds it may do what its role may.",
                   "rayctl token create --role user --name ann --expires 30d");
  HeadOptions options;
  Format format = Format::kText;
  std::string role;
  std::string expires;
  v1::CreateTokenRequest request;
  std::string name;
  AddHeadOptions(line, options);
  line.add_option("--role", role, "admin, user, viewer or join")->type_name("ROLE")->required();
  line.add_option("--name", name, "Name of the token; its jobs show it as their user")->type_name("NAME");
  line.add_option("--expires", expires, "How long it is good, such as 12h or 30d (default for ever)")
      ->type_name("TIME");
  AddFormatOption(line, format);
  if (const std::optional<int> code = line.Read(arguments)) {
    return *code;
  }
  const auto known = Roles().find(role);
  if (known == Roles().end()) {
    return UsageError(fmt::format("token create: --role: expected admin, user, viewer or join, not '{}'{}", role,
                                  DidYouMean(role, {"admin", "user", "viewer", "join"})));
  }
  request.set_role(known->second);
  request.set_name(name);
  if (!expires.empty()) {
    const absl::StatusOr<Duration> duration = ParseDuration(expires);
    if (!duration.ok()) {
      return UsageError(fmt::format("token create: --expires: {}", rayctl::Text(duration.status())));
    }
    const auto at = std::chrono::system_clock::now().time_since_epoch() + *duration;
    const auto seconds = std::chrono::floor<std::chrono::seconds>(at);
    request.mutable_expires_at()->set_seconds(seconds.count());
    request.mutable_expires_at()->set_nanos(
        static_cast<std::int32_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(at - seconds).count()));
  }
  absl::StatusOr<HeadClient> head = HeadClient::Open(options);
  if (!head.ok()) {
    return Failed(head.status());
  }
  const absl::StatusOr<v1::CreateTokenResponse> response = head->CreateToken(request);
  if (!response.ok()) {
    return Failed(response.status());
  }
  if (format != Format::kText) {
    nlohmann::ordered_json json = client::TokenJson(response->token());
    json["token"] = response->secret();
    AnswerObject(json, format);
  } else {
    Answer(response->secret() + "\n");
  }
  return kExitDone;
}

int List(const Arguments& arguments) {
  CommandLine line("token list", "List the tokens that are good now, without their secrets.",
                   "rayctl token list -o json");
  HeadOptions options;
  Format format = Format::kText;
  AddHeadOptions(line, options);
  AddFormatOption(line, format);
  if (const std::optional<int> code = line.Read(arguments)) {
    return *code;
  }
  absl::StatusOr<HeadClient> head = HeadClient::Open(options);
  if (!head.ok()) {
    return Failed(head.status());
  }
  const absl::StatusOr<v1::ListTokensResponse> response = head->ListTokens();
  if (!response.ok()) {
    return Failed(response.status());
  }
  if (format != Format::kText) {
    AnswerObject(client::ListJson("tokens", response->tokens(), client::TokenJson), format);
  } else {
    Answer(TokenTable(response->tokens()));
  }
  return kExitDone;
}

int Revoke(const Arguments& arguments) {
  CommandLine line("token revoke", "Make a token worthless at once.", "rayctl token revoke ann");
  HeadOptions options;
  std::string name;
  AddHeadOptions(line, options);
  line.add_option("name", name, "Name of the token")->type_name("NAME")->required();
  if (const std::optional<int> code = line.Read(arguments)) {
    return *code;
  }
  absl::StatusOr<HeadClient> head = HeadClient::Open(options);
  if (!head.ok()) {
    return Failed(head.status());
  }
  if (const absl::Status status = head->RevokeToken(name); !status.ok()) {
    return Failed(status);
  }
  Answer(fmt::format("revoked {}\n", Printable(name)));
  return kExitDone;
}

}  // namespace

const std::vector<std::string>& TokenVerbs() {
  static const std::vector<std::string> kVerbs{"create", "list", "revoke"};
  return kVerbs;
}

int RunToken(const Arguments& arguments) {
  const std::string name = arguments.empty() ? "" : arguments.front();
  const Arguments rest(arguments.begin() + (arguments.empty() ? 0 : 1), arguments.end());
  if (name == "create") {
    return Create(rest);
  }
  if (name == "list") {
    return List(rest);
  }
  if (name == "revoke") {
    return Revoke(rest);
  }
  if (name == "--help" || name == "-h") {
    Answer(
        "Create, list and revoke tokens\n\nUsage: rayctl token create|list|revoke [OPTIONS]\n\n"
        "`rayctl token create --help` tells more of each.\n\nExample:\n"
        "  rayctl token create --role user --name ann --expires 30d\n");
    return kExitDone;
  }
  return UsageError(
      fmt::format("token: expected create, list or revoke, not '{}'{}", name, DidYouMean(name, TokenVerbs())));
}

}  // namespace rayctl::cli
