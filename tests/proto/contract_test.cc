// Freezes what others read or call: every message, field, enum and call of every proto, and the states and reasons with
// their numbers, names and edges. RAYCTL_UPDATE_GOLDEN=1 writes contract.golden anew.
#include <google/protobuf/descriptor.pb.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/states.h"
#include "fmt/format.h"

namespace rayctl {
namespace {

using google::protobuf::DescriptorProto;
using google::protobuf::EnumDescriptorProto;
using google::protobuf::FieldDescriptorProto;
using google::protobuf::FileDescriptorProto;
using google::protobuf::FileDescriptorSet;

using Lines = std::vector<std::string>;

FileDescriptorSet Descriptors() {
  FileDescriptorSet files;
  std::ifstream in(RAYCTL_CONTRACT_DESCRIPTORS, std::ios::binary);
  REQUIRE(files.ParseFromIstream(&in));
  return files;
}

// ".rayctl.v1.Job" -> "rayctl.v1.Job".
std::string WithoutDot(const std::string& name) { return name.starts_with('.') ? name.substr(1) : name; }

std::string TypeOf(const FieldDescriptorProto& field) {
  if (field.has_type_name()) {
    return WithoutDot(field.type_name());
  }
  std::string name = FieldDescriptorProto::Type_Name(field.type());  // "TYPE_UINT64".
  name = name.substr(std::string("TYPE_").size());
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  return name;
}

void Describe(const std::string& scope, const EnumDescriptorProto& type, Lines& lines) {
  for (const auto& value : type.value()) {
    lines.push_back(fmt::format("enum {}.{}.{} = {}", scope, type.name(), value.name(), value.number()));
  }
}

void Describe(const std::string& scope, const DescriptorProto& type, Lines& lines) {
  const std::string name = scope + "." + type.name();
  lines.push_back("message " + name);
  for (const FieldDescriptorProto& field : type.field()) {
    std::string line = fmt::format("field {}.{} = {} : ", name, field.name(), field.number());
    if (field.label() == FieldDescriptorProto::LABEL_REPEATED) {
      line += "repeated ";
    } else if (field.proto3_optional()) {
      line += "optional ";
    } else if (field.has_oneof_index()) {
      line += fmt::format("oneof {} ", type.oneof_decl(field.oneof_index()).name());
    }
    lines.push_back(line + TypeOf(field));
  }
  for (const EnumDescriptorProto& nested : type.enum_type()) {
    Describe(name, nested, lines);
  }
  for (const DescriptorProto& nested : type.nested_type()) {  // Maps too.
    Describe(name, nested, lines);
  }
}

void Describe(const FileDescriptorProto& file, Lines& lines) {
  const bool lite = file.options().optimize_for() == google::protobuf::FileOptions::LITE_RUNTIME;
  lines.push_back(fmt::format("file {} package {}{}", file.name(), file.package(), lite ? " lite" : ""));
  for (const std::string& import : file.dependency()) {
    lines.push_back(fmt::format("import {} in {}", import, file.name()));
  }
  for (const auto& service : file.service()) {
    for (const auto& method : service.method()) {
      lines.push_back(fmt::format("call {}.{}.{}: {}{} -> {}{}", file.package(), service.name(), method.name(),
                                  method.client_streaming() ? "stream " : "", WithoutDot(method.input_type()),
                                  method.server_streaming() ? "stream " : "", WithoutDot(method.output_type())));
    }
  }
  for (const EnumDescriptorProto& type : file.enum_type()) {
    Describe(file.package(), type, lines);
  }
  for (const DescriptorProto& type : file.message_type()) {
    Describe(file.package(), type, lines);
  }
}

template <class Enum>
void DescribeNames(const std::string& what, int first, int last, Lines& lines) {
  for (int number = first; number <= last; ++number) {
    lines.push_back(fmt::format("name {} {} = {}", what, number, Name(static_cast<Enum>(number))));
  }
}

Lines ContractNow() {
  Lines lines;
  const FileDescriptorSet files = Descriptors();
  for (const FileDescriptorProto& file : files.file()) {
    Describe(file, lines);
  }
  DescribeNames<JobKind>("job kind", 1, 3, lines);
  DescribeNames<JobState>("job state", 1, 9, lines);
  DescribeNames<Reason>("reason", 0, 10, lines);
  DescribeNames<NodeState>("node state", 1, 4, lines);
  DescribeNames<WorkerState>("worker state", 1, 4, lines);
  DescribeNames<PlacementStrategy>("placement strategy", 1, 4, lines);
  DescribeNames<Role>("role", 1, 4, lines);
  for (int from = 1; from <= 9; ++from) {
    for (int to = 1; to <= 9; ++to) {
      if (IsEdge(static_cast<JobState>(from), static_cast<JobState>(to))) {
        lines.push_back(
            fmt::format("edge {} -> {}", Name(static_cast<JobState>(from)), Name(static_cast<JobState>(to))));
      }
    }
  }
  return lines;
}

Lines Golden() {
  std::ifstream in(RAYCTL_CONTRACT_GOLDEN);
  Lines lines;
  for (std::string line; std::getline(in, line);) {
    lines.push_back(line);
  }
  return lines;
}

// The lines of `a` that `b` lacks.
std::string Missing(const Lines& a, const Lines& b) {
  const std::set<std::string> have(b.begin(), b.end());
  std::ostringstream missing;
  for (const std::string& line : a) {
    if (have.count(line) == 0) {
      missing << line << '\n';
    }
  }
  return missing.str();
}

}  // namespace

TEST_CASE("what others read or call is what it was", "[proto]") {
  const Lines now = ContractNow();
  if (std::getenv("RAYCTL_UPDATE_GOLDEN") != nullptr) {
    std::ofstream out(RAYCTL_CONTRACT_GOLDEN);
    for (const std::string& line : now) {
      out << line << '\n';
    }
    REQUIRE(out.good());
  }
  const Lines golden = Golden();
  {
    INFO(
        "These are gone, renamed, renumbered or of another type. Old clients, agents, shims and journals need them as "
        "they were: put them back, and reserve what is not used any more.");
    CHECK(Missing(golden, now) == "");
  }
  {
    INFO(
        "These are new. If they are meant to stay for ever, run this test with RAYCTL_UPDATE_GOLDEN=1 and commit "
        "contract.golden.");
    CHECK(Missing(now, golden) == "");
  }
}

TEST_CASE("no message gives a number twice or leaves an enum without its zero", "[proto]") {
  std::map<std::string, std::set<int>> numbers;
  for (const std::string& line : ContractNow()) {
    std::istringstream in(line);
    std::string kind;
    std::string name;
    std::string equals;
    int number = 0;
    in >> kind >> name >> equals >> number;
    if (kind == "field" || kind == "enum") {
      CAPTURE(line);
      CHECK(numbers[kind + " " + name.substr(0, name.rfind('.'))].insert(number).second);
    }
  }
  for (const auto& [type, used] : numbers) {
    if (type.starts_with("enum ")) {
      CAPTURE(type);
      CHECK(used.count(0) == 1);
    }
  }
}

TEST_CASE("states have the same numbers and names in code and in the API", "[proto]") {
  std::map<std::string, int> values;
  const FileDescriptorSet files = Descriptors();
  for (const FileDescriptorProto& file : files.file()) {
    for (const EnumDescriptorProto& type : file.enum_type()) {
      for (const auto& value : type.value()) {
        values[value.name()] = value.number();
      }
    }
  }
  const auto check = [&values](const std::string& prefix, std::string name, int number) {
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::toupper(c); });
    CAPTURE(prefix, name);
    REQUIRE(values.count(prefix + name) == 1);
    CHECK(values[prefix + name] == number);
  };
  for (int i = 1; i <= 9; ++i) {
    check("JOB_STATE_", std::string(Name(static_cast<JobState>(i))), i);
  }
  for (int i = 1; i <= 10; ++i) {
    check("REASON_", std::string(Name(static_cast<Reason>(i))), i);
  }
  for (int i = 1; i <= 3; ++i) {
    check("JOB_KIND_", std::string(Name(static_cast<JobKind>(i))), i);
  }
  for (int i = 1; i <= 4; ++i) {
    check("NODE_STATE_", std::string(Name(static_cast<NodeState>(i))), i);
    check("WORKER_STATE_", std::string(Name(static_cast<WorkerState>(i))), i);
    check("PLACEMENT_STRATEGY_", std::string(Name(static_cast<PlacementStrategy>(i))), i);
    check("ROLE_", std::string(Name(static_cast<Role>(i))), i);
  }
}

}  // namespace rayctl
