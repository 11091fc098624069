if(VIOLATIONS)
  message(FATAL_ERROR "what decides must stay pure: ${VIOLATIONS}")
endif()
message("what decides is pure")
