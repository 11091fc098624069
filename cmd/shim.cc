#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <string>
#include <string_view>

#include "worker/shim/shim_loop.h"

namespace {

constexpr int kRefused = 1;
constexpr int kUsage = 2;
constexpr const char* kUsageText =
    "usage: rayctl-shim --job N --state-dir S --run-dir R [--agent-grace-ms G] [--agent-fd F]\n"
    "Started by `rayctl agent`; keeps the ranks of one job while the agent comes and goes.\n";

bool ParseNumber(std::string_view text, std::uint64_t& value) {
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  return parsed.ec == std::errc() && parsed.ptr == text.data() + text.size();
}

bool Parse(int argc, char** argv, rayctl::shim::ShimLoopOptions& options) {
  if (argc % 2 == 0) {
    return false;
  }
  for (int i = 1; i < argc; i += 2) {
    const std::string_view name = argv[i];
    const std::string_view value = argv[i + 1];
    std::uint64_t number = 0;
    if (name == "--state-dir") {
      options.state_dir = value;
    } else if (name == "--run-dir") {
      options.run_dir = value;
    } else if (!ParseNumber(value, number)) {
      return false;
    } else if (name == "--job") {
      options.job = rayctl::JobId{number};
    } else if (name == "--agent-grace-ms") {
      options.agent_grace = std::chrono::milliseconds(number);
    } else if (name == "--agent-fd" && number > STDERR_FILENO) {
      options.agent_fd = static_cast<int>(number);
    } else {
      return false;
    }
  }
  return options.job && !options.state_dir.empty() && !options.run_dir.empty();
}

// 0, 1 and 2 exist, and nothing else but `keep` does.
void SettleDescriptors(int keep) {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0 && ::open("/dev/null", O_RDWR) < 0) {
      return;
    }
  }
  constexpr unsigned kFirst = STDERR_FILENO + 1;
  if (keep < 0) {
    ::syscall(SYS_close_range, kFirst, ~0U, 0);
    return;
  }
  const auto kept = static_cast<unsigned>(keep);
  if (kept > kFirst) {
    ::syscall(SYS_close_range, kFirst, kept - 1, 0);
  }
  ::syscall(SYS_close_range, kept + 1, ~0U, 0);
}

}  // namespace

int main(int argc, char** argv) {
  rayctl::shim::ShimLoopOptions options;
  if (!Parse(argc, argv, options)) {
    std::fputs(kUsageText, stderr);
    return kUsage;
  }
  ::setsid();  // Fails when it leads a session already, which is as good.
  ::umask(077);
  SettleDescriptors(options.agent_fd);
  absl::StatusOr<std::unique_ptr<rayctl::shim::ShimLoop>> loop = rayctl::shim::ShimLoop::Open(options);
  if (!loop.ok()) {
    std::fprintf(stderr, "rayctl-shim: %s\n", std::string(loop.status().message()).c_str());
    return kRefused;
  }
  const absl::Status ended = (*loop)->Run();
  if (!ended.ok()) {
    std::fprintf(stderr, "rayctl-shim: %s\n", std::string(ended.message()).c_str());
    return kRefused;
  }
  return 0;
}
