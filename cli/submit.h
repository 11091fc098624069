#pragma once

#include <string>

namespace rayctl::cli {

// The four lines that refuse everything else.
std::string SubmitUsage();

}  // namespace rayctl::cli
