# Decides whether the CUDA kernels are built, and says so in one line.
# Out: FLASHCUTE_CUDA_ENABLED, FLASHCUTE_CUDA_REASON; the CUDA language and FLASHCUTE_CUTLASS_INCLUDE when enabled.
set(FLASHCUTE_CUDA_ENABLED OFF)
string(TOLOWER "${FLASHCUTE_CUDA}" _fc_cuda)
if(NOT _fc_cuda MATCHES "^(auto|on|off)$")
  message(FATAL_ERROR "FLASHCUTE_CUDA: expected auto, on or off, given '${FLASHCUTE_CUDA}'.")
endif()

# Tries a compiler in a project of its own, so that a broken one is a reason and not an error.
macro(_fc_find_nvcc)
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_program(FLASHCUTE_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
    mark_as_advanced(FLASHCUTE_NVCC)
    if(FLASHCUTE_NVCC)
      set(ENV{CUDACXX} "${FLASHCUTE_NVCC}")
    endif()
  endif()
  if(NOT CMAKE_CUDA_COMPILER AND NOT "$ENV{CUDACXX}" STREQUAL "")
    unset(CMAKE_CUDA_COMPILER CACHE) # a failure that an earlier configuration remembered
    include(CheckLanguage)
    check_language(CUDA)
  endif()
endmacro()

macro(_fc_enable_cuda)
  set(CMAKE_CUDA_ARCHITECTURES OFF) # each source carries its own -gencode
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  set(CMAKE_CUDA_STANDARD 17)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(CMAKE_CUDA_EXTENSIONS OFF)
  enable_language(CUDA)
endmacro()

if(_fc_cuda STREQUAL "off")
  set(FLASHCUTE_CUDA_REASON "FLASHCUTE_CUDA=off")
else()
  _fc_find_nvcc()
  if(NOT CMAKE_CUDA_COMPILER)
    if("$ENV{CUDACXX}" STREQUAL "")
      set(FLASHCUTE_CUDA_REASON "no nvcc found: put it on PATH, set CUDACXX or CUDA_HOME, or let pip fetch one with FLASHCUTE_CUDA=on")
    else()
      string(CONCAT FLASHCUTE_CUDA_REASON "$ENV{CUDACXX} cannot compile a trivial program with the host compiler "
        "${CMAKE_CXX_COMPILER} (${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}): "
        "set CUDAHOSTCXX to one that this CUDA supports")
    endif()
  else()
    include(FindCutlass) # first, since a language once enabled stays
    if(NOT FLASHCUTE_CUTLASS_INCLUDE)
      set(FLASHCUTE_CUDA_REASON "${FLASHCUTE_CUTLASS_REASON}")
    else()
      _fc_enable_cuda()
      if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.0)
        set(FLASHCUTE_CUDA_REASON
          "${CMAKE_CUDA_COMPILER} is CUDA ${CMAKE_CUDA_COMPILER_VERSION}, and the kernels need 12.0 or later")
      else()
        set(FLASHCUTE_CUDA_ENABLED ON)
        string(CONCAT FLASHCUTE_CUDA_REASON "CUDA ${CMAKE_CUDA_COMPILER_VERSION} at ${CMAKE_CUDA_COMPILER}, "
          "CUTLASS ${FLASHCUTE_CUTLASS_VERSION} at ${FLASHCUTE_CUTLASS_INCLUDE}")
      endif()
    endif()
  endif()
  if(_fc_cuda STREQUAL "on" AND NOT FLASHCUTE_CUDA_ENABLED)
    message(FATAL_ERROR "FLASHCUTE_CUDA=on, but ${FLASHCUTE_CUDA_REASON}.")
  endif()
endif()
message(STATUS "flashcute: CUDA kernels ${FLASHCUTE_CUDA_ENABLED} (${FLASHCUTE_CUDA_REASON})")
