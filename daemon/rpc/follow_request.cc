#include "daemon/rpc/follow_request.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/line_pattern.h"
#include "daemon/rpc/translate.h"
#include "fmt/format.h"

namespace rayctl::rpc {
namespace {

constexpr std::size_t kNodesNamedMax = 8;  // In a sentence; a cluster may have thousands.

absl::Status CheckRanks(const head::JobRecord& job, const std::vector<Rank>& ranks) {
  const std::size_t count =
      std::max<std::size_t>(job.attempt.ranks.size(), std::max(job.spec.num_workers, job.spec.num_workers_max));
  for (const Rank rank : ranks) {
    if (rank >= count) {
      return absl::NotFoundError(
          count == 1 ? fmt::format("job {} has no rank {}; it has one, rank 0", job.id.value, rank)
                     : fmt::format("job {} has no rank {}; it has ranks 0 to {}", job.id.value, rank, count - 1));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<NodeId> FindNode(const std::vector<head::Head::NodeStatus>& nodes, std::string_view name) {
  std::string known;
  std::size_t named = 0;
  for (const head::Head::NodeStatus& node : nodes) {
    if (node.record.name == name) {
      return node.record.id;
    }
    if (++named <= kNodesNamedMax) {
      known += (known.empty() ? "" : ", ") + node.record.name;
    }
  }
  return absl::NotFoundError(fmt::format("there is no node named \"{}\"; there {}", name,
                                         nodes.empty() ? "is none yet"
                                         : named > kNodesNamedMax
                                             ? fmt::format("are {} and {} more", known, named - kNodesNamedMax)
                                             : "is " + known));
}

// Whether anything of the current attempt was asked for, where only that counts.
absl::Status CheckPlaces(const head::Head& head, const head::JobRecord& job, const FollowOptions& options) {
  if (options.nodes.empty() || options.follow || job.attempt.ranks.empty() ||
      options.attempt.value_or(job.attempt.number) != job.attempt.number) {
    return absl::OkStatus();
  }
  std::string where;
  std::set<NodeId> seen;
  for (Rank rank = 0; rank < job.attempt.ranks.size(); ++rank) {
    if (!options.WantsRank(rank)) {
      continue;
    }
    const NodeId node = job.attempt.ranks[rank].node;
    if (options.nodes.contains(node)) {
      return absl::OkStatus();
    }
    if (seen.insert(node).second && seen.size() <= kNodesNamedMax) {
      where += (where.empty() ? "" : ", ") + head.NodeName(node);
    }
  }
  return absl::NotFoundError(fmt::format("no {} of attempt {} of job {} was on that node; {} on {}",
                                         options.ranks.empty() ? "rank" : "such rank", job.attempt.number, job.id.value,
                                         options.ranks.empty() ? "they were" : "it was", where));
}

}  // namespace

absl::StatusOr<FollowOptions> ReadFollowRequest(const head::Head& head, const head::JobRecord& job,
                                                const v1::FollowJobRequest& request) {
  FollowOptions options{.job = job.id,
                        .ranks = {request.ranks().begin(), request.ranks().end()},
                        .follow = request.follow(),
                        .no_output = request.no_output(),
                        .grep = request.grep()};
  if (absl::Status ranks = CheckRanks(job, options.ranks); !ranks.ok()) {
    return ranks;
  }
  if (request.has_attempt()) {
    options.attempt = request.attempt();
    const AttemptNumber newest = job.attempt.number;
    if (*options.attempt > newest) {
      return absl::NotFoundError(
          fmt::format("job {} has had no attempt {}; {}", job.id.value, *options.attempt,
                      newest == 0 ? "only attempt 0 so far" : fmt::format("so far there were 0 to {}", newest)));
    }
  }
  if (!options.grep.empty()) {
    if (const absl::StatusOr<LinePattern> pattern = LinePattern::Parse(options.grep); !pattern.ok()) {
      return absl::InvalidArgumentError("grep: " + std::string(pattern.status().message()));
    }
  }
  if (request.has_since()) {
    const absl::StatusOr<WallTime> since = FromProto(request.since());
    if (!since.ok()) {
      return absl::InvalidArgumentError("since: " + std::string(since.status().message()));
    }
    options.since = *since;
  }
  for (const int stream : request.streams()) {
    const absl::StatusOr<OutputStream> known = FromProto(static_cast<v1::OutputStream>(stream));
    if (!known.ok()) {
      return absl::InvalidArgumentError("streams: " + std::string(known.status().message()));
    }
    options.streams.push_back(*known);
  }
  const std::vector<head::Head::NodeStatus> nodes =
      request.nodes().empty() ? std::vector<head::Head::NodeStatus>() : head.Nodes();
  for (const std::string& name : request.nodes()) {
    const absl::StatusOr<NodeId> node = FindNode(nodes, name);
    if (!node.ok()) {
      return node.status();
    }
    options.nodes.insert(*node);
  }
  for (const v1::OutputPosition& position : request.resume()) {
    const absl::StatusOr<OutputStream> stream = FromProto(position.stream());
    if (!stream.ok()) {
      return absl::InvalidArgumentError("resume: " + std::string(stream.status().message()));
    }
    options.resume[{position.attempt(), position.rank(), *stream}] = position.offset();
  }
  if (absl::Status places = CheckPlaces(head, job, options); !places.ok()) {
    return places;
  }
  return options;
}

std::string RanksText(const std::vector<Rank>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) {
      ++end;
    }
    text += text.empty() ? "" : ", ";
    text += end - i == 1 ? fmt::format("{}", ranks[i]) : fmt::format("{}-{}", ranks[i], ranks[end - 1]);
    i = end;
  }
  return text;
}

}  // namespace rayctl::rpc
