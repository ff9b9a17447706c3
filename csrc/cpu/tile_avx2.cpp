// Kernels with AVX2, FMA and F16C.
#include "cpu/kernel_float.h"
#include "cpu/simd_avx2.h"
#include "cpu/tile_loop.h"

namespace flashcute::cpu {

TileKernels avx2_kernels() {
  return {TileLoop<FloatKernel<Avx2, float, 6, 2>>::kernel(), TileLoop<FloatKernel<Avx2, F16, 6, 2>>::kernel(),
          TileLoop<FloatKernel<Avx2, BF16, 6, 2>>::kernel()};
}

}  // namespace flashcute::cpu
