#pragma once

#include <CLI/App.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// How a verb reads its options. Each verb makes its own small CLI::App when it is called, so that no verb pays for the
// others at start-up.
namespace rayctl::cli {

using Arguments = std::vector<std::string>;

// Exit codes that users' scripts rely on.
inline constexpr int kExitDone = 0;
inline constexpr int kExitRefused = 1;      // Refused or failed.
inline constexpr int kExitUsage = 2;        // Bad usage, a refused job file included.
inline constexpr int kExitUnreachable = 3;  // No head answers.
inline constexpr int kExitTimeout = 124;
inline constexpr int kExitInterrupted = 130;

// An App whose help ends with `example`, one real command line.
class CommandLine : public CLI::App {
 public:
  // `verb`: "submit", "list nodes".
  CommandLine(std::string verb, std::string about, std::string example);

  // nullopt: go on. Else the exit code: 0 after help was printed, 2 after one line said what is wrong and what is near.
  std::optional<int> Read(const Arguments& arguments);
  // Says that there is no such option, and gives 2.
  int UnknownOption(const std::string& word) const;
  const std::string& verb() const { return verb_; }

  // While `names` is not null, Read adds the verb's options to it instead of reading anything, and gives 0: for
  // completion, which so knows what each verb takes without being told.
  static void ListOptionsInto(std::vector<std::string>* names);

 private:
  static std::vector<std::string>* listing_;
  std::string verb_;
};

// The known word nearest to `word` by edits, if it is near enough to be what was meant.
std::optional<std::string> Nearest(std::string_view word, const std::vector<std::string>& known);
// "; did you mean NAME?" or nothing.
std::string DidYouMean(std::string_view word, const std::vector<std::string>& known);

// Prints one line on stderr and gives 2.
int UsageError(std::string_view text);

}  // namespace rayctl::cli
