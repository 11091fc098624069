#include <fmt/format.h>

#include <map>

#include "cli/call.h"
#include "cli/output.h"
#include "cli/render.h"
#include "cli/verbs.h"
#include "client/json_shapes.h"

namespace rayctl::cli {

int RunStatus(const Arguments& arguments) {
  CommandLine line("status", "Show nodes, resources, jobs by state, and what waits and why.",
                   "rayctl status -v\n  rayctl status -o json");
  HeadOptions options;
  Format format = Format::kText;
  bool verbose = false;
  AddHeadOptions(line, options);
  line.add_flag("-v,--verbose", verbose, "Also list the nodes");
  AddFormatOption(line, format);
  if (const std::optional<int> code = line.Read(arguments)) {
    return *code;
  }
  absl::StatusOr<HeadClient> head = HeadClient::Open(options);
  if (!head.ok()) {
    return Failed(head.status());
  }
  const absl::StatusOr<v1::GetStatusResponse> status = head->GetStatus();
  if (!status.ok()) {
    return Failed(status.status());
  }
  for (const std::string& remark : status->remarks()) {
    Remark(remark);
  }
  if (format != Format::kText) {
    AnswerObject(client::StatusJson(*status), format);
  } else {
    Answer(StatusText(*status, verbose));
  }
  return kExitDone;
}

}  // namespace rayctl::cli
