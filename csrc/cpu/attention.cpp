// The CPU kernels as dispatch sees them: one for each element type. Splits a problem into units of query rows that
// share a key head, and hands them to the threads.
#include <algorithm>
#include <string>

#include "core/backend.h"
#include "core/error.h"
#include "cpu/isa.h"
#include "cpu/lengths.h"
#include "cpu/pool.h"

namespace flashcute::cpu {
namespace {

constexpr int64_t kMaxRows = 512;         // query rows that share one packing of keys and values
constexpr int64_t kStateFloats = 100000;  // of queries and outputs of a unit, to stay in half of a 1 MiB L2 cache
constexpr int64_t kMinRows = 96;          // below this packing costs more than a better balance gains
constexpr int64_t kUnitsPerThread = 4;    // for balance
constexpr double kWorkPerThread = 4e6;    // below this many operations waking a thread does not pay
constexpr double kLog2E = 1.4426950408889634;

int64_t divide_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}
int64_t round_up(int64_t a, int64_t b) {
  return divide_up(a, b) * b;
}

std::string refuse(const KernelInfo& kernel, const Problem& p, const DeviceFacts&) {
  if (p.device != DeviceType::kCpu) return "the tensors are not on the CPU";
  if (p.dtype != kernel.dtype) return std::string("dtype ") + name_of(p.dtype) + " is not " + name_of(kernel.dtype);
  for (const auto& [name, value] : {std::pair("head_dim", p.head_dim), std::pair("head_dim_v", p.head_dim_v)}) {
    if (value > kMaxHeadDim) {
      return std::string(name) + " " + std::to_string(value) + " is above " + std::to_string(kMaxHeadDim);
    }
  }
  return "";
}

// Query heads whose rows share a unit: those of a key head, unless their block masks differ. A tile that one of them
// does not see would then cost it as much as the others.
int64_t unit_group(const Problem& p) {
  return p.block_mask.present && p.block_mask.head != 0 ? 1 : p.group();
}
int64_t unit_heads(const Problem& p) {
  return p.heads_q / unit_group(p);
}

// Rows of a unit: few enough for the cache and for every thread to get units, many enough to share a packing.
int64_t unit_rows(const Problem& p, const TileKernel& tile, int threads) {
  const int64_t rows = std::max<int64_t>(1, p.seq_q * unit_group(p));
  const int64_t heads = std::max<int64_t>(1, p.batch * unit_heads(p));
  const int64_t fit = kStateFloats / (p.head_dim + p.head_dim_v) / tile.strip * tile.strip;
  const int64_t most = std::clamp<int64_t>(fit, tile.strip, kMaxRows);
  const int64_t wanted_units = threads > 1 ? kUnitsPerThread * threads : 1;
  const int64_t chunks = std::max(divide_up(rows, most), divide_up(wanted_units, heads));
  const int64_t even = std::max(divide_up(rows, chunks), std::min(rows, kMinRows));
  return std::min(round_up(even, tile.strip), round_up(most, tile.strip));
}

// Upper bound of the number of units.
int64_t unit_bound(const Problem& p, int64_t rows) {
  if (p.packed()) return (divide_up(p.lengths.total_q * p.group(), rows) + p.batch) * p.heads_k;
  return p.batch * unit_heads(p) * divide_up(p.seq_q * unit_group(p), rows);
}

size_t prefix_bytes(const Problem& p) {
  return p.packed() ? static_cast<size_t>(round_up((p.batch + 1) * static_cast<int64_t>(sizeof(int64_t)), 256)) : 0;
}

size_t thread_bytes(const Problem& p, const TileKernel& tile, int64_t rows) {
  return static_cast<size_t>(round_up(static_cast<int64_t>(tile.scratch_bytes(rows, p.head_dim, p.head_dim_v)), 256));
}

void make_plan(const KernelInfo& kernel, const Problem& p, const DeviceFacts&, Plan& plan) {
  const TileKernel& tile = tile_kernel(p.dtype);
  const int threads = num_threads();
  const int64_t rows = unit_rows(p, tile, threads);
  plan.kernel = &kernel;
  plan.block_m = static_cast<int>(rows);
  plan.block_n = tile.block_n;
  plan.grid = unit_bound(p, rows);
  plan.threads = static_cast<int>(std::clamp<int64_t>(plan.grid, 1, threads));
  plan.shared_memory = 0;
  plan.scratch_offset = 0;
  plan.scratch_size =
      plan.grid == 0 ? 0 : prefix_bytes(p) + static_cast<size_t>(plan.threads) * thread_bytes(p, tile, rows);
  plan.workspace = plan.scratch_size;
}

FloatType float_type(DType dtype) {
  return dtype == DType::kF32 ? FloatType::kF32 : dtype == DType::kF16 ? FloatType::kF16 : FloatType::kBF16;
}

ScoreView view_of(const ScoreTensor& tensor, const void* data) {
  ScoreView view;
  if (!tensor.present) return view;
  view.data = data;
  view.width = size_of(tensor.dtype);
  view.type = float_type(tensor.dtype);
  view.batch = tensor.batch;
  view.head = tensor.head;
  view.row = tensor.row;
  view.key = tensor.key;
  return view;
}

Job make_job(const Problem& p, const Plan& plan, const Buffers& buffers) {
  Job job;
  job.head_dim = p.head_dim;
  job.head_dim_v = p.head_dim_v;
  job.group = unit_group(p);
  job.heads_q = p.heads_q;
  job.q_head = p.q.head;
  job.q_row = p.q.row;
  job.k_row = p.k.row;
  job.v_row = p.v.row;
  job.out_head = p.out.head;
  job.out_row = p.out.row;
  job.lse_head = p.lse.head;
  job.lse_row = p.lse.row;
  job.probs_head = p.probs.head;
  job.probs_row = p.probs.row;
  job.probs_key = p.probs.key;
  job.probs_keys = p.seq_k;
  job.max_rows = plan.block_m;
  const double scale = p.scale;
  job.score_factor = p.softcap != 0 ? scale / p.softcap : scale * kLog2E;
  job.softcap_log2 = p.softcap * kLog2E;
  job.left_bounded = p.band.left != Band::kUnbounded;
  job.right_bounded = p.band.right != Band::kUnbounded;
  job.left = p.band.left;
  job.right = p.band.right;
  job.top_left = p.band.alignment == Alignment::kTopLeft;
  job.key_mask_width = size_of(p.key_mask.dtype);
  job.key_mask_key = p.key_mask.key;
  job.mask = view_of(p.dense_mask, buffers.dense_mask);
  job.bias = view_of(p.bias, buffers.bias);
  job.blocks = view_of(p.block_mask, buffers.block_mask);
  if (p.alibi.present) {
    job.alibi = buffers.alibi_slopes;
    job.alibi_batch = p.alibi.batch;
    job.alibi_head = p.alibi.head;
  }
  if (p.sinks.present) {
    job.sinks = buffers.sinks;
    job.sink_type = float_type(p.sinks.dtype);
    job.sink_head = p.sinks.head;
  }
  if (p.dropout.p > 0) {
    job.dropout = true;
    job.dropout_threshold = p.dropout.threshold();
    job.dropout_scale = p.dropout.keep_scale();
    job.seed = p.dropout.state_on_device ? buffers.dropout_state[0] : buffers.seed;
    job.offset = p.dropout.state_on_device ? buffers.dropout_state[1] : buffers.offset;
  }
  return job;
}

// One run, shared by its threads.
struct Run {
  const Problem& problem;
  const Buffers& buffers;
  const TileKernel& tile;
  Job job;
  int64_t heads = 0;                // units side by side: unit_heads
  int64_t rows = 0;                 // of a unit
  int64_t chunks = 0;               // of each head, unless packed
  const int64_t* prefix = nullptr;  // packed: (batch + 1) units of earlier members
  char* scratch = nullptr;
  size_t scratch_stride = 0;

  const void* at(const void* base, int64_t elements) const {
    return static_cast<const char*>(base) + elements * size_of(problem.dtype);
  }

  void attend(int slot, int64_t index) const {
    const Problem& p = problem;
    Unit unit;
    int64_t chunk, head;
    if (prefix) {
      unit.batch = std::upper_bound(prefix, prefix + p.batch + 1, index) - prefix - 1;
      const int64_t within = index - prefix[unit.batch];
      chunk = (prefix[unit.batch + 1] - prefix[unit.batch]) / heads - 1 - within / heads;
      head = within % heads;
    } else {
      // Last rows first: under a causal mask they have the most to do.
      chunk = chunks - 1 - index / (p.batch * heads);
      const int64_t within = index % (p.batch * heads);
      unit.batch = within / heads;
      head = within % heads;
    }
    const Member m = member_of(p, buffers, unit.batch);
    const int64_t head_q = head * job.group, head_k = head_q / p.group();
    unit.first_head = head_q;
    unit.first_row = chunk * rows;
    unit.rows = std::min(rows, m.len_q * job.group - unit.first_row);
    unit.len_q = m.len_q;
    unit.len_k = m.len_k;
    unit.q = at(buffers.q, unit.batch * p.q.batch + head_q * p.q.head + m.start_q * p.q.row);
    unit.k = at(buffers.k, unit.batch * p.k.batch + head_k * p.k.head + m.start_k * p.k.row);
    unit.v = at(buffers.v, unit.batch * p.v.batch + head_k * p.v.head + m.start_k * p.v.row);
    unit.out =
        const_cast<void*>(at(buffers.out, unit.batch * p.out.batch + head_q * p.out.head + m.start_q * p.out.row));
    if (p.lse.present) {
      unit.lse = buffers.lse + unit.batch * p.lse.batch + head_q * p.lse.head + m.start_q * p.lse.row;
    }
    if (p.probs.present && buffers.probs) {
      unit.probs = buffers.probs + unit.batch * p.probs.batch + head_q * p.probs.head;
    }
    if (p.key_mask.present && buffers.key_mask) {
      const int64_t first = unit.batch * p.key_mask.batch + m.start_k * p.key_mask.key;
      unit.key_mask = static_cast<const char*>(buffers.key_mask) + first * job.key_mask_width;
    }
    tile.attend(job, unit, scratch + static_cast<size_t>(slot) * scratch_stride);
  }
};

void run(const Problem& p, const Plan& plan, const Buffers& buffers, void* workspace, void*) {
  if (plan.grid == 0) return;
  const TileKernel& tile = tile_kernel(p.dtype);
  Run run{p, buffers, tile, make_job(p, plan, buffers)};
  char* memory = static_cast<char*>(workspace) + plan.scratch_offset;
  run.heads = unit_heads(p);
  run.rows = plan.block_m;
  run.scratch = memory + prefix_bytes(p);
  run.scratch_stride = thread_bytes(p, tile, run.rows);

  int64_t count;
  double work = 0;  // a multiply-add is two, packing an element of a key or value about 16
  const double head_work = static_cast<double>(run.heads * (p.head_dim + p.head_dim_v));
  if (p.packed()) {
    int64_t* prefix = reinterpret_cast<int64_t*>(memory);
    prefix[0] = 0;
    for (int64_t b = 0; b < p.batch; ++b) {
      const Member m = member_of(p, buffers, b);
      const int64_t chunks = divide_up(m.len_q * run.job.group, run.rows);
      prefix[b + 1] = prefix[b] + chunks * run.heads;
      work += head_work * static_cast<double>(m.len_k) * static_cast<double>(2 * m.len_q * run.job.group + 16 * chunks);
    }
    run.prefix = prefix;
    count = prefix[p.batch];
  } else {
    run.chunks = divide_up(p.seq_q * run.job.group, run.rows);
    count = plan.grid;
    work = head_work * static_cast<double>(p.batch) * static_cast<double>(p.seq_k) *
           static_cast<double>(2 * p.seq_q * run.job.group + 16 * run.chunks);
  }
  const double worth = 1 + work / kWorkPerThread;
  int threads = std::min(plan.threads, num_threads());
  if (worth < threads) threads = static_cast<int>(worth);
  parallel_for(
      threads, count,
      [](void* context, int slot, int64_t index) { static_cast<const Run*>(context)->attend(slot, index); }, &run);
}

KernelInfo kernel(const char* name, DType dtype) {
  KernelInfo info;
  info.name = name;
  info.family = Family::kCpu;
  info.device = DeviceType::kCpu;
  info.head_dim = info.head_dim_v = static_cast<int>(kMaxHeadDim);
  info.dtype = dtype;
  info.mask = MaskClass::kAny;
  info.refuse = refuse;
  info.plan = make_plan;
  info.run = cpu::run;
  return info;
}

}  // namespace

const std::vector<KernelInfo>& kernels() {
  static const std::vector<KernelInfo> all = {kernel("cpu_float32", DType::kF32), kernel("cpu_float16", DType::kF16),
                                              kernel("cpu_bfloat16", DType::kBF16)};
  return all;
}

}  // namespace flashcute::cpu
