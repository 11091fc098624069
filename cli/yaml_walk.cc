#include "cli/yaml_walk.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <set>
#include <variant>

#include "base/status_text.h"
#include "base/units.h"
#include "cli/command_line.h"

namespace rayctl::cli {
namespace {

constexpr int kDepthMax = 64;       // An alias may point at what holds it.
constexpr int kNodesMax = 100'000;  // Aliases of aliases grow without bound.
constexpr std::string_view kStringTag = "tag:yaml.org,2002:str";

struct Null {};
// A scalar that YAML readers disagree on; the text says what to write instead.
struct Doubtful {
  std::string advice;
};
using Value = std::variant<Null, bool, std::int64_t, std::uint64_t, double, std::string, Doubtful>;

bool AllOf(std::string_view text, std::string_view letters) {
  return !text.empty() && text.find_first_not_of(letters) == std::string_view::npos;
}

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return lower;
}

template <class T>
std::optional<T> FromChars(std::string_view text, int base) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc{} || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return value;
}

Value Integer(std::string_view text) {
  std::string_view digits = text;
  const bool negative = digits.front() == '-';
  if (negative || digits.front() == '+') {
    digits.remove_prefix(1);
  }
  int base = 10;
  if (digits.starts_with("0x")) {
    base = 16;
  } else if (digits.starts_with("0o")) {
    base = 8;
  }
  if (base != 10) {
    digits.remove_prefix(2);
  } else if (digits.size() > 1 && digits.front() == '0') {
    return Doubtful{fmt::format("{0} is octal to some YAML readers; write {1}, 0o{1} or \"{0}\"", text,
                                digits.substr(std::min(digits.find_first_not_of('0'), digits.size() - 1)))};
  }
  const std::string signed_digits = (negative ? "-" : "") + std::string(digits);
  if (const std::optional<std::int64_t> value = FromChars<std::int64_t>(signed_digits, base)) {
    return *value;
  }
  if (const std::optional<std::uint64_t> value = FromChars<std::uint64_t>(digits, base); value && !negative) {
    return *value;
  }
  return Doubtful{fmt::format("{} does not fit into 64 bits", text)};
}

bool LooksWhole(std::string_view text) {
  if (text.front() == '-' || text.front() == '+') {
    text.remove_prefix(1);
  }
  return AllOf(text, "0123456789") || (text.starts_with("0x") && AllOf(text.substr(2), "0123456789abcdefABCDEF")) ||
         (text.starts_with("0o") && AllOf(text.substr(2), "01234567"));
}

std::optional<double> Float(std::string_view text) {
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const std::string lower = Lower(text);
  if (lower == ".nan") {
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (lower == ".inf" || lower == "+.inf" || lower == "-.inf") {
    return lower.front() == '-' ? -kInfinity : kInfinity;
  }
  std::string_view digits = text;
  if (digits.front() == '+') {
    digits.remove_prefix(1);
  }
  const std::size_t first = digits.find_first_of("0123456789");
  if (digits.empty() || first == std::string_view::npos ||
      digits.substr(0, first).find_first_not_of("-.") != std::string_view::npos) {
    return std::nullopt;
  }
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (end != digits.data() + digits.size()) {
    return std::nullopt;
  }
  if (error == std::errc::result_out_of_range) {
    return std::abs(value) < 1 ? 0.0 : std::copysign(kInfinity, digits.front() == '-' ? -1.0 : 1.0);
  }
  return error == std::errc{} ? std::optional(value) : std::nullopt;
}

Value Plain(const std::string& text) {
  static const std::set<std::string> kOldBooleans{"yes", "no", "on", "off"};
  const std::string lower = Lower(text);
  if (text.empty() || text == "~" || lower == "null") {
    return Null{};
  }
  if (lower == "true" || lower == "false") {
    return lower == "true";
  }
  if (kOldBooleans.contains(lower)) {
    return Doubtful{fmt::format("{0} is true or false to some YAML readers; write {1} or \"{0}\"", text,
                                lower == "yes" || lower == "on" ? "true" : "false")};
  }
  if (LooksWhole(text)) {
    return Integer(text);
  }
  if (const std::optional<double> value = Float(text)) {
    return *value;
  }
  const bool starts_as_number = text.find_first_of("0123456789") == (text[0] == '-' || text[0] == '+' ? 1U : 0U);
  if (starts_as_number && AllOf(text, "-+0123456789_:.") && text.find_first_of("_:") != std::string::npos) {
    return Doubtful{fmt::format("{0} is a number to some YAML readers; write it plain or \"{0}\"", text)};
  }
  return text;
}

std::string Join(const std::vector<std::string>& names) {
  std::string joined;
  for (std::size_t i = 0; i < names.size(); ++i) {
    joined += i == 0 ? "" : (i + 1 == names.size() ? " or " : ", ");
    joined += names[i];
  }
  return joined;
}

std::string Below(const std::string& path, const std::string& name) { return path.empty() ? name : path + "." + name; }

std::string Kind(const YAML::Node& node) {
  switch (node.Type()) {
    case YAML::NodeType::Map:
      return "a mapping";
    case YAML::NodeType::Sequence:
      return "a list";
    case YAML::NodeType::Scalar:
      return fmt::format("'{}'", node.Scalar());
    case YAML::NodeType::Null:
    case YAML::NodeType::Undefined:
      return "nothing";
  }
  return "nothing";
}

}  // namespace

struct YamlWalk::Scalar {
  std::string text;
  Value value;
};

std::optional<Place> YamlWalk::Load(std::string_view text) {
  std::vector<YAML::Node> documents;
  try {
    documents = YAML::LoadAll(std::string(text));
  } catch (const YAML::Exception& error) {
    FailAt(error.mark, "", fmt::format("not YAML: {}", error.msg));
    return std::nullopt;
  }
  if (documents.size() > 1) {
    FailAt(documents[1].Mark(), "", "expected one YAML document, not several");
    return std::nullopt;
  }
  return Place{documents.empty() ? YAML::Node() : documents[0], "", std::nullopt};
}

void YamlWalk::FailAt(const YAML::Mark& mark, std::string_view path, std::string_view what) {
  if (!status_.ok()) {
    return;
  }
  const int line = mark.is_null() ? 1 : mark.line + 1;
  const int column = mark.is_null() ? 1 : mark.column + 1;
  status_ = absl::InvalidArgumentError(
      fmt::format("{}:{}:{}: {}: {}", file_, line, column, path.empty() ? "job file" : path, what));
}

void YamlWalk::Fail(const Place& place, std::string_view what) {
  FailAt(place.node.IsNull() && place.key ? *place.key : place.node.Mark(), place.path, what);
}

void YamlWalk::Fields(const Place& place, const std::vector<Field>& fields) {
  std::vector<std::string> names;
  names.reserve(fields.size());
  for (const Field& field : fields) {
    names.push_back(field.name);
  }
  if (!place.node.IsMap()) {
    Fail(place, fmt::format("expected a mapping with {}, not {}", Join(names), Kind(place.node)));
    return;
  }
  std::set<std::string> seen;
  for (const auto& member : place.node) {
    if (!member.first.IsScalar()) {
      FailAt(member.first.Mark(), place.path, "expected the name of a field");
      continue;
    }
    const std::string name = member.first.Scalar();
    const std::string path = Below(place.path, name);
    const auto field =
        std::find_if(fields.begin(), fields.end(), [&](const Field& known) { return known.name == name; });
    if (field == fields.end()) {
      const std::optional<std::string> nearest = Nearest(name, names);
      FailAt(member.first.Mark(), path,
             nearest ? fmt::format("no such field; did you mean {}?", *nearest)
                     : fmt::format("no such field; expected {}", Join(names)));
    } else if (!seen.insert(name).second) {
      FailAt(member.first.Mark(), path, "expected once, and it is here again");
    } else {
      field->read(Place{member.second, path, member.first.Mark()});
    }
  }
}

std::vector<std::pair<std::string, Place>> YamlWalk::Members(const Place& place, std::string_view expected) {
  std::vector<std::pair<std::string, Place>> members;
  if (!place.node.IsMap()) {
    Fail(place, fmt::format("expected {}, not {}", expected, Kind(place.node)));
    return members;
  }
  std::set<std::string> seen;
  for (const auto& member : place.node) {
    if (!member.first.IsScalar() || member.first.Scalar().empty()) {
      FailAt(member.first.Mark(), place.path, fmt::format("expected {}; a name must be text", expected));
      continue;
    }
    const std::string name = member.first.Scalar();
    if (name.find('\0') != std::string::npos) {
      FailAt(member.first.Mark(), place.path, "expected names without a zero byte");
    }
    if (!seen.insert(name).second) {
      FailAt(member.first.Mark(), Below(place.path, name), "expected once, and it is here again");
    }
    members.emplace_back(name, Place{member.second, Below(place.path, name), member.first.Mark()});
  }
  return members;
}

std::vector<Place> YamlWalk::Items(const Place& place, std::string_view expected) {
  std::vector<Place> items;
  if (!place.node.IsSequence()) {
    Fail(place, fmt::format("expected {}, not {}", expected, Kind(place.node)));
    return items;
  }
  for (const auto& item : place.node) {
    items.push_back(Place{item, fmt::format("{}[{}]", place.path, items.size()), std::nullopt});
  }
  return items;
}

std::optional<YamlWalk::Scalar> YamlWalk::Read(const Place& place, std::string_view expected) {
  if (place.node.IsNull() || !place.node.IsDefined()) {
    return Scalar{"", Null{}};
  }
  if (!place.node.IsScalar()) {
    Fail(place, fmt::format("expected {}, not {}", expected, Kind(place.node)));
    return std::nullopt;
  }
  const std::string& text = place.node.Scalar();
  if (text.find('\0') != std::string::npos) {
    Fail(place, fmt::format("expected {} without a zero byte", expected));
    return std::nullopt;
  }
  const std::string& tag = place.node.Tag();
  if (tag == "!" || tag == kStringTag) {
    return Scalar{text, text};
  }
  if (tag != "?" && !tag.empty()) {
    Fail(place, fmt::format("expected {} without the tag {}", expected, tag));
    return std::nullopt;
  }
  return Scalar{text, Plain(text)};
}

std::string YamlWalk::Text(const Place& place) {
  const std::optional<Scalar> scalar = Read(place, "text");
  if (!scalar) {
    return {};
  }
  if (std::holds_alternative<std::string>(scalar->value)) {
    if (scalar->text.empty()) {
      Fail(place, "expected text, not nothing");
    }
    return scalar->text;
  }
  Fail(place, std::holds_alternative<Null>(scalar->value)
                  ? std::string("expected text, not nothing")
                  : fmt::format("expected text; put it in quotes: \"{}\"", scalar->text));
  return {};
}

std::string YamlWalk::Written(const Place& place) {
  const std::optional<Scalar> scalar = Read(place, "text or a number");
  if (scalar && std::holds_alternative<Null>(scalar->value)) {
    Fail(place, "expected text or a number, not nothing");
  }
  return scalar ? scalar->text : std::string();
}

bool YamlWalk::Boolean(const Place& place) {
  const std::optional<Scalar> scalar = Read(place, "true or false");
  if (!scalar) {
    return false;
  }
  if (const bool* const value = std::get_if<bool>(&scalar->value)) {
    return *value;
  }
  Fail(place, fmt::format("expected true or false, not {}", Kind(place.node)));
  return false;
}

std::int64_t YamlWalk::Whole(const Place& place, std::int64_t least, std::int64_t most) {
  const std::string expected =
      most == std::numeric_limits<std::int64_t>::max() || most == std::numeric_limits<std::int32_t>::max()
          ? (least == 0 || least == 1 || least == -1 ? fmt::format("a whole number, at least {}", least)
                                                     : std::string("a whole number"))
          : fmt::format("a whole number from {} to {}", least, most);
  const std::optional<Scalar> scalar = Read(place, expected);
  if (!scalar) {
    return 0;
  }
  if (const auto* const value = std::get_if<std::int64_t>(&scalar->value); value != nullptr) {
    if (*value >= least && *value <= most) {
      return *value;
    }
  }
  if (const auto* const doubtful = std::get_if<Doubtful>(&scalar->value)) {
    Fail(place, fmt::format("expected {}; {}", expected, doubtful->advice));
  } else {
    Fail(place, fmt::format("expected {}, not {}", expected, Kind(place.node)));
  }
  return 0;
}

double YamlWalk::Number(const Place& place) {
  const std::optional<Scalar> scalar = Read(place, "a number");
  if (!scalar) {
    return 0;
  }
  if (const auto* const whole = std::get_if<std::int64_t>(&scalar->value)) {
    return static_cast<double>(*whole);
  }
  if (const auto* const number = std::get_if<double>(&scalar->value)) {
    return *number;
  }
  if (const auto* const doubtful = std::get_if<Doubtful>(&scalar->value)) {
    Fail(place, fmt::format("expected a number; {}", doubtful->advice));
  } else {
    Fail(place, fmt::format("expected a number, not {}", Kind(place.node)));
  }
  return 0;
}

std::int64_t YamlWalk::Nanoseconds(const Place& place) {
  const std::optional<Scalar> scalar = Read(place, "a duration such as 90, 90s, 5m, 2h or 1d");
  if (!scalar) {
    return 0;
  }
  if (const auto* const doubtful = std::get_if<Doubtful>(&scalar->value)) {
    Fail(place, fmt::format("expected a duration such as 90, 90s, 5m, 2h or 1d; {}", doubtful->advice));
    return 0;
  }
  const absl::StatusOr<Duration> duration = ParseDuration(scalar->text);
  if (!duration.ok()) {
    Fail(place, rayctl::Text(duration.status()));
    return 0;
  }
  return duration->count();
}

std::int64_t YamlWalk::Bytes(const Place& place) {
  const std::optional<Scalar> scalar = Read(place, "bytes such as 512MiB or 2GiB");
  if (!scalar) {
    return 0;
  }
  if (const auto* const doubtful = std::get_if<Doubtful>(&scalar->value)) {
    Fail(place, fmt::format("expected bytes such as 512MiB or 2GiB; {}", doubtful->advice));
    return 0;
  }
  const absl::StatusOr<std::int64_t> bytes = ParseBytes(scalar->text);
  if (!bytes.ok()) {
    Fail(place, rayctl::Text(bytes.status()));
    return 0;
  }
  return *bytes;
}

std::string YamlWalk::OneOf(const Place& place, const std::vector<std::string>& names) {
  const std::optional<Scalar> scalar = Read(place, Join(names));
  if (!scalar) {
    return {};
  }
  if (std::find(names.begin(), names.end(), scalar->text) == names.end()) {
    Fail(place, fmt::format("expected {}, not {}{}", Join(names), Kind(place.node), DidYouMean(scalar->text, names)));
    return {};
  }
  return scalar->text;
}

nlohmann::ordered_json YamlWalk::Json(const Place& place) { return JsonAt(place, 0); }

nlohmann::ordered_json YamlWalk::JsonAt(const Place& place, int depth) {
  using nlohmann::ordered_json;
  if (!ok()) {
    return {};
  }
  if (depth > kDepthMax || ++nodes_ > kNodesMax) {
    Fail(place, fmt::format("expected at most {} levels and {} values", kDepthMax, kNodesMax));
    return {};
  }
  if (place.node.IsMap()) {
    ordered_json object = ordered_json::object();
    for (const auto& [name, member] : Members(place, "a mapping")) {
      object[name] = JsonAt(member, depth + 1);
    }
    return object;
  }
  if (place.node.IsSequence()) {
    ordered_json array = ordered_json::array();
    for (const Place& item : Items(place, "a list")) {
      array.push_back(JsonAt(item, depth + 1));
    }
    return array;
  }
  const std::optional<Scalar> scalar = Read(place, "a value");
  if (!scalar) {
    return {};
  }
  if (const auto* const doubtful = std::get_if<Doubtful>(&scalar->value)) {
    Fail(place, fmt::format("expected a plain value; {}", doubtful->advice));
    return {};
  }
  return std::visit(
      [](const auto& value) -> ordered_json {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, Null> || std::is_same_v<T, Doubtful>) {
          return nullptr;
        } else {
          return value;
        }
      },
      scalar->value);
}

}  // namespace rayctl::cli
