#include "cpu/pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <string>
#include <thread>

#include "core/backend.h"
#include "core/error.h"
#include "cpu/cpus.h"

namespace flashcute::cpu {
namespace {

constexpr int kMaxThreads = 1024;

struct Task {
  void (*work)(void*, int, int64_t);
  void* context;
  int64_t count;
  std::atomic<int64_t> next{0};
  std::mutex failure_mutex;
  std::exception_ptr failure;

  void take_part(int slot) {
    try {
      for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) work(context, slot, i);
    } catch (...) {
      next.store(count, std::memory_order_relaxed);
      const std::lock_guard<std::mutex> lock(failure_mutex);
      if (!failure) failure = std::current_exception();
    }
  }
};

class Pool {
 public:
  // False when it serves another caller.
  bool run(Task& task, int threads) {
    const std::unique_lock<std::mutex> busy(busy_, std::try_to_lock);
    if (!busy.owns_lock()) return false;
    grow(threads - 1);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      task_ = &task;
      seats_ = threads - 1;
      joined_ = left_ = 0;
      ++generation_;
      const int cpu = sched_getcpu();
      for (int i = 0; i < seats_ && i < workers_ && i < kPlaced; ++i) all_[i].keep_off(cpu);
    }
    wake_.notify_all();
    task.take_part(0);
    std::unique_lock<std::mutex> lock(mutex_);
    task_ = nullptr;  // who has not joined by now need not
    done_.wait(lock, [this] { return left_ == joined_; });
    return true;
  }

 private:
  // Where caches are not shared, Linux puts a woken thread on the waker's CPU and leaves it waiting there for
  // milliseconds while others idle. So the first workers (more would cost more than they lose) may not use the caller's
  // CPU when they wake; each lifts the restriction from itself then.
  static constexpr int kPlaced = 8;

  struct Worker {
    pthread_t thread;
    bool narrowed = false;
    cpu_set_t before;

    void keep_off(int cpu) {
      if (narrowed || cpu < 0 || cpu >= CPU_SETSIZE) return;
      if (pthread_getaffinity_np(thread, sizeof before, &before) != 0) return;
      cpu_set_t rest = before;
      CPU_CLR(cpu, &rest);
      narrowed = CPU_COUNT(&rest) != 0 && pthread_setaffinity_np(thread, sizeof rest, &rest) == 0;
    }

    void roam() {
      pthread_setaffinity_np(thread, sizeof before, &before);
      narrowed = false;
    }
  };

  void grow(int workers) {
    sigset_t all, before;
    if (workers <= workers_) return;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the program's own threads
    try {
      for (; workers_ < workers; ++workers_) {
        std::thread thread([this, index = workers_] { serve(index); });
        all_[workers_].thread = thread.native_handle();
        thread.detach();
      }
    } catch (const std::exception&) {
      // Fewer threads do the work as well.
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void serve(int index) {
    Worker& self = all_[index];
    uint64_t seen = 0;
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return (task_ && generation_ != seen && index < seats_) || self.narrowed; });
      if (self.narrowed) self.roam();
      if (!task_ || generation_ == seen || index >= seats_) continue;
      seen = generation_;
      Task& task = *task_;
      ++joined_;
      lock.unlock();
      task.take_part(index + 1);
      lock.lock();
      if (++left_ == joined_) done_.notify_one();
    }
  }

  std::mutex busy_, mutex_;
  std::condition_variable wake_, done_;
  Worker all_[kMaxThreads];
  int workers_ = 0;  // started
  Task* task_ = nullptr;
  uint64_t generation_ = 0;
  int seats_ = 0, joined_ = 0, left_ = 0;
};

// Never destroyed: workers may still wait in it while the process exits. A child after fork has none of the workers and
// mutexes in any state, so it leaves the old pool alone and starts another.
std::atomic<Pool*> g_pool{nullptr};

Pool& pool() {
  if (Pool* current = g_pool.load(std::memory_order_acquire)) return *current;
  static const int registered = pthread_atfork(nullptr, nullptr, [] { g_pool.store(nullptr); });
  static_cast<void>(registered);
  Pool* fresh = new Pool;
  Pool* expected = nullptr;
  if (g_pool.compare_exchange_strong(expected, fresh, std::memory_order_acq_rel)) return *fresh;
  delete fresh;
  return *expected;
}

// OpenMP's own variable, which containers and schedulers set: a number or one for each level of nesting. What it cannot
// be is left to OpenMP to complain of.
int openmp_threads() {
  const char* text = std::getenv("OMP_NUM_THREADS");
  if (!text) return 0;
  char* end = nullptr;
  errno = 0;
  const long n = std::strtol(text, &end, 10);
  while (*end == ' ') ++end;
  if (end == text || errno || n < 1 || (*end && *end != ',')) return 0;
  return static_cast<int>(std::min<long>(n, kMaxThreads));
}

int start_value() {
  const char* text = std::getenv("FLASHCUTE_NUM_THREADS");
  if (!text || !*text) {
    const int threads = openmp_threads();
    return threads ? threads : std::min(available_cpus(""), kMaxThreads);
  }
  char* end = nullptr;
  errno = 0;
  const long n = std::strtol(text, &end, 10);
  if (errno || *end || n < 1 || n > kMaxThreads) {
    throw Error(FLASHCUTE_STATUS_BAD_PARAM, "FLASHCUTE_NUM_THREADS: expected a number from 1 to " +
                                                std::to_string(kMaxThreads) + ", given \"" + text + "\"");
  }
  return static_cast<int>(n);
}

std::atomic<int> g_num_threads{0};  // 0: not asked yet

}  // namespace

void parallel_for(int threads, int64_t count, void (*work)(void*, int, int64_t), void* context) {
  if (threads > count) threads = static_cast<int>(count);
  if (threads > 1) {
    Task task;
    task.work = work;
    task.context = context;
    task.count = count;
    if (pool().run(task, threads)) {
      if (task.failure) std::rethrow_exception(task.failure);
      return;
    }
  }
  for (int64_t i = 0; i < count; ++i) work(context, 0, i);
}

int num_threads() {
  int n = g_num_threads.load(std::memory_order_relaxed);
  if (n == 0) {
    const int start = start_value();
    n = g_num_threads.compare_exchange_strong(n, start) ? start : g_num_threads.load();
  }
  return n;
}

void set_num_threads(int n) {
  if (n < 1 || n > kMaxThreads) {
    throw Error(FLASHCUTE_STATUS_BAD_PARAM, "(num_threads): expected a number from 1 to " +
                                                std::to_string(kMaxThreads) + ", given " + std::to_string(n));
  }
  g_num_threads.store(n);
}

}  // namespace flashcute::cpu
