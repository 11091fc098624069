#pragma once

#include <cstdint>
#include <string_view>

namespace rayctl {

// Numbers are those of rayctl/v1/common.proto and of the journal; a test holds them together.
enum class JobKind : std::uint8_t { kCommand = 1, kTrain = 2, kTune = 3 };

enum class JobState : std::uint8_t {
  kQueued = 1,
  kStarting = 2,
  kRunning = 3,
  kRecovering = 4,
  kPreempted = 5,
  kStopping = 6,
  kSucceeded = 7,
  kFailed = 8,
  kCancelled = 9,
};

enum class Reason : std::uint8_t {
  kNone = 0,
  kExited = 1,
  kSignaled = 2,
  kOutOfMemory = 3,
  kTimeout = 4,
  kNodeLost = 5,
  kStartFailed = 6,
  kInfeasible = 7,
  kDriverLost = 8,
  kClusterStopped = 9,
  kUser = 10,
};

enum class NodeState : std::uint8_t { kAlive = 1, kSuspect = 2, kDraining = 3, kDead = 4 };
enum class WorkerState : std::uint8_t { kStarting = 1, kRunning = 2, kExited = 3, kLost = 4 };
enum class PlacementStrategy : std::uint8_t { kPack = 1, kSpread = 2, kStrictPack = 3, kStrictSpread = 4 };
enum class OutputStream : std::uint8_t { kStdout = 1, kStderr = 2 };
enum class Role : std::uint8_t { kAdmin = 1, kUser = 2, kViewer = 3, kJoin = 4 };

constexpr bool IsFinal(JobState state) {
  return state == JobState::kSucceeded || state == JobState::kFailed || state == JobState::kCancelled;
}

// Whether a job may go from one state to the other. The same state twice is no edge.
bool IsEdge(JobState from, JobState to);

// "QUEUED", "NODE_LOST" ("" for kNone), "train", "alive", "RUNNING", "PACK", "admin".
std::string_view Name(JobKind kind);
std::string_view Name(JobState state);
std::string_view Name(Reason reason);
std::string_view Name(NodeState state);
std::string_view Name(WorkerState state);
std::string_view Name(PlacementStrategy strategy);
std::string_view Name(Role role);

}  // namespace rayctl
