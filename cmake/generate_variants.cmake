# Turns csrc/cuda/variants.cmake into sources in the build folder: for each family and head-dim bucket one .cu that
# instantiates its kernels (they share CuTe's headers and templates: the least work in all), and the registry's table.
include(${CMAKE_SOURCE_DIR}/csrc/cuda/variants.cmake)

set(_fc_cpp_float16 "cutlass::half_t")
set(_fc_cpp_bfloat16 "cutlass::bfloat16_t")
set(_fc_cpp_full "MaskClass::kFull")
set(_fc_cpp_banded "MaskClass::kBanded")
set(_fc_cpp_any "MaskClass::kAny")

# Writes a file only when its text changes, so that a configure run rebuilds nothing.
function(flashcute_write path text)
  if(EXISTS "${path}")
    file(READ "${path}" _old)
    if(_old STREQUAL text)
      return()
    endif()
  endif()
  file(WRITE "${path}" "${text}")
endfunction()

# Out: <kernels>, the .cu files; <registry>, the .cpp. FLASHCUTE_ARCHS and FLASHCUTE_HEAD_DIMS choose among the variants.
function(flashcute_generate_variants folder kernels registry)
  set(groups "")
  set(unused ${FLASHCUTE_ARCHS} ${FLASHCUTE_HEAD_DIMS})
  foreach(variant IN LISTS FLASHCUTE_VARIANTS)
    separate_arguments(fields UNIX_COMMAND "${variant}")
    list(GET fields 0 family)
    list(GET fields 1 head_dim)
    list(GET fields 2 dtype)
    list(GET fields 3 mask)
    set(suffix "")
    set(small "")
    if("small" IN_LIST fields)
      set(suffix _small)
      set(small ", true")
    endif()
    string(REPLACE "sm" "" arch ${family})
    if(NOT arch IN_LIST FLASHCUTE_ARCHS OR NOT head_dim IN_LIST FLASHCUTE_HEAD_DIMS)
      continue()
    endif()
    list(REMOVE_ITEM unused ${arch} ${head_dim})
    set(name ${family}_hd${head_dim}_${dtype}_${mask}${suffix})
    set(group ${family}_hd${head_dim})
    if(FLASHCUTE_SPLIT_KERNELS)
      set(group ${name})
    endif()
    list(APPEND groups ${group})
    set(family_${group} ${family})
    string(APPEND names_${group} " ${name}")
    string(APPEND body_${group} "  kernels.push_back(${family}::kernel_info<${family}::Config<${_fc_cpp_${dtype}}, "
                                "${head_dim}, ${_fc_cpp_${mask}}${small}>>(\"${name}\"));\n")
  endforeach()
  if(unused OR NOT groups)
    message(FATAL_ERROR "FLASHCUTE_ARCHS, FLASHCUTE_HEAD_DIMS: expected entries that csrc/cuda/variants.cmake lists together, "
                        "given ${FLASHCUTE_ARCHS} and ${FLASHCUTE_HEAD_DIMS}, of which it lacks: ${unused}.")
  endif()
  list(REMOVE_DUPLICATES groups)

  set(files "")
  set(declarations "")
  set(calls "")
  set(contents "")
  foreach(group IN LISTS groups)
    set(file ${folder}/${group}.cu)
    flashcute_write(
      ${file}
      "#include <vector>\n\n#include \"cuda/${family_${group}}/launch.cuh\"\n\nnamespace flashcute::cuda {\n\nvoid append_${group}(std::vector<KernelInfo>& kernels) {\n${body_${group}}}\n\n}  // namespace flashcute::cuda\n")
    set_source_files_properties(${file} PROPERTIES
      COMPILE_OPTIONS "--generate-code=${FLASHCUTE_GENCODE_${family_${group}}};${FLASHCUTE_OPTIONS_${family_${group}}}")
    list(APPEND files ${file})
    string(APPEND declarations "void append_${group}(std::vector<KernelInfo>& kernels);\n")
    string(APPEND contents "${group}.cu${names_${group}}\n")
    string(APPEND calls "    append_${group}(all);\n")
  endforeach()
  flashcute_write(
    ${folder}/registry.cpp
    "#include \"core/backend.h\"\n\nnamespace flashcute::cuda {\n\n${declarations}\nconst std::vector<KernelInfo>& kernels() {\n  static const std::vector<KernelInfo> list = [] {\n    std::vector<KernelInfo> all;\n${calls}    return all;\n  }();\n  return list;\n}\n\nstd::string build_description() {\n  return \"CUDA ${CMAKE_CUDA_COMPILER_VERSION}, CUTLASS ${FLASHCUTE_CUTLASS_VERSION}, archs ${FLASHCUTE_ARCHS}, head_dims ${FLASHCUTE_HEAD_DIMS}\";\n}\n\n}  // namespace flashcute::cuda\n")
  flashcute_write(${folder}/contents.txt "${contents}") # which kernels each file holds, for whoever shows the progress
  set(${kernels} ${files} PARENT_SCOPE)
  set(${registry} ${folder}/registry.cpp PARENT_SCOPE)
endfunction()
