# Sets `switch`, which a find module reads, where the archive of a library is installed. The tool starts about 1 ms
# earlier with its libraries linked in; where there is no archive, the shared library is used.
macro(ns_dist_prefer_static switch library)
  find_library(NS_DIST_ARCHIVE_${library} lib${library}.a)
  mark_as_advanced(NS_DIST_ARCHIVE_${library})
  if(NS_DIST_ARCHIVE_${library} AND PROJECT_IS_TOP_LEVEL AND NOT DEFINED ${switch})
    set(${switch} ON)
  endif()
endmacro()

# tl::expected is the only third-party name in public headers. The rest stays inside the modules that use it.
find_package(tl-expected 1.0 REQUIRED)
if(POLICY CMP0167)
  cmake_policy(SET CMP0167 NEW)  # Boost's own configuration; CMake's module is going
endif()
find_package(Boost 1.74 REQUIRED)
# Eigen 5 follows 3.4, and says that it is not compatible with what is asked for as 3.
find_package(Eigen3 REQUIRED NO_MODULE)
if(Eigen3_VERSION VERSION_LESS 3.4)
  message(FATAL_ERROR "Eigen ${Eigen3_VERSION} is too old; expected 3.4 or later")
endif()
find_package(fmt 9.1 REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
# Protobuf's own configuration brings Abseil, which it needs from 22 on; Debian's 3.21 has none.
find_package(Protobuf CONFIG QUIET)
if(NOT Protobuf_FOUND)
  ns_dist_prefer_static(Protobuf_USE_STATIC_LIBS protobuf)
  find_package(Protobuf 3.21 REQUIRED MODULE)
endif()
find_package(Threads REQUIRED)
ns_dist_prefer_static(ZLIB_USE_STATIC_LIBS z)
find_package(ZLIB REQUIRED)
if(NS_DIST_BUILD_CLI)
  find_package(CLI11 2.1 REQUIRED)
endif()
