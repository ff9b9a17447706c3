# Finds CUTLASS 4.x: FLASHCUTE_CUTLASS_DIR, else the nvidia-cutlass wheel of the Python that runs the build.
# Out: FLASHCUTE_CUTLASS_INCLUDE, empty where none is found, FLASHCUTE_CUTLASS_VERSION, FLASHCUTE_CUTLASS_REASON.
set(FLASHCUTE_CUTLASS_INCLUDE "")
set(FLASHCUTE_CUTLASS_VERSION "")
set(_fc_candidates "")
if(FLASHCUTE_CUTLASS_DIR)
  list(APPEND _fc_candidates "${FLASHCUTE_CUTLASS_DIR}" "${FLASHCUTE_CUTLASS_DIR}/include")
  set(FLASHCUTE_CUTLASS_REASON "FLASHCUTE_CUTLASS_DIR=${FLASHCUTE_CUTLASS_DIR} holds no CUTLASS 4.x")
else()
  find_package(Python COMPONENTS Interpreter QUIET)
  if(Python_EXECUTABLE)
    string(CONCAT _fc_script
      "import importlib.util as u, pathlib; s = u.find_spec('cutlass_library'); "
      "print(pathlib.Path(s.origin).parent / 'source' / 'include' if s else '')")
    execute_process(COMMAND ${Python_EXECUTABLE} -c "${_fc_script}"
      OUTPUT_VARIABLE _fc_wheel OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    list(APPEND _fc_candidates "${_fc_wheel}")
  endif()
  set(FLASHCUTE_CUTLASS_REASON "no CUTLASS 4.x found: pip install nvidia-cutlass, or set FLASHCUTE_CUTLASS_DIR")
endif()

foreach(_fc_dir IN LISTS _fc_candidates)
  if(EXISTS "${_fc_dir}/cute/tensor.hpp" AND EXISTS "${_fc_dir}/cutlass/version.h")
    file(STRINGS "${_fc_dir}/cutlass/version.h" _fc_lines REGEX "^#define CUTLASS_(MAJOR|MINOR|PATCH) +[0-9]+")
    string(REGEX REPLACE "[^0-9;]+" "" _fc_lines "${_fc_lines}")
    string(REPLACE ";" "." _fc_version "${_fc_lines}")
    if(_fc_version VERSION_GREATER_EQUAL 4.0 AND _fc_version VERSION_LESS 5.0)
      set(FLASHCUTE_CUTLASS_INCLUDE "${_fc_dir}")
      set(FLASHCUTE_CUTLASS_VERSION "${_fc_version}")
      break()
    endif()
  endif()
endforeach()
