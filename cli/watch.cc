#include "cli/watch.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cctype>
#include <chrono>
#include <utility>

#include "base/status_text.h"
#include "base/units.h"
#include "cli/call.h"
#include "cli/follow.h"

namespace rayctl::cli {
namespace {

// To the upper left corner; then, below what was written, nothing. So that the picture does not flicker.
constexpr std::string_view kHome = "\x1b[H";
constexpr std::string_view kClearLineEnd = "\x1b[K\n";
constexpr std::string_view kClearBelow = "\x1b[J";
constexpr int kRowsUnknown = 1000;

bool Say(const Shown& shown, Format format) {
  for (const std::string& remark : shown.remarks) {
    Remark(remark);
  }
  return format == Format::kText ? Answer(shown.text()) : AnswerObject(shown.object(), format);
}

// The text over the last one, as much of it as has room.
bool Redraw(std::string_view text) {
  winsize size{};
  const int rows = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 1 ? size.ws_row - 1 : kRowsUnknown;
  std::string picture(kHome);
  int row = 0;
  for (const char c : text) {
    if (c != '\n') {
      picture += c;
    } else if (picture += kClearLineEnd; ++row == rows) {
      break;
    }
  }
  return Answer(picture + std::string(kClearBelow));
}

// False once nobody reads stdout; true when the time is over.
bool WaitUnlessClosed(Duration interval) {
  pollfd out{STDOUT_FILENO, 0, 0};
  const auto millis = std::chrono::ceil<std::chrono::milliseconds>(interval).count();
  return ::poll(&out, 1, static_cast<int>(millis)) <= 0;
}

}  // namespace

void Watching::AddOption(CLI::App& app) {
  app.add_option_function<std::string>(
         "--watch",
         [this](const std::string& text) {
           const absl::StatusOr<Duration> interval = ParseDuration(text);
           if (!interval.ok() || *interval < kWatchIntervalMin || *interval > std::chrono::hours(24)) {
             throw CLI::ValidationError("--watch", fmt::format("expected seconds from 0.1 on, not '{}'", text));
           }
           interval_ = *interval;
         },
         fmt::format("Show it again every so often (default {} s) until Ctrl-C", kWatchInterval.count()))
      ->type_name("[SECONDS]");
}

Arguments Watching::Separate(Arguments arguments) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const bool number =
        i + 1 < arguments.size() && !arguments[i + 1].empty() &&
        (std::isdigit(static_cast<unsigned char>(arguments[i + 1].front())) != 0 || arguments[i + 1].front() == '.');
    if (arguments[i] == "--watch" && !number) {
      arguments[i] = fmt::format("--watch={}", kWatchInterval.count());
    }
  }
  return arguments;
}

int Watching::Run(Format format, const std::function<absl::StatusOr<Shown>()>& look) const {
  if (!interval_) {
    const absl::StatusOr<Shown> shown = look();
    if (!shown.ok()) {
      return Failed(shown.status());
    }
    Say(*shown, format);
    return kExitDone;
  }
  DetachOnInterrupt("");
  const bool in_place = format == Format::kText && ::isatty(STDOUT_FILENO) == 1;
  bool before = false;  // Something was shown.
  bool away = false;
  while (true) {
    const absl::StatusOr<Shown> shown = look();
    bool read = true;
    if (shown.ok()) {
      away = false;
      if (in_place) {
        std::string text =
            fmt::format("every {}, {}\n\n", FormatDuration(*interval_), FormatTime(std::chrono::system_clock::now()));
        for (const std::string& remark : shown->remarks) {
          text += Printable(remark) + "\n";
        }
        read = Redraw(text + shown->text());
      } else if (format == Format::kJson) {
        read = AnswerLine(shown->object());
      } else {
        read = (!before || Answer(format == Format::kYaml ? "---\n" : "\n")) && Say(*shown, format);
      }
      before = true;
    } else if (!before || ExitCodeOf(shown.status()) != kExitUnreachable) {
      return Failed(shown.status());
    } else if (!std::exchange(away, true)) {
      Remark(fmt::format("{}; waiting for it", Text(shown.status())));
    }
    if (!read || !WaitUnlessClosed(*interval_)) {
      return kExitDone;
    }
  }
}

}  // namespace rayctl::cli
