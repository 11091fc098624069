#include "working_dir/ignore_rules.h"

#include <fnmatch.h>

#include <optional>
#include <span>
#include <utility>

namespace rayctl::working_dir {
namespace {

constexpr std::string_view kAnyFolders = "**";

std::vector<std::string> Split(std::string_view text) {
  std::vector<std::string> parts;
  while (true) {
    const std::size_t slash = text.find('/');
    parts.emplace_back(text.substr(0, slash));
    if (slash == std::string_view::npos) {
      return parts;
    }
    text.remove_prefix(slash + 1);
  }
}

// Without the spaces at the end, unless a backslash keeps the last of them.
std::string_view TrimEnd(std::string_view line) {
  while (line.ends_with(' ')) {
    std::size_t slashes = 0;
    while (slashes + 1 < line.size() && line[line.size() - 2 - slashes] == '\\') {
      ++slashes;
    }
    if (slashes % 2 == 1) {
      break;
    }
    line.remove_suffix(1);
  }
  return line;
}

bool Matches(std::span<const std::string> pattern, std::span<const std::string> path) {
  if (pattern.empty()) {
    return path.empty();
  }
  if (pattern.front() == kAnyFolders) {
    if (pattern.size() == 1) {
      return !path.empty();  // `a/**` is all that is in `a`, not `a` itself.
    }
    // Several in a row say no more than one.
    if (pattern[1] == kAnyFolders) {
      return Matches(pattern.subspan(1), path);
    }
    for (std::size_t skipped = 0; skipped < path.size(); ++skipped) {
      if (Matches(pattern.subspan(1), path.subspan(skipped))) {
        return true;
      }
    }
    return false;
  }
  return !path.empty() && ::fnmatch(pattern.front().c_str(), path.front().c_str(), 0) == 0 &&
         Matches(pattern.subspan(1), path.subspan(1));
}

}  // namespace

IgnoreRules IgnoreRules::Parse(std::string_view text) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (text.starts_with(kByteOrderMark)) {
    text.remove_prefix(kByteOrderMark.size());
  }
  IgnoreRules rules;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.ends_with('\r')) {
      line.remove_suffix(1);
    }
    line = TrimEnd(line);
    if (line.starts_with('#')) {
      continue;
    }
    Rule rule;
    if (line.starts_with('!')) {
      rule.negated = true;
      line.remove_prefix(1);
    }
    if (line.ends_with('/')) {
      rule.folders_only = true;
      line.remove_suffix(1);
    }
    if (line.empty()) {
      continue;
    }
    const bool anchored = line.find('/') != std::string_view::npos;
    if (line.starts_with('/')) {
      line.remove_prefix(1);
    }
    if (!anchored) {
      rule.segments.emplace_back(kAnyFolders);
    }
    for (std::string& segment : Split(line)) {
      rule.segments.push_back(std::move(segment));
    }
    rules.rules_.push_back(std::move(rule));
  }
  return rules;
}

IgnoreRules::Verdict IgnoreRules::Judge(std::string_view path, bool is_folder) const {
  const std::vector<std::string> parts = Split(path);
  for (auto rule = rules_.rbegin(); rule != rules_.rend(); ++rule) {
    if ((is_folder || !rule->folders_only) && Matches(rule->segments, parts)) {
      return rule->negated ? Verdict::kKept : Verdict::kIgnored;
    }
  }
  return Verdict::kNone;
}

}  // namespace rayctl::working_dir
