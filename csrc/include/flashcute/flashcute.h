/* flashcute: exact attention, O = softmax(scale * Q K^T + ...) V, without the N x N matrix.
 *
 * Life cycle: create a handle, create tensor descriptors, create an attention descriptor (every check that needs no
 * data happens here, and a plan is chosen), ask for its workspace size, run it as often as you like, destroy it.
 *
 *   FlashAttention() enqueues on `stream`, allocates nothing, synchronises nothing and keeps no pointer.
 *   One descriptor may be run from several threads at once, each with its own workspace.
 *
 * Shapes: out, q  ((batch,) num_heads, seq_len, head_dim)      k, v  the same with their own num_heads and seq_len;
 * v may have its own head_dim, which out then has. The last axis is contiguous, all others have any non-negative
 * stride, in elements. With cu_seqlens_q/k the tensors are packed: (num_heads, total_len, head_dim).
 *
 * Every function returns a status; flashcuteGetLastErrorMessage() then says, for the calling thread, which function and
 * argument failed, what was expected and what was given. Above each function stand the statuses it may return. A result
 * is written on success only, and a created handle or descriptor is NULL after a failure. An object that was destroyed
 * or is of another type is BAD_PARAM where it can be told; destroying NULL does nothing.
 */
#ifndef FLASHCUTE_FLASHCUTE_H
#define FLASHCUTE_FLASHCUTE_H

#include <stddef.h>
#include <stdint.h>

#define FLASHCUTE_VERSION_MAJOR 0
#define FLASHCUTE_VERSION_MINOR 1
#define FLASHCUTE_VERSION_PATCH 0

#if defined(_WIN32)
#define FLASHCUTE_API
#else
#define FLASHCUTE_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* InfiniOP's values, so that an InfiniOP caller can switch. */
typedef enum flashcuteStatus {
  FLASHCUTE_STATUS_SUCCESS = 0,
  FLASHCUTE_STATUS_INTERNAL_ERROR = 1,
  FLASHCUTE_STATUS_NOT_IMPLEMENTED = 2,
  FLASHCUTE_STATUS_BAD_PARAM = 3,
  FLASHCUTE_STATUS_NULL_POINTER = 4,
  FLASHCUTE_STATUS_DEVICE_TYPE_NOT_SUPPORTED = 5,
  FLASHCUTE_STATUS_DEVICE_NOT_FOUND = 6,
  FLASHCUTE_STATUS_DEVICE_ARCHITECTURE_NOT_SUPPORTED = 8,
  FLASHCUTE_STATUS_BAD_TENSOR_DTYPE = 10,
  FLASHCUTE_STATUS_BAD_TENSOR_SHAPE = 11,
  FLASHCUTE_STATUS_BAD_TENSOR_STRIDES = 12,
  FLASHCUTE_STATUS_INSUFFICIENT_WORKSPACE = 13
} flashcuteStatus_t;

typedef enum flashcuteDevice { FLASHCUTE_DEVICE_CPU = 0, FLASHCUTE_DEVICE_NVIDIA = 1 } flashcuteDevice_t;

typedef enum flashcuteDtype {
  FLASHCUTE_DTYPE_BYTE = 1,
  FLASHCUTE_DTYPE_BOOL = 2,
  FLASHCUTE_DTYPE_I8 = 3,
  FLASHCUTE_DTYPE_I16 = 4,
  FLASHCUTE_DTYPE_I32 = 5,
  FLASHCUTE_DTYPE_I64 = 6,
  FLASHCUTE_DTYPE_U8 = 7,
  FLASHCUTE_DTYPE_U16 = 8,
  FLASHCUTE_DTYPE_U32 = 9,
  FLASHCUTE_DTYPE_U64 = 10,
  FLASHCUTE_DTYPE_F16 = 12,
  FLASHCUTE_DTYPE_F32 = 13,
  FLASHCUTE_DTYPE_F64 = 14,
  FLASHCUTE_DTYPE_BF16 = 19
} flashcuteDtype_t;

/* Where causal and window bounds are anchored when seq_q != seq_k. */
typedef enum flashcuteAlignment {
  FLASHCUTE_ALIGNMENT_BOTTOM_RIGHT = 0, /* row i sees key j when j <= i + (seq_k - seq_q) */
  FLASHCUTE_ALIGNMENT_TOP_LEFT = 1      /* row i sees key j when j <= i */
} flashcuteAlignment_t;

/* Which kernels may be chosen; the handle's device decides between CPU and GPU. */
typedef enum flashcuteBackend {
  FLASHCUTE_BACKEND_AUTO = 0,
  FLASHCUTE_BACKEND_CPU = 1,
  FLASHCUTE_BACKEND_CUDA = 2,
  FLASHCUTE_BACKEND_SM80 = 3,
  FLASHCUTE_BACKEND_SM90 = 4
} flashcuteBackend_t;

/* The block of queries and the block of keys that one entry of a block mask stands for. */
#define FLASHCUTE_MASK_BLOCK_SIZE 128
/* The most elements that probs may have: it is for tests of small problems. 256 MiB of float32. */
#define FLASHCUTE_MAX_PROBS (1 << 26)

typedef struct flashcuteHandle* flashcuteHandle_t;
typedef struct flashcuteTensorDescriptor* flashcuteTensorDescriptor_t;
typedef struct flashcuteFlashAttentionDescriptor* flashcuteFlashAttentionDescriptor_t;

/* Everything about a problem beyond its five tensors. Start from FLASHCUTE_ATTENTION_OPTIONS_INIT; fields of later
 * versions are appended, and struct_size tells the library which of them the caller knows.
 * A tensor descriptor that is not NULL declares that its buffer is given at every run. */
typedef struct flashcuteAttentionOptions {
  size_t struct_size;
  int32_t has_scale; /* 0: scale = 1 / sqrt(head_dim), and `scale` must be 0 */
  float scale;
  int32_t causal;                     /* 1: right bound 0, whatever window_right says */
  int32_t alignment;                  /* flashcuteAlignment_t */
  int64_t window_left, window_right;  /* keys seen beside the aligned diagonal, both inclusive; -1 = unbounded */
  float softcap;                      /* 0: off; otherwise s = softcap * tanh(s / softcap) */
  float dropout_p;                    /* in [0, 1) */
  int64_t max_seqlen_q, max_seqlen_k; /* packed: the longest member; 0 = bounded by the total */
  uint32_t min_alignment; /* bytes, a power of two: what every run's q, k, v and out pointers are aligned to */
  int32_t backend;        /* flashcuteBackend_t */
  int32_t checked;        /* 1: runs read device-held lengths first, synchronise, and return BAD_PARAM on a bad one */
  flashcuteTensorDescriptor_t lse;           /* (batch, heads_q, seq_q), packed (heads_q, total_q); float32 */
  flashcuteTensorDescriptor_t dense_mask;    /* broadcastable to (batch, heads_q, seq_q, seq_k); bool or integer */
  flashcuteTensorDescriptor_t bias;          /* broadcastable to (batch, heads_q, seq_q, seq_k); q's dtype or float32 */
  flashcuteTensorDescriptor_t alibi_slopes;  /* (heads_q) or (batch, heads_q); float32 */
  flashcuteTensorDescriptor_t sinks;         /* (heads_q); float32 or q's dtype */
  flashcuteTensorDescriptor_t cu_seqlens_q;  /* (batch + 1); int32 */
  flashcuteTensorDescriptor_t cu_seqlens_k;  /* (batch + 1); int32 */
  flashcuteTensorDescriptor_t seqused_k;     /* (batch); int32 */
  flashcuteTensorDescriptor_t dropout_state; /* (2); uint64 (seed, offset) on the device; NULL: by value */
  /* (batch or 1, heads_q or 1, ceil(seq_q / 128), ceil(seq_k / 128)); bool or integer. Entry (i, j) not zero: queries
   * from 128 i on may see keys from 128 j on, counted from row 0 and key 0 whatever the alignment. Blocks that are not
   * seen are skipped. Not with cu_seqlens. */
  flashcuteTensorDescriptor_t block_mask;
  /* (batch, heads_q, seq_q, seq_k), without the batch where q has none; float32, at most FLASHCUTE_MAX_PROBS elements.
   * Written: the weights that v's rows are multiplied by, after dropout; 0 where a row does not see a key. Not with
   * cu_seqlens. */
  flashcuteTensorDescriptor_t probs;
} flashcuteAttentionOptions_t;

#define FLASHCUTE_ATTENTION_OPTIONS_INIT \
  {sizeof(flashcuteAttentionOptions_t),  \
   0,                                    \
   0.0f,                                 \
   0,                                    \
   FLASHCUTE_ALIGNMENT_BOTTOM_RIGHT,     \
   -1,                                   \
   -1,                                   \
   0.0f,                                 \
   0.0f,                                 \
   0,                                    \
   0,                                    \
   16u,                                  \
   FLASHCUTE_BACKEND_AUTO,               \
   0,                                    \
   NULL,                                 \
   NULL,                                 \
   NULL,                                 \
   NULL,                                 \
   NULL,                                 \
   NULL,                                 \
   NULL,                                 \
   NULL,                                 \
   NULL,                                 \
   NULL,                                 \
   NULL}

/* The pointers of a run, for the optional tensors that the options declared: a declared one that is NULL is
 * NULL_POINTER (unless the tensor is empty), an undeclared one that is not NULL is BAD_PARAM. */
typedef struct flashcuteAttentionBuffers {
  size_t struct_size;
  float* lse;
  const void* dense_mask;
  const void* bias;
  const float* alibi_slopes;
  const void* sinks;
  const int32_t* cu_seqlens_q;
  const int32_t* cu_seqlens_k;
  const int32_t* seqused_k;
  const uint64_t* dropout_state;
  uint64_t seed, offset; /* used when dropout_p > 0 and no dropout_state is declared */
  const void* block_mask;
  float* probs;
} flashcuteAttentionBuffers_t;

#define FLASHCUTE_ATTENTION_BUFFERS_INIT \
  {sizeof(flashcuteAttentionBuffers_t), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, NULL, NULL}

/* A GPU that this machine need not have: what plans depend on. Zero the rest, and set struct_size. */
typedef struct flashcuteArchitecture {
  size_t struct_size;
  const char* name;                        /* copied; at most 255 bytes */
  int32_t capability;                      /* 10 * major + minor: 80, 90 */
  int32_t multiprocessors;                 /* at least 1 */
  size_t shared_memory_per_block;          /* bytes, the opt-in limit */
  size_t shared_memory_per_multiprocessor; /* bytes */
  size_t l2_bytes;
} flashcuteArchitecture_t;

#define FLASHCUTE_ARCHITECTURE_INIT {sizeof(flashcuteArchitecture_t), NULL, 0, 0, 0, 0, 0}

/* SUCCESS, BAD_PARAM, NULL_POINTER, DEVICE_TYPE_NOT_SUPPORTED, DEVICE_NOT_FOUND,
 * DEVICE_ARCHITECTURE_NOT_SUPPORTED, INTERNAL_ERROR */
FLASHCUTE_API flashcuteStatus_t flashcuteCreateHandle(flashcuteHandle_t* handle, flashcuteDevice_t device,
                                                      int device_id);
/* A handle that only plans: attention descriptors can be made with it, and their plans and workspace sizes read,
 * without a GPU or a driver (in a build without CUDA kernels they are NOT_IMPLEMENTED). Whatever would hand work to a
 * device is BAD_PARAM. SUCCESS, BAD_PARAM, NULL_POINTER, DEVICE_TYPE_NOT_SUPPORTED, DEVICE_ARCHITECTURE_NOT_SUPPORTED,
 * INTERNAL_ERROR */
FLASHCUTE_API flashcuteStatus_t flashcuteCreatePlanningHandle(flashcuteHandle_t* handle,
                                                              const flashcuteArchitecture_t* architecture);
/* SUCCESS, BAD_PARAM, DEVICE_TYPE_NOT_SUPPORTED */
FLASHCUTE_API flashcuteStatus_t flashcuteDestroyHandle(flashcuteHandle_t handle);

/* strides in elements, NULL = contiguous. ndim 0 to 8. SUCCESS, BAD_PARAM, NULL_POINTER, BAD_TENSOR_SHAPE,
 * BAD_TENSOR_DTYPE, INTERNAL_ERROR */
FLASHCUTE_API flashcuteStatus_t flashcuteCreateTensorDescriptor(flashcuteTensorDescriptor_t* desc, size_t ndim,
                                                                const size_t* shape, const ptrdiff_t* strides,
                                                                flashcuteDtype_t dtype);
/* SUCCESS, BAD_PARAM */
FLASHCUTE_API flashcuteStatus_t flashcuteDestroyTensorDescriptor(flashcuteTensorDescriptor_t desc);

/* Checks everything that can be checked without data and picks a plan. mask: ((batch,) seq_k), bool or any integer,
 * non-zero = the key takes part; one axis serves every batch entry; packed: (total_k); NULL = none.
 * options: NULL = FLASHCUTE_ATTENTION_OPTIONS_INIT. The descriptors may be destroyed right after. SUCCESS, BAD_PARAM,
 * NULL_POINTER, BAD_TENSOR_SHAPE, BAD_TENSOR_DTYPE, BAD_TENSOR_STRIDES, DEVICE_TYPE_NOT_SUPPORTED,
 * DEVICE_ARCHITECTURE_NOT_SUPPORTED, NOT_IMPLEMENTED, INTERNAL_ERROR */
FLASHCUTE_API flashcuteStatus_t flashcuteCreateFlashAttentionDescriptor(
    flashcuteHandle_t handle, flashcuteFlashAttentionDescriptor_t* desc, flashcuteTensorDescriptor_t out,
    flashcuteTensorDescriptor_t q, flashcuteTensorDescriptor_t k, flashcuteTensorDescriptor_t v,
    flashcuteTensorDescriptor_t mask, const flashcuteAttentionOptions_t* options);

/* The bound, in bytes, for every run of this descriptor. SUCCESS, BAD_PARAM, DEVICE_TYPE_NOT_SUPPORTED */
FLASHCUTE_API flashcuteStatus_t flashcuteGetFlashAttentionWorkspaceSize(flashcuteFlashAttentionDescriptor_t desc,
                                                                        size_t* workspace_size);

/* mask: NULL = every key takes part. workspace: aligned to 256 bytes, on the descriptor's device. stream: a
 * cudaStream_t (ignored on the CPU). Pointers of empty tensors may be NULL.
 * out, lse and probs must share no memory with each other or with anything read, but that out may be exactly q, strides
 * and all; any other overlap is BAD_PARAM, unless strides of no common order hide it. Packed rows of out and lse that
 * belong to no member are not written. SUCCESS, BAD_PARAM, NULL_POINTER, INSUFFICIENT_WORKSPACE,
 * DEVICE_TYPE_NOT_SUPPORTED, INTERNAL_ERROR */
FLASHCUTE_API flashcuteStatus_t flashcuteFlashAttention(flashcuteFlashAttentionDescriptor_t desc, void* workspace,
                                                        size_t workspace_size, void* out, const void* q, const void* k,
                                                        const void* v, const void* mask,
                                                        const flashcuteAttentionBuffers_t* buffers, void* stream);

/* SUCCESS, BAD_PARAM, DEVICE_TYPE_NOT_SUPPORTED */
FLASHCUTE_API flashcuteStatus_t flashcuteDestroyFlashAttentionDescriptor(flashcuteFlashAttentionDescriptor_t desc);

/* Joins two partial results over disjoint keys: out tensors (batch, heads, seq, head_dim) or (heads, seq, head_dim) of
 * one dtype, lse float32 of the same shape without head_dim, natural log. An lse of -inf or +inf marks an empty partial
 * result. out and lse may be exactly those of a or of b; any other overlap is BAD_PARAM. SUCCESS, BAD_PARAM,
 * NULL_POINTER, BAD_TENSOR_SHAPE, BAD_TENSOR_DTYPE, BAD_TENSOR_STRIDES, DEVICE_TYPE_NOT_SUPPORTED, INTERNAL_ERROR */
FLASHCUTE_API flashcuteStatus_t flashcuteMergeStates(flashcuteHandle_t handle, flashcuteTensorDescriptor_t out_desc,
                                                     void* out, flashcuteTensorDescriptor_t lse_desc, float* lse,
                                                     flashcuteTensorDescriptor_t out_a_desc, const void* out_a,
                                                     flashcuteTensorDescriptor_t lse_a_desc, const float* lse_a,
                                                     flashcuteTensorDescriptor_t out_b_desc, const void* out_b,
                                                     flashcuteTensorDescriptor_t lse_b_desc, const float* lse_b,
                                                     void* stream);

/* Memory of the handle's device for bindings and tools that have no framework at hand. None of these belongs on a hot
 * path: they may synchronise. SUCCESS, BAD_PARAM, NULL_POINTER, DEVICE_TYPE_NOT_SUPPORTED, INTERNAL_ERROR */
FLASHCUTE_API flashcuteStatus_t flashcuteAllocate(flashcuteHandle_t handle, void** memory,
                                                  size_t bytes); /* 256-byte aligned */
FLASHCUTE_API flashcuteStatus_t flashcuteRelease(flashcuteHandle_t handle, void* memory);
FLASHCUTE_API flashcuteStatus_t flashcuteCopyToDevice(flashcuteHandle_t handle, void* device, const void* host,
                                                      size_t bytes, void* stream);
FLASHCUTE_API flashcuteStatus_t flashcuteCopyToHost(flashcuteHandle_t handle, void* host, const void* device,
                                                    size_t bytes, void* stream);
FLASHCUTE_API flashcuteStatus_t flashcuteSynchronize(flashcuteHandle_t handle, void* stream);
/* Makes `waiter` wait for the work enqueued so far on `signaller`, without stopping the host. Does nothing where waiter
 * is being captured into a graph and signaller is not part of that capture: whoever launches the graph orders it. */
FLASHCUTE_API flashcuteStatus_t flashcuteStreamWait(flashcuteHandle_t handle, void* waiter, void* signaller);
/* *capturing: 1 while `stream` is being captured into a CUDA graph, 0 otherwise and on the CPU. */
FLASHCUTE_API flashcuteStatus_t flashcuteStreamIsCapturing(flashcuteHandle_t handle, void* stream, int* capturing);

/* JSON texts. *length in: the room at json (0 with NULL asks for the size), out: bytes needed, the final NUL included.
 * Too little room: BAD_PARAM and nothing written at json.
 * How the descriptor runs and why: kernel, device, tiles, grid, workspace, what is staged in it, and each other kernel
 * with the reason it was passed over. SUCCESS, BAD_PARAM, NULL_POINTER, DEVICE_TYPE_NOT_SUPPORTED, INTERNAL_ERROR */
FLASHCUTE_API flashcuteStatus_t flashcuteGetPlan(flashcuteFlashAttentionDescriptor_t desc, char* json, size_t* length);
/* Version, build options, compiled kernels, and for each device of this machine whether each kernel can run on it, or
 * why not. Opens the GPU driver. SUCCESS, BAD_PARAM, NULL_POINTER, INTERNAL_ERROR */
FLASHCUTE_API flashcuteStatus_t flashcuteGetInfo(char* json, size_t* length);

/* Threads of the CPU backend, 1 to 1024. They start as FLASHCUTE_NUM_THREADS, else OMP_NUM_THREADS, else the smaller of
 * the CPUs of this process and its container's CPU quota. SUCCESS, BAD_PARAM. GetNumThreads is 0, with a last error,
 * where FLASHCUTE_NUM_THREADS is no such number. */
FLASHCUTE_API flashcuteStatus_t flashcuteSetNumThreads(int num_threads);
FLASHCUTE_API int flashcuteGetNumThreads(void);

FLASHCUTE_API const char* flashcuteGetVersion(void); /* "major.minor.patch" */
/* This thread's last failure, "" before any; the text lives until the thread's next failing call. */
FLASHCUTE_API const char* flashcuteGetLastErrorMessage(void);

#ifdef __cplusplus
}
#endif
#endif
