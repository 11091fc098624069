# Runs at `cmake --install`: the units with the path of the program in them.
get_filename_component(prefix "${CMAKE_INSTALL_PREFIX}" ABSOLUTE)
get_filename_component(RAYCTL_PROGRAM "${RAYCTL_BINDIR}/rayctl" ABSOLUTE BASE_DIR "${prefix}")
foreach(scope IN ITEMS system user)
  foreach(daemon IN ITEMS head agent)
    set(unit "${RAYCTL_UNITS_OUT}/${scope}/rayctl-${daemon}.service")
    configure_file("${RAYCTL_UNITS_IN}/${scope}/rayctl-${daemon}.service.in" "${unit}" @ONLY)
    # systemd looks in lib, also where libraries are in lib64 or lib/<machine>.
    file(INSTALL "${unit}" DESTINATION "${prefix}/lib/systemd/${scope}")
  endforeach()
endforeach()
file(INSTALL "${RAYCTL_UNITS_IN}/sysusers.conf" DESTINATION "${prefix}/lib/sysusers.d" RENAME rayctl.conf)
file(INSTALL "${RAYCTL_UNITS_IN}/tmpfiles.conf" DESTINATION "${prefix}/lib/tmpfiles.d" RENAME rayctl.conf)
