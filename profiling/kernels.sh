#!/usr/bin/env bash
# Profiles the kernels that docs/perf-log.md speaks of, one report and one digest each, in a folder.
#
#   bash profiling/kernels.sh before            # the reports of this build
#   bash profiling/kernels.sh after before      # those of another one, each beside its predecessor
set -euo pipefail

folder=${1:?usage: kernels.sh FOLDER [EARLIER_FOLDER]}
earlier=${2:-}
mkdir -p "$folder"

profile() { # NAME FLAGS...: B*S = 16384 tokens, heads*head_dim = 2048
  local name=$1 compare=()
  shift
  if [[ -n $earlier && -f $earlier/$name.ncu-rep ]]; then
    compare=(--compare "$earlier/$name.ncu-rep")
  fi
  local digest
  digest=$(flashcute profile "$@" --output "$folder/$name.ncu-rep" --force "${compare[@]}")
  tee "$folder/$name.txt" <<<"$digest"
  echo
}

profile hd64_full --head-dim 64 --heads 32 --batch 4 --seq 4096
profile hd64_causal --head-dim 64 --heads 32 --batch 4 --seq 4096 --causal
profile hd128_full --head-dim 128 --heads 16 --batch 4 --seq 4096
profile hd128_causal --head-dim 128 --heads 16 --batch 4 --seq 4096 --causal
