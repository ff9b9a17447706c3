/* Statuses of the run, the workspace size, the plan, the merge and the destruction. */
#include "harness.h"

enum { kQ = 2 * 3 * 8, kK = 2 * 4 * 8 }; /* (2, 3, 8) and (2, 4, 8) */

static float q_[kQ + 4], k_[kK + 4], v_[kK + 4], out_[kQ + 4];

static flashcuteFlashAttentionDescriptor_t create(const flashcuteAttentionOptions_t* options,
                                                  flashcuteTensorDescriptor_t mask) {
  flashcuteFlashAttentionDescriptor_t desc = NULL;
  const flashcuteTensorDescriptor_t q = TENSOR(F32, 2, 3, 8), k = TENSOR(F32, 2, 4, 8);
  OK(CreateFlashAttentionDescriptor, (cpu_handle, &desc, q, q, k, k, mask, options));
  return desc;
}

static void* workspace_of(flashcuteFlashAttentionDescriptor_t desc, size_t* size) {
  void* memory = NULL;
  OK(GetFlashAttentionWorkspaceSize, (desc, size));
  OK(Allocate, (cpu_handle, &memory, *size + 256)); /* never NULL */
  return memory;
}

static void test_operands(void) {
  flashcuteAttentionOptions_t options = FLASHCUTE_ATTENTION_OPTIONS_INIT;
  options.min_alignment = 4;
  flashcuteFlashAttentionDescriptor_t desc = create(&options, NULL);
  size_t size = 0;
  void* workspace = workspace_of(desc, &size);
  const unsigned char mask[4] = {1, 1, 1, 1};
  for (int i = 0; i < kQ; ++i) out_[i] = -1.0f;
  OK(FlashAttention, (desc, workspace, size, out_, q_, k_, v_, NULL, NULL, NULL));
  CHECK(out_[0] == 0.0f && out_[kQ - 1] == 0.0f);
  OK(FlashAttention, (desc, workspace, size, out_ + 1, q_ + 1, k_ + 1, v_ + 1, NULL, NULL, NULL));
  EXPECT(NULL_POINTER, "desc", FlashAttention, (NULL, workspace, size, out_, q_, k_, v_, NULL, NULL, NULL));
  EXPECT(BAD_PARAM, "desc", FlashAttention, (garbage(), workspace, size, out_, q_, k_, v_, NULL, NULL, NULL));
  EXPECT(NULL_POINTER, "(out)", FlashAttention, (desc, workspace, size, NULL, q_, k_, v_, NULL, NULL, NULL));
  EXPECT(NULL_POINTER, "(q)", FlashAttention, (desc, workspace, size, out_, NULL, k_, v_, NULL, NULL, NULL));
  EXPECT(NULL_POINTER, "(k)", FlashAttention, (desc, workspace, size, out_, q_, NULL, v_, NULL, NULL, NULL));
  EXPECT(NULL_POINTER, "(v)", FlashAttention, (desc, workspace, size, out_, q_, k_, NULL, NULL, NULL, NULL));
  EXPECT(BAD_PARAM, "(mask)", FlashAttention, (desc, workspace, size, out_, q_, k_, v_, mask, NULL, NULL));
  EXPECT(BAD_PARAM, "min_alignment", FlashAttention,
         (desc, workspace, size, out_, (char*)q_ + 2, k_, v_, NULL, NULL, NULL));

  OK(InjectFault, (FLASHCUTE_FAULT_LAUNCH_FAILURE));
  EXPECT(INTERNAL_ERROR, "launch", FlashAttention, (desc, workspace, size, out_, q_, k_, v_, NULL, NULL, NULL));
  OK(InjectFault, (FLASHCUTE_FAULT_OUT_OF_MEMORY));
  EXPECT(INTERNAL_ERROR, "memory", FlashAttention, (desc, workspace, size, out_, q_, k_, v_, NULL, NULL, NULL));
  OK(InjectFault, (FLASHCUTE_FAULT_UNKNOWN_DEVICE_TYPE));
  EXPECT(DEVICE_TYPE_NOT_SUPPORTED, "desc", FlashAttention,
         (desc, workspace, size, out_, q_, k_, v_, NULL, NULL, NULL));
  EXPECT(DEVICE_TYPE_NOT_SUPPORTED, "desc", GetFlashAttentionWorkspaceSize, (desc, &size));
  EXPECT(DEVICE_TYPE_NOT_SUPPORTED, "desc", DestroyFlashAttentionDescriptor, (desc));
  EXPECT(DEVICE_TYPE_NOT_SUPPORTED, "desc", GetPlan, (desc, NULL, &size));
  OK(InjectFault, (FLASHCUTE_FAULT_NONE));
  OK(FlashAttention, (desc, workspace, size, out_, q_, k_, v_, NULL, NULL, NULL)); /* none of it did harm */

  OK(Release, (cpu_handle, workspace));
  OK(DestroyFlashAttentionDescriptor, (desc));
  OK(DestroyFlashAttentionDescriptor, (NULL));
  EXPECT(BAD_PARAM, "desc", DestroyFlashAttentionDescriptor, (garbage()));
  EXPECT(BAD_PARAM, "desc", DestroyFlashAttentionDescriptor, ((flashcuteFlashAttentionDescriptor_t)(void*)cpu_handle));
  EXPECT(BAD_PARAM, "desc", GetFlashAttentionWorkspaceSize, (NULL, &size));
  EXPECT(BAD_PARAM, "desc", GetFlashAttentionWorkspaceSize, (garbage(), &size));
}

/* Unaligned operands are packed on a GPU, so the workspace has a size there; on the CPU it may have. */
static void test_workspace_of(flashcuteHandle_t handle) {
  flashcuteAttentionOptions_t options = FLASHCUTE_ATTENTION_OPTIONS_INIT;
  options.min_alignment = 2;
  options.causal = 1;
  flashcuteFlashAttentionDescriptor_t desc = NULL;
  const flashcuteTensorDescriptor_t q = TENSOR(F16, 2, 300, 64);
  OK(CreateFlashAttentionDescriptor, (handle, &desc, q, q, q, q, NULL, &options));
  EXPECT(BAD_PARAM, "workspace_size", GetFlashAttentionWorkspaceSize, (desc, NULL));
  size_t size = 0;
  OK(GetFlashAttentionWorkspaceSize, (desc, &size));
  printf("workspace of a float16 problem: %zu bytes\n", size);
  if (size == 0) {
    OK(DestroyFlashAttentionDescriptor, (desc));
    return;
  }
  char *workspace = NULL, *tensor = NULL, *out = NULL;
  OK(Allocate, (handle, (void**)&workspace, size + 256));
  OK(Allocate, (handle, (void**)&tensor, 2 * 300 * 64 * 2));
  OK(Allocate, (handle, (void**)&out, 2 * 300 * 64 * 2));
  EXPECT(INSUFFICIENT_WORKSPACE, "(workspace)", FlashAttention,
         (desc, NULL, size, out, tensor, tensor, tensor, NULL, NULL, NULL));
  EXPECT(INSUFFICIENT_WORKSPACE, "(workspace_size)", FlashAttention,
         (desc, workspace, size - 1, out, tensor, tensor, tensor, NULL, NULL, NULL));
  EXPECT(BAD_PARAM, "256", FlashAttention, (desc, workspace + 16, size, out, tensor, tensor, tensor, NULL, NULL, NULL));
  EXPECT(BAD_PARAM, "overlaps", FlashAttention, (desc, workspace, size, tensor, out, tensor, tensor, NULL, NULL, NULL));
  EXPECT(BAD_PARAM, "overlaps", FlashAttention,
         (desc, workspace, size, out + 64, tensor, tensor, out, NULL, NULL, NULL));
  EXPECT(BAD_PARAM, "(out): expected memory of its own, given memory that overlaps q", FlashAttention,
         (desc, workspace, size, out + 64, out, tensor, tensor, NULL, NULL, NULL));
  OK(FlashAttention, (desc, workspace, size, out, out, tensor, tensor, NULL, NULL, NULL)); /* out may be q itself */
  OK(Synchronize, (handle, NULL));
  OK(Release, (handle, workspace));
  OK(Release, (handle, tensor));
  OK(Release, (handle, out));
  OK(DestroyFlashAttentionDescriptor, (desc));
}

/* A declared tensor needs its pointer, an undeclared one must have none. */
static void test_buffers(void) {
  static float lse[6], bias[12], slopes[2], sinks[2], probs[24];
  static int32_t blocks[1] = {1};
  static unsigned char dense[12], key_mask[4];
  static int32_t seqused[1] = {4};
  static uint64_t state[2];
  memset(dense, 1, sizeof dense);
  memset(key_mask, 1, sizeof key_mask);
  flashcuteAttentionOptions_t options = FLASHCUTE_ATTENTION_OPTIONS_INIT;
  options.min_alignment = 4;
  flashcuteFlashAttentionDescriptor_t bare = create(&options, NULL);
  options.lse = TENSOR(F32, 2, 3);
  options.dense_mask = TENSOR(BOOL, 1, 1, 3, 4);
  options.bias = TENSOR(F32, 1, 1, 3, 4);
  options.alibi_slopes = TENSOR(F32, 2);
  options.sinks = TENSOR(F32, 2);
  options.seqused_k = TENSOR(I32, 1);
  options.block_mask = TENSOR(I32, 1, 1, 1, 1);
  options.probs = TENSOR(F32, 2, 3, 4);
  options.dropout_p = 0.5f;
  options.dropout_state = TENSOR(U64, 2);
  flashcuteFlashAttentionDescriptor_t full = create(&options, TENSOR(BOOL, 4));

  size_t size = 0, bare_size = 0;
  void *workspace = workspace_of(full, &size), *bare_workspace = workspace_of(bare, &bare_size);
  const flashcuteAttentionBuffers_t none = FLASHCUTE_ATTENTION_BUFFERS_INIT;
  flashcuteAttentionBuffers_t all = FLASHCUTE_ATTENTION_BUFFERS_INIT;
  all.lse = lse;
  all.dense_mask = dense;
  all.bias = bias;
  all.alibi_slopes = slopes;
  all.sinks = sinks;
  all.seqused_k = seqused;
  all.dropout_state = state;
  all.block_mask = blocks;
  all.probs = probs;
#define RUN(status, word, desc, space, bytes, mask, buffers) \
  EXPECT(status, word, FlashAttention, (desc, space, bytes, out_, q_, k_, v_, mask, buffers, NULL))
  RUN(SUCCESS, NULL, full, workspace, size, key_mask, &all);
  RUN(SUCCESS, NULL, full, workspace, size, NULL, &all); /* the key mask alone may be left out */
  RUN(SUCCESS, NULL, bare, bare_workspace, bare_size, NULL, &none);
  RUN(NULL_POINTER, "lse", full, workspace, size, NULL, NULL);
#define EACH(field, pointer)                                                           \
  do {                                                                                 \
    flashcuteAttentionBuffers_t missing = all, extra = none, unaligned = all;          \
    missing.field = NULL;                                                              \
    extra.field = pointer;                                                             \
    RUN(NULL_POINTER, "buffers->" #field, full, workspace, size, NULL, &missing);      \
    RUN(BAD_PARAM, "buffers->" #field, bare, bare_workspace, bare_size, NULL, &extra); \
    if ((void*)(pointer) != (void*)dense) {                                            \
      unaligned.field = (void*)((char*)pointer + 2);                                   \
      RUN(BAD_PARAM, "buffers->" #field, full, workspace, size, NULL, &unaligned);     \
    }                                                                                  \
  } while (0)
  EACH(lse, lse);
  EACH(dense_mask, dense);
  EACH(bias, bias);
  EACH(alibi_slopes, slopes);
  EACH(sinks, sinks);
  EACH(seqused_k, seqused);
  EACH(dropout_state, state);
  EACH(block_mask, blocks);
  EACH(probs, probs);
#undef EACH
  /* an older caller's struct ends before block_mask: what stands there is not looked at */
  flashcuteAttentionBuffers_t older = none;
  older.struct_size = offsetof(flashcuteAttentionBuffers_t, block_mask);
  older.block_mask = older.probs = garbage();
  RUN(SUCCESS, NULL, bare, bare_workspace, bare_size, NULL, &older);
  older = all;
  older.struct_size = offsetof(flashcuteAttentionBuffers_t, block_mask);
  RUN(NULL_POINTER, "buffers->block_mask", full, workspace, size, NULL, &older);
  flashcuteAttentionBuffers_t shared = all;
  shared.probs = out_;
  RUN(BAD_PARAM, "buffers->probs", full, workspace, size, NULL, &shared);
  shared.probs = lse;
  RUN(BAD_PARAM, "buffers->probs", full, workspace, size, NULL, &shared);
  /* inputs of all kinds in the memory of a result, be it by their last byte */
  char* const last = (char*)out_ + sizeof(float) * (kQ - 1);
#define INSIDE(field, pointer, name)                                                                                   \
  do {                                                                                                                 \
    flashcuteAttentionBuffers_t inside = all;                                                                          \
    inside.field = (void*)(pointer);                                                                                   \
    RUN(BAD_PARAM, "(out): expected memory of its own, given memory that overlaps " name, full, workspace, size, NULL, \
        &inside);                                                                                                      \
  } while (0)
  INSIDE(bias, last, "bias");
  INSIDE(dense_mask, last + 3, "dense_mask");
  INSIDE(block_mask, last, "block_mask");
  INSIDE(alibi_slopes, last, "alibi_slopes");
  INSIDE(sinks, last, "sinks");
  INSIDE(seqused_k, last, "seqused_k");
  INSIDE(dropout_state, (char*)out_ + sizeof(float) * (kQ - 2), "dropout_state");
#undef INSIDE
  RUN(BAD_PARAM, "(out): expected memory of its own, given memory that overlaps mask", full, workspace, size, last + 3,
      &all);
  shared = all;
  shared.sinks = lse;
  RUN(BAD_PARAM, "(buffers->lse): expected memory of its own, given memory that overlaps sinks", full, workspace, size,
      NULL, &shared);
  shared = all;
  shared.bias = probs + 12;
  RUN(BAD_PARAM, "(buffers->probs): expected memory of its own, given memory that overlaps bias", full, workspace, size,
      NULL, &shared);
  all.struct_size = 0;
  RUN(BAD_PARAM, "struct_size", full, workspace, size, NULL, &all);
  OK(Release, (cpu_handle, workspace));
  OK(Release, (cpu_handle, bare_workspace));
  OK(DestroyFlashAttentionDescriptor, (full));
  OK(DestroyFlashAttentionDescriptor, (bare));

  flashcuteAttentionOptions_t by_value = FLASHCUTE_ATTENTION_OPTIONS_INIT;
  by_value.min_alignment = 4;
  by_value.dropout_p = 0.25f;
  flashcuteFlashAttentionDescriptor_t dropping = create(&by_value, NULL);
  workspace = workspace_of(dropping, &size);
  RUN(NULL_POINTER, "seed", dropping, workspace, size, NULL, NULL);
  RUN(SUCCESS, NULL, dropping, workspace, size, NULL, &none);
  OK(Release, (cpu_handle, workspace));
  OK(DestroyFlashAttentionDescriptor, (dropping));
}

static void test_checked_lengths(void) {
  const struct {
    int32_t cu_q[3], cu_k[3];
    int good;
  } cases[] = {{{0, 1, 3}, {0, 2, 4}, 1}, {{0, 1, 3}, {0, 2, 5}, 0}, {{0, 1, 3}, {0, -1, 4}, 0},
               {{0, 2, 1}, {0, 2, 4}, 0}, {{0, 0, 3}, {0, 4, 4}, 1}, {{0, 1, 99}, {0, 2, 4}, 0}};
  flashcuteAttentionOptions_t options = FLASHCUTE_ATTENTION_OPTIONS_INIT;
  options.min_alignment = 4;
  options.checked = 1;
  options.cu_seqlens_q = options.cu_seqlens_k = TENSOR(I32, 3);
  flashcuteFlashAttentionDescriptor_t desc = create(&options, NULL);
  size_t size = 0;
  void* workspace = workspace_of(desc, &size);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
    flashcuteAttentionBuffers_t buffers = FLASHCUTE_ATTENTION_BUFFERS_INIT;
    buffers.cu_seqlens_q = cases[i].cu_q;
    buffers.cu_seqlens_k = cases[i].cu_k;
    if (cases[i].good) {
      RUN(SUCCESS, NULL, desc, workspace, size, NULL, &buffers);
    } else {
      RUN(BAD_PARAM, "cu_seqlens", desc, workspace, size, NULL, &buffers);
    }
  }
  OK(Release, (cpu_handle, workspace));
  OK(DestroyFlashAttentionDescriptor, (desc));
#undef RUN
}

static void test_plan(void) {
  flashcuteFlashAttentionDescriptor_t desc = create(NULL, NULL);
  size_t length = 0, tiny = 3;
  char small[3] = "ab";
  OK(GetPlan, (desc, NULL, &length));
  EXPECT(BAD_PARAM, "length", GetPlan, (desc, small, &tiny));
  CHECK(tiny == length && strcmp(small, "ab") == 0);
  EXPECT(NULL_POINTER, "length", GetPlan, (desc, small, NULL));
  EXPECT(NULL_POINTER, "desc", GetPlan, (NULL, small, &length));
  EXPECT(BAD_PARAM, "desc", GetPlan, (garbage(), small, &length));
  char* json = calloc(length, 1);
  OK(GetPlan, (desc, json, &length));
  CHECK(strlen(json) + 1 == length);
  const char* const words[] = {
      "\"kernel\"",  "\"family\": \"cpu\"", "\"mask_class\": \"full\"", "\"workspace\"", "\"grid\"",
      "\"threads\"", "\"staged\"",          "\"passed_over\""};
  for (size_t i = 0; i < sizeof words / sizeof words[0]; ++i) CHECK(strstr(json, words[i]) != NULL);
  free(json);
  OK(InjectFault, (FLASHCUTE_FAULT_OUT_OF_MEMORY));
  EXPECT(INTERNAL_ERROR, "memory", GetPlan, (desc, NULL, &length));
  OK(InjectFault, (FLASHCUTE_FAULT_NONE));
  OK(DestroyFlashAttentionDescriptor, (desc));
}

/* Bounds that no row can reach leave a problem to the full kernels. */
static void test_mask_class(void) {
  const struct {
    size_t seq_q, seq_k;
    int32_t causal, alignment;
    int64_t left, right;
    int banded;
  } cases[] = {{3, 4, 0, 0, -1, -1, 0},
               {3, 4, 1, 0, -1, -1, 1},
               {1, 4, 1, 0, -1, -1, 0},
               {1, 4, 1, 1, -1, -1, 1},
               {1, 1, 1, 1, -1, -1, 0},
               {3, 4, 0, 0, 3, 2, 0},
               {3, 4, 0, 0, 2, -1, 1},
               {3, 4, 0, 0, -1, 1, 1},
               {3, 4, 0, 1, 2, 3, 0},
               {3, 4, 0, 1, 1, -1, 1},
               {3, 4, 0, 1, -1, 2, 1},
               {3, 0, 1, 0, 0, -1, 1},
               {3, 4, 0, 0, INT64_MAX, INT64_MAX, 0}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
    flashcuteAttentionOptions_t options = FLASHCUTE_ATTENTION_OPTIONS_INIT;
    options.causal = cases[i].causal;
    options.alignment = cases[i].alignment;
    options.window_left = cases[i].left;
    options.window_right = cases[i].right;
    const flashcuteTensorDescriptor_t q = TENSOR(F16, 1, cases[i].seq_q, 64), k = TENSOR(F16, 1, cases[i].seq_k, 64);
    flashcuteFlashAttentionDescriptor_t desc = NULL;
    char json[20000] = "";
    size_t length = sizeof json;
    OK(CreateFlashAttentionDescriptor, (cpu_handle, &desc, q, q, k, k, NULL, &options));
    OK(GetPlan, (desc, json, &length));
    const char* expected = cases[i].banded ? "\"mask_class\": \"banded\"" : "\"mask_class\": \"full\"";
    if (strstr(json, expected) == NULL) printf("case %zu: %s\n", i, json);
    CHECK(strstr(json, expected) != NULL);
    OK(DestroyFlashAttentionDescriptor, (desc));
  }
}

/* Plans are pure: a build with CUDA kernels makes them for a GPU that is not there. */
static void test_gpu_plan(void) {
  static char json[200000];
  size_t length = sizeof json;
  OK(GetInfo, (json, &length));
  if (strstr(json, "\"family\": \"sm80\"") == NULL) return;
  flashcuteHandle_t pretended = NULL;
  OK(InjectFault, (FLASHCUTE_FAULT_PRETENDED_GPU));
  OK(CreateHandle, (&pretended, FLASHCUTE_DEVICE_NVIDIA, 0));
  OK(InjectFault, (FLASHCUTE_FAULT_NONE));
  const flashcuteTensorDescriptor_t q = TENSOR(BF16, 2, 300, 64);
  for (uint32_t alignment = 2; alignment <= 16; alignment *= 8) {
    flashcuteAttentionOptions_t options = FLASHCUTE_ATTENTION_OPTIONS_INIT;
    options.min_alignment = alignment;
    flashcuteFlashAttentionDescriptor_t desc = NULL;
    size_t workspace = 0;
    OK(CreateFlashAttentionDescriptor, (pretended, &desc, q, q, q, q, NULL, &options));
    OK(GetFlashAttentionWorkspaceSize, (desc, &workspace));
    length = sizeof json;
    OK(GetPlan, (desc, json, &length));
    CHECK(strstr(json, "\"family\": \"sm80\"") != NULL && strstr(json, "\"capability\": \"8.0\"") != NULL);
    const int staged = strstr(json, "\"staged\": []") == NULL;
    CHECK(staged == (alignment < 16) && (workspace > 0 || !staged) && workspace % 256 == 0);
    OK(DestroyFlashAttentionDescriptor, (desc));
  }
  OK(DestroyHandle, (pretended));
}

static void test_merge(void) {
  float out[4], lse[2], a[4] = {0}, b[4] = {0}, lse_a[2] = {0}, lse_b[2] = {0};
  const flashcuteTensorDescriptor_t o = TENSOR(F32, 1, 2, 2), l = TENSOR(F32, 1, 2);
  const flashcuteTensorDescriptor_t empty = TENSOR(F32, 1, 0, 2), empty_lse = TENSOR(F32, 1, 0);
#define MERGE(status, word, out_desc, lse_desc, a_desc, lse_a_desc) \
  EXPECT(status, word, MergeStates,                                 \
         (cpu_handle, out_desc, out, lse_desc, lse, a_desc, a, lse_a_desc, lse_a, o, b, l, lse_b, NULL))
  MERGE(SUCCESS, NULL, o, l, o, l);
  MERGE(NULL_POINTER, "out_desc", NULL, l, o, l);
  MERGE(NULL_POINTER, "lse_a_desc", o, l, o, NULL);
  MERGE(BAD_PARAM, "out_a_desc", o, l, garbage(), l);
  MERGE(BAD_TENSOR_DTYPE, "out_desc", TENSOR(F64, 1, 2, 2), l, o, l);
  MERGE(BAD_TENSOR_DTYPE, "out_a_desc", o, l, TENSOR(F16, 1, 2, 2), l);
  MERGE(BAD_TENSOR_DTYPE, "lse_a_desc", o, l, o, TENSOR(F16, 1, 2));
  MERGE(BAD_TENSOR_SHAPE, "out_desc", TENSOR(F32, 2, 2), l, o, l);
  MERGE(BAD_TENSOR_SHAPE, "out_a_desc", o, l, TENSOR(F32, 1, 2, 3), l);
  MERGE(BAD_TENSOR_SHAPE, "lse_desc", o, TENSOR(F32, 2, 2), o, l);
  MERGE(BAD_TENSOR_STRIDES, "out_desc", STRIDED(F32, LIST(1, 2, 2), LIST(4, 0, 1)), l, o, l);
  MERGE(BAD_TENSOR_STRIDES, "lse_desc", o, STRIDED(F32, LIST(1, 2), LIST(2, 0)), o, l);
  MERGE(BAD_TENSOR_STRIDES, "out_a_desc", o, l, STRIDED(F32, LIST(1, 2, 2), LIST(8, 4, 2)), l);
  MERGE(BAD_TENSOR_STRIDES, "lse_a_desc", o, l, o, STRIDED(F32, LIST(1, 2), LIST(2, -1)));
  EXPECT(NULL_POINTER, "handle", MergeStates, (NULL, o, out, l, lse, o, a, l, lse_a, o, b, l, lse_b, NULL));
  EXPECT(NULL_POINTER, "(lse_b)", MergeStates, (cpu_handle, o, out, l, lse, o, a, l, lse_a, o, b, l, NULL, NULL));
  EXPECT(BAD_PARAM, "(out_b)", MergeStates,
         (cpu_handle, o, out, l, lse, o, a, l, lse_a, o, (char*)b + 1, l, lse_b, NULL));
  EXPECT(SUCCESS, NULL, MergeStates,
         (cpu_handle, empty, NULL, empty_lse, NULL, empty, NULL, empty_lse, NULL, empty, NULL, empty_lse, NULL, NULL));
  /* in place where exactly in place */
  float both[6] = {0}, both_lse[3] = {0};
#define INTO(status, word, out_at, lse_at) \
  EXPECT(status, word, MergeStates, (cpu_handle, o, out_at, l, lse_at, o, both, l, both_lse, o, b, l, lse_b, NULL))
  INTO(SUCCESS, NULL, both, both_lse);
  INTO(BAD_PARAM, "(out): expected memory of its own, given memory that overlaps out_a", both + 2, lse);
  INTO(BAD_PARAM, "(lse): expected memory of its own, given memory that overlaps lse_a", out, both_lse + 1);
  INTO(BAD_PARAM, "(lse): expected memory of its own, given memory that overlaps out", both, both + 2);
#undef INTO
  OK(InjectFault, (FLASHCUTE_FAULT_LAUNCH_FAILURE));
  MERGE(INTERNAL_ERROR, "launch", o, l, o, l);
  OK(InjectFault, (FLASHCUTE_FAULT_UNKNOWN_DEVICE_TYPE));
  MERGE(DEVICE_TYPE_NOT_SUPPORTED, "handle", o, l, o, l);
  OK(InjectFault, (FLASHCUTE_FAULT_NONE));
#undef MERGE
}

void test_run(void) {
  test_operands();
  test_workspace_of(cpu_handle);
  if (gpu_handle != NULL) test_workspace_of(gpu_handle);
  test_buffers();
  test_checked_lengths();
  test_plan();
  test_mask_class();
  test_gpu_plan();
  test_merge();
}
