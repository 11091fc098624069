#include <fmt/format.h>

#include "cli/call.h"
#include "cli/output.h"
#include "cli/verbs.h"
#include "client/channel.h"
#include "client/json_shapes.h"

namespace rayctl::cli {
namespace {}  // namespace

int RunVersion(const Arguments& arguments) {
  CommandLine line("version", "Print the version of this program, or with --address of a head.",
                   "rayctl version\n  rayctl version --address 10.0.0.1:6379 -o json");
  HeadOptions options;
  Format format = Format::kText;
  AddHeadOptions(line, options);
  AddFormatOption(line, format);
  if (const std::optional<int> code = line.Read(arguments)) {
    return *code;
  }
  std::string version = RAYCTL_VERSION;
  std::uint32_t api = client::kApiVersion;
  if (!options.address.empty()) {
    absl::StatusOr<HeadClient> head = HeadClient::Open(options);
    if (!head.ok()) {
      return Failed(head.status());
    }
    const absl::StatusOr<v1::GetVersionResponse> response = head->GetVersion();
    if (!response.ok()) {
      return Failed(response.status());
    }
    version = response->version();
    api = response->api();
  }
  if (format != Format::kText) {
    AnswerObject({{"version", version}, {"api", api}}, format);
  } else {
    Answer(fmt::format("rayctl {}\n", version));
  }
  return kExitDone;
}

}  // namespace rayctl::cli
