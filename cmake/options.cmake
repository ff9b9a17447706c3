# Build options. Each can be given as a CMake variable or, at the first configuration, as an environment variable of the
# same name, which is how `FLASHCUTE_CUDA=off pip install .` works. Lists take ";", "," or blanks between their entries.
function(_fc_option name default type doc)
  if(NOT DEFINED ${name} AND DEFINED ENV{${name}} AND NOT "$ENV{${name}}" STREQUAL "")
    set(default "$ENV{${name}}")
  endif()
  set(${name} "${default}" CACHE ${type} "${doc}")
endfunction()

function(_fc_list_option name default doc)
  _fc_option(${name} "${default}" STRING "${doc}")
  string(REGEX REPLACE "[, ]+" ";" _value "${${name}}")
  set(${name} "${_value}" PARENT_SCOPE)
endfunction()

_fc_option(FLASHCUTE_CUDA "auto" STRING "Build the CUDA kernels: auto (where a working nvcc is found), on or off")
set_property(CACHE FLASHCUTE_CUDA PROPERTY STRINGS auto on off)
_fc_list_option(FLASHCUTE_ARCHS "80" "Kernel families to build, of: 80")
_fc_list_option(FLASHCUTE_HEAD_DIMS "64;128" "Head-dim buckets to build, of: 64;128")
_fc_option(FLASHCUTE_CUTLASS_DIR "" PATH "A CUTLASS 4.x checkout or include folder; empty: the nvidia-cutlass wheel")
_fc_option(FLASHCUTE_WERROR OFF BOOL "Warnings are errors")
_fc_option(FLASHCUTE_TESTS OFF BOOL "Build the C tests")
option(FLASHCUTE_PYTHON "Build the Python module" OFF)
if(SKBUILD)
  set(FLASHCUTE_PYTHON ON) # whatever a build folder remembers from a configuration without pip
endif()

# A CuTe translation unit peaks near 3 GB, so jobs are bounded by memory as well as by cores. A parallel level that the
# user chose (CMAKE_BUILD_PARALLEL_LEVEL, -j) or a pool of their own is left alone.
if(NOT DEFINED CMAKE_JOB_POOL_COMPILE AND NOT DEFINED ENV{CMAKE_BUILD_PARALLEL_LEVEL})
  cmake_host_system_information(RESULT _fc_cores QUERY NUMBER_OF_LOGICAL_CORES)
  cmake_host_system_information(RESULT _fc_megabytes QUERY TOTAL_PHYSICAL_MEMORY)
  math(EXPR _fc_jobs "${_fc_megabytes} / 3000")
  if(_fc_jobs GREATER _fc_cores)
    set(_fc_jobs ${_fc_cores})
  endif()
  if(_fc_jobs LESS 1)
    set(_fc_jobs 1)
  endif()
  set_property(GLOBAL APPEND PROPERTY JOB_POOLS flashcute_compile=${_fc_jobs})
  set(CMAKE_JOB_POOL_COMPILE flashcute_compile)
endif()
