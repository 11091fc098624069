#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "rayctl/v1/common.pb.h"

namespace rayctl::cli {

// What a YAML file given to `submit` is, by its fields.
enum class YamlKind {
  kJobFile,      // Or neither; then the job file's own rules say what is missing.
  kClusterFile,  // Ray's cluster form: it has `provider` and no `entrypoint`.
};
YamlKind KindOfYaml(std::string_view text);

// A timeout of 0 would end the job before it began.
inline constexpr std::string_view kNoTimeout = "expected more than 0; without a timeout a job has no time limit";

// The spec that a job file asks for; its working_dir is the folder as written, relative to the file's.
// INVALID_ARGUMENT: `FILE:LINE:COL: PATH: what was expected; did you mean NAME?` for the first mistake; `file` is how
// the person named it.
absl::StatusOr<v1::JobSpec> ParseJobFile(std::string_view text, std::string_view file);

}  // namespace rayctl::cli
