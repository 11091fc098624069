add_library(rayctl_cmd_agent agent.cc)
target_link_libraries(rayctl_cmd_agent PRIVATE rayctl::agent_daemon CLI11::CLI11 rayctl::log rayctl::build_options)
