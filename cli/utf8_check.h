#pragma once

#include "absl/status/status.h"

namespace google::protobuf {
class Message;
}

namespace rayctl::cli {

// INVALID_ARGUMENT, with the field and its text, where text of a request is not UTF-8: the API carries nothing else.
absl::Status CheckUtf8(const google::protobuf::Message& request);

}  // namespace rayctl::cli
