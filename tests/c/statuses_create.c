/* Everything that flashcuteCreateFlashAttentionDescriptor refuses, and what it must not refuse. */
#include "harness.h"

typedef struct Five {
  flashcuteTensorDescriptor_t out, q, k, v, mask;
} Five;

static flashcuteHandle_t handle_;

/* Creates with one status expected, and destroys what was created. */
#define CREATE(status, word, five, options)                                               \
  do {                                                                                    \
    const Five five_ = five;                                                              \
    flashcuteFlashAttentionDescriptor_t desc_ = garbage();                                \
    EXPECT(status, word, CreateFlashAttentionDescriptor,                                  \
           (handle_, &desc_, five_.out, five_.q, five_.k, five_.v, five_.mask, options)); \
    CHECK((desc_ != NULL) == (FLASHCUTE_STATUS_##status == FLASHCUTE_STATUS_SUCCESS));    \
    OK(DestroyFlashAttentionDescriptor, (desc_));                                         \
  } while (0)

/* The same with options that differ from the defaults in one assignment. */
#define WITH(status, word, five, assignment)                          \
  do {                                                                \
    flashcuteAttentionOptions_t o = FLASHCUTE_ATTENTION_OPTIONS_INIT; \
    assignment;                                                       \
    CREATE(status, word, five, &o);                                   \
  } while (0)

static Five plain(void) {
  static Five five;
  if (five.q == NULL) {
    five.q = five.out = TENSOR(F32, 2, 6, 5, 8);
    five.k = five.v = TENSOR(F32, 2, 2, 7, 8);
  }
  return five;
}

static Five with_q(flashcuteTensorDescriptor_t q) {
  Five five = plain();
  five.q = q;
  return five;
}
static Five with_out(flashcuteTensorDescriptor_t out) {
  Five five = plain();
  five.out = out;
  return five;
}
static Five with_k(flashcuteTensorDescriptor_t k) {
  Five five = plain();
  five.k = k;
  return five;
}
static Five with_v(flashcuteTensorDescriptor_t v) {
  Five five = plain();
  five.v = v;
  return five;
}
static Five with_mask(flashcuteTensorDescriptor_t mask) {
  Five five = plain();
  five.mask = mask;
  return five;
}
static Five make(flashcuteTensorDescriptor_t q, flashcuteTensorDescriptor_t kv) {
  const Five five = {q, q, kv, kv, NULL};
  return five;
}
static Five packed(void) {
  return make(TENSOR(F32, 6, 9, 8), TENSOR(F32, 2, 11, 8));
}

static void test_pointers(void) {
  flashcuteFlashAttentionDescriptor_t desc = garbage();
  const Five five = plain();
  CREATE(SUCCESS, NULL, plain(), NULL);
  EXPECT(NULL_POINTER, "desc", CreateFlashAttentionDescriptor,
         (handle_, NULL, five.out, five.q, five.k, five.v, NULL, NULL));
  EXPECT(NULL_POINTER, "handle", CreateFlashAttentionDescriptor,
         (NULL, &desc, five.out, five.q, five.k, five.v, NULL, NULL));
  EXPECT(BAD_PARAM, "handle", CreateFlashAttentionDescriptor,
         (garbage(), &desc, five.out, five.q, five.k, five.v, NULL, NULL));
  CHECK(desc == NULL);
  CREATE(NULL_POINTER, "(out)", with_out(NULL), NULL);
  CREATE(NULL_POINTER, "(q)", with_q(NULL), NULL);
  CREATE(NULL_POINTER, "(k)", with_k(NULL), NULL);
  CREATE(NULL_POINTER, "(v)", with_v(NULL), NULL);
  CREATE(BAD_PARAM, "(k)", with_k(garbage()), NULL);
  CREATE(BAD_PARAM, "(mask)", with_mask(garbage()), NULL);
  WITH(BAD_PARAM, "bias", plain(), o.bias = garbage());
}

static void test_shapes(void) {
  CREATE(SUCCESS, NULL, make(TENSOR(F32, 6, 5, 8), TENSOR(F32, 2, 7, 8)), NULL);
  CREATE(BAD_TENSOR_SHAPE, "(q)", make(TENSOR(F32, 5, 8), TENSOR(F32, 7, 8)), NULL);
  CREATE(BAD_TENSOR_SHAPE, "(q)", make(TENSOR(F32, 1, 1, 1, 5, 8), TENSOR(F32, 1, 1, 1, 7, 8)), NULL);
  CREATE(BAD_TENSOR_SHAPE, "(k)", with_k(TENSOR(F32, 2, 7, 8)), NULL);
  CREATE(BAD_TENSOR_SHAPE, "(v)", with_v(TENSOR(F32, 2, 7, 8)), NULL);
  CREATE(BAD_TENSOR_SHAPE, "(out)", with_out(TENSOR(F32, 6, 5, 8)), NULL);
  CREATE(BAD_TENSOR_SHAPE, "batch 2", with_k(TENSOR(F32, 3, 2, 7, 8)), NULL);
  CREATE(BAD_TENSOR_SHAPE, "batch 2", with_v(TENSOR(F32, 1, 2, 7, 8)), NULL);
  CREATE(BAD_TENSOR_SHAPE, "head_dim 8", with_k(TENSOR(F32, 2, 2, 7, 16)), NULL);
  CREATE(BAD_TENSOR_SHAPE, "2 heads", with_v(TENSOR(F32, 2, 3, 7, 8)), NULL);
  CREATE(BAD_TENSOR_SHAPE, "seq_len 7", with_v(TENSOR(F32, 2, 2, 6, 8)), NULL);
  CREATE(BAD_TENSOR_SHAPE, "(out)", with_out(TENSOR(F32, 2, 6, 4, 8)), NULL);
  CREATE(BAD_TENSOR_SHAPE, "(out)", with_out(TENSOR(F32, 2, 6, 5, 4)), NULL);
  CREATE(BAD_TENSOR_SHAPE, "(2, 6, 5, 3)", with_v(TENSOR(F32, 2, 2, 7, 3)), NULL); /* out has v's head_dim */

  const size_t heads[][2] = {{5, 2}, {3, 2}, {2, 4}};
  for (size_t i = 0; i < 3; ++i) {
    char word[32];
    snprintf(word, sizeof word, "given %zu heads", heads[i][0]);
    CREATE(BAD_TENSOR_SHAPE, word, make(TENSOR(F32, 1, heads[i][0], 3, 8), TENSOR(F32, 1, heads[i][1], 3, 8)), NULL);
    snprintf(word, sizeof word, "k's %zu heads", heads[i][1]);
    CREATE(BAD_TENSOR_SHAPE, word, make(TENSOR(F32, 1, heads[i][0], 3, 8), TENSOR(F32, 1, heads[i][1], 3, 8)), NULL);
  }
  CREATE(BAD_TENSOR_SHAPE, "q has 4, k has 0", make(TENSOR(F32, 1, 4, 3, 8), TENSOR(F32, 1, 0, 3, 8)), NULL);
  CREATE(BAD_TENSOR_SHAPE, "(q)", make(TENSOR(F32, 1, 0, 3, 8), TENSOR(F32, 1, 1, 3, 8)), NULL);
  CREATE(BAD_TENSOR_SHAPE, "head_dim", make(TENSOR(F32, 1, 1, 3, 0), TENSOR(F32, 1, 1, 3, 0)), NULL);
  CREATE(SUCCESS, NULL, make(TENSOR(F32, 0, 4, 3, 8), TENSOR(F32, 0, 2, 3, 8)), NULL);
  CREATE(SUCCESS, NULL, make(TENSOR(F32, 1, 4, 0, 8), TENSOR(F32, 1, 2, 3, 8)), NULL);
  CREATE(SUCCESS, NULL, make(TENSOR(F32, 1, 4, 3, 8), TENSOR(F32, 1, 2, 0, 8)), NULL);
}

static void test_dtypes(void) {
  CREATE(BAD_TENSOR_DTYPE, "float64", make(TENSOR(F64, 1, 2, 8), TENSOR(F64, 1, 2, 8)), NULL);
  CREATE(BAD_TENSOR_DTYPE, "uint16", make(TENSOR(U16, 1, 2, 8), TENSOR(U16, 1, 2, 8)), NULL);
  CREATE(BAD_TENSOR_DTYPE, "(k): expected dtype float32 (q's), given float16", with_k(TENSOR(F16, 2, 2, 7, 8)), NULL);
  CREATE(BAD_TENSOR_DTYPE, "(v): expected dtype float32 (q's), given bfloat16", with_v(TENSOR(BF16, 2, 2, 7, 8)), NULL);
  CREATE(BAD_TENSOR_DTYPE, "(out): expected dtype float32 (q's), given float16", with_out(TENSOR(F16, 2, 6, 5, 8)),
         NULL);
  CREATE(SUCCESS, NULL, make(TENSOR(F16, 1, 2, 8), TENSOR(F16, 1, 2, 8)), NULL);
  CREATE(SUCCESS, NULL, make(TENSOR(BF16, 1, 2, 8), TENSOR(BF16, 1, 2, 8)), NULL);
}

static void test_strides(void) {
  const flashcuteTensorDescriptor_t inner = STRIDED(F32, LIST(2, 2, 7, 8), LIST(224, 112, 16, 2));
  const flashcuteTensorDescriptor_t negative = STRIDED(F32, LIST(2, 2, 7, 8), LIST(112, 56, -8, 1));
  CREATE(BAD_TENSOR_STRIDES, "(k)", with_k(inner), NULL);
  CREATE(BAD_TENSOR_STRIDES, "last axis", with_v(inner), NULL);
  CREATE(BAD_TENSOR_STRIDES, "(q)", with_q(STRIDED(F32, LIST(2, 6, 5, 8), LIST(480, 80, 16, 2))), NULL);
  CREATE(BAD_TENSOR_STRIDES, "(out)", with_out(STRIDED(F32, LIST(2, 6, 5, 8), LIST(480, 80, 16, 2))), NULL);
  CREATE(BAD_TENSOR_STRIDES, "negative", with_k(negative), NULL);
  CREATE(BAD_TENSOR_STRIDES, "negative", with_q(STRIDED(F32, LIST(2, 6, 5, 8), LIST(-240, 40, 8, 1))), NULL);
  CREATE(BAD_TENSOR_STRIDES, "overlap", with_out(STRIDED(F32, LIST(2, 6, 5, 8), LIST(0, 40, 8, 1))), NULL);
  CREATE(BAD_TENSOR_STRIDES, "overlap", with_out(STRIDED(F32, LIST(2, 6, 5, 8), LIST(240, 40, 7, 1))), NULL);
  CREATE(BAD_TENSOR_STRIDES, "overlap", with_out(STRIDED(F32, LIST(2, 6, 5, 8), LIST(240, 32, 8, 1))), NULL);

  CREATE(SUCCESS, NULL, with_k(STRIDED(F32, LIST(2, 2, 7, 8), LIST(0, 0, 0, 1))), NULL); /* an expanded input */
  CREATE(SUCCESS, NULL, with_out(STRIDED(F32, LIST(2, 6, 5, 8), LIST(240, 8, 48, 1))), NULL);
  CREATE(SUCCESS, NULL, with_out(STRIDED(F32, LIST(2, 6, 5, 8), LIST(1000, 160, 32, 1))), NULL);
  /* an axis of length 1 may have any stride, and so may an empty tensor */
  CREATE(SUCCESS, NULL,
         make(STRIDED(F32, LIST(1, 6, 1, 1), LIST(-7, 1, 0, -3)), STRIDED(F32, LIST(1, 1, 7, 1), LIST(0, -5, 3, 9))),
         NULL);
  CREATE(SUCCESS, NULL, make(TENSOR(F32, 1, 4, 3, 8), STRIDED(F32, LIST(1, 2, 0, 8), LIST(0, -1, 4, 0))), NULL);
}

static void test_masks(void) {
  const flashcuteDtype_t integers[] = {
      FLASHCUTE_DTYPE_BYTE, FLASHCUTE_DTYPE_BOOL, FLASHCUTE_DTYPE_I8,  FLASHCUTE_DTYPE_I16, FLASHCUTE_DTYPE_I32,
      FLASHCUTE_DTYPE_I64,  FLASHCUTE_DTYPE_U8,   FLASHCUTE_DTYPE_U16, FLASHCUTE_DTYPE_U32, FLASHCUTE_DTYPE_U64};
  for (size_t i = 0; i < sizeof integers / sizeof integers[0]; ++i) {
    CREATE(SUCCESS, NULL, with_mask(make_tensor(integers[i], 2, (const size_t[]){2, 7}, NULL)), NULL);
  }
  CREATE(SUCCESS, NULL, with_mask(TENSOR(BOOL, 7)), NULL);
  CREATE(SUCCESS, NULL, with_mask(STRIDED(BOOL, LIST(2, 7), LIST(0, 1))), NULL);
  CREATE(BAD_TENSOR_DTYPE, "(mask)", with_mask(TENSOR(F32, 2, 7)), NULL);
  CREATE(BAD_TENSOR_SHAPE, "(mask)", with_mask(TENSOR(BOOL, 8)), NULL);
  CREATE(BAD_TENSOR_SHAPE, "(mask)", with_mask(TENSOR(BOOL, 2, 8)), NULL);
  CREATE(BAD_TENSOR_SHAPE, "(mask)", with_mask(TENSOR(BOOL, 1, 7)), NULL);
  CREATE(BAD_TENSOR_SHAPE, "dense_mask", with_mask(TENSOR(BOOL, 2, 5, 7)), NULL);
  CREATE(BAD_TENSOR_SHAPE, "dense_mask", with_mask(TENSOR(BOOL, 2, 1, 5, 7)), NULL);
  CREATE(BAD_TENSOR_STRIDES, "(mask)", with_mask(STRIDED(BOOL, LIST(2, 7), LIST(14, 2))), NULL);
  CREATE(BAD_TENSOR_STRIDES, "(mask)", with_mask(STRIDED(BOOL, LIST(2, 7), LIST(-7, 1))), NULL);

  WITH(SUCCESS, NULL, plain(), o.dense_mask = TENSOR(I32, 2, 6, 5, 7));
  WITH(SUCCESS, NULL, plain(), o.dense_mask = TENSOR(BOOL, 1, 1, 5, 7));
  WITH(SUCCESS, NULL, plain(), o.dense_mask = STRIDED(BOOL, LIST(2, 6, 5, 7), LIST(0, 0, 1, 5)));
  WITH(BAD_TENSOR_DTYPE, "dense_mask", plain(), o.dense_mask = TENSOR(F16, 2, 6, 5, 7));
  WITH(BAD_TENSOR_SHAPE, "dense_mask", plain(), o.dense_mask = TENSOR(BOOL, 6, 5, 7));
  WITH(BAD_TENSOR_SHAPE, "dense_mask", plain(), o.dense_mask = TENSOR(BOOL, 2, 2, 5, 7)); /* k's heads are not q's */
  WITH(BAD_TENSOR_STRIDES, "dense_mask", plain(), o.dense_mask = STRIDED(BOOL, LIST(2, 6, 5, 7), LIST(210, 35, 7, -1)));
  WITH(SUCCESS, NULL, plain(), o.bias = TENSOR(F32, 1, 6, 1, 7));
  WITH(SUCCESS, NULL, make(TENSOR(F16, 1, 2, 5, 8), TENSOR(F16, 1, 2, 7, 8)), o.bias = TENSOR(F16, 1, 1, 5, 7));
  WITH(SUCCESS, NULL, make(TENSOR(F16, 1, 2, 5, 8), TENSOR(F16, 1, 2, 7, 8)), o.bias = TENSOR(F32, 1, 1, 5, 7));
  WITH(BAD_TENSOR_DTYPE, "bias", plain(), o.bias = TENSOR(F16, 1, 6, 1, 7));
  WITH(BAD_TENSOR_SHAPE, "bias", plain(), o.bias = TENSOR(F32, 1, 6, 1, 6));
  WITH(BAD_TENSOR_STRIDES, "bias", plain(), o.bias = STRIDED(F32, LIST(1, 1, 5, 7), LIST(0, 0, -7, 1)));
}

/* plain() has one block; 300 queries and 500 keys have 3 by 4. */
static void test_block_masks(void) {
  const Five longer = make(TENSOR(F32, 6, 300, 8), TENSOR(F32, 2, 500, 8));
  WITH(SUCCESS, NULL, plain(), o.block_mask = TENSOR(BOOL, 2, 6, 1, 1));
  WITH(SUCCESS, NULL, plain(), o.block_mask = TENSOR(I64, 1, 1, 1, 1));
  WITH(SUCCESS, NULL, longer, o.block_mask = TENSOR(U8, 1, 6, 3, 4));
  WITH(SUCCESS, NULL, longer, o.block_mask = STRIDED(I32, LIST(1, 6, 3, 4), LIST(0, 0, 1, 3)));
  WITH(SUCCESS, NULL, make(TENSOR(F32, 1, 4, 0, 8), TENSOR(F32, 1, 2, 128, 8)),
       o.block_mask = TENSOR(BOOL, 1, 1, 0, 1));
  WITH(BAD_TENSOR_DTYPE, "block_mask", plain(), o.block_mask = TENSOR(F32, 1, 1, 1, 1));
  WITH(BAD_TENSOR_SHAPE, "block_mask", plain(), o.block_mask = TENSOR(BOOL, 1, 1));
  WITH(BAD_TENSOR_SHAPE, "block_mask", plain(), o.block_mask = TENSOR(BOOL, 3, 1, 1, 1));
  WITH(BAD_TENSOR_SHAPE, "block_mask", plain(), o.block_mask = TENSOR(BOOL, 1, 2, 1, 1)); /* k's heads are not q's */
  WITH(BAD_TENSOR_SHAPE, "(1, 6, 3, 4)", longer, o.block_mask = TENSOR(BOOL, 1, 1, 300, 500));
  WITH(BAD_TENSOR_SHAPE, "block_mask", longer, o.block_mask = TENSOR(BOOL, 1, 1, 1, 1)); /* blocks are not broadcast */
  WITH(BAD_TENSOR_STRIDES, "block_mask", longer, o.block_mask = STRIDED(BOOL, LIST(1, 1, 3, 4), LIST(12, 12, -4, 1)));
  WITH(BAD_PARAM, "block_mask", packed(),
       (o.cu_seqlens_q = o.cu_seqlens_k = TENSOR(I32, 4), o.block_mask = TENSOR(BOOL, 1, 1, 1, 1)));
}

static void test_probs(void) {
  WITH(SUCCESS, NULL, plain(), o.probs = TENSOR(F32, 2, 6, 5, 7));
  WITH(SUCCESS, NULL, plain(), o.probs = STRIDED(F32, LIST(2, 6, 5, 7), LIST(210, 1, 42, 6)));
  WITH(SUCCESS, NULL, make(TENSOR(F16, 6, 5, 8), TENSOR(F16, 2, 7, 8)), o.probs = TENSOR(F32, 6, 5, 7));
  WITH(SUCCESS, NULL, make(TENSOR(F16, 6, 5, 8), TENSOR(F16, 2, 7, 8)), o.probs = TENSOR(F32, 1, 6, 5, 7));
  WITH(BAD_TENSOR_DTYPE, "probs", make(TENSOR(F16, 6, 5, 8), TENSOR(F16, 2, 7, 8)), o.probs = TENSOR(F16, 6, 5, 7));
  WITH(BAD_TENSOR_SHAPE, "probs", plain(), o.probs = TENSOR(F32, 2, 2, 5, 7));
  WITH(BAD_TENSOR_SHAPE, "probs", plain(), o.probs = TENSOR(F32, 6, 5, 7));
  WITH(BAD_TENSOR_STRIDES, "probs", plain(), o.probs = STRIDED(F32, LIST(2, 6, 5, 7), LIST(210, 35, 7, 0)));
  WITH(BAD_TENSOR_STRIDES, "probs", plain(), o.probs = STRIDED(F32, LIST(2, 6, 5, 7), LIST(210, 35, 7, -1)));
  WITH(BAD_PARAM, "probs", packed(),
       (o.cu_seqlens_q = o.cu_seqlens_k = TENSOR(I32, 4), o.probs = TENSOR(F32, 6, 9, 11)));
  CHECK(FLASHCUTE_MAX_PROBS == 8192 * 8192);
  WITH(SUCCESS, NULL, make(TENSOR(F32, 1, 8192, 8), TENSOR(F32, 1, 8192, 8)), o.probs = TENSOR(F32, 1, 8192, 8192));
  WITH(BAD_PARAM, "67108864", make(TENSOR(F32, 1, 8192, 8), TENSOR(F32, 1, 8193, 8)),
       o.probs = TENSOR(F32, 1, 8192, 8193));
}

static void test_small_tensors(void) {
  WITH(SUCCESS, NULL, plain(), o.alibi_slopes = TENSOR(F32, 6));
  WITH(SUCCESS, NULL, plain(), o.alibi_slopes = TENSOR(F32, 2, 6));
  WITH(SUCCESS, NULL, plain(), o.alibi_slopes = STRIDED(F32, LIST(2, 6), LIST(1, 2)));
  WITH(BAD_TENSOR_DTYPE, "alibi_slopes", plain(), o.alibi_slopes = TENSOR(F16, 6));
  WITH(BAD_TENSOR_SHAPE, "alibi_slopes", plain(), o.alibi_slopes = TENSOR(F32, 2));
  WITH(BAD_TENSOR_SHAPE, "alibi_slopes", plain(), o.alibi_slopes = TENSOR(F32, 6, 2));
  WITH(BAD_TENSOR_STRIDES, "alibi_slopes", plain(), o.alibi_slopes = STRIDED(F32, LIST(6), LIST(-1)));
  WITH(SUCCESS, NULL, plain(), o.sinks = TENSOR(F32, 6));
  WITH(BAD_TENSOR_DTYPE, "sinks", plain(), o.sinks = TENSOR(BF16, 6));
  WITH(BAD_TENSOR_SHAPE, "sinks", plain(), o.sinks = TENSOR(F32, 2));
  WITH(BAD_TENSOR_STRIDES, "sinks", plain(), o.sinks = STRIDED(F32, LIST(6), LIST(-2)));
  WITH(SUCCESS, NULL, plain(), o.lse = TENSOR(F32, 2, 6, 5));
  WITH(SUCCESS, NULL, make(TENSOR(F32, 6, 5, 8), TENSOR(F32, 2, 7, 8)), o.lse = TENSOR(F32, 6, 5));
  WITH(SUCCESS, NULL, plain(), o.lse = STRIDED(F32, LIST(2, 6, 5), LIST(30, 1, 6)));
  WITH(BAD_TENSOR_DTYPE, "lse", plain(), o.lse = TENSOR(F16, 2, 6, 5));
  WITH(BAD_TENSOR_SHAPE, "lse", plain(), o.lse = TENSOR(F32, 2, 5, 6));
  WITH(BAD_TENSOR_SHAPE, "lse", plain(), o.lse = TENSOR(F32, 6, 5));
  WITH(BAD_TENSOR_STRIDES, "lse", plain(), o.lse = STRIDED(F32, LIST(2, 6, 5), LIST(0, 5, 1)));
  WITH(BAD_TENSOR_STRIDES, "lse", plain(), o.lse = STRIDED(F32, LIST(2, 6, 5), LIST(30, 5, -1)));
  WITH(SUCCESS, NULL, plain(), o.seqused_k = TENSOR(I32, 2));
  WITH(BAD_TENSOR_DTYPE, "int32", plain(), o.seqused_k = TENSOR(I64, 2));
  WITH(BAD_TENSOR_SHAPE, "seqused_k", plain(), o.seqused_k = TENSOR(I32, 3));
  WITH(BAD_TENSOR_STRIDES, "seqused_k", plain(), o.seqused_k = STRIDED(I32, LIST(2), LIST(2)));
  WITH(SUCCESS, NULL, plain(), (o.dropout_p = 0.5f, o.dropout_state = TENSOR(U64, 2)));
  WITH(BAD_TENSOR_DTYPE, "dropout_state", plain(), (o.dropout_p = 0.5f, o.dropout_state = TENSOR(I64, 2)));
  WITH(BAD_TENSOR_SHAPE, "dropout_state", plain(), (o.dropout_p = 0.5f, o.dropout_state = TENSOR(U64, 1)));
  WITH(BAD_TENSOR_STRIDES, "dropout_state", plain(), o.dropout_state = STRIDED(U64, LIST(2), LIST(3)));
}

static void test_packed(void) {
  const flashcuteTensorDescriptor_t cu = TENSOR(I32, 4);
#define PACKED(status, word, five, assignment) \
  WITH(status, word, five, (o.cu_seqlens_q = o.cu_seqlens_k = cu, assignment))
  PACKED(SUCCESS, NULL, packed(), (void)0);
  PACKED(SUCCESS, NULL, packed(), (o.max_seqlen_q = 4, o.max_seqlen_k = 100));
  PACKED(SUCCESS, NULL, packed(), (o.seqused_k = TENSOR(I32, 3), o.alibi_slopes = TENSOR(F32, 3, 6)));
  PACKED(SUCCESS, NULL, packed(), o.lse = TENSOR(F32, 6, 9));
  PACKED(SUCCESS, NULL, packed(), o.cu_seqlens_q = o.cu_seqlens_k = TENSOR(I32, 1)); /* no member */
  Five masked = packed();
  masked.mask = TENSOR(U8, 11);
  PACKED(SUCCESS, NULL, masked, (void)0);
  masked.mask = TENSOR(U8, 3, 11);
  PACKED(BAD_TENSOR_SHAPE, "total_k", masked, (void)0);
  masked.mask = TENSOR(U8, 9);
  PACKED(BAD_TENSOR_SHAPE, "total_k", masked, (void)0);
  PACKED(BAD_TENSOR_SHAPE, "three axes", plain(), (void)0);
  PACKED(BAD_PARAM, "cu_seqlens_k", packed(), o.cu_seqlens_k = NULL);
  PACKED(BAD_PARAM, "cu_seqlens_q", packed(), o.cu_seqlens_q = NULL);
  PACKED(BAD_TENSOR_DTYPE, "int32", packed(), o.cu_seqlens_q = TENSOR(I64, 4));
  PACKED(BAD_TENSOR_DTYPE, "cu_seqlens_k", packed(), o.cu_seqlens_k = TENSOR(I64, 4));
  PACKED(BAD_TENSOR_SHAPE, "cu_seqlens_q", packed(), o.cu_seqlens_q = TENSOR(I32, 2, 2));
  PACKED(BAD_TENSOR_SHAPE, "cu_seqlens_q", packed(), o.cu_seqlens_q = TENSOR(I32, 0));
  PACKED(BAD_TENSOR_SHAPE, "cu_seqlens_k", packed(), o.cu_seqlens_k = TENSOR(I32, 5));
  PACKED(BAD_TENSOR_STRIDES, "cu_seqlens_k", packed(), o.cu_seqlens_k = STRIDED(I32, LIST(4), LIST(2)));
  PACKED(BAD_PARAM, "bias", packed(), o.bias = TENSOR(F32, 1, 1, 9, 11));
  PACKED(BAD_PARAM, "dense_mask", packed(), o.dense_mask = TENSOR(BOOL, 1, 1, 9, 11));
  PACKED(BAD_PARAM, "max_seqlen_q", packed(), o.max_seqlen_q = -1);
  PACKED(BAD_PARAM, "max_seqlen_k", packed(), o.max_seqlen_k = -1);
  PACKED(BAD_TENSOR_SHAPE, "lse", packed(), o.lse = TENSOR(F32, 3, 6, 9));
  PACKED(BAD_TENSOR_SHAPE, "seqused_k", packed(), o.seqused_k = TENSOR(I32, 4));
  PACKED(BAD_TENSOR_SHAPE, "63 bits", packed(),
         o.cu_seqlens_q = o.cu_seqlens_k = TENSOR(I32, (size_t)1 << 60)); /* members times heads times rows */
  WITH(BAD_PARAM, "max_seqlen_q", plain(), o.max_seqlen_q = 5);
  WITH(BAD_PARAM, "max_seqlen_k", plain(), o.max_seqlen_k = 7);
#undef PACKED
}

static void test_scalars(void) {
  const float bad[] = {NAN, INFINITY, -INFINITY};
  for (int i = 0; i < 3; ++i) {
    WITH(BAD_PARAM, "scale", plain(), (o.has_scale = 1, o.scale = bad[i]));
    WITH(BAD_PARAM, "softcap", plain(), o.softcap = bad[i]);
    WITH(BAD_PARAM, "dropout_p", plain(), o.dropout_p = bad[i]);
  }
  WITH(SUCCESS, NULL, plain(), (o.has_scale = 1, o.scale = -2.0f));
  WITH(BAD_PARAM, "has_scale", plain(), o.scale = 0.5f);
  WITH(BAD_PARAM, "has_scale", plain(), o.has_scale = 2);
  WITH(BAD_PARAM, "softcap", plain(), o.softcap = -1.0f);
  WITH(BAD_PARAM, "softcap", plain(), o.softcap = 1e-40f);
  WITH(BAD_PARAM, "softcap", plain(), o.softcap = 3e38f);
  WITH(BAD_PARAM, "dropout_p", plain(), o.dropout_p = 1.0f);
  WITH(BAD_PARAM, "dropout_p", plain(), o.dropout_p = -0.1f);
  WITH(BAD_PARAM, "causal", plain(), o.causal = -1);
  WITH(BAD_PARAM, "checked", plain(), o.checked = 2);
  WITH(BAD_PARAM, "alignment", plain(), o.alignment = 2);
  WITH(BAD_PARAM, "window_left", plain(), o.window_left = -2);
  WITH(BAD_PARAM, "window_right", plain(), (o.causal = 1, o.window_right = INT64_MIN));
  WITH(SUCCESS, NULL, plain(), (o.window_left = INT64_MAX, o.window_right = INT64_MAX));
  WITH(BAD_PARAM, "min_alignment", plain(), o.min_alignment = 0);
  WITH(BAD_PARAM, "min_alignment", plain(), o.min_alignment = 2); /* less than a float */
  WITH(BAD_PARAM, "min_alignment", plain(), o.min_alignment = 24);
  WITH(SUCCESS, NULL, plain(), o.min_alignment = 4);
  WITH(SUCCESS, NULL, plain(), o.min_alignment = 4096);
  WITH(BAD_PARAM, "backend", plain(), o.backend = 5);
  WITH(BAD_PARAM, "backend", plain(), o.backend = -1);
  WITH(SUCCESS, NULL, plain(), o.backend = FLASHCUTE_BACKEND_CPU);
  WITH(BAD_PARAM, "given cuda", plain(), o.backend = FLASHCUTE_BACKEND_CUDA);
  WITH(BAD_PARAM, "given sm80", plain(), o.backend = FLASHCUTE_BACKEND_SM80);
  WITH(BAD_PARAM, "given sm90", plain(), o.backend = FLASHCUTE_BACKEND_SM90);
}

static void test_struct_sizes(void) {
  struct {
    flashcuteAttentionOptions_t known;
    char later[24];
  } newer;
  memset(&newer, 0, sizeof newer);
  newer.known = (flashcuteAttentionOptions_t)FLASHCUTE_ATTENTION_OPTIONS_INIT;
  newer.known.struct_size = sizeof newer;
  CREATE(SUCCESS, NULL, plain(), &newer.known);
  newer.later[20] = 1;
  CREATE(BAD_PARAM, "struct_size", plain(), &newer.known);
  WITH(BAD_PARAM, "struct_size", plain(), o.struct_size = 0);
  WITH(BAD_PARAM, "struct_size", plain(), o.struct_size = 4);
  WITH(BAD_PARAM, "struct_size", plain(), o.struct_size = 33);
  WITH(BAD_PARAM, "struct_size", plain(), o.struct_size = SIZE_MAX);
  /* an older caller's struct ends before softcap: what stands there is not looked at */
  WITH(SUCCESS, NULL, plain(), (o.struct_size = offsetof(flashcuteAttentionOptions_t, softcap), o.softcap = NAN));
  WITH(BAD_PARAM, "window_left", plain(),
       (o.struct_size = offsetof(flashcuteAttentionOptions_t, softcap), o.window_left = -3));
  /* as it ended before block_mask and probs, with whatever lies behind it */
  WITH(SUCCESS, NULL, plain(),
       (o.struct_size = offsetof(flashcuteAttentionOptions_t, block_mask), o.block_mask = o.probs = garbage()));
}

static int have_gpu_kernels(void) {
  static char json[200000];
  size_t length = sizeof json;
  OK(GetInfo, (json, &length));
  return strstr(json, "\"family\": \"sm80\"") != NULL;
}

static void test_devices(void) {
  const Five half = make(TENSOR(F16, 2, 6, 5, 64), TENSOR(F16, 2, 2, 7, 64));
  const Five large = make(TENSOR(F16, 1, 5, 257), TENSOR(F16, 1, 7, 257));
  const Five wide = make(TENSOR(F32, 1, 5, 513), TENSOR(F32, 1, 7, 513));
  CREATE(NOT_IMPLEMENTED, "head_dim 513", wide, NULL);

  flashcuteHandle_t pretended = NULL;
  OK(InjectFault, (FLASHCUTE_FAULT_PRETENDED_GPU));
  OK(CreateHandle, (&pretended, FLASHCUTE_DEVICE_NVIDIA, 0));
  handle_ = pretended;
  WITH(NOT_IMPLEMENTED, "sm90", half, (o.backend = FLASHCUTE_BACKEND_SM90, o.softcap = 5.0f));
  WITH(NOT_IMPLEMENTED, "head_dim 513", wide, (void)o);
  if (have_gpu_kernels()) {
    WITH(SUCCESS, NULL, half, (void)o);
    WITH(SUCCESS, NULL, half, (o.block_mask = TENSOR(BOOL, 1, 1, 1, 1), o.probs = TENSOR(F32, 2, 6, 5, 7)));
    WITH(NOT_IMPLEMENTED, "head_dim 257", large, (void)o);
  }
  WITH(BAD_PARAM, "given cpu", half, o.backend = FLASHCUTE_BACKEND_CPU);
  OK(InjectFault, (FLASHCUTE_FAULT_OLD_GPU));
  CREATE(DEVICE_ARCHITECTURE_NOT_SUPPORTED, "7.5", half, NULL);
  OK(InjectFault, (FLASHCUTE_FAULT_UNKNOWN_DEVICE_TYPE));
  CREATE(DEVICE_TYPE_NOT_SUPPORTED, "handle", half, NULL);
  OK(InjectFault, (FLASHCUTE_FAULT_NONE));
  OK(DestroyHandle, (pretended));

  handle_ = cpu_handle;
  OK(InjectFault, (FLASHCUTE_FAULT_OUT_OF_MEMORY));
  CREATE(INTERNAL_ERROR, "memory", plain(), NULL);
  OK(InjectFault, (FLASHCUTE_FAULT_NONE));
}

void test_create(void) {
  handle_ = cpu_handle;
  test_pointers();
  test_shapes();
  test_dtypes();
  test_strides();
  test_masks();
  test_block_masks();
  test_probs();
  test_small_tensors();
  test_packed();
  test_scalars();
  test_struct_sizes();
  test_devices();
}
