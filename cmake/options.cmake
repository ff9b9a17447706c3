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
_fc_list_option(FLASHCUTE_ARCHS "80;90" "Kernel families to build, of: 80;90")
_fc_list_option(FLASHCUTE_HEAD_DIMS "32;64;96;128;192;256" "Head-dim buckets to build, of: 32;64;96;128;192;256")
_fc_option(FLASHCUTE_CUTLASS_DIR "" PATH "A CUTLASS 4.x checkout or include folder; empty: the nvidia-cutlass wheel")
_fc_option(FLASHCUTE_SPLIT_KERNELS OFF BOOL "One .cu for each kernel: more work, but less time on many cores")
_fc_option(FLASHCUTE_RACECHECK OFF BOOL "Kernels that compute-sanitizer understands; slower")
_fc_option(FLASHCUTE_WERROR OFF BOOL "Warnings are errors")
_fc_option(FLASHCUTE_NANOBIND_DIR "" PATH "nanobind's folder; empty: the nanobind of the Python that runs the build")
_fc_option(FLASHCUTE_TESTS OFF BOOL "Build the C tests")
option(FLASHCUTE_PYTHON "Build the Python module" OFF)
if(SKBUILD)
  set(FLASHCUTE_PYTHON ON) # whatever a build folder remembers from a configuration without pip
endif()
