#!/usr/bin/env bash
# All that needs a GPU, without a network: tests, updates, speed, and Pong against the clock; thirteen minutes at most.
#
#   benchmark/gpu/run.sh OUT [tests] [ladder] [speed] [pong]
#
# Files go to the folder OUT; `python -m benchmark.gpu.results OUT` writes them into docs/benchmarks.md. Needed are
# a Python (PYTHON, python3 by default) with torch for CUDA and what pyproject.toml lists, a C++ compiler, and for
# `tests` pytest, pytest-xdist, pytest-timeout, hypothesis, beartype and jaxtyping. lrl is taken from this clone.
# For a shorter loan: stages by name, NETWORKS ('[nature]'), PONG_TIME (of training, 00:00:04:30), PONG_INDEX (host), and
# TESTS, files or options of pytest. TAIL is how many lines of each stage are shown.
set -uo pipefail
given=${1:?usage: benchmark/gpu/run.sh OUT [stage ...]}
mkdir -p "$given" && out=$(realpath "$given") || exit 2
shift
stages=${*:-tests ladder speed pong}
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
export PYTHONPATH="$PWD:${PYTHONPATH:-}" PYTHONUNBUFFERED=1
cores=$(nproc)

stage() {  # name, seconds at most, command
  local name=$1 seconds=$2 began=$SECONDS
  shift 2
  timeout --signal INT --kill-after 20 "$seconds" "$@" > "$out/$name.txt" 2>&1
  local code=$?
  echo "$name: exit $code after $((SECONDS - began)) s"
  tail -n "${TAIL:-5}" "$out/$name.txt" | cut -c 1-300
}

{ nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
  "$python" -c "import torch; print(torch.__version__)"; } 2>&1 | tee "$out/machine.txt"
for name in $stages; do
  case $name in
    tests)
      # shellcheck disable=SC2086  # several words
      stage tests 150 "$python" -m pytest -n "$((cores < 8 ? cores : 8))" -q -m gpu -p no:cacheprovider \
        -p no:benchmark ${TESTS:-tests}
      echo "${TESTS:-}" > "$out/tests_of.txt" ;;
    ladder)
      rm -f "$out/ladder.json"
      stage ladder 240 "$python" -m lrl bench --device cuda --workloads '[]' --rounds 3 ${NETWORKS:+--updates "$NETWORKS"} \
        --json "$out/ladder.json" ;;
    speed)
      rm -f "$out/speed.json"
      stage speed 60 "$python" -m lrl bench --device cuda --updates '[]' --workloads '[pong]' --rounds 1 \
        --sides "[actors $((cores > 3 ? cores - 2 : 1)) x 16]" --seconds 35 --json "$out/speed.json" ;;
    pong)
      rm -rf "$out/pong_runs" "$out"/{metrics.csv,summary.json,config.yaml}
      stage pong 330 "$python" -m lrl fit --config recipe:pong_laptop --config recipe:system/gpu_16_cores \
        --config recipe:system/captured --model.updates_per_step 4 --data.replay.index "${PONG_INDEX:-device}" \
        --trainer.callbacks '[]' --trainer.enable_progress_bar false \
        --trainer.max_time "${PONG_TIME:-00:00:04:30}" --name pong --runs "$out/pong_runs"
      cp "$out"/pong_runs/pong/version_0/{metrics.csv,summary.json,config.yaml} "$out"
      rm -rf "$out/pong_runs" ;;
  esac
done
