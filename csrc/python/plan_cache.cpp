#include "plan_cache.h"

#include <cstring>
#include <list>
#include <unordered_map>
#include <vector>

#include "stream.h"

namespace flashcute::python {

namespace {

constexpr size_t kMaxPlans = 256;
constexpr size_t kHeaderWords = 9;
constexpr size_t kMaxWords = kHeaderWords + kSlotCount * (1 + 2 * kMaxDims);

// Everything that creation looks at, as a run of 64-bit words.
class Key {
 public:
  Key(Device device, const Options& options, const Views& views, uint32_t min_alignment) {
    const auto bits = [](float value) {
      uint32_t result;
      std::memcpy(&result, &value, sizeof result);
      return static_cast<uint64_t>(result);
    };
    push(static_cast<uint64_t>(device.type) << 32 | static_cast<uint32_t>(device.id));
    push(static_cast<uint64_t>(options.has_scale) | options.causal << 1 | options.return_lse << 2 |
         options.checked << 3 | options.packed << 4 | options.alignment << 5 | static_cast<int>(options.layout) << 6 |
         options.backend << 8 | static_cast<uint64_t>(options.return_probs) << 11 |
         static_cast<uint64_t>(min_alignment) << 16);
    push(bits(options.scale) << 32 | bits(options.softcap));
    push(bits(options.dropout_p) << 32 |
         static_cast<uint32_t>(device.is_gpu() ? 0 : flashcuteGetNumThreads()));  // a CPU plan counts its threads
    push(static_cast<uint64_t>(options.window_left));
    push(static_cast<uint64_t>(options.window_right));
    push(static_cast<uint64_t>(options.max_seqlen_q));
    push(static_cast<uint64_t>(options.max_seqlen_k));
    for (int slot = 0; slot < kSlotCount; ++slot) {
      const View* view = views[slot];
      if (!view) continue;
      push(static_cast<uint64_t>(slot) << 32 | static_cast<uint64_t>(view->dtype) << 8 |
           static_cast<uint64_t>(view->ndim));
      for (int i = 0; i < view->ndim; ++i) {
        push(static_cast<uint64_t>(view->shape[i]));
        push(static_cast<uint64_t>(view->strides[i]));
      }
    }
  }

  uint64_t hash() const {
    uint64_t hash = 0x9e3779b97f4a7c15u;
    for (size_t i = 0; i < count_; ++i) {
      hash = (hash ^ words_[i]) * 0xff51afd7ed558ccdu;
      hash ^= hash >> 32;
    }
    return hash;
  }
  const uint64_t* words() const { return words_; }
  size_t bytes() const { return count_ * sizeof(uint64_t); }

 private:
  void push(uint64_t word) { words_[count_++] = word; }
  size_t count_ = 0;
  uint64_t words_[kMaxWords];
};

struct KeptPlan {
  uint64_t hash;
  std::vector<uint64_t> words;
  std::shared_ptr<const Plan> plan;

  bool matches(const Key& key) const {
    return words.size() * sizeof(uint64_t) == key.bytes() && std::memcmp(words.data(), key.words(), key.bytes()) == 0;
  }
};

// Guarded by the GIL, as no call in here lets go of it while it holds an iterator.
struct Cache {
  std::list<KeptPlan> order;  // most recent first
  std::unordered_multimap<uint64_t, std::list<KeptPlan>::iterator> index;

  std::shared_ptr<const Plan> find(const Key& key) {
    // Most often it is the plan of the call before, and comparing takes a tenth of the time of hashing.
    if (!order.empty() && order.front().matches(key)) return order.front().plan;
    const auto [first, last] = index.equal_range(key.hash());
    for (auto at = first; at != last; ++at) {
      if (!at->second->matches(key)) continue;
      order.splice(order.begin(), order, at->second);
      return order.front().plan;
    }
    return nullptr;
  }

  void insert(const Key& key, std::shared_ptr<const Plan> plan) {
    if (order.size() >= kMaxPlans) {
      const auto [first, last] = index.equal_range(order.back().hash);
      for (auto at = first; at != last; ++at) {
        if (at->second == std::prev(order.end())) {
          index.erase(at);
          break;
        }
      }
      order.pop_back();
    }
    const uint64_t hash = key.hash();
    order.push_front({hash, {key.words(), key.words() + key.bytes() / sizeof(uint64_t)}, std::move(plan)});
    index.emplace(hash, order.begin());
  }
};

Cache& cache() {
  static Cache* cache = new Cache;  // outlives the interpreter: no GPU call at exit
  return *cache;
}

}  // namespace

NativeDescriptor::NativeDescriptor(const View& view, bool swap_rows, const char* function) {
  size_t shape[kMaxDims];
  ptrdiff_t strides[kMaxDims];
  for (int i = 0; i < view.ndim; ++i) {
    shape[i] = static_cast<size_t>(view.shape[i]);
    strides[i] = static_cast<ptrdiff_t>(view.strides[i]);
  }
  if (swap_rows && view.ndim >= 3) {
    std::swap(shape[view.ndim - 3], shape[view.ndim - 2]);
    std::swap(strides[view.ndim - 3], strides[view.ndim - 2]);
  }
  check(flashcuteCreateTensorDescriptor(&handle_, static_cast<size_t>(view.ndim), shape, strides, view.dtype),
        function);
}

NativeDescriptor::~NativeDescriptor() {
  if (handle_) flashcuteDestroyTensorDescriptor(handle_);
}

Plan::Plan(const char* function, Device device, const Options& options, const Views& views, uint32_t min_alignment)
    : device_(device) {
  const flashcuteHandle_t handle = handle_of(device, function);
  std::array<NativeDescriptor, kSlotCount> native;
  for (int slot = 0; slot < kSlotCount; ++slot) {
    if (views[slot]) native[slot] = NativeDescriptor(*views[slot], slot <= kOut && options.rows_first(), function);
  }
  flashcuteAttentionOptions_t given = FLASHCUTE_ATTENTION_OPTIONS_INIT;
  given.has_scale = options.has_scale;
  given.scale = options.scale;
  given.causal = options.causal;
  given.alignment = options.alignment;
  given.window_left = options.window_left;
  given.window_right = options.window_right;
  given.softcap = options.softcap;
  given.dropout_p = options.dropout_p;
  given.max_seqlen_q = options.max_seqlen_q;
  given.max_seqlen_k = options.max_seqlen_k;
  given.min_alignment = min_alignment;
  given.backend = options.backend;
  given.checked = options.checked;
  given.lse = native[kLse].get();
  given.dense_mask = native[kDenseMask].get();
  given.bias = native[kBias].get();
  given.alibi_slopes = native[kAlibi].get();
  given.sinks = native[kSinks].get();
  given.cu_seqlens_q = native[kCuSeqlensQ].get();
  given.cu_seqlens_k = native[kCuSeqlensK].get();
  given.seqused_k = native[kSequsedK].get();
  given.dropout_state = native[kDropoutState].get();
  given.block_mask = native[kBlockMask].get();
  given.probs = native[kProbs].get();
  check(flashcuteCreateFlashAttentionDescriptor(handle, &descriptor_, native[kOut].get(), native[kQ].get(),
                                                native[kK].get(), native[kV].get(), native[kKeyMask].get(), &given),
        function);
  const flashcuteStatus_t status = flashcuteGetFlashAttentionWorkspaceSize(descriptor_, &workspace_);
  if (status != FLASHCUTE_STATUS_SUCCESS) {
    flashcuteDestroyFlashAttentionDescriptor(std::exchange(descriptor_, nullptr));
    check(status, function);
  }
}

Plan::~Plan() {
  if (descriptor_) flashcuteDestroyFlashAttentionDescriptor(descriptor_);
}

std::shared_ptr<const Plan> find_plan(const char* function, Device device, const Options& options, const Views& views,
                                      uint32_t min_alignment) {
  const Key key(device, options, views, min_alignment);
  std::shared_ptr<const Plan> plan = cache().find(key);
  if (!plan) {
    plan = std::make_shared<const Plan>(function, device, options, views, min_alignment);
    cache().insert(key, plan);
  }
  return plan;
}

size_t plan_cache_size() {
  return cache().order.size();
}

void clear_plan_cache() {
  cache().index.clear();
  cache().order.clear();
}

}  // namespace flashcute::python
