#pragma once

#include <cstddef>
#include <string_view>

namespace rayctl {

constexpr std::size_t kNameBytesMax = 253;
constexpr std::string_view kNameRule = "at most 253 bytes, without / and control characters";

// Whether a job, a node or a token may be called so: what names files, table cells and web addresses. Empty is a name,
// too: the head chooses one.
bool IsName(std::string_view name);

constexpr std::string_view kJobNameRule =
    "at most 253 bytes, without / and control characters, and not digits alone, which would be taken for a job's id";
bool IsJobName(std::string_view name);

}  // namespace rayctl
