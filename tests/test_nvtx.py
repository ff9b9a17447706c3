"""NVTX ranges, seen by a profiler that is compiled here: what NVTX calls an injection library."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from flashcute.cli import info as info_command

# It records the names of domains and ranges, and their nesting.
PROFILER = r"""
#include <nvtx3/nvToolsExt.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static FILE* out;
static nvtxDomainHandle_t create(const char* name) {
  fprintf(out, "domain %s\n", name);
  fflush(out);
  return (nvtxDomainHandle_t)(uintptr_t)1;
}
static int push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* event) {
  fprintf(out, "push %s\n", event->message.ascii);
  fflush(out);
  return 0;
}
static int pop(nvtxDomainHandle_t domain) {
  fprintf(out, "pop\n");
  fflush(out);
  return 0;
}

int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table) {
  const NvtxExportTableCallbacks* callbacks = (const NvtxExportTableCallbacks*)get_table(NVTX_ETID_CALLBACKS);
  NvtxFunctionTable table;
  unsigned size;
  out = fopen(getenv("NVTX_TEST_LOG"), "w");
  if (!out || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size)) return 0;
  *table[NVTX_CBID_CORE2_DomainCreateA] = (NvtxFunctionPointer)create;
  *table[NVTX_CBID_CORE2_DomainRangePushEx] = (NvtxFunctionPointer)push;
  *table[NVTX_CBID_CORE2_DomainRangePop] = (NvtxFunctionPointer)pop;
  return 1;
}
"""

PLANS = """
import flashcute, numpy as np
q = flashcute.TensorDescriptor((1, 2, 64, 64), dtype="float16", device="a100")
flashcute.AttentionDescriptor(q, q, q)
x = np.zeros((1, 1, 4, 8), dtype=np.float32)
flashcute.attention(x, x, x)  # the CPU's calls are of no interest to a profiler of GPU work
"""


def test_a_profiler_sees_plans_in_a_domain_of_their_own(tmp_path):
    if not info_command.collect()["build"]["cuda"]:
        pytest.skip("this build has no CUDA kernels")
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc here, which knows where NVTX's headers are")
    source, library, log = (tmp_path / name for name in ("profiler.c", "profiler.so", "log"))
    source.write_text(PROFILER)
    command = [nvcc, "-cudart", "none", "-shared", "-Xcompiler", "-fPIC", str(source), "-o", str(library), "-ldl"]
    built = subprocess.run(command, capture_output=True, text=True)
    if "nvToolsExt.h: No such file" in built.stderr:
        pytest.skip("this CUDA toolkit has no NVTX headers")
    assert built.returncode == 0, built.stderr
    variables = {"NVTX_INJECTION64_PATH": str(library), "NVTX_TEST_LOG": str(log)}
    ran = subprocess.run(
        [sys.executable, "-c", PLANS], env={**os.environ, **variables}, capture_output=True, text=True, cwd=tmp_path
    )
    assert ran.returncode == 0, ran.stderr
    assert log.read_text().splitlines() == ["domain flashcute", "push plan", "pop"]
