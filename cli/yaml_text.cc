#include "cli/yaml_text.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/json_text.h"

namespace rayctl::cli {
namespace {

// Names of our own need no quotes; those that people choose may be anything.
bool IsPlainKey(const std::string& key) {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  // Words that YAML 1.1 reads as something else are all shorter than this or not made of letters alone.
  constexpr std::size_t kLongestSpecialWord = 5;
  return key.size() > kLongestSpecialWord && std::all_of(key.begin(), key.end(), is_letter);
}

void Emit(YAML::Emitter& out, const nlohmann::ordered_json& value) {
  if (value.is_object()) {
    if (value.empty()) {
      out << YAML::Flow;
    }
    out << YAML::BeginMap;
    for (const auto& [key, member] : value.items()) {
      out << YAML::Key;
      IsPlainKey(key) ? out << key : out << YAML::DoubleQuoted << key;
      out << YAML::Value;
      Emit(out, member);
    }
    out << YAML::EndMap;
  } else if (value.is_array()) {
    if (value.empty()) {
      out << YAML::Flow;
    }
    out << YAML::BeginSeq;
    for (const nlohmann::ordered_json& member : value) {
      Emit(out, member);
    }
    out << YAML::EndSeq;
  } else if (value.is_null()) {
    out << YAML::Null;
  } else if (value.is_string()) {
    out << YAML::DoubleQuoted << value.get<std::string>();
  } else {
    // Numbers and truths are written as in JSON, which YAML reads alike; what JSON writes in quotes comes with them.
    const std::string text = JsonText(value, NonFinite::kStrings);
    text.starts_with('"') ? out << YAML::DoubleQuoted << text.substr(1, text.size() - 2) : out << text;
  }
}

}  // namespace

std::string YamlText(const nlohmann::ordered_json& value) {
  YAML::Emitter out;
  Emit(out, value);
  return out.c_str();
}

}  // namespace rayctl::cli
