#!/usr/bin/env bash
# The whole check of a machine with GPUs, in parts, each with its own log. Rehearse it with HEARTH_TEST_BACKEND=cpu.
#
# Usage: tests/gpu/check.sh OUT [PART ...]
#
#   gpu          tests/gpu, several at a time
#   sharing      tests/gpu/test_sharing_gpu.py, which measures device time and runs alone
#   daemon       tests/daemon on the GPUs
#   collectives  what tests/daemon has of collectives, groups, IPC, peer copies, lanes and faults
#   rounds       rounds of killed devices and of killed daemons amid collectives
#   bench        the collectives' benchmark; ROWS names other rows
#
# Environment: PYTHON (python3), JOBS (4) tests at a time, LIMIT (600) seconds a part, ROWS (collectives),
# HEARTH_TEST_ROUNDS (50, of the part rounds), TESTS (tests/daemon).
set -uo pipefail
cd "$(dirname "$0")/../.."
out=${1:?usage: check.sh OUT [PART ...]}
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
  timeout --signal=INT --kill-after=20 "${LIMIT:-600}" "$@" >"$out/$name.log" 2>&1 ||
    { echo "$name FAILED (status $?)"; failed=1; }
  echo "== $name, $((SECONDS - began)) s"
  grep -E "^(FAILED|ERROR)|passed|failed|skipped" "$out/$name.log" | cut -c1-200 | tail -30
}
tests=("$python" -m pytest -q -p no:cacheprovider --timeout 120)
at_a_time=(-n "${JOBS:-4}" --dist loadfile)

[ $# -gt 0 ] || set -- gpu sharing daemon rounds bench
for each; do
  case $each in
    gpu) part gpu "${tests[@]}" "${at_a_time[@]}" tests/gpu --ignore tests/gpu/test_sharing_gpu.py \
      --ignore tests/gpu/collectives/test_collective_faults_gpu.py ;;
    sharing) part sharing "${tests[@]}" tests/gpu/test_sharing_gpu.py ;;
    daemon) part daemon "${tests[@]}" "${at_a_time[@]}" ${TESTS:-tests/daemon} ;;
    collectives)
      part collectives "${tests[@]}" "${at_a_time[@]}" tests/daemon/collectives tests/daemon/memory/test_exchange.py \
        tests/daemon/memory/test_ipc.py tests/daemon/memory/test_published*.py tests/daemon/transfers/test_lanes.py \
        tests/daemon/transfers/test_copy_signals.py tests/daemon/faults/test_faults.py
      ;;
    rounds)
      part rounds env HEARTH_TEST_ROUNDS="${HEARTH_TEST_ROUNDS:-50}" "${tests[@]}" --timeout 300 tests/gpu/collectives/test_collective_faults_gpu.py \
        tests/daemon/collectives/test_chaos.py
      ;;
    bench) part bench "$python" -m tests.bench --only ${ROWS:-collectives} --out "$out/results" ;;
    *) echo "no part is called $each" >&2; exit 2 ;;
  esac
done
exit $failed
