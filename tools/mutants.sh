#!/bin/sh
# Do the tests notice a formula that is wrong? Breaks each formula below once, builds the unit tests that should notice,
# runs them and prints who did. Golden files are not asked: they only say that something changed.
#
#   tools/mutants.sh BUILD [FROM [TO]]     BUILD: a configured build folder of this source, as build/dev
#
# A mutant is a line: what it is | file | sed expression | tests. It costs a build of one library and one test program,
# so this is work for a night, not for every commit. Each file is put back; stop it with an interrupt at any time.
set -u
build=${1:?usage: tools/mutants.sh BUILD [FROM [TO]]}
from=${2:-1} to=${3:-1000}
cd "$(dirname "$0")/.." || exit 1
list=$(mktemp) kept=$(mktemp)
file=
restore() { if [ -n "$file" ]; then cp "$kept" "$file"; fi; }
trap 'restore; rm -f "$list" "$kept"' EXIT
trap 'exit 130' INT TERM

cat >"$list" <<'END'
k is not padded|compute_model/src/families/gemm.cc|s@std::ceil(k / kStage) \* kStage@k@|unit_compute_model
waves are not rounded up|compute_model/src/families/gemm.cc|s@whole = std::ceil(exact)@whole = exact@|unit_compute_model
attention goes backward as fast as forward|compute_model/src/families/attention.cc|s@share \*= kBackwardShare@share *= 1@|unit_compute_model
no gap between kernels|compute_model/src/machine.cc|s@? kStreamGap : 0@? 0 : 0@|unit_compute_model
burst for sustained|compute_model/src/machine.cc|s@? efficiency.burst : efficiency.sustained@? efficiency.burst : efficiency.burst@|unit_compute_model
experts cost nothing by their number|compute_model/src/analytic_model.cc|s@e.seconds + experts \* kExpertRamp@e.seconds@|unit_compute_model
bounds are swapped|compute_model/src/families/tiled.cc|s@kernel.compute >= kernel.memory@kernel.compute < kernel.memory@|unit_compute_model
bounds of the roofline are swapped|compute_model/src/analytic_model.cc|s@return roofline.compute >= roofline.memory@return roofline.compute < roofline.memory@|unit_compute_model
a gated MLP has one projection|parallelism/src/blocks/mlp.cc|s@gated_mlp ? 2 \* ffn : ffn@gated_mlp ? ffn : ffn@|unit_parallelism
a gated MLP keeps one projection|parallelism/src/blocks/common.cc|s@(shape.plan->fused_kernels ? 2 : 3) \* ffn : ffn@ffn : ffn@|unit_parallelism
recomputation holds no layer|parallelism/src/memory.cc|s@activations += kept\[stage\].largest_layer@activations += 0@|unit_parallelism
gradients are reduced a microbatch early|parallelism/src/stage_passes.cc|s@add_part(loop, l, to - 1, to, false, true)@add_part(loop, l, to - 1, to, false, false)@;s@add_part(loop, l, from, to - 1, false, false)@add_part(loop, l, from, to - 1, false, true)@|unit_parallelism
MFU counts recomputation|simulator/src/predict.cc|s@report.mfu = flops.model@report.mfu = flops.hardware@|unit_simulator
LL is as fast as simple|network_model/src/links.cc|s@kLlShare \* bus@bus@|unit_network_model
a channel is two SMs|simulator/src/costs.cc|s@taken.channels / static@2 * taken.channels / static@|unit_simulator
twice the channels|network_model/src/fair_sharing.cc|s@std::ceil(2 \* sheet@std::ceil(4 * sheet@|unit_simulator
a weight is listed without its states|chakra_io/src/symbolic_operators.cc|s@kWithStates = 5@kWithStates = 1@|unit_chakra_io
the shard of an operand counts|chakra_io/src/symbolic_operators.cc|s@if (letters(sums\[0\]) < letters(sums\[1\]))@if (letters(sums[0]) > letters(sums[1]))@|unit_chakra_io
a fit forgets how long its targets take|network_model/src/astra_fit.cc|s@goal.weight = goal.ns \* target.count@goal.weight = 1@|unit_network_model
END

number=0 unnoticed=0
while IFS='|' read -r what path edit tests; do
  number=$((number + 1))
  if [ "$number" -lt "$from" ] || [ "$number" -gt "$to" ]; then continue; fi
  cp "$path" "$kept" && file=$path
  sed -i "$edit" "$path"
  if cmp -s "$path" "$kept"; then
    result="the formula is not there any more: mend tools/mutants.sh"
    unnoticed=$((unnoticed + 1))
  elif ! ninja -C "$build" -j2 $tests >/dev/null 2>&1; then
    result="does not build"
  else
    result=
    for test in $tests; do
      failed=$("$build/tests/$test" --gtest_brief=1 2>/dev/null | sed -n 's/^\[  FAILED  \] \([A-Za-z_.\/0-9]*\).*/\1/p' | sort -u | head -4 | tr '\n' ' ')
      result="$result$failed"
    done
    if [ -z "$result" ]; then
      result="NOBODY"
      unnoticed=$((unnoticed + 1))
    fi
  fi
  printf '%-45s %s\n' "$what" "$result"
  restore
  file=
done <"$list"
[ "$unnoticed" -eq 0 ]
