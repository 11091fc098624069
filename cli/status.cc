#include <fmt/format.h>

#include <memory>

#include "cli/call.h"
#include "cli/output.h"
#include "cli/render.h"
#include "cli/verbs.h"
#include "cli/watch.h"
#include "client/json_shapes.h"

namespace rayctl::cli {

int RunStatus(const Arguments& arguments) {
  CommandLine line("status", "Show nodes, resources, jobs by state, and what waits and why.",
                   "rayctl status -v\n  rayctl status --watch 5\n  rayctl status -o json");
  HeadOptions options;
  Format format = Format::kText;
  Watching watching;
  bool verbose = false;
  AddHeadOptions(line, options);
  line.add_flag("-v,--verbose", verbose, "Also list the nodes");
  AddFormatOption(line, format);
  watching.AddOption(line);
  if (const std::optional<int> code = line.Read(Watching::Separate(arguments))) {
    return *code;
  }
  absl::StatusOr<HeadClient> head = HeadClient::Open(options);
  if (!head.ok()) {
    return Failed(head.status());
  }
  return watching.Run(format, [&]() -> absl::StatusOr<Shown> {
    absl::StatusOr<v1::GetStatusResponse> asked = head->GetStatus();
    if (!asked.ok()) {
      return asked.status();
    }
    const auto status = std::make_shared<const v1::GetStatusResponse>(*std::move(asked));
    return Shown{[status, verbose] { return StatusText(*status, verbose); },
                 [status] { return client::StatusJson(*status); },
                 {status->remarks().begin(), status->remarks().end()}};
  });
}

}  // namespace rayctl::cli
