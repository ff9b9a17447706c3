# The same three folders in a wheel (inside the Python package) and in a plain `cmake --install` (below the prefix):
# the library, its headers, and a CMake package that find_package(flashcute) reads.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)
if(FLASHCUTE_PYTHON)
  set(_fc_lib flashcute/lib)
  set(_fc_include flashcute/include)
  set(_fc_namelink NAMELINK_SKIP)
else()
  set(_fc_lib ${CMAKE_INSTALL_LIBDIR})
  set(_fc_include ${CMAKE_INSTALL_INCLUDEDIR})
  set(_fc_namelink)
endif()
set(_fc_config ${_fc_lib}/cmake/flashcute)

install(TARGETS flashcute EXPORT flashcute-targets
  LIBRARY DESTINATION ${_fc_lib} ${_fc_namelink}
  INCLUDES DESTINATION ${_fc_include})
install(DIRECTORY csrc/include/flashcute DESTINATION ${_fc_include} FILES_MATCHING PATTERN "*.h")
install(EXPORT flashcute-targets NAMESPACE flashcute:: DESTINATION ${_fc_config})

configure_package_config_file(cmake/flashcute-config.cmake.in ${PROJECT_BINARY_DIR}/flashcute-config.cmake
  INSTALL_DESTINATION ${_fc_config} NO_SET_AND_CHECK_MACRO)
# One SONAME is one ABI: every version of a major number serves programs built for an older one of it.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/flashcute-config-version.cmake COMPATIBILITY SameMajorVersion)
install(FILES ${PROJECT_BINARY_DIR}/flashcute-config.cmake ${PROJECT_BINARY_DIR}/flashcute-config-version.cmake
  DESTINATION ${_fc_config})
