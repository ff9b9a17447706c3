// bfloat16 with AVX512-BF16; the other element types run avx512's kernels there.
#include "cpu/kernel_bf16.h"
#include "cpu/tile_loop.h"

namespace flashcute::cpu {

TileKernel avx512_bf16_kernel() {
  return TileLoop<Bf16Kernel>::kernel();
}

}  // namespace flashcute::cpu
