#include "daemon/rpc/views.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/states.h"
#include "daemon/rpc/translate.h"
#include "fmt/format.h"

namespace rayctl::rpc {
namespace {

constexpr std::uint32_t kPageMax = 1000;
constexpr std::size_t kPageBytesMax = 4 << 20;
constexpr int kWaitingMax = 100;

std::uint32_t PageSize(std::uint32_t asked) { return asked == 0 ? kPageMax : std::min(asked, kPageMax); }

// Page tokens are numbers: of the last thing that the page before showed.
absl::StatusOr<std::optional<std::uint64_t>> ParsePageToken(const std::string& token) {
  if (token.empty()) {
    return std::nullopt;
  }
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), value);
  if (error != std::errc() || end != token.data() + token.size()) {
    return absl::InvalidArgumentError("page_token: not one that an earlier page gave");
  }
  return value;
}

std::vector<std::string> NodeNames(const head::Head& head, const head::JobRecord& job) {
  std::vector<NodeId> nodes;
  for (const head::RankRecord& rank : job.attempt.ranks) {
    if (std::find(nodes.begin(), nodes.end(), rank.node) == nodes.end()) {
      nodes.push_back(rank.node);
    }
  }
  std::vector<std::string> names;
  names.reserve(nodes.size());
  for (const NodeId node : nodes) {
    names.push_back(head.NodeName(node));
  }
  return names;
}

void AddResources(const head::Head::NodeStatus& node, google::protobuf::Map<std::string, v1::NodeResource>& out) {
  for (const auto& [name, total] : node.record.resources.amounts()) {
    v1::NodeResource& resource = out[name];
    resource.set_total(resource.total() + total.ToDouble());
    resource.set_used(resource.used() + node.used.Get(name).ToDouble());
  }
}

bool Wanted(const v1::ListJobsRequest& request, const head::JobRecord& job) {
  return request.states().empty() || std::find(request.states().begin(), request.states().end(),
                                               static_cast<int>(job.state)) != request.states().end();
}

}  // namespace

v1::Job JobView(const head::Head& head, const head::JobRecord& job, Detail detail) {
  v1::Job view;
  view.set_id(job.id.value);
  *view.mutable_spec() = ToProto(job.spec);
  if (detail == Detail::kList) {
    view.mutable_spec()->clear_env_vars();
    view.mutable_spec()->clear_train_loop_config_json();
  }
  v1::JobStatus& status = *view.mutable_status();
  status.set_state(ToProto(job.state));
  status.set_reason(ToProto(job.reason));
  // A job whose node is dead goes on as RUNNING until it is known where to.
  status.set_message(job.message.empty() ? head.WaitingReason(job.id) : job.message);
  if (job.exit_code) {
    status.set_exit_code(*job.exit_code);
  }
  status.set_user(job.user);
  status.set_attempt(job.attempt.number);
  status.set_failures(job.failures);
  for (std::string& name : NodeNames(head, job)) {
    status.add_nodes(std::move(name));
  }
  if (job.submitted_at != WallTime{}) {
    *status.mutable_submitted_at() = ToProto(job.submitted_at);
  }
  if (job.started_at != WallTime{}) {
    *status.mutable_started_at() = ToProto(job.started_at);
  }
  if (job.ended_at != WallTime{}) {
    *status.mutable_ended_at() = ToProto(job.ended_at);
  }
  status.set_last_output(job.last_output);
  if (job.failed_rank) {
    status.set_failed_rank(*job.failed_rank);
  }
  return view;
}

std::vector<v1::Worker> WorkerViews(const head::Head& head, const head::JobRecord& job) {
  std::vector<v1::Worker> views;
  for (std::size_t rank = 0; rank < job.attempt.ranks.size(); ++rank) {
    const head::RankRecord& record = job.attempt.ranks[rank];
    v1::Worker& view = views.emplace_back();
    view.set_job_id(job.id.value);
    view.set_attempt(job.attempt.number);
    view.set_rank(static_cast<std::uint32_t>(rank));
    view.set_local_rank(record.local_rank);
    view.set_node(head.NodeName(record.node));
    view.set_pid(record.pid);
    view.set_state(ToProto(record.state));
    if (record.state == WorkerState::kExited && !record.end.lost) {
      if (record.end.signal != 0) {
        view.set_signal(record.end.signal);
      } else {
        view.set_exit_code(record.end.exit_code);
      }
    }
  }
  return views;
}

v1::Node NodeView(const head::Head::NodeStatus& node) {
  v1::Node view;
  view.set_id(node.record.id.value);
  view.set_name(node.record.name);
  view.set_address(node.record.address);
  view.set_state(ToProto(node.state));
  view.set_reason(node.record.reason);
  view.mutable_labels()->insert(node.record.labels.begin(), node.record.labels.end());
  AddResources(node, *view.mutable_resources());
  if (node.last_seen != WallTime{}) {
    *view.mutable_last_seen_at() = ToProto(node.last_seen);
  }
  view.set_version(node.record.version);
  view.set_is_head_node(node.record.is_head_node);
  for (std::uint32_t i = 0; i < node.devices.size(); ++i) {
    const link::Device& device = node.devices[i];
    v1::NodeDevice& added = *view.add_devices();
    added.set_index(i);
    added.set_vendor(device.vendor);
    added.set_id(device.id);
    added.set_name(device.name);
    added.set_memory_bytes(device.memory_bytes);
    added.set_problem(device.problem);
    added.set_used(i < node.gpu_used.size() ? node.gpu_used[i].ToDouble() : 0);
    for (const JobId job : node.device_jobs[i]) {
      added.add_jobs(job.value);
    }
  }
  view.mutable_remarks()->Assign(node.remarks.begin(), node.remarks.end());
  return view;
}

v1::Token TokenView(const head::TokenRecord& token) {
  v1::Token view;
  view.set_name(token.name);
  view.set_role(ToProto(token.role));
  *view.mutable_created_at() = ToProto(token.created_at);
  if (token.expires_at != WallTime{}) {
    *view.mutable_expires_at() = ToProto(token.expires_at);
  }
  return view;
}

void FillStatus(const head::Head& head, v1::GetStatusResponse& response) {
  for (const NodeState state : {NodeState::kAlive, NodeState::kSuspect, NodeState::kDraining, NodeState::kDead}) {
    (*response.mutable_nodes())[std::string(Name(state))] = 0;
  }
  for (const head::Head::NodeStatus& node : head.Nodes()) {
    ++(*response.mutable_nodes())[std::string(Name(node.state))];
    if (node.state != NodeState::kDead) {
      AddResources(node, *response.mutable_resources());
    }
    response.set_workers_ready(response.workers_ready() + (node.state == NodeState::kAlive ? 1 : 0));
    const bool counts = node.state != NodeState::kDead || !node.record.said_goodbye;
    response.set_workers_total(response.workers_total() + (counts ? 1 : 0));
    *response.add_node_list() = NodeView(node);
  }
  for (const auto& [id, job] : head.jobs()) {
    ++(*response.mutable_jobs())[std::string(Name(job.state))];
    if (IsFinal(job.state) || response.waiting_size() >= kWaitingMax) {
      continue;
    }
    std::string reason = head.WaitingReason(id);
    if (!reason.empty()) {
      v1::WaitingJob& waiting = *response.add_waiting();
      waiting.set_id(id.value);
      waiting.set_name(job.spec.name);
      waiting.set_reason(std::move(reason));
    }
  }
}

absl::StatusOr<const head::JobRecord*> FindJob(const head::Head& head, const v1::JobRef& ref) {
  switch (ref.by_case()) {
    case v1::JobRef::kId:
      if (const head::JobRecord* const job = head.FindJob(JobId{ref.id()})) {
        return job;
      }
      return absl::NotFoundError(fmt::format("there is no job {}; `rayctl list jobs` shows those there are", ref.id()));
    case v1::JobRef::kName:
      if (const head::JobRecord* const job = head.FindJobByName(ref.name())) {
        return job;
      }
      return absl::NotFoundError(
          fmt::format("there is no job named \"{}\"; `rayctl list jobs` shows those there are", ref.name()));
    case v1::JobRef::BY_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("job: neither an id nor a name");
}

absl::StatusOr<v1::GetJobResponse> DescribeJob(const head::Head& head, const v1::JobRef& ref) {
  const absl::StatusOr<const head::JobRecord*> job = FindJob(head, ref);
  if (!job.ok()) {
    return job.status();
  }
  v1::GetJobResponse description;
  *description.mutable_job() = JobView(head, **job, Detail::kFull);
  for (v1::Worker& worker : WorkerViews(head, **job)) {
    *description.add_workers() = std::move(worker);
  }
  return description;
}

absl::Status ListJobs(const head::Head& head, const v1::ListJobsRequest& request, v1::ListJobsResponse& response) {
  const absl::StatusOr<std::optional<std::uint64_t>> after = ParsePageToken(request.page_token());
  if (!after.ok()) {
    return after.status();
  }
  const std::uint32_t size = PageSize(request.page_size());
  const auto& jobs = head.jobs();
  std::size_t bytes = 0;
  for (auto it = std::make_reverse_iterator(*after ? jobs.lower_bound(JobId{**after}) : jobs.end()); it != jobs.rend();
       ++it) {
    if (!Wanted(request, it->second)) {
      continue;
    }
    if (static_cast<std::uint32_t>(response.jobs_size()) == size || bytes > kPageBytesMax) {
      response.set_next_page_token(fmt::format("{}", response.jobs(response.jobs_size() - 1).id()));
      break;
    }
    *response.add_jobs() = JobView(head, it->second, Detail::kList);
    bytes += response.jobs(response.jobs_size() - 1).ByteSizeLong();
  }
  return absl::OkStatus();
}

absl::Status ListWorkers(const head::Head& head, const v1::ListWorkersRequest& request,
                         v1::ListWorkersResponse& response) {
  // A page token is "<job>.<rank>": the next one to show.
  const std::size_t dot = request.page_token().find('.');
  const absl::StatusOr<std::optional<std::uint64_t>> from_job = ParsePageToken(request.page_token().substr(0, dot));
  const absl::StatusOr<std::optional<std::uint64_t>> from_rank =
      ParsePageToken(dot == std::string::npos ? "" : request.page_token().substr(dot + 1));
  if (!from_job.ok() || !from_rank.ok()) {
    return from_job.ok() ? from_rank.status() : from_job.status();
  }
  const std::uint32_t size = PageSize(request.page_size());
  const auto add = [&](const head::JobRecord& job) {
    const std::uint64_t first = *from_job && **from_job == job.id.value ? from_rank->value_or(0) : 0;
    for (v1::Worker& worker : WorkerViews(head, job)) {
      if (worker.rank() < first) {
        continue;
      }
      if (static_cast<std::uint32_t>(response.workers_size()) == size) {
        response.set_next_page_token(fmt::format("{}.{}", job.id.value, worker.rank()));
        return false;
      }
      *response.add_workers() = std::move(worker);
    }
    return true;
  };
  if (request.has_job()) {
    const absl::StatusOr<const head::JobRecord*> job = FindJob(head, request.job());
    if (!job.ok()) {
      return job.status();
    }
    add(**job);
    return absl::OkStatus();
  }
  const auto& jobs = head.jobs();
  for (auto it = std::make_reverse_iterator(*from_job ? jobs.upper_bound(JobId{**from_job}) : jobs.end());
       it != jobs.rend(); ++it) {
    if (!IsFinal(it->second.state) && !add(it->second)) {
      break;
    }
  }
  return absl::OkStatus();
}

absl::Status ListNodes(const head::Head& head, const v1::ListNodesRequest& request, v1::ListNodesResponse& response) {
  const absl::StatusOr<std::optional<std::uint64_t>> after = ParsePageToken(request.page_token());
  if (!after.ok()) {
    return after.status();
  }
  for (const head::Head::NodeStatus& node : head.Nodes()) {
    if (*after && node.record.id.value <= **after) {
      continue;
    }
    if (static_cast<std::uint32_t>(response.nodes_size()) == PageSize(request.page_size())) {
      response.set_next_page_token(fmt::format("{}", response.nodes(response.nodes_size() - 1).id()));
      break;
    }
    *response.add_nodes() = NodeView(node);
  }
  return absl::OkStatus();
}

absl::Status ListTokens(const head::Head& head, const v1::ListTokensRequest& request,
                        v1::ListTokensResponse& response) {
  const absl::StatusOr<std::optional<std::uint64_t>> after = ParsePageToken(request.page_token());
  if (!after.ok()) {
    return after.status();
  }
  std::uint64_t last = 0;
  for (const auto& [id, token] : head.tokens()) {
    if (token.revoked || (*after && id.value <= **after)) {
      continue;
    }
    if (static_cast<std::uint32_t>(response.tokens_size()) == PageSize(request.page_size())) {
      response.set_next_page_token(fmt::format("{}", last));
      break;
    }
    *response.add_tokens() = TokenView(token);
    last = id.value;
  }
  return absl::OkStatus();
}

}  // namespace rayctl::rpc
