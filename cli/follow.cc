#include "cli/follow.h"

#include <fmt/format.h>
#include <google/protobuf/util/time_util.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>

#include "cli/call.h"
#include "cli/command_line.h"
#include "cli/output.h"
#include "client/json_shapes.h"

namespace rayctl::cli {
namespace {

constexpr std::size_t kLineMax = 64 * 1024;      // A longer line is printed in pieces.
constexpr std::chrono::minutes kHeadAwayMax{5};  // A head that stays away longer is given up.
constexpr int kReconnectsMax = 10;               // Without one event between them.
constexpr std::size_t kInterruptWordsMax = 512;

std::array<char, kInterruptWordsMax> interrupt_words;
std::size_t interrupt_words_size = 0;

void OnInterrupt(int /*signal*/) {
  // Only calls that are safe in a signal handler; the kernel closes the connection.
  static_cast<void>(::write(STDERR_FILENO, interrupt_words.data(), interrupt_words_size));
  ::_exit(kExitInterrupted);
}

bool IsFinal(v1::JobState state) {
  return state == v1::JOB_STATE_SUCCEEDED || state == v1::JOB_STATE_FAILED || state == v1::JOB_STATE_CANCELLED;
}

bool ManyRanks(const v1::Job& job) {
  const v1::ScalingConfig& scaling = job.spec().scaling_config();
  return std::max(scaling.num_workers(), scaling.num_workers_max()) > 1;
}

}  // namespace

bool OutputPrinter::Print(const v1::JobOutput& output) {
  const Key key{output.attempt(), output.rank(), static_cast<int>(output.stream())};
  Source& source = sources_[key];
  source.next_offset = output.next_offset();
  std::string_view data = output.data();
  if (!prefixed_) {
    return sink_(output.stream(), data);
  }
  bool read = true;
  while (!data.empty()) {
    const std::size_t end = data.find('\n');
    const std::size_t length = end == std::string_view::npos ? data.size() : end + 1;
    source.line += data.substr(0, length);
    data.remove_prefix(length);
    if (end != std::string_view::npos || source.line.size() >= kLineMax) {
      read = PrintLine(key, source.line) && read;
      source.line.clear();
    }
  }
  return read;
}

bool OutputPrinter::PrintLine(const Key& key, std::string_view line) {
  return sink_(static_cast<v1::OutputStream>(key.stream),
               fmt::format("[rank {}] {}{}", key.rank, line, line.ends_with('\n') ? "" : "\n"));
}

std::vector<v1::OutputPosition> OutputPrinter::Positions() const {
  std::vector<v1::OutputPosition> positions;
  for (const auto& [key, source] : sources_) {
    if (source.next_offset != 0) {
      v1::OutputPosition& position = positions.emplace_back();
      position.set_attempt(key.attempt);
      position.set_rank(key.rank);
      position.set_stream(static_cast<v1::OutputStream>(key.stream));
      position.set_offset(source.next_offset);
    }
  }
  return positions;
}

void OutputPrinter::Flush() {
  for (auto& [key, source] : sources_) {
    if (!source.line.empty()) {
      PrintLine(key, source.line);
      source.line.clear();
    }
  }
}

bool OutputPrinter::Printed(std::uint32_t attempt, std::uint32_t rank) const {
  return std::any_of(sources_.begin(), sources_.end(),
                     [&](const auto& entry) { return entry.first.attempt == attempt && entry.first.rank == rank; });
}

std::string AttemptTeller::Take(const v1::Job& job) {
  const v1::JobStatus& status = job.status();
  const std::uint32_t attempt = status.attempt();
  const bool recovers = status.state() == v1::JOB_STATE_RECOVERING;
  const bool begins = newest_ && attempt > *newest_;
  // What an attempt without a reason ended by is not known yet.
  const bool waits = newest_ && !begins && recovers && ran_ && status.reason() != v1::REASON_UNSPECIFIED &&
                     (!ended_ || *ended_ != attempt);
  std::string text;
  if (begins || waits) {
    const std::uint32_t before = begins ? *newest_ : attempt;
    const std::uint32_t next = begins ? attempt : attempt + 1;
    if (!ended_ || *ended_ != before) {
      text = fmt::format("attempt {} ended{}; ", before,
                         recovers && !status.message().empty() ? ": " + status.message() : "");
      ended_ = before;
    }
    const std::int32_t allowed = job.spec().run_config().failure_config().max_failures();
    text += fmt::format("attempt {} {} ({} of {} allowed failures)", next,
                        begins ? "begins" : "begins when its nodes have room", status.failures(),
                        allowed < 0 ? "any number of" : std::to_string(allowed));
  }
  ran_ = status.state() == v1::JOB_STATE_RUNNING || (ran_ && !begins);
  newest_ = std::max(newest_.value_or(0), attempt);
  return text;
}

absl::StatusOr<int> Follow(HeadClient& head, const v1::JobRef& job, const FollowOptions& options) {
  v1::FollowJobRequest request;
  *request.mutable_job() = job;
  request.set_follow(options.follow);
  request.mutable_ranks()->Add(options.ranks.begin(), options.ranks.end());
  if (options.attempt) {
    request.set_attempt(*options.attempt);
  }
  if (options.since) {
    *request.mutable_since() =
        google::protobuf::util::TimeUtil::NanosecondsToTimestamp(options.since->time_since_epoch().count());
  }
  request.set_grep(options.grep);
  request.mutable_nodes()->Add(options.nodes.begin(), options.nodes.end());
  request.mutable_streams()->Add(options.streams.begin(), options.streams.end());
  bool read = true;
  OutputPrinter printer(
      [](v1::OutputStream stream, std::string_view bytes) {
        return WriteAll(stream == v1::OUTPUT_STREAM_STDERR ? STDERR_FILENO : STDOUT_FILENO, bytes);
      },
      /*prefixed=*/false);
  AttemptTeller teller;
  std::optional<v1::Job> last;
  std::optional<std::uint32_t> attempt_in_print = options.attempt;
  bool away = false;
  int reconnects = 0;
  const auto on_event = [&](const v1::FollowJobResponse& event) {
    reconnects = 0;
    if (away) {
      Remark("the head is back");
      away = false;
    }
    switch (event.event_case()) {
      case v1::FollowJobResponse::kOutput:
        attempt_in_print = event.output().attempt();
        read = printer.Print(event.output()) && read;
        return read || !options.quiet_at_end;  // `logs` has nothing to do without a reader; `submit` waits for the end.
      case v1::FollowJobResponse::kJob:
        last = event.job();
        printer.set_prefixed(ManyRanks(*last));
        if (const std::string news = teller.Take(*last); !news.empty() && options.follow) {
          Remark(news);
        }
        break;
      case v1::FollowJobResponse::kRemark:
        Remark(event.remark());
        break;
      case v1::FollowJobResponse::EVENT_NOT_SET:
        break;  // Of a newer head.
    }
    return true;
  };
  while (true) {
    const absl::Status status = head.FollowJob(request, away ? kHeadAwayMax : std::chrono::milliseconds(0), on_event);
    const bool ended = last && IsFinal(last->status().state());
    if (status.ok() && (ended || !options.follow || !read)) {
      break;
    }
    // The stream ended early: an end without an answer, or a connection that broke once it had carried something.
    const bool lost = status.ok() || (absl::IsUnavailable(status) && last);
    if (!lost || ++reconnects > kReconnectsMax) {
      printer.Flush();
      return status.ok() ? absl::UnavailableError("the head ends the stream before the job ends") : status;
    }
    if (ended) {
      break;
    }
    if (!away) {
      Remark(fmt::format("the head at {} went away; the job goes on, waiting for it", head.address()));
      away = true;
    }
    request.clear_resume();
    for (const v1::OutputPosition& position : printer.Positions()) {
      *request.add_resume() = position;
    }
    if (attempt_in_print) {
      request.set_attempt(*attempt_in_print);
    } else if (last) {
      request.set_attempt(last->status().attempt());
    }
  }
  printer.Flush();
  if (!last) {
    return kExitDone;
  }
  if (!options.quiet_at_end) {
    const bool shown =
        last->status().has_failed_rank() && printer.Printed(last->status().attempt(), last->status().failed_rank());
    if (const std::string words = Obituary(*last, shown); !words.empty()) {
      Remark(words);
    }
  }
  return JobExitCode(*last);
}

std::string Obituary(const v1::Job& job, bool output_was_shown) {
  const v1::JobStatus& status = job.status();
  if (status.state() != v1::JOB_STATE_FAILED && status.state() != v1::JOB_STATE_CANCELLED) {
    return {};
  }
  std::string text = fmt::format("job {} {}", job.id(), client::StateName(status.state()));
  if (status.reason() != v1::REASON_UNSPECIFIED) {
    text += "/" + client::ReasonName(status.reason());
  }
  if (!status.message().empty()) {
    text += ": " + status.message();
  }
  if (!output_was_shown && !status.last_output().empty()) {
    text += status.has_failed_rank() ? fmt::format("\nlast lines of rank {}:\n", status.failed_rank())
                                     : std::string("\nlast lines:\n");
    text += status.last_output();
    while (text.ends_with('\n')) {
      text.pop_back();
    }
  }
  return text;
}

int JobExitCode(const v1::Job& job) {
  const v1::JobStatus& status = job.status();
  if (status.has_exit_code()) {
    return status.exit_code();
  }
  return status.state() == v1::JOB_STATE_SUCCEEDED ? kExitDone : kExitRefused;
}

void DetachOnInterrupt(std::string_view words) {
  interrupt_words_size = std::min(words.size(), interrupt_words.size());
  std::memcpy(interrupt_words.data(), words.data(), interrupt_words_size);
  struct sigaction action {};
  action.sa_handler = OnInterrupt;
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

}  // namespace rayctl::cli
