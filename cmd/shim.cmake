# Fully static, so that it is small and runs whatever the node's libraries are; sanitizers need it dynamic.
add_executable(rayctl_shim_program shim.cc)
set_target_properties(rayctl_shim_program PROPERTIES OUTPUT_NAME rayctl-shim
                                                     RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
target_link_libraries(rayctl_shim_program PRIVATE rayctl::shim_loop ${RAYCTL_PROTOBUF_LITE_ARCHIVE}
                                                  -Wl,--start-group ${RAYCTL_ABSL_SHIM_ARCHIVES} -Wl,--end-group
                                                  rayctl::build_options)
if(NOT RAYCTL_SANITIZE)
  target_link_options(rayctl_shim_program PRIVATE -static -Wl,--gc-sections)
endif()
install(TARGETS rayctl_shim_program RUNTIME)
