#pragma once

#include <nlohmann/json.hpp>

#include "rayctl/v1/cluster.pb.h"
#include "rayctl/v1/job.pb.h"
#include "rayctl/v1/token.pb.h"

// The JSON that `-o json` and the REST API give: snake_case, unset = null, times RFC 3339 UTC. Names here are frozen.
namespace rayctl::client {

// JOB on a command line and in a URL: an id or a name.
v1::JobRef ParseJobRef(const std::string& text);

nlohmann::ordered_json JobJson(const v1::Job& job);
nlohmann::ordered_json SpecJson(const v1::JobSpec& spec);
nlohmann::ordered_json WorkerJson(const v1::Worker& worker);
nlohmann::ordered_json NodeJson(const v1::Node& node);
nlohmann::ordered_json StatusJson(const v1::GetStatusResponse& status);
nlohmann::ordered_json TokenJson(const v1::Token& token);
// `describe JOB`: the job with its spec and its workers.
nlohmann::ordered_json DescriptionJson(const v1::GetJobResponse& description);
// {"jobs":[…]}.
template <class Messages, class Shape>
nlohmann::ordered_json ListJson(const char* name, const Messages& messages, Shape shape) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const auto& message : messages) {
    list.push_back(shape(message));
  }
  nlohmann::ordered_json object;
  object[name] = std::move(list);
  return object;
}

// A whole amount as an integer, else with up to 4 decimals.
nlohmann::ordered_json AmountJson(double amount);
// "RUNNING" of JOB_STATE_RUNNING; empty where unset. Also for values that this version does not know: their number.
std::string StateName(v1::JobState state);
std::string ReasonName(v1::Reason reason);
std::string KindName(v1::JobKind kind);
std::string NodeStateName(v1::NodeState state);
std::string WorkerStateName(v1::WorkerState state);
std::string RoleName(v1::Role role);
// RFC 3339.
std::string TimeText(const google::protobuf::Timestamp& time);
// "2", "0.5".
std::string AmountText(double amount);

}  // namespace rayctl::client
