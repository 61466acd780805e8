# compile(<file> <defines>...): sets `failed` and `output`. From COMPILER, INCLUDES and DEFINITIONS.
function(compile file)
  list(TRANSFORM INCLUDES PREPEND -I OUTPUT_VARIABLE includes)
  list(TRANSFORM DEFINITIONS PREPEND -D OUTPUT_VARIABLE definitions)
  execute_process(COMMAND ${CMAKE_COMMAND} -E env LC_ALL=C ${COMPILER} -std=c++20 -fsyntax-only ${includes} ${definitions}
                          ${ARGN} ${file} RESULT_VARIABLE result ERROR_VARIABLE output OUTPUT_VARIABLE output)
  set(failed ${result} PARENT_SCOPE)
  set(output ${output} PARENT_SCOPE)
endfunction()
