#include "cli/doctor.h"

#include <fmt/format.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "cli/call.h"
#include "cli/output.h"
#include "cli/places.h"
#include "cli/verbs.h"
#include "client/channel.h"
#include "client/endpoint.h"
#include "client/token.h"

namespace rayctl::cli {
namespace {

using doctor::Finding;
using doctor::HeadFacts;
using doctor::Verdict;

const char* Name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kWell:
      return "ok";
    case Verdict::kWarning:
      return "warning";
    case Verdict::kWrong:
      return "wrong";
  }
  return "";
}

doctor::Time FromProto(const google::protobuf::Timestamp& time) {
  return doctor::Time() + std::chrono::duration_cast<doctor::Time::duration>(std::chrono::seconds(time.seconds()) +
                                                                             std::chrono::nanoseconds(time.nanos()));
}

// What an authorised caller learns.
void Ask(const HeadOptions& options, HeadFacts& facts) {
  absl::StatusOr<HeadClient> head = HeadClient::Open(options);
  if (!head.ok()) {
    facts.answered = head.status();
    return;
  }
  const absl::StatusOr<v1::GetVersionResponse> version = head->GetVersion();
  const absl::StatusOr<v1::GetStatusResponse> status = version.ok() ? head->GetStatus() : version.status();
  facts.now = std::chrono::system_clock::now();
  facts.answered = status.status();
  if (!status.ok()) {
    return;
  }
  facts.version = version->version();
  facts.api = version->api();
  facts.known_as = status->address();
  for (const v1::Node& node : status->node_list()) {
    facts.nodes.push_back({node.name(), node.address(), node.version()});
    if (node.state() == v1::NODE_STATE_ALIVE && node.has_last_seen_at()) {
      const doctor::Time seen = FromProto(node.last_seen_at());
      facts.newest_heartbeat = std::max(facts.newest_heartbeat.value_or(seen), seen);
    }
  }
}

HeadFacts ProbeHead(const HeadOptions& options, const client::EndpointSettings& settings) {
  HeadFacts facts;
  facts.own_version = RAYCTL_VERSION;
  facts.own_api = client::kApiVersion;
  const client::Surroundings around = client::LookAround(settings);
  const absl::StatusOr<client::Endpoint> endpoint = client::FindHead(settings, around);
  facts.chosen = endpoint.status();
  if (endpoint.ok()) {
    facts.address = endpoint->address;
    facts.insecure = endpoint->insecure;
  } else if (const absl::StatusOr<std::string> named =
                 client::NormaliseAddress(settings.address.empty() ? settings.env_address : settings.address);
             named.ok()) {
    facts.address = *named;  // Without a token it can still be looked for.
  }
  const absl::StatusOr<client::HostPort> parts = client::SplitAddress(facts.address);
  if (!parts.ok()) {
    return facts;
  }
  for (const client::RunningDaemon& daemon : around.daemons) {
    facts.runs_here = facts.runs_here || daemon.is_head;
  }
  facts.host_addresses = doctor::LookUp(parts->host, facts.lookup_error);
  if (!facts.lookup_error.empty()) {
    return facts;
  }
  if (!facts.insecure) {
    const absl::StatusOr<client::Token> token =
        endpoint.ok() ? client::ParseToken(endpoint->token) : absl::StatusOr<client::Token>(endpoint.status());
    // Without a token nothing is believed, but who answers is a head or is not.
    facts.reached = client::FetchCa(facts.address, token.ok() ? token->ca_sha256 : std::string()).status();
    if (!token.ok() && absl::IsUnauthenticated(facts.reached)) {
      facts.reached = absl::OkStatus();
    }
  }
  if (facts.reached.ok() && endpoint.ok()) {
    Ask(options, facts);
  }
  return facts;
}

// The folder of the daemon that runs here, else the one that `start` would take.
std::string StateDir(const std::string& wanted, const client::EndpointSettings& settings) {
  if (!wanted.empty()) {
    return wanted;
  }
  if (const char* const named = std::getenv("RAYCTL_STATE_DIR"); named != nullptr && *named != '\0') {
    return named;
  }
  const std::vector<client::RunningDaemon> daemons = client::LookAround(settings).daemons;
  return daemons.empty() ? DefaultStateDir(settings.home, "") : daemons.front().state_dir;
}

}  // namespace

int RunDoctor(const Arguments& arguments) {
  CommandLine line("doctor",
                   "Check this machine and its way to a head, and say what is wrong and what to do. Changes nothing; "
                   "exits with 0 when nothing is wrong, else with 1.",
                   "rayctl doctor\n  rayctl doctor --address 10.0.0.1:6379 --token-file join-token");
  HeadOptions options;
  std::string state_dir;
  Format format = Format::kText;
  AddHeadOptions(line, options);
  line.add_option("--state-dir", state_dir, "State folder to check (default RAYCTL_STATE_DIR)")->type_name("PATH");
  AddFormatOption(line, format);
  if (const std::optional<int> code = line.Read(arguments)) {
    return *code;
  }
  client::EndpointSettings settings = client::SettingsFromEnvironment();
  settings.address = options.address;
  settings.token = options.token;
  settings.token_file = options.token_file;

  doctor::Facts facts;
  facts.machine = doctor::ProbeMachine();
  facts.folders = doctor::ProbeFolders(StateDir(state_dir, settings), settings.runtime_root);
  facts.head = ProbeHead(options, settings);
  const std::vector<Finding> findings = doctor::Judge(facts);

  bool ok = true;
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  std::string text;
  for (const Finding& finding : findings) {
    ok = ok && finding.verdict != Verdict::kWrong;
    list.push_back({{"check", finding.check}, {"verdict", Name(finding.verdict)}, {"message", finding.message}});
    text += fmt::format("{:<8}{}: {}\n", Name(finding.verdict), finding.check, Printable(finding.message));
  }
  if (format != Format::kText) {
    AnswerObject({{"ok", ok}, {"findings", list}}, format);
  } else {
    Answer(text);
  }
  return ok ? kExitDone : kExitRefused;
}

}  // namespace rayctl::cli
