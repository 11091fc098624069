#pragma once

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/resources.h"
#include "daemon/link/job_spec.h"
#include "daemon/link/messages.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/timestamp.pb.h"
#include "rayctl/v1/agent.pb.h"
#include "rayctl/v1/common.pb.h"
#include "rayctl/v1/job.pb.h"

// rayctl.v1 messages to values and back. What comes from a wire is checked: INVALID_ARGUMENT names the field. Values
// come from ourselves and always translate. No gRPC here.
namespace rayctl::rpc {

namespace v1 = ::rayctl::v1;

inline constexpr std::size_t kOutputChunkBytes = 64 * 1024;  // Of JobOutput.data.
inline constexpr std::uint32_t kRanksMax = 100'000;          // Of one job.

// Fills in every default: num_workers 1, CPU 1 a rank unless given, GPU 1 with use_gpu unless given, agent_grace 60 s,
// grace_period 10 s, train_loop_config {}, kind train with a scaling_config, else command.
absl::StatusOr<JobSpec> FromProto(const v1::JobSpec& proto);
v1::JobSpec ToProto(const JobSpec& spec);

absl::StatusOr<link::AgentToHead> FromProto(const v1::AgentToHead& proto);
v1::AgentToHead ToProto(const link::AgentToHead& message);

absl::StatusOr<link::HeadToAgent> FromProto(const v1::HeadToAgent& proto);
v1::HeadToAgent ToProto(const link::HeadToAgent& message);

absl::StatusOr<Resources> FromProto(const v1::Resources& proto);
v1::Resources ToProto(const Resources& resources);

absl::StatusOr<link::RankFacts> FromProto(const v1::RankFacts& proto);
v1::RankFacts ToProto(const link::RankFacts& facts);

absl::StatusOr<Duration> FromProto(const google::protobuf::Duration& proto);
google::protobuf::Duration ToProto(Duration duration);
absl::StatusOr<WallTime> FromProto(const google::protobuf::Timestamp& proto);
google::protobuf::Timestamp ToProto(WallTime time);

// Enums have equal numbers on both sides (translate.cc asserts it). For values that we made.
v1::JobState ToProto(JobState state);
v1::Reason ToProto(Reason reason);
v1::NodeState ToProto(NodeState state);
v1::WorkerState ToProto(WorkerState state);
v1::Role ToProto(Role role);
v1::OutputStream ToProto(OutputStream stream);
absl::StatusOr<OutputStream> FromProto(v1::OutputStream stream);
v1::OpenOutput ToProto(const link::OpenOutput& open);
absl::StatusOr<link::OpenOutput> FromProto(const v1::OpenOutput& proto);
absl::StatusOr<Role> FromProto(v1::Role role);

}  // namespace rayctl::rpc
