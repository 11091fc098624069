#include "cli/output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "base/invariant.h"
#include "base/json_text.h"
#include "cli/yaml_text.h"

namespace rayctl::cli {
namespace {

bool stdout_failed = false;
bool exit_code_is_the_jobs = false;

constexpr int kJsonIndent = 2;
constexpr std::string_view kColumnGap = "  ";

// Code points, which is near enough to columns for names that people give to jobs and nodes.
std::size_t Width(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

}  // namespace

void AddFormatOption(CLI::App& app, Format& format) {
  static const std::map<std::string, Format> kFormats{
      {"text", Format::kText}, {"json", Format::kJson}, {"yaml", Format::kYaml}};
  app.add_option_function<std::string>(
         "-o,--output", [&format](const std::string& name) { format = kFormats.at(name); },
         "text, json or yaml (default text)")
      ->type_name("FORMAT")
      ->check([](const std::string& name) {
        return kFormats.contains(name) ? std::string() : fmt::format("expected text, json or yaml, not '{}'", name);
      });
}

bool WriteAll(int fd, std::string_view bytes) {
  static std::array<bool, 3> closed{};  // By descriptor: stdout and stderr.
  const auto index = static_cast<std::size_t>(fd);
  while (!bytes.empty() && !closed.at(index)) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      closed.at(index) = true;
      // A reader that went, or was never meant to be, wants no more; a full disk is something that went wrong.
      const int error = errno;
      if (fd == STDOUT_FILENO && error != EPIPE && error != EBADF) {
        stdout_failed = true;
        Remark(fmt::format("stdout cannot be written: {}; what would follow there is lost", std::strerror(error)));
      }
    }
  }
  return !closed.at(index);
}

bool StdoutFailed() { return stdout_failed && !exit_code_is_the_jobs; }

void ExitCodeIsTheJobs() { exit_code_is_the_jobs = true; }

bool Answer(std::string_view text) { return WriteAll(STDOUT_FILENO, text); }

void Remark(std::string_view text) {
  std::string line = "rayctl: ";
  for (const char c : text) {
    line += c == '\n' ? c : Printable(std::string_view(&c, 1)).front();
  }
  line += '\n';
  WriteAll(STDERR_FILENO, line);
}

bool AnswerObject(const nlohmann::ordered_json& value, Format format) {
  return Answer((format == Format::kYaml ? YamlText(value) : JsonText(value, NonFinite::kStrings, kJsonIndent)) + "\n");
}

bool AnswerLine(const nlohmann::ordered_json& value) { return Answer(JsonText(value, NonFinite::kStrings) + "\n"); }

std::string Printable(std::string_view text) {
  std::string shown(text);
  std::replace_if(
      shown.begin(), shown.end(),
      [](char c) { return static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) == 0x7F; }, '?');
  return shown;
}

Table::Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

void Table::AddRow(std::vector<std::string> cells) {
  Invariant(cells.size() == columns_.size(), "a table row has one cell a column");
  for (std::string& cell : cells) {
    cell = Printable(cell);
  }
  rows_.push_back(std::move(cells));
}

std::string Table::Text() const {
  std::vector<std::size_t> widths;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    std::size_t width = Width(columns_[i].heading);
    for (const std::vector<std::string>& row : rows_) {
      width = std::max(width, Width(row[i]));
    }
    widths.push_back(width);
  }
  std::string text;
  const auto add = [&](auto cell_of) {
    std::string line;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      const std::string& cell = cell_of(i);
      const std::string padding(widths[i] - Width(cell), ' ');
      line += i == 0 ? "" : kColumnGap;
      line += columns_[i].right ? padding + cell : cell + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  add([&](std::size_t i) -> const std::string& { return columns_[i].heading; });
  for (const std::vector<std::string>& row : rows_) {
    add([&](std::size_t i) -> const std::string& { return row[i]; });
  }
  return text;
}

}  // namespace rayctl::cli
