# Debian 12 packages. gRPC, Protobuf and Abseil come by pkg-config, so that a release links them statically with
# nothing but a flag, as it does every other library; OpenSSL alone stays shared, so that the system patches it. A test
# of the installed tree holds this.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(SQLite3 REQUIRED)
if(RAYCTL_STATIC_GRPC)
  find_library(RAYCTL_SQLITE_ARCHIVE NAMES libsqlite3.a REQUIRED)
  set_target_properties(SQLite::SQLite3 PROPERTIES IMPORTED_LOCATION ${RAYCTL_SQLITE_ARCHIVE})
endif()
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(yaml-cpp REQUIRED)
find_path(RAYCTL_BOOST_INCLUDE boost/asio.hpp REQUIRED)

pkg_check_modules(RAYCTL_GRPC REQUIRED grpc++ protobuf)
pkg_check_modules(RAYCTL_RE2 REQUIRED re2)
pkg_check_modules(RAYCTL_ABSL REQUIRED absl_status absl_statusor absl_strings)

# Turns a pkg-config module list into archives where one exists, everything but the system's own libraries.
function(rayctl_static_libraries out_var)
  set(result "")
  foreach(lib IN LISTS ARGN)
    if(lib MATCHES "^(dl|rt|m|pthread|atomic|ssl|crypto)$")
      list(APPEND result ${lib})
      continue()
    endif()
    find_library(RAYCTL_ARCHIVE_${lib} NAMES lib${lib}.a)
    if(RAYCTL_ARCHIVE_${lib})
      list(APPEND result ${RAYCTL_ARCHIVE_${lib}})
    else()
      list(APPEND result ${lib})
    endif()
  endforeach()
  set(${out_var} "${result}" PARENT_SCOPE)
endfunction()

add_library(rayctl_absl INTERFACE)
add_library(rayctl::absl ALIAS rayctl_absl)
add_library(rayctl_grpc INTERFACE)
add_library(rayctl::grpc ALIAS rayctl_grpc)
if(RAYCTL_STATIC_GRPC)
  rayctl_static_libraries(RAYCTL_ABSL_ARCHIVES ${RAYCTL_ABSL_STATIC_LIBRARIES})
  rayctl_static_libraries(RAYCTL_GRPC_ARCHIVES ${RAYCTL_GRPC_STATIC_LIBRARIES})
  target_link_libraries(rayctl_absl INTERFACE -Wl,--start-group ${RAYCTL_ABSL_ARCHIVES} -Wl,--end-group)
  target_link_libraries(rayctl_grpc INTERFACE -Wl,--start-group ${RAYCTL_GRPC_ARCHIVES} -Wl,--end-group
                                              OpenSSL::SSL OpenSSL::Crypto Threads::Threads)
else()
  target_link_libraries(rayctl_absl INTERFACE ${RAYCTL_ABSL_LIBRARIES})
  target_link_libraries(rayctl_grpc INTERFACE ${RAYCTL_GRPC_LIBRARIES} OpenSSL::SSL OpenSSL::Crypto Threads::Threads)
endif()

# GNU tar without compression needs nothing of what the library links for its other formats (working_dir/tar_only.cc), so
# its archive is enough in every preset.
find_library(RAYCTL_LIBARCHIVE NAMES libarchive.a REQUIRED)
add_library(rayctl_archive INTERFACE)
add_library(rayctl::archive ALIAS rayctl_archive)
target_link_libraries(rayctl_archive INTERFACE ${RAYCTL_LIBARCHIVE})

add_library(rayctl_re2 INTERFACE)
add_library(rayctl::re2 ALIAS rayctl_re2)
if(RAYCTL_STATIC_GRPC)
  rayctl_static_libraries(RAYCTL_RE2_ARCHIVES re2)
  target_link_libraries(rayctl_re2 INTERFACE ${RAYCTL_RE2_ARCHIVES} Threads::Threads)
else()
  target_link_libraries(rayctl_re2 INTERFACE ${RAYCTL_RE2_LIBRARIES} Threads::Threads)
endif()

if(RAYCTL_SANITIZE MATCHES "thread")
  # Protobuf's map fields have members of their own for this sanitizer, which Debian's library, built without it, lacks.
  # The standard library goes on knowing about it.
  target_compile_options(rayctl_grpc INTERFACE -U__SANITIZE_THREAD__ -D_GLIBCXX_TSAN=1)
endif()

# For the shim, which is static in every preset.
rayctl_static_libraries(RAYCTL_ABSL_SHIM_ARCHIVES ${RAYCTL_ABSL_STATIC_LIBRARIES})
find_library(RAYCTL_PROTOBUF_LITE_ARCHIVE NAMES libprotobuf-lite.a REQUIRED)

# The log and YAML: shared in everyday builds, part of the program in a release. Debian has no archive of spdlog and fmt,
# whose headers hold all of it as well.
add_library(rayctl_log INTERFACE)
add_library(rayctl::log ALIAS rayctl_log)
add_library(rayctl_yaml INTERFACE)
add_library(rayctl::yaml ALIAS rayctl_yaml)
if(RAYCTL_STATIC_GRPC)
  find_path(RAYCTL_SPDLOG_INCLUDE spdlog/spdlog.h REQUIRED)
  target_include_directories(rayctl_log SYSTEM INTERFACE ${RAYCTL_SPDLOG_INCLUDE})
  target_compile_definitions(rayctl_log INTERFACE SPDLOG_FMT_EXTERNAL)
  target_link_libraries(rayctl_log INTERFACE fmt::fmt-header-only Threads::Threads)
  find_library(RAYCTL_YAML_ARCHIVE NAMES libyaml-cpp.a REQUIRED)
  find_path(RAYCTL_YAML_INCLUDE yaml-cpp/yaml.h REQUIRED)
  target_include_directories(rayctl_yaml SYSTEM INTERFACE ${RAYCTL_YAML_INCLUDE})
  target_link_libraries(rayctl_yaml INTERFACE ${RAYCTL_YAML_ARCHIVE})
else()
  target_link_libraries(rayctl_log INTERFACE spdlog::spdlog)
  target_link_libraries(rayctl_yaml INTERFACE yaml-cpp)
endif()

add_library(rayctl_asio INTERFACE)
add_library(rayctl::asio ALIAS rayctl_asio)
target_include_directories(rayctl_asio SYSTEM INTERFACE ${RAYCTL_BOOST_INCLUDE})
target_compile_definitions(rayctl_asio INTERFACE BOOST_ASIO_NO_DEPRECATED BOOST_ERROR_CODE_HEADER_ONLY)
target_link_libraries(rayctl_asio INTERFACE Threads::Threads)
