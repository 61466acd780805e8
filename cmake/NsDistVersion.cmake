# ns_dist_version(<target>): compiles version() and git_revision() of ns_dist/version.h into the target.
# The revision is read at build time, again whenever HEAD moves, and is empty outside of a git checkout.
function(ns_dist_version target)
  set(output ${CMAKE_CURRENT_BINARY_DIR}/version.cc)
  set(script ${PROJECT_SOURCE_DIR}/cmake/write_version.cmake)
  set(template ${PROJECT_SOURCE_DIR}/cmake/version.cc.in)
  set(head_moves "")
  find_package(Git QUIET)
  if(Git_FOUND AND EXISTS ${PROJECT_SOURCE_DIR}/.git)
    execute_process(COMMAND ${GIT_EXECUTABLE} rev-parse --git-path logs/HEAD WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
                    OUTPUT_VARIABLE log OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    cmake_path(ABSOLUTE_PATH log BASE_DIRECTORY ${PROJECT_SOURCE_DIR})
    if(EXISTS ${log})
      set(head_moves ${log})
    endif()
  endif()
  add_custom_command(
    OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -D SOURCE=${PROJECT_SOURCE_DIR} -D GIT=${GIT_EXECUTABLE} -D VERSION=${PROJECT_VERSION}
            -D TEMPLATE=${template} -D OUTPUT=${output} -P ${script}
    DEPENDS ${script} ${template} ${head_moves} COMMENT "version ${PROJECT_VERSION}" VERBATIM)
  target_sources(${target} PRIVATE ${output})
endfunction()
