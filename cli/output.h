#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

// What a verb says: answers on stdout, remarks on stderr, straight to the descriptor so that nothing waits in a buffer.
namespace rayctl::cli {

enum class Format { kText, kJson, kYaml };

// -o, --output text|json|yaml.
void AddFormatOption(CLI::App& app, Format& format);

// Writes everything, or false once the reader of that descriptor is gone; from then on output is dropped quietly. What
// stdout refuses for another cause, such as a full disk, is remarked once.
bool WriteAll(int fd, std::string_view bytes);
// Whether stdout refused anything so, and the verb fails for it.
bool StdoutFailed();
// The verb's exit code is a job's own from here on, whatever becomes of stdout.
void ExitCodeIsTheJobs();
// An answer, as is.
bool Answer(std::string_view text);
// One line on stderr: "rayctl: ", the text, a line end. Control characters of foreign text are shown as '?'.
void Remark(std::string_view text);
// One object, as JSON unless YAML is asked for, and a line end; NaN and infinities as strings.
bool AnswerObject(const nlohmann::ordered_json& value, Format format);
// The same JSON in one line, for a reader that gets one object after the other.
bool AnswerLine(const nlohmann::ordered_json& value);

// Text of others in a table or a line: control characters become '?', so that a job's name cannot steer a terminal.
std::string Printable(std::string_view text);

// Columns under headings, two spaces apart, no space at a line's end. A number column stands right.
class Table {
 public:
  struct Column {
    std::string heading;
    bool right = false;
  };
  explicit Table(std::vector<Column> columns);

  void AddRow(std::vector<std::string> cells);  // As many cells as columns.
  std::string Text() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace rayctl::cli
