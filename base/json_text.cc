#include "base/json_text.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

namespace rayctl {
namespace {

using Json = nlohmann::ordered_json;

std::string_view NonFiniteName(double value) {
  if (std::isnan(value)) {
    return "NaN";
  }
  return value > 0 ? "Infinity" : "-Infinity";
}

class Writer {
 public:
  Writer(NonFinite non_finite, int indent) : non_finite_(non_finite), indent_(indent) {}

  void Write(const Json& value, int depth) {
    if (value.is_object() && !value.empty()) {
      bool first = true;
      text_ += '{';
      for (const auto& [key, member] : value.items()) {
        Separate(first, depth + 1);
        Leaf(Json(key));
        text_ += ": ";
        Write(member, depth + 1);
      }
      NewLine(depth);
      text_ += '}';
    } else if (value.is_array() && !value.empty()) {
      bool first = true;
      text_ += '[';
      for (const Json& member : value) {
        Separate(first, depth + 1);
        Write(member, depth + 1);
      }
      NewLine(depth);
      text_ += ']';
    } else if (value.is_number_float() && !std::isfinite(value.get<double>())) {
      const std::string_view name = NonFiniteName(value.get<double>());
      text_ += non_finite_ == NonFinite::kPython ? std::string(name) : fmt::format("\"{}\"", name);
    } else {
      Leaf(value);
    }
  }

  std::string Take() { return std::move(text_); }

 private:
  void Leaf(const Json& value) { text_ += value.dump(-1, ' ', false, Json::error_handler_t::replace); }

  void Separate(bool& first, int depth) {
    if (!first) {
      text_ += indent_ > 0 ? "," : ", ";
    }
    first = false;
    NewLine(depth);
  }

  void NewLine(int depth) {
    if (indent_ > 0) {
      text_ += '\n';
      text_.append(static_cast<std::size_t>(indent_) * static_cast<std::size_t>(depth), ' ');
    }
  }

  NonFinite non_finite_;
  int indent_;
  std::string text_;
};

// What stands in a string for a bare number that JSON lacks. User text cannot hold it: U+FDD0 is no character.
constexpr std::string_view kMark = "\xEF\xB7\x90";

// Puts every bare NaN and infinity into quotes, marked.
std::string QuoteNonFinite(std::string_view text) {
  std::string quoted;
  quoted.reserve(text.size());
  bool in_string = false;
  for (std::size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (in_string) {
      const std::size_t length = c == '\\' && at + 1 < text.size() ? 2 : 1;
      in_string = c != '"';
      quoted += text.substr(at, length);
      at += length;
      continue;
    }
    in_string = c == '"';
    bool found = false;
    for (const std::string_view name : {"NaN", "Infinity", "-Infinity"}) {
      if (text.substr(at).starts_with(name)) {
        quoted += fmt::format("\"{}{}\"", kMark, name);
        at += name.size();
        found = true;
        break;
      }
    }
    if (!found) {
      quoted += c;
      ++at;
    }
  }
  return quoted;
}

void Unquote(Json& value) {
  if (value.is_structured()) {
    for (Json& member : value) {
      Unquote(member);
    }
  } else if (value.is_string()) {
    const std::string& text = value.get_ref<const std::string&>();
    if (!text.starts_with(kMark)) {
      return;
    }
    const std::string name = text.substr(kMark.size());
    if (name == "NaN") {
      value = std::numeric_limits<double>::quiet_NaN();
    } else if (name == "Infinity") {
      value = std::numeric_limits<double>::infinity();
    } else if (name == "-Infinity") {
      value = -std::numeric_limits<double>::infinity();
    }
  }
}

}  // namespace

std::string JsonText(const Json& value, NonFinite non_finite, int indent) {
  Writer writer(non_finite, indent);
  writer.Write(value, 0);
  return writer.Take();
}

absl::StatusOr<Json> ParseJsonText(std::string_view text) {
  Json value = Json::parse(QuoteNonFinite(text), nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) {
    return absl::InvalidArgumentError("not JSON");
  }
  Unquote(value);
  return value;
}

}  // namespace rayctl
