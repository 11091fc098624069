#include "base/names.h"

#include <algorithm>

namespace rayctl {

bool IsName(std::string_view name) {
  constexpr unsigned char kFirstPrintable = 0x20;
  constexpr unsigned char kDelete = 0x7F;
  return name.size() <= kNameBytesMax && std::all_of(name.begin(), name.end(), [](char c) {
           const auto byte = static_cast<unsigned char>(c);
           return byte >= kFirstPrintable && byte != kDelete && c != '/';
         });
}

bool IsJobName(std::string_view name) {
  return IsName(name) && (name.empty() || name.find_first_not_of("0123456789") != std::string_view::npos);
}

}  // namespace rayctl
