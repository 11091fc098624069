#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "rayctl/v1/job.pb.h"

namespace rayctl::cli {

class HeadClient;

// Turns the output of ranks into what a person sees: with one rank byte for byte, with more `[rank N] ` before each
// line, whole lines only, so that ranks never tear each other's lines. It knows where a reader goes on who has printed
// so much.
class OutputPrinter {
 public:
  // Writes to stdout or stderr; false once nobody reads there.
  using Sink = std::function<bool(v1::OutputStream, std::string_view)>;
  OutputPrinter(Sink sink, bool prefixed) : sink_(std::move(sink)), prefixed_(prefixed) {}

  void set_prefixed(bool prefixed) { prefixed_ = prefixed; }
  // False once nobody reads that stream.
  bool Print(const v1::JobOutput& output);
  // Where each stream of output goes on.
  std::vector<v1::OutputPosition> Positions() const;
  // Prints lines that have no end yet.
  void Flush();
  // Whether anything of that rank was printed.
  bool Printed(std::uint32_t attempt, std::uint32_t rank) const;

 private:
  struct Key {
    std::uint32_t attempt;
    std::uint32_t rank;
    int stream;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  struct Source {
    std::uint64_t next_offset = 0;  // 0: not told.
    std::string line;               // The begun line; only where prefixed.
  };
  bool PrintLine(const Key& key, std::string_view line);

  Sink sink_;
  bool prefixed_;
  std::map<Key, Source> sources_;
};

// What somebody who follows a job is told of its attempts: why one ended, and that the next begins or waits.
class AttemptTeller {
 public:
  // The job as the head showed it next; empty: there is nothing new to say.
  std::string Take(const v1::Job& job);

 private:
  std::optional<std::uint32_t> newest_;  // The newest attempt seen.
  std::optional<std::uint32_t> ended_;   // The attempt whose end was told.
  bool ran_ = false;  // The newest attempt was seen running: from now on the message is of its own end.
};

struct FollowOptions {
  std::vector<std::uint32_t> ranks;       // Empty: all.
  bool follow = true;                     // False: what there is now.
  std::optional<std::uint32_t> attempt;   // Where to begin; unset: the head's choice.
  bool quiet_at_end = false;              // `logs`: says nothing about how the job ended.
  std::optional<WallTime> since;          // Only what was written from then on.
  std::string grep;                       // RE2; empty: every line.
  std::vector<std::string> nodes;         // Empty: all.
  std::vector<v1::OutputStream> streams;  // Empty: both.
};

// Follows a job to its end over restarts of the head and prints its output. Gives the job's exit code, or what went
// wrong with following.
absl::StatusOr<int> Follow(HeadClient& head, const v1::JobRef& job, const FollowOptions& options);

// What a person wants to know of a job that did not succeed, for stderr: its message, and the last lines of the rank
// that failed first unless they were printed already.
std::string Obituary(const v1::Job& job, bool output_was_shown);
// The exit code of an ended job.
int JobExitCode(const v1::Job& job);

// From now on Ctrl-C and SIGTERM print `words` on stderr and end the program with 130. No more than 512 bytes.
void DetachOnInterrupt(std::string_view words);

}  // namespace rayctl::cli
