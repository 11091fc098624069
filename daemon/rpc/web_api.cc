#include "daemon/rpc/web_api.h"

#include <charconv>
#include <cstdint>

#include "absl/strings/numbers.h"
#include "base/json_text.h"
#include "client/json_shapes.h"
#include "daemon/rpc/views.h"
#include "fmt/format.h"

namespace rayctl::rpc {
namespace {

namespace v1 = ::rayctl::v1;

constexpr std::string_view kJobsFolder = "jobs/";

std::string Line(const nlohmann::ordered_json& json) { return JsonText(json, NonFinite::kStrings); }

// A name in a URL: %2B is a '+'. What is no escape stays as it is.
std::string Unescape(std::string_view text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    unsigned byte = 0;
    const char* const digits = text.data() + i + 1;
    if (text[i] == '%' && i + 2 < text.size() && std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2) {
      plain += static_cast<char>(byte);
      i += 2;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

absl::StatusOr<std::string> Job(const head::Head& head, const std::string& name) {
  const absl::StatusOr<v1::GetJobResponse> description = DescribeJob(head, client::ParseJobRef(name));
  return description.ok() ? absl::StatusOr<std::string>(Line(client::DescriptionJson(*description)))
                          : description.status();
}

}  // namespace

absl::StatusOr<std::string> WebApiJson(const head::Head& head, std::string_view path, v1::GetStatusResponse status) {
  if (path == "status") {
    FillStatus(head, status);
    return Line(client::StatusJson(status));
  }
  if (path == "nodes") {
    v1::ListNodesRequest request;
    v1::ListNodesResponse all;
    do {  // All pages, as the command line shows them.
      v1::ListNodesResponse page;
      if (const absl::Status listed = ListNodes(head, request, page); !listed.ok()) {
        return listed;
      }
      all.mutable_nodes()->MergeFrom(page.nodes());
      request.set_page_token(page.next_page_token());
    } while (!request.page_token().empty());
    return Line(client::ListJson("nodes", all.nodes(), client::NodeJson));
  }
  if (path == "jobs") {
    v1::ListJobsRequest request;
    request.set_page_size(kWebJobsMax);
    v1::ListJobsResponse response;
    if (const absl::Status listed = ListJobs(head, request, response); !listed.ok()) {
      return listed;
    }
    return Line(client::ListJson("jobs", response.jobs(), client::JobJson));
  }
  if (path.starts_with(kJobsFolder) && path.size() > kJobsFolder.size()) {
    return Job(head, Unescape(path.substr(kJobsFolder.size())));
  }
  return absl::NotFoundError(fmt::format("there is nothing at /api/v1/{}; see status, jobs, jobs/JOB, nodes", path));
}

}  // namespace rayctl::rpc
