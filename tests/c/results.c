/* Attention problems whose answers are known in closed form, on every device and dtype. The scores of a row are scale
 * times k[j][0], the same for each row; v[j] is the same in all channels, j unless a problem says otherwise. With all
 * scores 0, out is the mean index of the visible keys and lse the logarithm of their number. */
#include "harness.h"

enum { kMaxRows = 64, kMaxKeys = 80, kGuard = 64 };

typedef struct Data {
  flashcuteTensorDescriptor_t desc;
  const void* bytes;
  size_t size;
} Data;

typedef struct Case {
  const char* name;
  size_t batch, heads_q, heads_k, seq_q, seq_k, head_dim, head_dim_v; /* batch 0 here: three axes */
  const float *scores, *values;                                       /* NULL: 0, the ramp */
  flashcuteAttentionOptions_t options;
  Data mask, dense_mask, block_mask, bias, alibi_slopes, sinks, cu_seqlens, cu_seqlens_k, seqused_k;
  int bshd;                /* tensors laid out as (batch, seq, heads, head_dim) */
  const double *out, *lse; /* of each row */
} Case;

static int skipped;

static uint16_t to_half(float value, flashcuteDtype_t dtype) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  if (dtype == FLASHCUTE_DTYPE_BF16) return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  const uint32_t sign = (bits >> 16) & 0x8000, exponent = (bits >> 23) & 0xff, mantissa = bits & 0x7fffff;
  if (exponent == 0xff) return (uint16_t)(sign | 0x7c00 | (mantissa != 0 ? 0x200 : 0));
  if (exponent < 113) return (uint16_t)sign; /* the tests have no subnormals */
  const uint32_t rounded = ((exponent - 112) << 23 | mantissa) + 0xfff + ((mantissa >> 13) & 1);
  return (uint16_t)(sign | (rounded >> 13));
}

static float from_half(uint16_t half, flashcuteDtype_t dtype) {
  uint32_t bits = (uint32_t)half << 16;
  float value;
  if (dtype != FLASHCUTE_DTYPE_BF16) {
    const uint32_t sign = bits & 0x80000000u, exponent = (half >> 10) & 0x1f, mantissa = half & 0x3ff;
    if (exponent == 0) {
      value = ldexpf((float)mantissa, -24);
      return sign != 0 ? -value : value;
    }
    bits = sign | (exponent == 31 ? 0xffu : exponent + 112) << 23 | mantissa << 13;
  }
  memcpy(&value, &bits, sizeof value);
  return value;
}

static size_t size_of(flashcuteDtype_t dtype) {
  return dtype == FLASHCUTE_DTYPE_F32 ? 4 : 2;
}

static void put(void* memory, size_t index, float value, flashcuteDtype_t dtype) {
  if (dtype == FLASHCUTE_DTYPE_F32) {
    ((float*)memory)[index] = value;
  } else {
    ((uint16_t*)memory)[index] = to_half(value, dtype);
  }
}

static float get(const void* memory, size_t index, flashcuteDtype_t dtype) {
  return dtype == FLASHCUTE_DTYPE_F32 ? ((const float*)memory)[index]
                                      : from_half(((const uint16_t*)memory)[index], dtype);
}

/* (batch,) heads, rows, channels, in either layout. */
static flashcuteTensorDescriptor_t describe(flashcuteDtype_t dtype, size_t batch, size_t heads, size_t rows,
                                            size_t channels, int bshd) {
  const size_t shape[4] = {batch, heads, rows, channels};
  const ptrdiff_t strides[4] = {(ptrdiff_t)(heads * rows * channels), (ptrdiff_t)(bshd ? channels : rows * channels),
                                (ptrdiff_t)(bshd ? heads * channels : channels), 1};
  return batch == 0 ? make_tensor(dtype, 3, shape + 1, strides + 1) : make_tensor(dtype, 4, shape, strides);
}

static size_t row_index(const Case* c, size_t heads, size_t rows, size_t b, size_t h, size_t i) {
  return c->bshd ? (b * rows + i) * heads + h : (b * heads + h) * rows + i;
}

static void* upload(flashcuteHandle_t handle, const void* bytes, size_t size) {
  void* memory = NULL;
  OK(Allocate, (handle, &memory, size));
  OK(CopyToDevice, (handle, memory, bytes, size, NULL));
  return memory;
}

static void release(flashcuteHandle_t handle, const void* memory) {
  OK(Release, (handle, (void*)memory));
}

static int close_to(double got, double want, double tolerance) {
  return isinf(want) || isnan(want)
             ? isinf(want) == isinf(got) && isnan(want) == isnan(got) && (isnan(want) || (got > 0) == (want > 0))
             : fabs(got - want) <= tolerance * fmax(1.0, fabs(want));
}

static void compare(const Case* c, const void* out, const float* lse, flashcuteDtype_t dtype, const char* where) {
  const double tolerance = dtype == FLASHCUTE_DTYPE_F32 ? 2e-5 : dtype == FLASHCUTE_DTYPE_F16 ? 2e-3 : 1e-2;
  const size_t batch = c->batch == 0 ? 1 : c->batch;
  for (size_t b = 0; b < batch; ++b) {
    for (size_t h = 0; h < c->heads_q; ++h) {
      for (size_t i = 0; i < c->seq_q; ++i) {
        const size_t row = row_index(c, c->heads_q, c->seq_q, b, h, i);
        for (size_t channel = 0; channel < c->head_dim_v; ++channel) {
          const double got = get(out, row * c->head_dim_v + channel, dtype);
          if (!close_to(got, c->out[i], tolerance)) {
            printf("%s, %s: out[%zu, %zu, %zu, %zu] is %g, not %g\n", c->name, where, b, h, i, channel, got, c->out[i]);
            CHECK(!"out is right");
            return;
          }
        }
        const double got = lse[(b * c->heads_q + h) * c->seq_q + i];
        if (!close_to(got, c->lse[i], dtype == FLASHCUTE_DTYPE_F32 ? 1e-5 : 1e-3)) {
          printf("%s, %s: lse[%zu, %zu, %zu] is %g, not %g\n", c->name, where, b, h, i, got, c->lse[i]);
          CHECK(!"lse is right");
          return;
        }
      }
    }
  }
  CHECK(1);
}

static void run_on(const Case* c, flashcuteHandle_t handle, flashcuteDtype_t dtype, const char* where) {
  const size_t batch = c->batch == 0 ? 1 : c->batch, bytes = size_of(dtype);
  const size_t q_count = batch * c->heads_q * c->seq_q * c->head_dim, lse_count = batch * c->heads_q * c->seq_q;
  const size_t k_rows = batch * c->heads_k * c->seq_k, out_count = lse_count * c->head_dim_v;
  const flashcuteTensorDescriptor_t q_desc = describe(dtype, c->batch, c->heads_q, c->seq_q, c->head_dim, c->bshd);
  const flashcuteTensorDescriptor_t k_desc = describe(dtype, c->batch, c->heads_k, c->seq_k, c->head_dim, c->bshd);
  const flashcuteTensorDescriptor_t v_desc = describe(dtype, c->batch, c->heads_k, c->seq_k, c->head_dim_v, c->bshd);
  const flashcuteTensorDescriptor_t out_desc = describe(dtype, c->batch, c->heads_q, c->seq_q, c->head_dim_v, c->bshd);
  flashcuteAttentionOptions_t options = c->options;
  options.has_scale = 1;
  options.scale = 1.0f;
  options.lse = c->batch == 0 ? TENSOR(F32, c->heads_q, c->seq_q) : TENSOR(F32, c->batch, c->heads_q, c->seq_q);
  options.dense_mask = c->dense_mask.desc;
  options.block_mask = c->block_mask.desc;
  options.bias = c->bias.desc;
  options.alibi_slopes = c->alibi_slopes.desc;
  options.sinks = c->sinks.desc;
  options.cu_seqlens_q = c->cu_seqlens.desc;
  options.cu_seqlens_k = c->cu_seqlens_k.desc;
  options.seqused_k = c->seqused_k.desc;
  flashcuteFlashAttentionDescriptor_t desc = NULL;
  const flashcuteStatus_t status =
      flashcuteCreateFlashAttentionDescriptor(handle, &desc, out_desc, q_desc, k_desc, v_desc, c->mask.desc, &options);
  if (status == FLASHCUTE_STATUS_NOT_IMPLEMENTED && handle == gpu_handle) {
    ++skipped;
    return;
  }
  if (status != FLASHCUTE_STATUS_SUCCESS) {
    printf("%s, %s: %s\n", c->name, where, flashcuteGetLastErrorMessage());
    CHECK(!"the descriptor is created");
    return;
  }

  char *q = calloc(q_count + 1, bytes), *k = calloc(k_rows * c->head_dim + 1, bytes);
  char *v = calloc(k_rows * c->head_dim_v + 1, bytes), *out = malloc((out_count + 2 * kGuard) * bytes);
  float* lse = calloc(lse_count + 1, sizeof *lse);
  for (size_t i = 0; i < q_count; i += c->head_dim) put(q, i, 1.0f, dtype);
  for (size_t b = 0; b < batch; ++b) {
    for (size_t h = 0; h < c->heads_k; ++h) {
      for (size_t j = 0; j < c->seq_k; ++j) {
        const size_t row = row_index(c, c->heads_k, c->seq_k, b, h, j);
        if (c->scores != NULL) put(k, row * c->head_dim, c->scores[j], dtype);
        for (size_t d = 0; d < c->head_dim_v; ++d) {
          put(v, row * c->head_dim_v + d, c->values != NULL ? c->values[j] : (float)j, dtype);
        }
      }
    }
  }
  memset(out, 0xa5, (out_count + 2 * kGuard) * bytes);

  size_t workspace_size = 0;
  OK(GetFlashAttentionWorkspaceSize, (desc, &workspace_size));
  void* workspace = NULL;
  OK(Allocate, (handle, &workspace, workspace_size));
  void *dq = upload(handle, q, (q_count + 1) * bytes), *dk = upload(handle, k, (k_rows * c->head_dim + 1) * bytes);
  void* dv = upload(handle, v, (k_rows * c->head_dim_v + 1) * bytes);
  char* dout = upload(handle, out, (out_count + 2 * kGuard) * bytes);
  float* dlse = upload(handle, lse, (lse_count + 1) * sizeof *lse);
  flashcuteAttentionBuffers_t buffers = FLASHCUTE_ATTENTION_BUFFERS_INIT;
  buffers.lse = dlse;
  buffers.dense_mask = upload(handle, c->dense_mask.bytes, c->dense_mask.size);
  buffers.block_mask = upload(handle, c->block_mask.bytes, c->block_mask.size);
  buffers.bias = upload(handle, c->bias.bytes, c->bias.size);
  buffers.alibi_slopes = upload(handle, c->alibi_slopes.bytes, c->alibi_slopes.size);
  buffers.sinks = upload(handle, c->sinks.bytes, c->sinks.size);
  buffers.cu_seqlens_q = upload(handle, c->cu_seqlens.bytes, c->cu_seqlens.size);
  buffers.cu_seqlens_k = upload(handle, c->cu_seqlens_k.bytes, c->cu_seqlens_k.size);
  buffers.seqused_k = upload(handle, c->seqused_k.bytes, c->seqused_k.size);
  void* mask = upload(handle, c->mask.bytes, c->mask.size);
  OK(FlashAttention, (desc, workspace, workspace_size, dout + kGuard * bytes, dq, dk, dv, mask, &buffers, NULL));
  OK(CopyToHost, (handle, out, dout, (out_count + 2 * kGuard) * bytes, NULL));
  OK(CopyToHost, (handle, lse, dlse, lse_count * sizeof *lse, NULL));
  OK(Synchronize, (handle, NULL));
  compare(c, out + kGuard * bytes, lse, dtype, where);
  for (size_t i = 0; i < kGuard * bytes; ++i) {
    if ((unsigned char)out[i] != 0xa5 || (unsigned char)out[(out_count + kGuard) * bytes + i] != 0xa5) {
      printf("%s, %s: written outside of out\n", c->name, where);
      CHECK(!"the guard survives");
      break;
    }
  }

  const void* const all[] = {workspace,
                             dq,
                             dk,
                             dv,
                             dout,
                             dlse,
                             mask,
                             buffers.dense_mask,
                             buffers.block_mask,
                             buffers.bias,
                             buffers.alibi_slopes,
                             buffers.sinks,
                             buffers.cu_seqlens_q,
                             buffers.cu_seqlens_k,
                             buffers.seqused_k};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i) release(handle, all[i]);
  OK(DestroyFlashAttentionDescriptor, (desc));
  free(q);
  free(k);
  free(v);
  free(out);
  free(lse);
}

static void run(const Case* c) {
  run_on(c, cpu_handle, FLASHCUTE_DTYPE_F32, "CPU, float32");
  run_on(c, cpu_handle, FLASHCUTE_DTYPE_F16, "CPU, float16");
  run_on(c, cpu_handle, FLASHCUTE_DTYPE_BF16, "CPU, bfloat16");
  if (gpu_handle == NULL) return;
  run_on(c, gpu_handle, FLASHCUTE_DTYPE_F16, "GPU, float16");
  run_on(c, gpu_handle, FLASHCUTE_DTYPE_BF16, "GPU, bfloat16");
}

static Case square(const char* name, size_t seq_q, size_t seq_k, const double* out, const double* lse) {
  Case c;
  memset(&c, 0, sizeof c);
  c.name = name;
  c.batch = 2;
  c.heads_q = 4;
  c.heads_k = 2;
  c.seq_q = seq_q;
  c.seq_k = seq_k;
  c.head_dim = c.head_dim_v = 64;
  c.options = (flashcuteAttentionOptions_t)FLASHCUTE_ATTENTION_OPTIONS_INIT;
  c.out = out;
  c.lse = lse;
  return c;
}

static void test_bands(void) {
  double out[kMaxRows], lse[kMaxRows];
  Case c = square("causal 3x7", 3, 7, (const double[]){2, 2.5, 3}, (const double[]){log(5), log(6), log(7)});
  c.options.causal = 1;
  run(&c);
  c.name = "causal 3x7, bshd";
  c.bshd = 1;
  run(&c);
  c = square("causal 3x7, top left", 3, 7, (const double[]){0, 0.5, 1}, (const double[]){0, log(2), log(3)});
  c.options.causal = 1;
  c.options.alignment = FLASHCUTE_ALIGNMENT_TOP_LEFT;
  run(&c);
  c = square("causal 6x4", 6, 4, (const double[]){0, 0, 0, 0.5, 1, 1.5},
             (const double[]){-INFINITY, -INFINITY, 0, log(2), log(3), log(4)});
  c.options.causal = 1;
  run(&c);
  c = square("window (2, 1)", 4, 10, (const double[]){5.5, 6.5, 7.5, 8},
             (const double[]){log(4), log(4), log(4), log(3)});
  c.options.window_left = 2;
  c.options.window_right = 1;
  run(&c);
  for (int i = 0; i < 40; ++i) { /* d = -32: row i sees i - 36 <= j <= i - 30 */
    const int first = i - 36 > 0 ? i - 36 : 0, last = i - 30 < 7 ? i - 30 : 7;
    out[i] = last >= first ? 0.5 * (first + last) : 0.0;
    lse[i] = last >= first ? log(last - first + 1) : -INFINITY;
  }
  c = square("window (4, 2), empty rows", 40, 8, out, lse);
  c.options.window_left = 4;
  c.options.window_right = 2;
  run(&c);
  c = square("huge window", 3, 7, (const double[]){3, 3, 3}, (const double[]){log(7), log(7), log(7)});
  c.options.window_left = c.options.window_right = INT64_MAX;
  run(&c);
  c.name = "unbounded, three axes, multi-query";
  c.batch = 0;
  c.heads_k = 1;
  run(&c);
  c.name = "no keys";
  c.seq_k = 0;
  c.out = (const double[]){0, 0, 0};
  c.lse = (const double[]){-INFINITY, -INFINITY, -INFINITY};
  run(&c);
  c.options.causal = 1;
  run(&c);
}

static void test_scores(void) {
  float scores[kMaxKeys];
  for (int j = 0; j < 65; ++j) scores[j] = -200.0f;
  Case c = square("tail of the last tile", 1, 65, (const double[]){32}, (const double[]){-200 + log(65)});
  c.scores = scores;
  run(&c);
  c = square("softcap", 1, 2, (const double[]){0.119203}, (const double[]){2.126928});
  c.scores = (const float[]){100, 0};
  c.options.softcap = 2.0f;
  run(&c);
  c = square("alibi", 1, 4, (const double[]){2.492653}, (const double[]){0.440190});
  c.options.causal = 1;
  const float slopes[4] = {1, 1, 1, 1};
  c.alibi_slopes = (Data){TENSOR(F32, 4), slopes, sizeof slopes};
  run(&c);
  c = square("bias of -inf hides keys", 2, 6, (const double[]){3, 3}, (const double[]){log(3), log(3)});
  const float bias[6] = {-INFINITY, 0, -INFINITY, 0, -INFINITY, 0};
  c.bias = (Data){TENSOR(F32, 1, 1, 1, 6), bias, sizeof bias};
  run(&c);
  c = square("sinks", 1, 3, (const double[]){0.75}, (const double[]){log(4)}); /* exp(0) joins the denominator */
  const float sinks[4] = {0, 0, 0, 0};
  c.sinks = (Data){TENSOR(F32, 4), sinks, sizeof sinks};
  run(&c);
  c = square("head dims that are no bucket", 2, 5, (const double[]){2, 2}, (const double[]){log(5), log(5)});
  const size_t dims[][2] = {{1, 1}, {3, 7}, {20, 36}, {80, 100}, {160, 8}, {257, 256}, {512, 512}};
  for (size_t i = 0; i < sizeof dims / sizeof dims[0]; ++i) {
    c.head_dim = dims[i][0];
    c.head_dim_v = dims[i][1];
    run(&c);
  }
}

static void test_masks(void) {
  /* keys 1 and 4 of 6 take part, in every integer type; what is not zero counts, whatever byte it stands in */
  const struct {
    flashcuteDtype_t dtype;
    size_t size;
  } types[] = {{FLASHCUTE_DTYPE_BYTE, 1}, {FLASHCUTE_DTYPE_BOOL, 1}, {FLASHCUTE_DTYPE_I8, 1},  {FLASHCUTE_DTYPE_U8, 1},
               {FLASHCUTE_DTYPE_I16, 2},  {FLASHCUTE_DTYPE_U16, 2},  {FLASHCUTE_DTYPE_I32, 4}, {FLASHCUTE_DTYPE_U32, 4},
               {FLASHCUTE_DTYPE_I64, 8},  {FLASHCUTE_DTYPE_U64, 8}};
  for (size_t t = 0; t < sizeof types / sizeof types[0]; ++t) {
    unsigned char mask[2 * 6 * 8] = {0};
    const size_t size = types[t].size;
    for (int b = 0; b < 2; ++b) {
      mask[(b * 6 + 1) * size] = 1;
      mask[(b * 6 + 4) * size + size - 1] = size == 1 ? 1 : 0x40;
    }
    Case c = square("key mask", 3, 6, (const double[]){2.5, 2.5, 2.5}, (const double[]){log(2), log(2), log(2)});
    c.mask = (Data){make_tensor(types[t].dtype, 2, (const size_t[]){2, 6}, NULL), mask, 12 * size};
    run(&c);
    c.name = "key mask of one axis, causal";
    c.options.causal = 1;
    c.out = (const double[]){1, 2.5, 2.5};
    c.lse = (const double[]){0, log(2), log(2)};
    c.mask = (Data){make_tensor(types[t].dtype, 1, (const size_t[]){6}, NULL), mask, 6 * size};
    run(&c);
  }
  const unsigned char nothing[5] = {0}, dense[2 * 5] = {0, 1, 0, 0, 0, 1, 0, 0, 1, 0};
  Case c = square("every key masked", 2, 5, (const double[]){0, 0}, (const double[]){-INFINITY, -INFINITY});
  c.mask = (Data){TENSOR(BOOL, 5), nothing, sizeof nothing};
  run(&c);
  c = square("dense mask", 2, 5, (const double[]){1, 1.5}, (const double[]){0, log(2)});
  c.dense_mask = (Data){TENSOR(BOOL, 1, 1, 2, 5), dense, sizeof dense};
  run(&c);

  /* the first 128 queries see the keys from 128 on, the next 128 those before, the rest none */
  static double out[258], lse[258];
  const uint16_t blocks[3 * 2] = {0, 0x100, 1, 0, 0, 0};
  for (int i = 0; i < 258; ++i) {
    out[i] = i < 128 ? 133.5 : i < 256 ? 63.5 : 0;
    lse[i] = i < 128 ? log(12) : i < 256 ? log(128) : -INFINITY;
  }
  c = square("block mask", 258, 140, out, lse);
  c.block_mask = (Data){TENSOR(U16, 1, 1, 3, 2), blocks, sizeof blocks};
  run(&c);
  c.name = "block mask of each head, causal from the top left";
  const uint16_t each[2 * 4 * 3 * 2] = {0, 1, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0,
                                        0, 1, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0};
  c.block_mask = (Data){TENSOR(U16, 2, 4, 3, 2), each, sizeof each};
  c.options.causal = 1;
  c.options.alignment = FLASHCUTE_ALIGNMENT_TOP_LEFT;
  for (int i = 0; i < 128; ++i) { /* all their keys come later */
    out[i] = 0;
    lse[i] = -INFINITY;
  }
  run(&c);
}

static void test_lengths(void) {
  const int32_t used[2] = {3, 3}, cu_q[5] = {0, 0, 1, 1, 2}, cu_k[5] = {0, 4, 4, 6, 9};
  const float values[7] = {0, 1, 2, NAN, NAN, INFINITY, NAN}; /* unused places never reach the output */
  Case c = square("seqused_k", 2, 7, (const double[]){1, 1}, (const double[]){log(3), log(3)});
  c.seqused_k = (Data){TENSOR(I32, 2), used, sizeof used};
  c.values = values;
  run(&c);
  c.name = "seqused_k, causal";
  c.options.causal = 1;
  c.out = (const double[]){0.5, 1};
  c.lse = (const double[]){log(2), log(3)};
  run(&c);
  c = square("packed, empty members", 2, 9, (const double[]){0, 7}, (const double[]){-INFINITY, log(3)});
  c.batch = 0;
  c.heads_q = 6;
  c.cu_seqlens = (Data){TENSOR(I32, 5), cu_q, sizeof cu_q};
  c.cu_seqlens_k = (Data){TENSOR(I32, 5), cu_k, sizeof cu_k};
  c.options.max_seqlen_q = 1;
  c.options.checked = 1;
  run(&c);
}

/* Nothing to compute: success without any pointer. */
static void test_empty(void) {
  const size_t shapes[][4] = {{0, 2, 3, 8}, {1, 2, 0, 8}};
  for (int i = 0; i < 2; ++i) {
    const flashcuteTensorDescriptor_t q = make_tensor(FLASHCUTE_DTYPE_F32, 4, shapes[i], NULL);
    flashcuteFlashAttentionDescriptor_t desc = NULL;
    size_t size = 1;
    OK(CreateFlashAttentionDescriptor, (cpu_handle, &desc, q, q, q, q, NULL, NULL));
    OK(GetFlashAttentionWorkspaceSize, (desc, &size));
    CHECK(size == 0);
    OK(FlashAttention, (desc, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL));
    OK(DestroyFlashAttentionDescriptor, (desc));
  }
}

static void test_merge(flashcuteHandle_t handle) {
  /* rows: both empty (-inf), one empty by +inf, equal weights, weights 1 : 3 */
  const float a[4] = {0, 0, 2, 4}, lse_a[4] = {-INFINITY, INFINITY, 1, 0};
  const float b[4] = {0, 3, 4, 8}, lse_b[4] = {-INFINITY, 1.5f, 1, (float)log(3)};
  const double out[4] = {0, 3, 3, 7}, lse[4] = {-INFINITY, 1.5, 1 + log(2), log(4)};
  const flashcuteTensorDescriptor_t o = TENSOR(F32, 2, 2, 1), l = TENSOR(F32, 2, 2);
  void *da = upload(handle, a, sizeof a), *db = upload(handle, b, sizeof b);
  void *dla = upload(handle, lse_a, sizeof lse_a), *dlb = upload(handle, lse_b, sizeof lse_b);
  float got[4], got_lse[4];
  OK(MergeStates, (handle, o, da, l, dla, o, da, l, dla, o, db, l, dlb, NULL)); /* in place */
  OK(CopyToHost, (handle, got, da, sizeof got, NULL));
  OK(CopyToHost, (handle, got_lse, dla, sizeof got_lse, NULL));
  OK(Synchronize, (handle, NULL));
  for (int i = 0; i < 4; ++i) CHECK(close_to(got[i], out[i], 1e-5) && close_to(got_lse[i], lse[i], 1e-5));
  void* const all[] = {da, db, dla, dlb};
  for (int i = 0; i < 4; ++i) release(handle, all[i]);
}

void test_results(void) {
  test_bands();
  test_scores();
  test_masks();
  test_lengths();
  test_empty();
  test_merge(cpu_handle);
  if (gpu_handle != NULL) test_merge(gpu_handle);
  if (gpu_handle != NULL) printf("%d problems that no kernel of this GPU can do yet were left out there\n", skipped);
}
