#include "base/states.h"

#include "base/invariant.h"

namespace rayctl {

bool IsEdge(JobState from, JobState to) {
  switch (from) {
    case JobState::kQueued:
      return to == JobState::kStarting || to == JobState::kCancelled || to == JobState::kFailed;
    case JobState::kStarting:
      // QUEUED: the master port was taken or the node went before any rank ran, which counts as no failure.
      return to == JobState::kRunning || to == JobState::kRecovering || to == JobState::kStopping ||
             to == JobState::kPreempted || to == JobState::kQueued || IsFinal(to);
    case JobState::kRunning:
      return to == JobState::kRecovering || to == JobState::kStopping || to == JobState::kPreempted || IsFinal(to);
    case JobState::kRecovering:
      return to == JobState::kRunning || to == JobState::kStopping || to == JobState::kPreempted || IsFinal(to);
    case JobState::kPreempted:
      return to == JobState::kStarting || to == JobState::kRecovering || to == JobState::kCancelled ||
             to == JobState::kFailed;
    case JobState::kStopping:
      return IsFinal(to) || to == JobState::kPreempted;
    case JobState::kSucceeded:
    case JobState::kFailed:
    case JobState::kCancelled:
      return false;
  }
  return false;
}

std::string_view Name(JobKind kind) {
  switch (kind) {
    case JobKind::kCommand:
      return "command";
    case JobKind::kTrain:
      return "train";
    case JobKind::kTune:
      return "tune";
  }
  Invariant(false, "no such job kind");
  return {};
}

std::string_view Name(JobState state) {
  switch (state) {
    case JobState::kQueued:
      return "QUEUED";
    case JobState::kStarting:
      return "STARTING";
    case JobState::kRunning:
      return "RUNNING";
    case JobState::kRecovering:
      return "RECOVERING";
    case JobState::kPreempted:
      return "PREEMPTED";
    case JobState::kStopping:
      return "STOPPING";
    case JobState::kSucceeded:
      return "SUCCEEDED";
    case JobState::kFailed:
      return "FAILED";
    case JobState::kCancelled:
      return "CANCELLED";
  }
  Invariant(false, "no such job state");
  return {};
}

std::string_view Name(Reason reason) {
  switch (reason) {
    case Reason::kNone:
      return "";
    case Reason::kExited:
      return "EXITED";
    case Reason::kSignaled:
      return "SIGNALED";
    case Reason::kOutOfMemory:
      return "OUT_OF_MEMORY";
    case Reason::kTimeout:
      return "TIMEOUT";
    case Reason::kNodeLost:
      return "NODE_LOST";
    case Reason::kStartFailed:
      return "START_FAILED";
    case Reason::kInfeasible:
      return "INFEASIBLE";
    case Reason::kDriverLost:
      return "DRIVER_LOST";
    case Reason::kClusterStopped:
      return "CLUSTER_STOPPED";
    case Reason::kUser:
      return "USER";
  }
  Invariant(false, "no such reason");
  return {};
}

std::string_view Name(NodeState state) {
  switch (state) {
    case NodeState::kAlive:
      return "alive";
    case NodeState::kSuspect:
      return "suspect";
    case NodeState::kDraining:
      return "draining";
    case NodeState::kDead:
      return "dead";
  }
  Invariant(false, "no such node state");
  return {};
}

std::string_view Name(WorkerState state) {
  switch (state) {
    case WorkerState::kStarting:
      return "STARTING";
    case WorkerState::kRunning:
      return "RUNNING";
    case WorkerState::kExited:
      return "EXITED";
    case WorkerState::kLost:
      return "LOST";
  }
  Invariant(false, "no such worker state");
  return {};
}

std::string_view Name(PlacementStrategy strategy) {
  switch (strategy) {
    case PlacementStrategy::kPack:
      return "PACK";
    case PlacementStrategy::kSpread:
      return "SPREAD";
    case PlacementStrategy::kStrictPack:
      return "STRICT_PACK";
    case PlacementStrategy::kStrictSpread:
      return "STRICT_SPREAD";
  }
  Invariant(false, "no such strategy");
  return {};
}

std::string_view Name(Role role) {
  switch (role) {
    case Role::kAdmin:
      return "admin";
    case Role::kUser:
      return "user";
    case Role::kViewer:
      return "viewer";
    case Role::kJoin:
      return "join";
  }
  Invariant(false, "no such role");
  return {};
}

}  // namespace rayctl
