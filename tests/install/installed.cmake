cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/consume.cmake)

file(REMOVE_RECURSE ${WORK})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/prefix)

# What the rooms use inside must not be asked of the one who links them.
set(inside "")
foreach(package Boost CLI11 Eigen3 nlohmann_json)
  list(APPEND inside -D CMAKE_DISABLE_FIND_PACKAGE_${package}=ON)
endforeach()
consume(${CMAKE_CURRENT_LIST_DIR}/consumer -D CMAKE_PREFIX_PATH=${WORK}/prefix ${inside})

# The installed tool works alone, in an empty directory and without the catalog beside it.
if(EXISTS ${BUILD}/bin/ns-dist)
  file(COPY ${WORK}/prefix/bin/ns-dist DESTINATION ${WORK}/alone)
  file(MAKE_DIRECTORY ${WORK}/empty)
  run(${CMAKE_COMMAND} -E chdir ${WORK}/empty ${WORK}/alone/ns-dist --version)
  run(${CMAKE_COMMAND} -E chdir ${WORK}/empty ${WORK}/alone/ns-dist list gpus)
endif()
