#pragma once

// The two daemons of the program `rayctl`, behind its hidden verbs. `arguments` are argv from the verb on.
namespace rayctl {

int HeadMain(int argc, char** argv);
int AgentMain(int argc, char** argv);

}  // namespace rayctl
