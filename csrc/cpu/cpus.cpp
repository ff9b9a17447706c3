#include "cpu/cpus.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <thread>

namespace flashcute::cpu {
namespace {

int64_t number(const std::string& text) {
  int64_t value = -1;  // what is none, such as "max", is no bound
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

int64_t read_number(const std::string& path) {
  std::string word;
  std::ifstream(path) >> word;
  return number(word);
}

void apply_quota(int64_t quota, int64_t period, int64_t& cpus) {
  if (quota > 0 && period > 0) cpus = std::min(cpus, (quota + period - 1) / period);
}

int64_t affinity() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return std::max(1u, std::thread::hardware_concurrency());
}

// Version 2: "0::/path". Version 1: "7:cpu,cpuacct:/path".
void apply_group(const std::string& root, const std::string& controllers, std::string path, int64_t& cpus) {
  const bool unified = controllers.empty();
  if (!unified && ("," + controllers + ",").find(",cpu,") == std::string::npos) return;
  for (;;) {  // the quotas of the groups above hold too
    const std::string folder = root + (unified ? "/sys/fs/cgroup" : "/sys/fs/cgroup/cpu") + path;
    if (unified) {
      std::string quota, period;
      std::ifstream(folder + "/cpu.max") >> quota >> period;
      apply_quota(number(quota), number(period), cpus);
    } else {
      apply_quota(read_number(folder + "/cpu.cfs_quota_us"), read_number(folder + "/cpu.cfs_period_us"), cpus);
    }
    if (path.empty()) return;
    path.resize(path.rfind('/'));
  }
}

}  // namespace

int available_cpus(const std::string& root) {
  int64_t cpus = affinity();
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos || line.compare(second + 1, 1, "/") != 0) continue;
    std::string path = line.substr(second + 1);
    while (!path.empty() && path.back() == '/') path.pop_back();
    apply_group(root, line.substr(first + 1, second - first - 1), path, cpus);
  }
  return static_cast<int>(std::max<int64_t>(1, cpus));
}

}  // namespace flashcute::cpu
