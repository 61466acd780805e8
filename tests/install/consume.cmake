# run(<command>...): runs or ends with its output.
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(result)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}\nended with ${result}:\n${output}")
  endif()
  set(output ${output} PARENT_SCOPE)
endfunction()

# consume(<project> <cache entry>...): configures, builds and runs a project in WORK/build.
function(consume project)
  file(REMOVE_RECURSE ${WORK}/build)
  run(${CMAKE_COMMAND} -G Ninja -S ${project} -B ${WORK}/build -D CMAKE_CXX_COMPILER=${CXX}
      -D CMAKE_C_COMPILER=${CC} -D CMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER} -D CMAKE_CXX_FLAGS=${FLAGS}
      -D CMAKE_C_FLAGS=${FLAGS} ${ARGN})
  run(${CMAKE_COMMAND} --build ${WORK}/build --target consumer)
  run(${WORK}/build/consumer)
  if(NOT output STREQUAL "${VERSION}\n")
    message(FATAL_ERROR "The consumer printed \"${output}\" instead of the version ${VERSION}.")
  endif()
endfunction()
