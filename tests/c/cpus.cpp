// How many CPUs there are for threads, by control groups that this test makes in a folder of its own.
#include "cpu/cpus.h"

#include <stdio.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

namespace {

using Files = std::map<std::string, std::string>;
int failures = 0;

int cpus_of(const Files& files) {
  char name[] = "/tmp/flashcute_cpus_XXXXXX";
  if (mkdtemp(name) == nullptr) abort();
  const std::filesystem::path root = name;
  for (const auto& [path, text] : files) {
    std::filesystem::create_directories((root / path).parent_path());
    std::ofstream(root / path) << text;
  }
  const int cpus = flashcute::cpu::available_cpus(name);
  std::filesystem::remove_all(root);
  return cpus;
}

void expect(const char* what, int expected, const Files& files) {
  const int given = cpus_of(files);
  if (given == expected) return;
  fprintf(stderr, "%s: expected %d, given %d\n", what, expected, given);
  ++failures;
}

}  // namespace

int main() {
  const int all = cpus_of({});
  const int two = all < 2 ? all : 2;
  const std::string group = "proc/self/cgroup", v2 = "sys/fs/cgroup", v1 = "sys/fs/cgroup/cpu";
  if (all < 1) expect("no groups", 1, {});
  expect("version 2, no quota", all, {{group, "0::/a\n"}, {v2 + "/a/cpu.max", "max 100000\n"}});
  expect("version 2, one CPU", 1, {{group, "0::/a\n"}, {v2 + "/a/cpu.max", "100000 100000\n"}});
  expect("version 2, part of a CPU", 1, {{group, "0::/a\n"}, {v2 + "/a/cpu.max", "5000 100000\n"}});
  expect("version 2, one and a half", two, {{group, "0::/a\n"}, {v2 + "/a/cpu.max", "150000 100000\n"}});
  expect("version 2, more than there are", all, {{group, "0::/a\n"}, {v2 + "/a/cpu.max", "999900000 100000\n"}});
  expect("version 2, a group above", 1,
         {{group, "0::/a/b/c\n"}, {v2 + "/a/b/c/cpu.max", "max 100000\n"}, {v2 + "/a/cpu.max", "50000 50000\n"}});
  expect("version 2, in a container's own namespace", 1, {{group, "0::/\n"}, {v2 + "/cpu.max", "100000 100000\n"}});
  expect("version 2, a path of the host's", 1, {{group, "0::/docker/1\n"}, {v2 + "/cpu.max", "100000 100000\n"}});
  expect("version 1", 1,
         {{group, "3:memory:/m\n2:cpu,cpuacct:/a/b\n"},
          {v1 + "/a/b/cpu.cfs_quota_us", "20000\n"},
          {v1 + "/a/b/cpu.cfs_period_us", "20000\n"}});
  expect(
      "version 1, no quota", all,
      {{group, "2:cpuacct,cpu:/a\n"}, {v1 + "/a/cpu.cfs_quota_us", "-1\n"}, {v1 + "/a/cpu.cfs_period_us", "20000\n"}});
  expect("version 1, another controller's group", all,
         {{group, "2:cpuset:/a\n"}, {v1 + "/a/cpu.cfs_quota_us", "1\n"}, {v1 + "/a/cpu.cfs_period_us", "1\n"}});
  expect("files of something else", all, {{group, "nothing\n:\n0::\n1:x\n"}, {v2 + "/cpu.max", "\n"}});
  expect("a period of zero", all, {{group, "0::/\n"}, {v2 + "/cpu.max", "100000 0\n"}});
  if (failures == 0) printf("fine, with %d CPUs\n", all);
  return failures != 0;
}
