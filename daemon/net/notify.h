#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace rayctl::net {

// What a service manager of the kind of systemd is told on its datagram socket, as sd_notify(3) has it: "READY=1",
// "STOPPING=1", "STATUS=…". An empty path: nobody wants to know.
absl::Status Notify(const std::string& socket_path, std::string_view state);

}  // namespace rayctl::net
