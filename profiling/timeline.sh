#!/usr/bin/env bash
# A timeline of any program that uses flashcute, with Nsight Systems: plans and runs are NVTX ranges of the domain
# "flashcute", each run under its kernel's name.
#
#   bash profiling/timeline.sh timeline.nsys-rep python train.py
set -euo pipefail

report=${1:?usage: timeline.sh REPORT COMMAND...}
shift
if ! command -v nsys >/dev/null; then
  echo "timeline.sh: Nsight Systems' program nsys was not found: install it, or put it on PATH" >&2
  exit 2
fi
nsys profile --trace cuda,nvtx --output "$report" --force-overwrite true "$@"
nsys stats --report nvtx_sum --report cuda_gpu_kern_sum --force-export true "$report"
