#include "base/errno_status.h"

#include <cctype>
#include <cstring>

namespace rayctl {

std::string ErrnoText(int error) {
  const char* text = strerrordesc_np(error);
  std::string result = text != nullptr ? text : "error " + std::to_string(error);
  if (result.size() > 1 && std::islower(static_cast<unsigned char>(result[1])) != 0) {
    result[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(result[0])));
  }
  return result;
}

absl::Status ErrnoStatus(std::string_view what, int error) {
  const std::string message = std::string(what) + ": " + ErrnoText(error);
  switch (error) {
    case ENOENT:
      return absl::NotFoundError(message);
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(message);
    case ENOSPC:
    case EDQUOT:
    case EMFILE:
    case ENFILE:
    case EAGAIN:
    case ENOMEM:
      return absl::ResourceExhaustedError(message);
    case EEXIST:
    case EADDRINUSE:
      return absl::AlreadyExistsError(message);
    case ECONNREFUSED:
    case EPIPE:
    case ECONNRESET:
      return absl::UnavailableError(message);
    default:
      return absl::InternalError(message);
  }
}

}  // namespace rayctl
