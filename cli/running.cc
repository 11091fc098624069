#include "cli/running.h"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <climits>
#include <filesystem>

#include "cli/places.h"
#include "client/endpoint.h"

namespace rayctl::cli {
namespace {

namespace fs = std::filesystem;

// Spaces that have to be the same for a process to be one of this machine as we see it.
constexpr std::array<const char*, 2> kSpaces{"ns/mnt", "ns/pid"};

std::string LinkOf(const std::string& path) {
  std::array<char, PATH_MAX> target{};
  const ssize_t length = ::readlink(path.c_str(), target.data(), target.size());
  return length > 0 ? std::string(target.data(), static_cast<std::size_t>(length)) : std::string();
}

bool SharesOurView(const std::string& process) {
  for (const char* const space : kSpaces) {
    const std::string theirs = LinkOf(process + space);
    if (theirs.empty() || theirs != LinkOf(std::string("/proc/self/") + space)) {
      return false;
    }
  }
  return true;
}

std::vector<std::string> WordsOf(const std::string& process) {
  const absl::StatusOr<std::string> text = ReadFile(process + "cmdline");
  std::vector<std::string> words;
  for (std::size_t at = 0; text.ok() && at < text->size();) {
    const std::size_t end = std::min(text->find('\0', at), text->size());
    words.push_back(text->substr(at, end - at));
    at = end + 1;
  }
  return words;
}

}  // namespace

RunningProgram ReadProgram(const std::vector<std::string>& words) {
  RunningProgram program;
  if (words.empty()) {
    return program;
  }
  const std::string name = fs::path(words.front()).filename().string();
  std::string verb;
  if (name == "rayctl-shim") {
    verb = "shim";
  } else if (name == "rayctl" && words.size() > 1 && (words[1] == "head" || words[1] == "agent")) {
    verb = words[1];
  }
  for (std::size_t i = 1; i + 1 < words.size(); ++i) {
    if (words[i] == "--state-dir") {
      program.state_dir = words[i + 1];
    } else if (words[i] == "--run-dir") {
      program.run_dir = words[i + 1];
    } else if (words[i] == "--node-name") {
      program.node_name = words[i + 1];
    }
  }
  // Asked for help, or ended before it had read its words.
  program.verb = program.state_dir.empty() || program.run_dir.empty() ? "" : verb;
  return program;
}

std::vector<RunningProgram> FindPrograms() {
  std::vector<RunningProgram> programs;
  std::error_code error;
  for (fs::directory_iterator it("/proc", error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    pid_t pid = 0;
    if (std::from_chars(name.data(), name.data() + name.size(), pid).ptr != name.data() + name.size() || pid <= 0) {
      continue;
    }
    const std::string process = "/proc/" + name + "/";
    struct stat info {};
    if (::stat(process.c_str(), &info) != 0 || info.st_uid != ::geteuid()) {
      continue;
    }
    RunningProgram program = ReadProgram(WordsOf(process));
    const std::optional<std::uint64_t> ticks = client::ProcessStartTicks(pid);
    if (program.verb.empty() || !ticks || !SharesOurView(process)) {
      continue;
    }
    program.pid = pid;
    program.start_ticks = *ticks;
    programs.push_back(std::move(program));
  }
  return programs;
}

}  // namespace rayctl::cli
