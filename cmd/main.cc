#include <csignal>
#include <cstdlib>
#include <string>
#include <string_view>

#include "cli/verbs.h"
#include "cmd/daemons.h"

int main(int argc, char** argv) {
  const std::string_view verb = argc > 1 ? argv[1] : "";
#ifdef RAYCTL_HAS_HEAD
  if (verb == "head") {
    return rayctl::HeadMain(argc - 1, argv + 1);
  }
#endif
#ifdef RAYCTL_HAS_AGENT
  if (verb == "agent") {
    return rayctl::AgentMain(argc - 1, argv + 1);
  }
#endif
  // A closed stdout or connection is an error of that write, never the end of the program.
  std::signal(SIGPIPE, SIG_IGN);
  const int code = rayctl::cli::RunVerb(rayctl::cli::Arguments(argv + 1, argv + argc));
  // Everything was written straight to its descriptor; tearing gRPC down would only take time.
  std::_Exit(code);
}
