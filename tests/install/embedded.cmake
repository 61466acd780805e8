cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/consume.cmake)
consume(${CMAKE_CURRENT_LIST_DIR}/embedded -D NS_DIST_SOURCE=${SOURCE} -D CMAKE_UNITY_BUILD=ON
        -D CMAKE_UNITY_BUILD_BATCH_SIZE=12)
