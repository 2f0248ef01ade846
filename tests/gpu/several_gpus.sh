#!/usr/bin/env bash
# The whole check of a machine with several GPUs: collectives, groups, IPC, peer copies, lanes and faults, rounds of
# killed devices and daemons, and the collectives' benchmark. Rehearse it with HEARTH_TEST_BACKEND=cpu.
#
# Usage: tests/gpu/several_gpus.sh OUT [PART ...]    parts: gpu daemon rounds bench (all)
# Environment: PYTHON (python3), JOBS (4) for the daemon tests, HEARTH_TEST_ROUNDS (50).
set -uo pipefail
cd "$(dirname "$0")/../.."
out=${1:?usage: several_gpus.sh OUT [PART ...]}
shift
mkdir -p "$out"
python=${PYTHON:-python3}
export HEARTH_TEST_BACKEND=${HEARTH_TEST_BACKEND:-cuda}
# NVLink multicast is left off, in whatever is started from here.
export NCCL_NVLS_ENABLE=0
export PYTHONPATH="$PWD/client:$PWD/server:$PWD/proto:$PWD${PYTHONPATH:+:$PYTHONPATH}"
failed=0

part() { # NAME COMMAND ...: runs it, keeps its log, and shows the log's end
  local name=$1 began=$SECONDS
  shift
  "$@" >"$out/$name.log" 2>&1 || { failed=1; echo "$name FAILED (status $?)"; }
  echo "== $name, $((SECONDS - began)) s"
  grep -E "^(FAILED|ERROR)|passed|failed" "$out/$name.log" | tail -20
}
pytest() { "$python" -m pytest -q -p no:cacheprovider --timeout 300 "$@"; }

for name in "${@:-gpu daemon rounds bench}"; do
  for each in $name; do
    case $each in
      gpu) part gpu pytest -m multi_gpu tests/gpu ;;
      daemon)
        part daemon pytest -n "${JOBS:-4}" --dist loadfile tests/daemon/test_collective*.py tests/daemon/test_group*.py \
          tests/daemon/memory/test_exchange.py tests/daemon/memory/test_ipc.py tests/daemon/test_published*.py \
          tests/daemon/transfers/test_lanes.py tests/daemon/transfers/test_copy_signals.py tests/daemon/faults/test_faults.py
        ;;
      rounds)
        HEARTH_TEST_ROUNDS=${HEARTH_TEST_ROUNDS:-50} part rounds pytest tests/gpu/test_collective_faults_gpu.py \
          tests/daemon/collectives/test_chaos.py
        ;;
      bench) part bench "$python" -m tests.bench --only collectives --out "$out/results" ;;
      *) echo "no part is called $each" >&2; exit 2 ;;
    esac
  done
done
exit $failed
