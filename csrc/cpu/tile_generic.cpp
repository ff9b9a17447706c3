// Kernels in plain C++, for any processor.
#include "cpu/kernel_float.h"
#include "cpu/simd_generic.h"
#include "cpu/tile_loop.h"

namespace flashcute::cpu {

TileKernels generic_kernels() {
  return {TileLoop<FloatKernel<Generic, float, 4, 2>>::kernel(), TileLoop<FloatKernel<Generic, F16, 4, 2>>::kernel(),
          TileLoop<FloatKernel<Generic, BF16, 4, 2>>::kernel()};
}

}  // namespace flashcute::cpu
