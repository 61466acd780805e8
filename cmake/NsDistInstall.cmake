include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

# Libraries, public headers, the tool, the catalog and a package for find_package(ns_dist).
function(ns_dist_install)
  get_property(modules GLOBAL PROPERTY NS_DIST_MODULES)
  list(TRANSFORM modules PREPEND ns_dist_ OUTPUT_VARIABLE targets)
  set(package ${CMAKE_INSTALL_LIBDIR}/cmake/ns_dist)
  install(TARGETS ${targets} ns_dist_ns_dist EXPORT ns_dist FILE_SET HEADERS)
  if(TARGET ns-dist)
    install(TARGETS ns-dist)
  endif()
  install(EXPORT ns_dist NAMESPACE ns_dist:: FILE ns_distTargets.cmake DESTINATION ${package})
  install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/NOTICE DESTINATION ${CMAKE_INSTALL_DOCDIR})
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/configs/ DESTINATION ${CMAKE_INSTALL_DATADIR}/ns_dist)

  configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/ns_distConfig.cmake.in
                                ${PROJECT_BINARY_DIR}/ns_distConfig.cmake INSTALL_DESTINATION ${package})
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/ns_distConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(FILES ${PROJECT_BINARY_DIR}/ns_distConfig.cmake ${PROJECT_BINARY_DIR}/ns_distConfigVersion.cmake
          DESTINATION ${package})
endfunction()
