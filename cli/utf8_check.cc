#include "cli/utf8_check.h"

#include <fmt/format.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace rayctl::cli {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// The bytes outside ASCII as \xNN.
std::string Escaped(std::string_view text) {
  constexpr unsigned char kAsciiEnd = 0x80;
  std::string shown;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    shown += byte < kAsciiEnd ? std::string(1, c) : fmt::format("\\x{:02x}", byte);
  }
  return shown;
}

bool IsUtf8(const std::string& text) {
  try {
    // Refuses what is not UTF-8, overlong forms and surrogates included.
    static_cast<void>(nlohmann::json(text).dump());
    return true;
  } catch (const nlohmann::json::type_error&) {
    return false;
  }
}

absl::Status CheckText(const std::string& text, const std::string& name) {
  return IsUtf8(text) ? absl::OkStatus()
                      : absl::InvalidArgumentError(fmt::format(
                            "{}: '{}' is not UTF-8; put such bytes into a file and name that", name, Escaped(text)));
}

absl::Status CheckUnder(const Message& message, const std::string& under) {
  const Reflection& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* const field : fields) {
    const bool is_text = field->type() == FieldDescriptor::TYPE_STRING;
    if (!is_text && field->type() != FieldDescriptor::TYPE_MESSAGE) {
      continue;
    }
    const std::string name = under.empty() ? field->name() : under + "." + field->name();
    const int count = field->is_repeated() ? reflection.FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      absl::Status status;
      if (is_text) {
        status = CheckText(field->is_repeated() ? reflection.GetRepeatedString(message, field, i)
                                                : reflection.GetString(message, field),
                           name);
      } else {
        status = CheckUnder(field->is_repeated() ? reflection.GetRepeatedMessage(message, field, i)
                                                 : reflection.GetMessage(message, field),
                            name);
      }
      if (!status.ok()) {
        return status;
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckUtf8(const Message& request) { return CheckUnder(request, ""); }

}  // namespace rayctl::cli
