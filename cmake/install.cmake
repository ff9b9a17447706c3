# The same in a wheel (inside the Python package) and in a plain `cmake --install` (below the prefix): the library, its
# headers, a CMake package that find_package(flashcute) reads, and a file for pkg-config.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)
if(FLASHCUTE_PYTHON)
  set(_fc_lib flashcute/lib)
  set(_fc_include flashcute/include)
  set(_fc_namelink NAMELINK_SKIP)
  # Nobody looks for libraries in a Python package at run time, and the name without a version is not there.
  set(_fc_pc_libs "-L\${libdir} -l:libflashcute.so.${PROJECT_VERSION_MAJOR} -Wl,-rpath,\${libdir}")
else()
  set(_fc_lib ${CMAKE_INSTALL_LIBDIR})
  set(_fc_include ${CMAKE_INSTALL_INCLUDEDIR})
  set(_fc_namelink)
  set(_fc_pc_libs "-L\${libdir} -lflashcute")
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

# flashcute.pc names its folders relative to its own, or absolutely where the user chose absolute ones.
file(RELATIVE_PATH _fc_pc_prefix "/${_fc_lib}/pkgconfig" /)
string(REGEX REPLACE "/$" "" _fc_pc_prefix "${_fc_pc_prefix}")
foreach(_fc_kind IN ITEMS lib include)
  set(_fc_pc_${_fc_kind}dir "\${prefix}/${_fc_${_fc_kind}}")
  if(IS_ABSOLUTE "${_fc_${_fc_kind}}")
    set(_fc_pc_${_fc_kind}dir "${_fc_${_fc_kind}}")
  endif()
endforeach()
configure_file(cmake/flashcute.pc.in ${PROJECT_BINARY_DIR}/flashcute.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/flashcute.pc DESTINATION ${_fc_lib}/pkgconfig)
