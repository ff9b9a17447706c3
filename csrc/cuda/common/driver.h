// What the driver has and cudart lacks, found at run time: libcuda is not linked.
#pragma once

#include <cuda.h>  // types only

namespace flashcute::cuda {

// All of them, or none where the driver or cudart is too old.
struct Driver {
  CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void**,
                     void**) = nullptr;
  CUresult (*context_of_thread)(CUcontext*) = nullptr;
  CUresult (*number_of)(CUcontext, unsigned long long*) = nullptr;
  CUresult (*device)(CUdevice*, int) = nullptr;
  CUresult (*retain_primary)(CUcontext*, CUdevice) = nullptr;
  CUresult (*push)(CUcontext) = nullptr;
  CUresult (*pop)(CUcontext*) = nullptr;

  bool present() const { return launch != nullptr; }
};

const Driver& driver();

// Null where the driver has no function of that name.
void* driver_entry(const char* name);

}  // namespace flashcute::cuda
