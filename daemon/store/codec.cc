// Records as journal.proto bytes. The numbers of enums are those of base/states.h, which a test holds to the proto.
#include <fmt/format.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include "daemon/store/store.h"
#include "journal.pb.h"

namespace rayctl::store {
namespace {

namespace pb = ::rayctl::journal::v1;

constexpr std::uint32_t kFormat = 1;

std::int64_t Nanos(WallTime time) { return time.time_since_epoch().count(); }
WallTime FromNanos(std::int64_t nanos) { return WallTime{Duration{nanos}}; }
std::int64_t Millis(Duration duration) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
}
// A span, if it is one that a Duration can hold; what was written always is.
bool TakeMillis(std::int64_t millis, Duration* out) {
  constexpr std::int64_t kMillisMax = std::chrono::duration_cast<std::chrono::milliseconds>(Duration::max()).count();
  if (millis < -kMillisMax || millis > kMillisMax) {
    return false;
  }
  *out = std::chrono::milliseconds(millis);
  return true;
}

// An enum's number, if it lies in [low, high]; everything on disk that does not is damage.
template <class Enum>
bool TakeEnum(std::uint32_t number, Enum low, Enum high, Enum* out) {
  if (number < static_cast<std::uint32_t>(low) || number > static_cast<std::uint32_t>(high)) {
    return false;
  }
  *out = static_cast<Enum>(number);
  return true;
}

template <class Map>
void PutAmounts(const Resources& resources, Map* out) {
  for (const auto& [name, amount] : resources.amounts()) {
    (*out)[name] = amount.raw;
  }
}
template <class Map>
Resources TakeAmounts(const Map& map) {
  Resources resources;
  for (const auto& [name, raw] : map) {
    resources.Set(name, Amount{raw});
  }
  return resources;
}
template <class Map>
std::map<std::string, std::string> TakeStrings(const Map& map) {
  return {map.begin(), map.end()};
}

std::string Serialize(const google::protobuf::MessageLite& message) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);  // Maps in key order: equal records give equal bytes.
    message.SerializeToCodedStream(&coded);
  }
  return bytes;
}

// ---- Encoding.

void PutSpec(const JobSpec& spec, pb::JobSpecRecord* out) {
  out->set_name(spec.name);
  out->set_entrypoint(spec.entrypoint);
  for (const std::string& word : spec.argv) {
    out->add_argv(word);
  }
  for (const auto& [key, value] : spec.env_vars) {
    (*out->mutable_env_vars())[key] = value;
  }
  out->set_train_loop_config_json(spec.train_loop_config_json);
  out->set_num_workers(spec.num_workers);
  out->set_num_workers_max(spec.num_workers_max);
  PutAmounts(spec.resources_per_worker, out->mutable_resources_per_worker());
  out->set_placement_strategy(static_cast<std::uint32_t>(spec.placement_strategy));
  for (const auto& [key, value] : spec.label_selector) {
    (*out->mutable_label_selector())[key] = value;
  }
  out->set_accelerator_type(spec.accelerator_type);
  out->set_storage_path(spec.storage_path);
  out->set_max_failures(spec.max_failures);
  out->set_queue(spec.queue);
  out->set_priority(spec.priority);
  if (spec.seed) {
    out->set_seed(*spec.seed);
  }
  out->set_timeout_millis(Millis(spec.timeout));
  out->set_agent_grace_millis(Millis(spec.agent_grace));
  out->set_grace_period_millis(Millis(spec.grace_period));
  out->set_head_grace_millis(Millis(spec.head_grace));
  out->set_kind(static_cast<std::uint32_t>(spec.kind));
  out->set_num_to_keep(spec.num_to_keep);
  out->set_checkpoint_score_attribute(spec.checkpoint_score_attribute);
  out->set_checkpoint_score_order(spec.checkpoint_score_order);
  out->set_working_dir(spec.working_dir);
}

void PutEnd(const link::RankEnd& end, pb::RankEndRecord* out) {
  out->set_exit_code(end.exit_code);
  out->set_signal(end.signal);
  out->set_stop_requested(end.stop_requested);
  out->set_start_failed(end.start_failed);
  out->set_start_error(end.start_error);
  out->set_port_in_use(end.port_in_use);
  out->set_out_of_memory(end.out_of_memory);
  out->set_peer_lost(end.peer_lost);
  out->set_last_output(end.last_output);
  out->set_at_unix_nanos(Nanos(end.at));
  out->set_lost(end.lost);
  out->set_memory_peak_bytes(end.memory_peak_bytes);
  out->set_memory_bytes_max(end.memory_bytes_max);
  out->set_pids_max_reached(end.pids_max_reached);
}

void PutAttempt(const head::AttemptRecord& attempt, pb::AttemptRecord* out) {
  out->set_number(attempt.number);
  for (const head::RankRecord& rank : attempt.ranks) {
    pb::RankRecord* added = out->add_ranks();
    added->set_node_id(rank.node.value);
    added->set_local_rank(rank.local_rank);
    for (const scheduler::DeviceShare& device : rank.devices) {
      pb::DeviceShareRecord* share = added->add_devices();
      share->set_index(device.index);
      share->set_share(device.share.raw);
    }
    added->set_state(static_cast<std::uint32_t>(rank.state));
    added->set_pid(rank.pid);
    if (!rank.HoldsLease()) {
      PutEnd(rank.end, added->mutable_end());
    }
    added->set_end_order(rank.end_order);
  }
  out->set_master_port(attempt.master_port);
  out->set_master_addr(attempt.master_addr);
  out->set_ended(attempt.ended);
}

struct Encoder {
  std::string operator()(const head::ClusterRecord& cluster) const {
    pb::ClusterRecord out;
    out.set_format(kFormat);
    out.set_cluster_id(cluster.cluster_id);
    out.set_next_job_id(cluster.next_job);
    out.set_next_node_id(cluster.next_node);
    out.set_next_token_id(cluster.next_token);
    out.set_next_incarnation(cluster.next_incarnation);
    out.set_next_port_offset(cluster.next_port_offset);
    return Serialize(out);
  }
  std::string operator()(const head::JobRecord& job) const {
    pb::JobRecord out;
    out.set_id(job.id.value);
    PutSpec(job.spec, out.mutable_spec());
    out.set_user(job.user);
    out.set_request_id(job.request_id);
    out.set_state(static_cast<std::uint32_t>(job.state));
    out.set_reason(static_cast<std::uint32_t>(job.reason));
    out.set_message(job.message);
    if (job.exit_code) {
      out.set_exit_code(*job.exit_code);
    }
    out.set_failures(job.failures);
    PutAttempt(job.attempt, out.mutable_attempt());
    out.set_submitted_at_unix_nanos(Nanos(job.submitted_at));
    out.set_started_at_unix_nanos(Nanos(job.started_at));
    out.set_ended_at_unix_nanos(Nanos(job.ended_at));
    out.set_last_output(job.last_output);
    if (job.failed_rank) {
      out.set_failed_rank(*job.failed_rank);
    }
    out.set_stop_reason(static_cast<std::uint32_t>(job.stop_reason));
    out.set_stop_state(static_cast<std::uint32_t>(job.stop_state));
    return Serialize(out);
  }
  std::string operator()(const head::NodeRecord& node) const {
    pb::NodeRecord out;
    out.set_id(node.id.value);
    out.set_name(node.name);
    out.set_address(node.address);
    out.set_boot_id(node.boot_id);
    PutAmounts(node.resources, out.mutable_resources());
    for (const auto& [key, value] : node.labels) {
      (*out.mutable_labels())[key] = value;
    }
    out.set_state(static_cast<std::uint32_t>(node.state));
    out.set_reason(node.reason);
    out.set_draining(node.draining);
    out.set_said_goodbye(node.said_goodbye);
    out.set_version(node.version);
    out.set_is_head_node(node.is_head_node);
    out.set_interface_name(node.interface_name);
    out.set_port_min(node.port_min);
    out.set_port_max(node.port_max);
    out.set_gpu_count(node.gpu_count);
    return Serialize(out);
  }
  std::string operator()(const head::TokenRecord& token) const {
    pb::TokenRecord out;
    out.set_id(token.id.value);
    out.set_name(token.name);
    out.set_role(static_cast<std::uint32_t>(token.role));
    out.set_sha256(token.sha256);
    out.set_created_at_unix_nanos(Nanos(token.created_at));
    out.set_expires_at_unix_nanos(Nanos(token.expires_at));
    out.set_revoked(token.revoked);
    return Serialize(out);
  }
};

// ---- Decoding. False: damage.

bool TakeSpec(const pb::JobSpecRecord& in, JobSpec* out) {
  out->name = in.name();
  out->entrypoint = in.entrypoint();
  out->argv = {in.argv().begin(), in.argv().end()};
  out->env_vars = TakeStrings(in.env_vars());
  out->train_loop_config_json = in.train_loop_config_json();
  out->num_workers = in.num_workers();
  out->num_workers_max = in.num_workers_max();
  out->resources_per_worker = TakeAmounts(in.resources_per_worker());
  out->label_selector = TakeStrings(in.label_selector());
  out->accelerator_type = in.accelerator_type();
  out->storage_path = in.storage_path();
  out->max_failures = in.max_failures();
  out->queue = in.queue();
  out->priority = in.priority();
  if (in.has_seed()) {
    out->seed = in.seed();
  }
  out->num_to_keep = in.num_to_keep();
  out->checkpoint_score_attribute = in.checkpoint_score_attribute();
  out->checkpoint_score_order = in.checkpoint_score_order();
  out->working_dir = in.working_dir();
  return TakeMillis(in.timeout_millis(), &out->timeout) && TakeMillis(in.agent_grace_millis(), &out->agent_grace) &&
         TakeMillis(in.grace_period_millis(), &out->grace_period) &&
         TakeMillis(in.head_grace_millis(), &out->head_grace) &&
         TakeEnum(in.placement_strategy(), PlacementStrategy::kPack, PlacementStrategy::kStrictSpread,
                  &out->placement_strategy) &&
         TakeEnum(in.kind(), JobKind::kCommand, JobKind::kTune, &out->kind);
}

link::RankEnd TakeEnd(const pb::RankEndRecord& in) {
  link::RankEnd end;
  end.exit_code = in.exit_code();
  end.signal = in.signal();
  end.stop_requested = in.stop_requested();
  end.start_failed = in.start_failed();
  end.start_error = in.start_error();
  end.port_in_use = in.port_in_use();
  end.out_of_memory = in.out_of_memory();
  end.peer_lost = in.peer_lost();
  end.last_output = in.last_output();
  end.at = FromNanos(in.at_unix_nanos());
  end.lost = in.lost();
  end.memory_peak_bytes = in.memory_peak_bytes();
  end.memory_bytes_max = in.memory_bytes_max();
  end.pids_max_reached = in.pids_max_reached();
  return end;
}

bool TakeAttempt(const pb::AttemptRecord& in, head::AttemptRecord* out) {
  out->number = in.number();
  for (const pb::RankRecord& rank : in.ranks()) {
    head::RankRecord& added = out->ranks.emplace_back();
    added.node = NodeId{rank.node_id()};
    added.local_rank = rank.local_rank();
    for (const pb::DeviceShareRecord& device : rank.devices()) {
      added.devices.push_back({device.index(), Amount{device.share()}});
    }
    if (!TakeEnum(rank.state(), WorkerState::kStarting, WorkerState::kLost, &added.state)) {
      return false;
    }
    added.pid = rank.pid();
    added.end = TakeEnd(rank.end());
    added.end_order = rank.end_order();
  }
  out->master_port = in.master_port();
  out->master_addr = in.master_addr();
  out->ended = in.ended();
  return true;
}

std::optional<head::Record> DecodeCluster(std::string_view bytes) {
  pb::ClusterRecord in;
  if (!in.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return std::nullopt;
  }
  head::ClusterRecord cluster;
  cluster.cluster_id = in.cluster_id();
  cluster.next_job = in.next_job_id();
  cluster.next_node = in.next_node_id();
  cluster.next_token = in.next_token_id();
  cluster.next_incarnation = in.next_incarnation();
  cluster.next_port_offset = in.next_port_offset();
  return cluster;
}

std::optional<head::Record> DecodeJob(std::string_view bytes) {
  pb::JobRecord in;
  head::JobRecord job;
  if (!in.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())) || !TakeSpec(in.spec(), &job.spec) ||
      !TakeAttempt(in.attempt(), &job.attempt) ||
      !TakeEnum(in.state(), JobState::kQueued, JobState::kCancelled, &job.state) ||
      !TakeEnum(in.reason(), Reason::kNone, Reason::kUser, &job.reason) ||
      !TakeEnum(in.stop_state(), JobState::kQueued, JobState::kCancelled, &job.stop_state) ||
      !TakeEnum(in.stop_reason(), Reason::kNone, Reason::kUser, &job.stop_reason)) {
    return std::nullopt;
  }
  job.id = JobId{in.id()};
  job.user = in.user();
  job.request_id = in.request_id();
  job.message = in.message();
  if (in.has_exit_code()) {
    job.exit_code = in.exit_code();
  }
  job.failures = in.failures();
  job.submitted_at = FromNanos(in.submitted_at_unix_nanos());
  job.started_at = FromNanos(in.started_at_unix_nanos());
  job.ended_at = FromNanos(in.ended_at_unix_nanos());
  job.last_output = in.last_output();
  if (in.has_failed_rank()) {
    job.failed_rank = in.failed_rank();
  }
  return job;
}

std::optional<head::Record> DecodeNode(std::string_view bytes) {
  pb::NodeRecord in;
  head::NodeRecord node;
  if (!in.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())) ||
      !TakeEnum(in.state(), NodeState::kAlive, NodeState::kDead, &node.state)) {
    return std::nullopt;
  }
  node.id = NodeId{in.id()};
  node.name = in.name();
  node.address = in.address();
  node.interface_name = in.interface_name();
  node.boot_id = in.boot_id();
  node.resources = TakeAmounts(in.resources());
  node.labels = TakeStrings(in.labels());
  node.gpu_count = in.gpu_count();
  node.reason = in.reason();
  node.draining = in.draining();
  node.said_goodbye = in.said_goodbye();
  node.version = in.version();
  node.is_head_node = in.is_head_node();
  node.port_min = in.port_min();
  node.port_max = in.port_max();
  return node;
}

std::optional<head::Record> DecodeToken(std::string_view bytes) {
  pb::TokenRecord in;
  head::TokenRecord token;
  if (!in.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())) ||
      !TakeEnum(in.role(), Role::kAdmin, Role::kJoin, &token.role)) {
    return std::nullopt;
  }
  token.id = TokenId{in.id()};
  token.name = in.name();
  token.sha256 = in.sha256();
  token.created_at = FromNanos(in.created_at_unix_nanos());
  token.expires_at = FromNanos(in.expires_at_unix_nanos());
  token.revoked = in.revoked();
  return token;
}

}  // namespace

std::string Encode(const head::Record& record) { return std::visit(Encoder{}, record); }

absl::StatusOr<head::Record> Decode(head::RecordKind kind, std::string_view bytes) {
  std::optional<head::Record> record;
  switch (kind) {
    case head::RecordKind::kCluster:
      record = DecodeCluster(bytes);
      break;
    case head::RecordKind::kJob:
      record = DecodeJob(bytes);
      break;
    case head::RecordKind::kNode:
      record = DecodeNode(bytes);
      break;
    case head::RecordKind::kToken:
      record = DecodeToken(bytes);
      break;
  }
  if (!record) {
    return absl::DataLossError(fmt::format("{} bytes are no record of kind {}", bytes.size(), static_cast<int>(kind)));
  }
  return *std::move(record);
}

}  // namespace rayctl::store
