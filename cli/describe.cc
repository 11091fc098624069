#include <fmt/format.h>

#include <algorithm>

#include "cli/call.h"
#include "cli/output.h"
#include "cli/render.h"
#include "cli/verbs.h"
#include "client/json_shapes.h"

namespace rayctl::cli {
namespace {

int DescribeJob(const v1::GetJobResponse& response, Format format) {
  if (format == Format::kText) {
    Answer(JobText(response.job(), response.workers()));
    return kExitDone;
  }
  AnswerObject(client::DescriptionJson(response), format);
  return kExitDone;
}

}  // namespace

int RunDescribe(const Arguments& arguments) {
  CommandLine line("describe", "Show all that is known of a job (id or name) or a node (name).",
                   "rayctl describe 7\n  rayctl describe --node gpu-1 -o json");
  HeadOptions options;
  Format format = Format::kText;
  std::string what;
  bool node_only = false;
  AddHeadOptions(line, options);
  line.add_option("what", what, "Id or name of a job, or a node")->type_name("JOB|NODE")->required();
  line.add_flag("--node", node_only, "It is a node (id or name), also where a job has that name or id");
  AddFormatOption(line, format);
  if (const std::optional<int> code = line.Read(arguments)) {
    return *code;
  }
  absl::StatusOr<HeadClient> head = HeadClient::Open(options);
  if (!head.ok()) {
    return Failed(head.status());
  }
  absl::Status no_job = absl::NotFoundError("");
  if (!node_only) {
    const absl::StatusOr<v1::GetJobResponse> job = head->GetJob(client::ParseJobRef(what));
    if (job.ok()) {
      return DescribeJob(*job, format);
    }
    no_job = job.status();
    if (!absl::IsNotFound(no_job)) {
      return Failed(no_job);
    }
  }
  const absl::StatusOr<v1::ListNodesResponse> nodes = head->ListNodes();
  if (!nodes.ok()) {
    return Failed(nodes.status());
  }
  const v1::JobRef ref = client::ParseJobRef(what);
  const auto meant = [&](const v1::Node& node) {
    return node.name() == what || (node_only && ref.id() != 0 && node.id() == ref.id());
  };
  // A node that left may have given its name to another.
  auto found = std::find_if(nodes->nodes().begin(), nodes->nodes().end(),
                            [&](const v1::Node& node) { return meant(node) && node.state() != v1::NODE_STATE_DEAD; });
  if (found == nodes->nodes().end()) {
    found = std::find_if(nodes->nodes().begin(), nodes->nodes().end(), meant);
  }
  if (found == nodes->nodes().end()) {
    Remark(node_only ? fmt::format("no node is called '{}'; `rayctl list nodes` names them", what)
                     : fmt::format("no job and no node is called '{}'; see `rayctl list jobs` and `rayctl list nodes`",
                                   what));
    return kExitRefused;
  }
  format == Format::kText ? Answer(NodeText(*found)) : AnswerObject(client::NodeJson(*found), format);
  return kExitDone;
}

}  // namespace rayctl::cli
