add_library(rayctl_cmd_head head.cc)
target_link_libraries(rayctl_cmd_head PRIVATE rayctl::head_daemon CLI11::CLI11 rayctl::log rayctl::build_options)
