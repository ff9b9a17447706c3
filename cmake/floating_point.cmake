# NaNs, infinities, signed zeros and subnormal numbers are part of the results. -ffast-math, -Ofast and their parts in
# CXXFLAGS or LDFLAGS would give them up, and GCC and Clang would link start-up code that switches subnormal numbers off
# for the whole process that loads the library. These options stand behind the user's and undo theirs.
include(CheckCXXCompilerFlag)
set(_fc_exact "")
foreach(_fc_flag IN ITEMS -fno-fast-math -fno-unsafe-math-optimizations -fno-associative-math -fno-reciprocal-math
                          -fno-finite-math-only -fsigned-zeros -fmath-errno -mno-daz-ftz)
  string(MAKE_C_IDENTIFIER "FLASHCUTE_HAS${_fc_flag}" _fc_known)
  check_cxx_compiler_flag(${_fc_flag} ${_fc_known})
  if(${_fc_known})
    list(APPEND _fc_exact ${_fc_flag})
  endif()
endforeach()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND _fc_exact -ftrapping-math) # its default, and not Clang's
endif()
add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:${_fc_exact}>")
string(JOIN " " _fc_exact ${_fc_exact})
foreach(_fc_kind IN ITEMS EXE MODULE SHARED)
  string(APPEND CMAKE_${_fc_kind}_LINKER_FLAGS " ${_fc_exact}") # LDFLAGS are in there, and stand behind link options
endforeach()
