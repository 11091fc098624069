#include "worker/process/proc.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstdlib>

#include "base/unique_fd.h"

namespace rayctl::process {

namespace {

constexpr int kStatStartTicks = 22;  // proc(5) counts from 1.
constexpr int kStatParent = 4;

std::optional<std::string> ReadAll(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) {
    return std::nullopt;
  }
  std::string text;
  std::array<char, 4096> bytes;
  while (true) {
    const ssize_t n = ::read(fd.get(), bytes.data(), bytes.size());
    if (n < 0) {
      return std::nullopt;  // The process went away in between.
    }
    if (n == 0) {
      return text;
    }
    text.append(bytes.data(), static_cast<std::size_t>(n));
  }
}

// The command's name is in brackets and may hold anything, so counting begins after the last bracket.
std::optional<std::uint64_t> StatField(pid_t pid, int field) {
  const std::optional<std::string> text = ReadAll("/proc/" + std::to_string(pid) + "/stat");
  if (!text) {
    return std::nullopt;
  }
  std::size_t at = text->rfind(')');
  if (at == std::string::npos) {
    return std::nullopt;
  }
  at += 2;
  for (int i = 3; i < field; ++i) {
    at = text->find(' ', at);
    if (at == std::string::npos) {
      return std::nullopt;
    }
    ++at;
  }
  std::uint64_t value = 0;
  if (std::from_chars(text->data() + at, text->data() + text->size(), value).ec != std::errc()) {
    return std::nullopt;
  }
  return value;
}

std::vector<pid_t> Numbers(std::string_view text) {
  std::vector<pid_t> result;
  std::size_t at = 0;
  while (at < text.size()) {
    pid_t pid = 0;
    const auto parsed = std::from_chars(text.data() + at, text.data() + text.size(), pid);
    if (parsed.ec == std::errc()) {
      result.push_back(pid);
    }
    at = static_cast<std::size_t>(parsed.ptr - text.data()) + 1;
  }
  return result;
}

std::vector<pid_t> NumbersIn(const std::string& folder) {
  std::vector<pid_t> result;
  DIR* dir = ::opendir(folder.c_str());
  if (dir == nullptr) {
    return result;
  }
  while (const dirent* entry = ::readdir(dir)) {
    if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9') {
      result.push_back(static_cast<pid_t>(std::strtol(entry->d_name, nullptr, 10)));
    }
  }
  ::closedir(dir);
  return result;
}

}  // namespace

std::uint64_t StartTicks(pid_t pid) { return StatField(pid, kStatStartTicks).value_or(0); }

std::optional<pid_t> ParentOf(pid_t pid) {
  const std::optional<std::uint64_t> parent = StatField(pid, kStatParent);
  return parent ? std::optional<pid_t>(static_cast<pid_t>(*parent)) : std::nullopt;
}

std::vector<pid_t> ChildrenOf(pid_t pid) {
  std::vector<pid_t> result;
  const std::string tasks = "/proc/" + std::to_string(pid) + "/task";
  bool listed = false;
  for (const pid_t task : NumbersIn(tasks)) {
    if (const auto text = ReadAll(tasks + "/" + std::to_string(task) + "/children")) {
      listed = true;
      const std::vector<pid_t> some = Numbers(*text);
      result.insert(result.end(), some.begin(), some.end());
    }
  }
  if (listed) {
    return result;
  }
  for (const pid_t other : NumbersIn("/proc")) {  // A kernel without CONFIG_PROC_CHILDREN.
    if (ParentOf(other) == pid) {
      result.push_back(other);
    }
  }
  return result;
}

std::vector<pid_t> AllProcesses() { return NumbersIn("/proc"); }

bool IsSelfOrDescendant(pid_t pid, pid_t ancestor) {
  while (pid > 1) {
    if (pid == ancestor) {
      return true;
    }
    const std::optional<pid_t> parent = ParentOf(pid);
    if (!parent) {
      return false;
    }
    pid = *parent;
  }
  return false;
}

std::optional<std::string> EnvironmentOf(pid_t pid, std::string_view name) {
  const std::optional<std::string> text = ReadAll("/proc/" + std::to_string(pid) + "/environ");
  if (!text) {
    return std::nullopt;
  }
  const std::string prefix = std::string(name) + "=";
  std::size_t at = 0;
  while (at < text->size()) {
    const std::size_t end = std::min(text->find('\0', at), text->size());
    if (text->compare(at, prefix.size(), prefix) == 0) {
      return text->substr(at + prefix.size(), end - at - prefix.size());
    }
    at = end + 1;
  }
  return std::nullopt;
}

std::string BootId() {
  std::string id = ReadAll("/proc/sys/kernel/random/boot_id").value_or("");
  while (!id.empty() && id.back() == '\n') {
    id.pop_back();
  }
  return id;
}

}  // namespace rayctl::process
