# ns_dist_embed(<target> HEADER <name>.h FUNCTION <name> ROOT <dir> PATTERNS <glob>...)
#
# Compiles the files under ROOT that match into the target and defines
#   std::span<const ns_dist::EmbeddedFile> ns_dist::<function>()
# sorted by path (relative to ROOT). The target's private header declares the function.
# .incbin, unlike a generated C++ array, costs no compile time for megabytes. It works with g++ and clang.
function(ns_dist_embed target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "HEADER;FUNCTION;ROOT" "PATTERNS")
  list(TRANSFORM arg_PATTERNS PREPEND ${arg_ROOT}/)
  file(GLOB files CONFIGURE_DEPENDS RELATIVE ${arg_ROOT} ${arg_PATTERNS})
  list(SORT files COMPARE STRING)

  set(index 0)
  set(blobs "")
  set(symbols "")
  set(entries "")
  foreach(file IN LISTS files)
    set(symbol ns_dist_${arg_FUNCTION}_${index})
    string(APPEND blobs
      "    \".balign 16\\n${symbol}_data: .incbin \\\"${arg_ROOT}/${file}\\\"\\n${symbol}_end: .byte 0\\n\"\n"
      "    \".balign 8\\n${symbol}_size: .quad ${symbol}_end - ${symbol}_data\\n\"\n")
    string(APPEND symbols
      "extern const char ${symbol}_data[] NS_DIST_LOCAL;\nextern const std::uint64_t ${symbol}_size NS_DIST_LOCAL;\n")
    string(APPEND entries "      {\"${file}\", {${symbol}_data, ${symbol}_size}},\n")
    math(EXPR index "${index} + 1")
  endforeach()

  set(header ${arg_HEADER})
  set(function ${arg_FUNCTION})
  set(count ${index})
  set(output ${CMAKE_CURRENT_BINARY_DIR}/${arg_FUNCTION}.cc)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/embedded.cc.in ${output} @ONLY)
  list(TRANSFORM files PREPEND ${arg_ROOT}/)
  # In a file of several sources the dependency would be lost.
  set_source_files_properties(${output} PROPERTIES OBJECT_DEPENDS "${files}" SKIP_UNITY_BUILD_INCLUSION ON)
  target_sources(${target} PRIVATE ${output})
endfunction()
