#include "worker/device/files.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

namespace rayctl::device {
namespace {

std::optional<std::uint64_t> ParseNumber(std::string_view text) {
  constexpr int kDecimal = 10;
  constexpr int kHexadecimal = 16;
  const bool hexadecimal = text.substr(0, 2) == "0x";
  if (hexadecimal) {
    text.remove_prefix(2);
  }
  std::uint64_t value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value, hexadecimal ? kHexadecimal : kDecimal);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

}  // namespace

std::optional<std::string> ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file.is_open() || file.bad()) {
    return std::nullopt;
  }
  while (!text.empty() && text.back() == '\n') {
    text.pop_back();
  }
  return text;
}

std::optional<std::uint64_t> ReadNumber(const std::string& path) {
  const std::optional<std::string> text = ReadText(path);
  return text ? ParseNumber(*text) : std::nullopt;
}

std::vector<std::string> NamesIn(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::uint64_t> NumbersAfter(const std::string& folder, std::string_view prefix) {
  std::vector<std::uint64_t> numbers;
  for (const std::string& name : NamesIn(folder)) {
    const std::string_view text(name);
    if (text.size() > prefix.size() && text.starts_with(prefix) && text[prefix.size()] != '0') {
      if (const auto number = ParseNumber(text.substr(prefix.size()))) {
        numbers.push_back(*number);
      }
    } else if (text.size() == prefix.size() + 1 && text.starts_with(prefix) && text.back() == '0') {
      numbers.push_back(0);
    }
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

std::string LinkName(const std::string& path) {
  std::error_code error;
  const std::filesystem::path target = std::filesystem::read_symlink(path, error);
  return error ? "" : target.filename().string();
}

std::optional<std::uint64_t> NumberOf(std::string_view lines, std::string_view key) {
  while (!lines.empty()) {
    const std::size_t end = std::min(lines.find('\n'), lines.size());
    const std::string_view line = lines.substr(0, end);
    if (line.size() > key.size() && line.starts_with(key) && line[key.size()] == ' ') {
      return ParseNumber(line.substr(key.size() + 1));
    }
    lines.remove_prefix(std::min(end + 1, lines.size()));
  }
  return std::nullopt;
}

std::string ProcessName(const std::string& root, pid_t pid) {
  return ReadText(root + "/proc/" + std::to_string(pid) + "/comm").value_or("");
}

std::optional<std::int32_t> NumaNodeOf(const std::string& root, const std::string& pci_address) {
  // -1, which is no number here: the machine does not say.
  const std::optional<std::uint64_t> node = ReadNumber(root + "/sys/bus/pci/devices/" + pci_address + "/numa_node");
  return node ? std::optional(static_cast<std::int32_t>(*node)) : std::nullopt;
}

}  // namespace rayctl::device
