# ns_dist_module(<module> [DEPS <module>...] [PRIVATE_LIBS <target>...] [PROTO <file>...])
#
# Makes one module: the static library ns_dist_<module>, alias ns_dist::<module>. Its public headers have an include root
# of their own, and only the modules named in DEPS are linked: any other include does not compile. PRIVATE_LIBS are seen
# by the module's sources alone. Those that are headers only do not even reach an installed package.
function(ns_dist_module module)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "DEPS;PRIVATE_LIBS;PROTO")
  set(target ns_dist_${module})
  file(GLOB headers CONFIGURE_DEPENDS include/ns_dist/*.h)
  file(GLOB sources CONFIGURE_DEPENDS src/*.cc src/*/*.cc)
  add_library(${target} STATIC ${sources})
  set(rows ${sources})
  list(FILTER rows INCLUDE REGEX "/(algorithms|schedules)/")  # each fills in a row of a table, with the same names
  set_source_files_properties(${rows} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  target_sources(${target} PUBLIC FILE_SET HEADERS BASE_DIRS include FILES ${headers})
  target_include_directories(${target} PRIVATE src)
  # Headers that modules share: internal/ns_dist/internal/ of this module and of those in DEPS. They are seen while those
  # are built, and are neither installed nor passed on.
  foreach(owner IN ITEMS ${module} ${arg_DEPS})
    if(IS_DIRECTORY ${PROJECT_SOURCE_DIR}/${owner}/internal)
      target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/${owner}/internal)
    endif()
  endforeach()
  target_compile_features(${target} PUBLIC cxx_std_20)
  list(TRANSFORM arg_DEPS PREPEND ns_dist::)
  target_link_libraries(${target} PUBLIC tl::expected ${arg_DEPS})
  ns_dist_private_libs(${target} ${arg_PRIVATE_LIBS})
  ns_dist_codegen(${target})
  if(arg_PROTO)
    ns_dist_proto(${target} ${arg_PROTO})
  endif()

  add_library(ns_dist::${module} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${module})
  set_property(GLOBAL APPEND PROPERTY NS_DIST_MODULES ${module})
endfunction()

# ns_dist_executable(<name> [DEPS <module>...] [PRIVATE_LIBS <target>...]): a program, from the .cc files here.
function(ns_dist_executable name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "DEPS;PRIVATE_LIBS")
  file(GLOB sources CONFIGURE_DEPENDS *.cc src/*.cc src/*/*.cc)
  list(TRANSFORM arg_DEPS PREPEND ns_dist::)
  add_executable(${name} ${sources})
  target_include_directories(${name} PRIVATE .)
  target_link_libraries(${name} PRIVATE ${arg_DEPS} ${arg_PRIVATE_LIBS})
  ns_dist_codegen(${name})
  ns_dist_static_runtime(${name})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
endfunction()

# Links the C++ runtime in where its archive is installed: symbols of libstdc++ cost 1 ms of each start otherwise.
# Sanitizers intercept the shared one. Distributions that want shared libraries set NS_DIST_STATIC_RUNTIME=OFF.
function(ns_dist_static_runtime target)
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=libstdc++.a OUTPUT_VARIABLE archive
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NS_DIST_STATIC_RUNTIME AND IS_ABSOLUTE "${archive}" AND NOT CMAKE_CXX_FLAGS MATCHES "sanitize")
    target_link_options(${target} PRIVATE -static-libstdc++ -static-libgcc LINKER:--as-needed LINKER:-O1)
    if(fmt_VERSION MATCHES "^9\\.")
      if(NOT TARGET ns_dist_fmt_in_place)
        add_library(ns_dist_fmt_in_place OBJECT ${PROJECT_SOURCE_DIR}/cmake/fmt_in_place.cc)
        target_link_libraries(ns_dist_fmt_in_place PRIVATE fmt::fmt)
        target_compile_options(ns_dist_fmt_in_place PRIVATE -w)
        set_target_properties(ns_dist_fmt_in_place PROPERTIES POSITION_INDEPENDENT_CODE ON)
        ns_dist_codegen(ns_dist_fmt_in_place)
      endif()
      target_sources(${target} PRIVATE $<TARGET_OBJECTS:ns_dist_fmt_in_place>)
    endif()
  endif()
endfunction()

function(ns_dist_private_libs target)
  foreach(lib IN LISTS ARGN)
    get_target_property(type ${lib} TYPE)
    if(type STREQUAL INTERFACE_LIBRARY AND NOT lib STREQUAL Threads::Threads)
      target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:${lib}>)
    else()
      target_link_libraries(${target} PRIVATE ${lib})
    endif()
  endforeach()
endfunction()

# Fused multiply-add changes the last bits from machine to machine; results must not depend on where they were computed.
function(ns_dist_codegen target)
  target_compile_options(${target} PRIVATE -ffp-contract=off)
  set_target_properties(${target} PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
                                             POSITION_INDEPENDENT_CODE ON)
endfunction()

# Generates and compiles protobuf sources into a target, without our warnings. The messages of et_def.proto are
# ns_dist_et_def::... of "ns_dist_et_def.pb.h": the package and the file of the format itself belong to programs of
# Chakra and ASTRA-Sim, which may link us beside another version of it. What a trace holds does not depend on them.
function(ns_dist_proto target)
  set(out ${CMAKE_CURRENT_BINARY_DIR}/proto)
  foreach(proto IN LISTS ARGN)
    cmake_path(ABSOLUTE_PATH proto)
    cmake_path(GET proto STEM stem)
    set(ours ns_dist_${stem})
    file(READ ${proto} text)
    string(REGEX REPLACE "\npackage [A-Za-z_]+;" "\npackage ${ours};" text "${text}")
    file(CONFIGURE OUTPUT ${out}/${ours}.proto CONTENT "${text}" @ONLY)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${proto})
    set(generated ${out}/${ours}.pb.cc ${out}/${ours}.pb.h)
    add_custom_command(
      OUTPUT ${generated}
      COMMAND protobuf::protoc --cpp_out=${out} -I ${out} ${out}/${ours}.proto
      DEPENDS ${out}/${ours}.proto COMMENT "protoc ${stem}.proto" VERBATIM)
    target_sources(${target} PRIVATE ${generated})
    set_source_files_properties(${generated} PROPERTIES COMPILE_OPTIONS -w)
  endforeach()
  target_include_directories(${target} SYSTEM PRIVATE ${out})
endfunction()

# ns_dist::ns_dist: every module at once.
function(ns_dist_umbrella)
  get_property(modules GLOBAL PROPERTY NS_DIST_MODULES)
  list(TRANSFORM modules PREPEND ns_dist:: OUTPUT_VARIABLE targets)
  add_library(ns_dist_ns_dist INTERFACE)
  add_library(ns_dist::ns_dist ALIAS ns_dist_ns_dist)
  set_target_properties(ns_dist_ns_dist PROPERTIES EXPORT_NAME ns_dist)
  target_link_libraries(ns_dist_ns_dist INTERFACE ${targets})
endfunction()
