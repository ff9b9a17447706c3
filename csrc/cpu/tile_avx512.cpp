// Kernels with AVX-512 F, BW, DQ and VL.
#include "cpu/kernel_float.h"
#include "cpu/simd_avx512.h"
#include "cpu/tile_loop.h"

namespace flashcute::cpu {

TileKernels avx512_kernels() {
  return {TileLoop<FloatKernel<Avx512, float, 6, 4>>::kernel(), TileLoop<FloatKernel<Avx512, F16, 6, 4>>::kernel(),
          TileLoop<FloatKernel<Avx512, BF16, 6, 4>>::kernel()};
}

}  // namespace flashcute::cpu
