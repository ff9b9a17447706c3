// CUDA streams by number or object, and the frameworks' current ones.
#pragma once

#include "tensor.h"

namespace flashcute::python {

// The number by which DLPack's __dlpack__ knows a stream: 1 for the legacy default, 2 for the per-thread one.
uint64_t stream_number(void* handle);

// The `stream` argument: an int, or an object with __cuda_stream__, cuda_stream or ptr. Null: none given.
Stream parse_stream(Where where, PyObject* value);

// The stream on which the framework of a GPU tensor works now. Those without one get the legacy default stream.
void* current_stream(const Producer& producer, int device_id, Where where);

void resolve_stream(Stream& stream, const Producer& producer, int device_id, Where where);

// Is the stream of a GPU being captured into a CUDA graph?
bool is_capturing(Device device, void* stream, const char* function);

// From now on a forked child must not use the GPU: the driver is open.
void note_gpu_use();

// Refuses a GPU in a process that was forked after its parent had used one.
void refuse_after_fork(Device device);

// The library's handle of a device, made at first use and kept.
flashcuteHandle_t handle_of(Device device, const char* function);

// Makes a GPU device with a negative id, for which descriptors can be planned and nothing can run.
int add_architecture(const std::string& name, int capability, int multiprocessors, size_t shared_memory_per_block,
                     size_t shared_memory_per_multiprocessor, size_t l2_bytes);

}  // namespace flashcute::python
