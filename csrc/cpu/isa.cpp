#include "cpu/isa.h"

#include <cstdlib>
#include <cstring>
#include <string>

#include "core/backend.h"
#include "core/error.h"

namespace flashcute::cpu {
namespace {

constexpr const char* kNames[] = {"generic", "avx2", "avx512", "avx512_bf16"};

bool supported(int level) {
#ifdef FC_CPU_X86
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (level == 1) return avx2;
  if (level == 2) return avx512;
  if (level == 3) return avx512 && __builtin_cpu_supports("avx512bf16");
#endif
  return level == 0;
}

TileKernels kernels_of(int level) {
#ifdef FC_CPU_X86
  if (level == 1) return avx2_kernels();
  if (level >= 2) {
    TileKernels kernels = avx512_kernels();
    if (level == 3) kernels.bf16 = avx512_bf16_kernel();
    return kernels;
  }
#endif
  static_cast<void>(level);
  return generic_kernels();
}

Isa choose() {
  int best = 3;
  while (!supported(best)) --best;
  const char* wanted = std::getenv("FLASHCUTE_CPU_ISA");
  if (!wanted || !*wanted) return {kNames[best], kernels_of(best)};
  std::string known;
  for (int level = 0; level <= best; ++level) {
    if (std::strcmp(wanted, kNames[level]) == 0) return {kNames[level], kernels_of(level)};
    known += std::string(level ? ", " : "") + kNames[level];
  }
  throw Error(FLASHCUTE_STATUS_BAD_PARAM,
              "FLASHCUTE_CPU_ISA: expected one that this machine has (" + known + "), given \"" + wanted + "\"");
}

}  // namespace

const Isa& isa() {
  static const Isa chosen = choose();
  return chosen;
}

const TileKernel& tile_kernel(DType dtype) {
  const TileKernels& kernels = isa().kernels;
  return dtype == DType::kF32 ? kernels.f32 : dtype == DType::kF16 ? kernels.f16 : kernels.bf16;
}

const char* isa_name() {
  return isa().name;
}

}  // namespace flashcute::cpu
