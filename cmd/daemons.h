#pragma once

#include <cstdlib>
#include <string>

// The two daemons of the program `rayctl`, behind its hidden verbs. `arguments` are argv from the verb on.
namespace rayctl {

// Where a service manager listens (sd_notify); empty: nobody does. It is for this process alone, not for its children.
inline std::string TakeNotifySocket() {
  const char* const path = std::getenv("NOTIFY_SOCKET");
  std::string taken = path == nullptr ? "" : path;
  ::unsetenv("NOTIFY_SOCKET");
  return taken;
}

int HeadMain(int argc, char** argv);
int AgentMain(int argc, char** argv);

}  // namespace rayctl
