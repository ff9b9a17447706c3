// Which instruction set the kernels use, decided once.
#pragma once

#include "core/dtype.h"
#include "cpu/tile.h"

namespace flashcute::cpu {

struct Isa {
  const char* name;
  TileKernels kernels;
};

// The best this machine has, or what FLASHCUTE_CPU_ISA lowers it to. Throws Error when that asks for what is unknown or
// not here.
const Isa& isa();

const TileKernel& tile_kernel(DType dtype);

}  // namespace flashcute::cpu
