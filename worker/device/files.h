#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// Small files of /sys and /proc. What cannot be read is not there.
namespace rayctl::device {

// Without the end of its last line.
std::optional<std::string> ReadText(const std::string& path);
std::optional<std::uint64_t> ReadNumber(const std::string& path);  // Decimal, or hexadecimal after 0x.
// Names in a folder that are `prefix` and a number, in the order of the numbers.
std::vector<std::uint64_t> NumbersAfter(const std::string& folder, std::string_view prefix);
std::vector<std::string> NamesIn(const std::string& folder);  // In order.
// The last part of what a link points to; empty: no link.
std::string LinkName(const std::string& path);
// Of "key number" lines.
std::optional<std::uint64_t> NumberOf(std::string_view lines, std::string_view key);
std::string ProcessName(const std::string& root, pid_t pid);
// Of a PCI device by its address; nullopt: not known, or the machine has only one.
std::optional<std::int32_t> NumaNodeOf(const std::string& root, const std::string& pci_address);

}  // namespace rayctl::device
