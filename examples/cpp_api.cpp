// The C API from C++: handles that destroy themselves, statuses that throw, and one descriptor run by two threads.
//
// Each thread computes attention over one half of the keys, and flashcuteMergeStates() joins the two results. That must
// be attention over all keys, which main() checks against a plain computation in double precision.
#include <flashcute/flashcute.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <memory>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t kHeads = 4, kSeqQ = 33, kSeqK = 128, kHalf = kSeqK / 2, kHeadDim = 64;

void check(flashcuteStatus_t status) {
  if (status != FLASHCUTE_STATUS_SUCCESS) throw std::runtime_error(flashcuteGetLastErrorMessage());
}

template <auto Destroy>
struct Destroyer {
  template <class T>
  void operator()(T* object) const {
    Destroy(object);
  }
};
using Handle = std::unique_ptr<flashcuteHandle, Destroyer<flashcuteDestroyHandle>>;
using Tensor = std::unique_ptr<flashcuteTensorDescriptor, Destroyer<flashcuteDestroyTensorDescriptor>>;
using Attention =
    std::unique_ptr<flashcuteFlashAttentionDescriptor, Destroyer<flashcuteDestroyFlashAttentionDescriptor>>;

Handle make_handle() {
  flashcuteHandle_t handle;
  check(flashcuteCreateHandle(&handle, FLASHCUTE_DEVICE_CPU, 0));
  return Handle(handle);
}

Tensor make_tensor(const std::vector<std::size_t>& shape, const std::vector<std::ptrdiff_t>& strides = {}) {
  flashcuteTensorDescriptor_t desc;
  const std::ptrdiff_t* given = strides.empty() ? nullptr : strides.data();
  check(flashcuteCreateTensorDescriptor(&desc, shape.size(), shape.data(), given, FLASHCUTE_DTYPE_F32));
  return Tensor(desc);
}

struct Partial {
  std::vector<float> out = std::vector<float>(kHeads * kSeqQ * kHeadDim);
  std::vector<float> lse = std::vector<float>(kHeads * kSeqQ);
  std::exception_ptr error;
};

// Every thread brings its own workspace and results; the descriptor is shared.
void run(const Handle& handle, const Attention& attention, const float* q, const float* k, const float* v,
         Partial& result) {
  try {
    std::size_t bytes;
    check(flashcuteGetFlashAttentionWorkspaceSize(attention.get(), &bytes));
    void* memory = nullptr;
    if (bytes != 0) check(flashcuteAllocate(handle.get(), &memory, bytes));
    const auto release = [&handle](void* p) { flashcuteRelease(handle.get(), p); };
    const std::unique_ptr<void, decltype(release)> workspace(memory, release);
    flashcuteAttentionBuffers_t buffers = FLASHCUTE_ATTENTION_BUFFERS_INIT;
    buffers.lse = result.lse.data();
    check(flashcuteFlashAttention(attention.get(), memory, bytes, result.out.data(), q, k, v, nullptr, &buffers,
                                  nullptr));
  } catch (...) {
    result.error = std::current_exception();
  }
}

double largest_error(const std::vector<float>& q, const std::vector<float>& k, const std::vector<float>& v,
                     const Partial& got) {
  double worst = 0;
  for (std::size_t row = 0; row < kHeads * kSeqQ; ++row) {
    const std::size_t keys = row / kSeqQ * kSeqK;
    std::vector<double> weight(kSeqK), out(kHeadDim);
    double sum = 0;
    for (std::size_t j = 0; j < kSeqK; ++j) {
      double score = 0;
      for (std::size_t d = 0; d < kHeadDim; ++d) score += double(q[row * kHeadDim + d]) * k[(keys + j) * kHeadDim + d];
      sum += weight[j] = std::exp(score / std::sqrt(double(kHeadDim)));
    }
    for (std::size_t j = 0; j < kSeqK; ++j)
      for (std::size_t d = 0; d < kHeadDim; ++d) out[d] += weight[j] / sum * v[(keys + j) * kHeadDim + d];
    worst = std::max(worst, std::abs(got.lse[row] - std::log(sum)));
    for (std::size_t d = 0; d < kHeadDim; ++d) worst = std::max(worst, std::abs(got.out[row * kHeadDim + d] - out[d]));
  }
  return worst;
}

void example() {
  std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  std::vector<float> q(kHeads * kSeqQ * kHeadDim), k(kHeads * kSeqK * kHeadDim), v(k.size());
  for (std::vector<float>* tensor : {&q, &k, &v})
    std::generate(tensor->begin(), tensor->end(), [&] { return normal(generator); });

  const Handle handle = make_handle();
  const Tensor q_desc = make_tensor({kHeads, kSeqQ, kHeadDim});
  const Tensor half_desc = make_tensor({kHeads, kHalf, kHeadDim}, {kSeqK * kHeadDim, kHeadDim, 1});  // a view of k or v
  const Tensor lse_desc = make_tensor({kHeads, kSeqQ});
  flashcuteAttentionOptions_t options = FLASHCUTE_ATTENTION_OPTIONS_INIT;
  options.lse = lse_desc.get();
  options.min_alignment = alignof(float);  // what std::vector<float> promises
  flashcuteFlashAttentionDescriptor_t desc;
  check(flashcuteCreateFlashAttentionDescriptor(handle.get(), &desc, q_desc.get(), q_desc.get(), half_desc.get(),
                                                half_desc.get(), nullptr, &options));
  const Attention attention(desc);

  Partial first, second;
  std::thread other([&] {
    const std::size_t skipped = kHalf * kHeadDim;
    run(handle, attention, q.data(), k.data() + skipped, v.data() + skipped, second);
  });
  run(handle, attention, q.data(), k.data(), v.data(), first);
  other.join();
  for (const Partial* partial : {&first, &second})
    if (partial->error) std::rethrow_exception(partial->error);

  Partial all;
  check(flashcuteMergeStates(handle.get(), q_desc.get(), all.out.data(), lse_desc.get(), all.lse.data(), q_desc.get(),
                             first.out.data(), lse_desc.get(), first.lse.data(), q_desc.get(), second.out.data(),
                             lse_desc.get(), second.lse.data(), nullptr));

  const double of_half = largest_error(q, k, v, first), of_all = largest_error(q, k, v, all);
  std::printf("flashcute %s\nlargest difference from attention over all keys: one half %.1e, merged %.1e\n",
              flashcuteGetVersion(), of_half, of_all);
  if (!(of_all <= 1e-5 && of_half > 1e-2)) throw std::runtime_error("the merged result is wrong");
}

}  // namespace

int main() {
  try {
    example();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
