#include "cli/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <numeric>

#include "cli/output.h"

namespace rayctl::cli {
namespace {

// Letters in the wrong order or case count as one edit each, as people type them.
std::size_t Edits(std::string_view a, std::string_view b) {
  const auto same = [](char x, char y) {
    const auto plain = [](char c) { return c == '-' ? '_' : std::tolower(static_cast<unsigned char>(c)); };
    return plain(x) == plain(y);
  };
  std::vector<std::vector<std::size_t>> cost(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        cost[i][j] = i + j;
        continue;
      }
      cost[i][j] =
          std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, cost[i - 1][j - 1] + (same(a[i - 1], b[j - 1]) ? 0 : 1)});
      if (i > 1 && j > 1 && same(a[i - 1], b[j - 2]) && same(a[i - 2], b[j - 1])) {
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
      }
    }
  }
  return cost[a.size()][b.size()];
}

constexpr std::size_t kNearestWordMax = 64;  // Longer words are nobody's typing error.

std::vector<std::string> OptionNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      names.push_back("--" + name);
    }
    for (const std::string& name : option->get_snames()) {
      names.push_back("-" + name);
    }
  }
  return names;
}

}  // namespace

std::optional<std::string> Nearest(std::string_view word, const std::vector<std::string>& known) {
  if (word.size() > kNearestWordMax) {
    return std::nullopt;
  }
  std::optional<std::string> nearest;
  std::size_t fewest = std::max<std::size_t>(1, (word.size() + 1) / 3) + 1;  // A third of the letters may be wrong.
  for (const std::string& candidate : known) {
    const std::size_t edits = Edits(word, candidate);
    if (edits < fewest) {
      fewest = edits;
      nearest = candidate;
    }
  }
  return nearest;
}

std::string DidYouMean(std::string_view word, const std::vector<std::string>& known) {
  const std::optional<std::string> nearest = Nearest(word, known);
  return nearest ? fmt::format("; did you mean {}?", *nearest) : std::string();
}

int UsageError(std::string_view text) {
  Remark(text);
  return kExitUsage;
}

CommandLine::CommandLine(std::string verb, std::string about, std::string example)
    : CLI::App(std::move(about), "rayctl " + verb), verb_(std::move(verb)) {
  footer("Example:\n  " + std::move(example));
  set_help_flag("-h,--help", "Print this help");
  get_formatter()->column_width(34);
}

int CommandLine::UnknownOption(const std::string& word) const {
  const std::string name = word.substr(0, word.find('='));
  return UsageError(fmt::format("{}: no such option {}{}", verb_, name, DidYouMean(name, OptionNames(*this))));
}

std::vector<std::string>* CommandLine::listing_ = nullptr;

void CommandLine::ListOptionsInto(std::vector<std::string>* names) { listing_ = names; }

std::optional<int> CommandLine::Read(const Arguments& arguments) {
  if (listing_ != nullptr) {
    const std::vector<std::string> names = OptionNames(*this);
    listing_->insert(listing_->end(), names.begin(), names.end());
    return kExitDone;
  }
  // CLI11 takes its arguments from the back.
  Arguments reversed(arguments.rbegin(), arguments.rend());
  try {
    parse(std::move(reversed));
    return std::nullopt;
  } catch (const CLI::CallForHelp&) {
    Answer(help());
    return kExitDone;
  } catch (const CLI::ExtrasError&) {
    const std::vector<std::string> extras = remaining();
    const std::string& extra = extras.front();
    if (!extra.starts_with('-')) {
      return UsageError(fmt::format("{}: unexpected argument '{}'; see rayctl {} --help", verb_, extra, verb_));
    }
    return UnknownOption(extra);
  } catch (const CLI::ParseError& error) {
    std::string what = error.what();
    std::replace(what.begin(), what.end(), '\n', ' ');
    return UsageError(fmt::format("{}: {}; see rayctl {} --help", verb_, what, verb_));
  }
}

}  // namespace rayctl::cli
