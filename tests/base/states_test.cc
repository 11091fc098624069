#include "base/states.h"

#include <array>
#include <catch2/catch.hpp>
#include <map>
#include <set>
#include <string>

namespace rayctl {
namespace {

using enum JobState;

constexpr std::array kJobStates{kQueued,   kStarting,  kRunning, kRecovering, kPreempted,
                                kStopping, kSucceeded, kFailed,  kCancelled};

TEST_CASE("the edges between job states are these and no others", "[base][golden]") {
  const std::map<JobState, std::set<JobState>> edges{
      {kQueued, {kStarting, kFailed, kCancelled}},
      {kStarting, {kQueued, kRunning, kRecovering, kPreempted, kStopping, kSucceeded, kFailed, kCancelled}},
      {kRunning, {kRecovering, kPreempted, kStopping, kSucceeded, kFailed, kCancelled}},
      {kRecovering, {kRunning, kPreempted, kStopping, kSucceeded, kFailed, kCancelled}},
      {kPreempted, {kStarting, kRecovering, kFailed, kCancelled}},
      {kStopping, {kPreempted, kSucceeded, kFailed, kCancelled}},
      {kSucceeded, {}},
      {kFailed, {}},
      {kCancelled, {}},
  };
  for (const JobState from : kJobStates) {
    for (const JobState to : kJobStates) {
      CAPTURE(Name(from), Name(to));
      CHECK(IsEdge(from, to) == edges.at(from).contains(to));
    }
  }
}

TEST_CASE("every job that has not ended can end", "[base]") {
  for (const JobState state : kJobStates) {
    CAPTURE(Name(state));
    CHECK((IsFinal(state) || IsEdge(state, kCancelled)));
  }
}

TEST_CASE("final job states are the three ends", "[base]") {
  for (const JobState state : kJobStates) {
    CAPTURE(Name(state));
    CHECK(IsFinal(state) == (state == kSucceeded || state == kFailed || state == kCancelled));
  }
}

TEST_CASE("names and numbers are frozen", "[base][golden]") {
  const std::map<int, std::string> states{{1, "QUEUED"},     {2, "STARTING"},  {3, "RUNNING"},
                                          {4, "RECOVERING"}, {5, "PREEMPTED"}, {6, "STOPPING"},
                                          {7, "SUCCEEDED"},  {8, "FAILED"},    {9, "CANCELLED"}};
  for (const auto& [number, name] : states) {
    CHECK(Name(static_cast<JobState>(number)) == name);
  }
  const std::map<int, std::string> reasons{
      {0, ""},          {1, "EXITED"},       {2, "SIGNALED"},   {3, "OUT_OF_MEMORY"}, {4, "TIMEOUT"},
      {5, "NODE_LOST"}, {6, "START_FAILED"}, {7, "INFEASIBLE"}, {8, "DRIVER_LOST"},   {9, "CLUSTER_STOPPED"},
      {10, "USER"}};
  for (const auto& [number, name] : reasons) {
    CHECK(Name(static_cast<Reason>(number)) == name);
  }
  const std::map<int, std::string> kinds{{1, "command"}, {2, "train"}, {3, "tune"}};
  for (const auto& [number, name] : kinds) {
    CHECK(Name(static_cast<JobKind>(number)) == name);
  }
  const std::map<int, std::string> nodes{{1, "alive"}, {2, "suspect"}, {3, "draining"}, {4, "dead"}};
  for (const auto& [number, name] : nodes) {
    CHECK(Name(static_cast<NodeState>(number)) == name);
  }
  const std::map<int, std::string> workers{{1, "STARTING"}, {2, "RUNNING"}, {3, "EXITED"}, {4, "LOST"}};
  for (const auto& [number, name] : workers) {
    CHECK(Name(static_cast<WorkerState>(number)) == name);
  }
  const std::map<int, std::string> strategies{{1, "PACK"}, {2, "SPREAD"}, {3, "STRICT_PACK"}, {4, "STRICT_SPREAD"}};
  for (const auto& [number, name] : strategies) {
    CHECK(Name(static_cast<PlacementStrategy>(number)) == name);
  }
  const std::map<int, std::string> roles{{1, "admin"}, {2, "user"}, {3, "viewer"}, {4, "join"}};
  for (const auto& [number, name] : roles) {
    CHECK(Name(static_cast<Role>(number)) == name);
  }
}

}  // namespace
}  // namespace rayctl
