#pragma once

#include <google/protobuf/repeated_field.h>

#include <string>

#include "rayctl/v1/cluster.pb.h"
#include "rayctl/v1/job.pb.h"
#include "rayctl/v1/token.pb.h"

// What reading verbs print for people.
namespace rayctl::cli {

std::string StatusText(const v1::GetStatusResponse& status, bool verbose);
std::string NodeTable(const google::protobuf::RepeatedPtrField<v1::Node>& nodes);
std::string JobTable(const google::protobuf::RepeatedPtrField<v1::Job>& jobs);
std::string WorkerTable(const google::protobuf::RepeatedPtrField<v1::Worker>& workers);
std::string TokenTable(const google::protobuf::RepeatedPtrField<v1::Token>& tokens);
std::string JobText(const v1::Job& job, const google::protobuf::RepeatedPtrField<v1::Worker>& workers);
std::string NodeText(const v1::Node& node);

}  // namespace rayctl::cli
