# Finds CUTLASS 4.x: FLASHCUTE_CUTLASS_DIR, else the nvidia-cutlass wheel of the Python that runs the build.
# Out: FLASHCUTE_CUTLASS_INCLUDE, empty where none is found.
set(FLASHCUTE_CUTLASS_INCLUDE "")
set(_fc_candidates "")
if(FLASHCUTE_CUTLASS_DIR)
  list(APPEND _fc_candidates "${FLASHCUTE_CUTLASS_DIR}" "${FLASHCUTE_CUTLASS_DIR}/include")
else()
  find_package(Python COMPONENTS Interpreter QUIET)
  if(Python_EXECUTABLE)
    execute_process(
      COMMAND ${Python_EXECUTABLE} -c
              "import importlib.util as u, pathlib; s = u.find_spec('cutlass_library'); print(pathlib.Path(s.origin).parent / 'source' / 'include' if s else '')"
      OUTPUT_VARIABLE _fc_wheel OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    list(APPEND _fc_candidates "${_fc_wheel}")
  endif()
endif()
foreach(_fc_dir IN LISTS _fc_candidates)
  if(EXISTS "${_fc_dir}/cute/tensor.hpp" AND EXISTS "${_fc_dir}/cutlass/version.h")
    set(FLASHCUTE_CUTLASS_INCLUDE "${_fc_dir}")
    break()
  endif()
endforeach()
