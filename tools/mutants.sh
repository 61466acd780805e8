#!/bin/sh
# Do the tests notice a formula that is wrong? Breaks each formula below once, builds the tests of its module, runs them
# and prints who noticed. Property tests are asked where no unit test did. Golden files are not asked: they only say
# that something changed.
#
#   tools/mutants.sh BUILD [FROM [TO]]     BUILD: a configured build folder of this source, best
#                                          with CMAKE_UNITY_BUILD=OFF
#   JOBS=1 tools/mutants.sh BUILD          with one compiler at a time instead of two
#
# A mutant is a line: what it is | file | sed expression | tests, in the order in which they are asked. It costs a build
# of one library and one test program, so this is work for a night, not for every commit. Each file is put back; stop it
# with an interrupt at any time. The last line counts.
set -u
case ${1-} in
  '' | -*)
    sed -n '/^#   /s/^# *//p' "$0"
    [ "${1-}" = --help ] && exit 0
    exit 2
    ;;
esac
build=$1 from=${2:-1} to=${3:-1000}
cd "$(dirname "$0")/.." || exit 1
if ! [ -f "$build/CMakeCache.txt" ]; then
  echo "$build: not a configured build folder" >&2
  exit 2
fi
export RC_PARAMS=seed=20220705 LC_ALL=C.UTF-8 # the random cases of ctest
list=$(mktemp) kept=$(mktemp) output=$(mktemp)
file=
restore() { if [ -n "$file" ]; then cp "$kept" "$file"; fi; }
trap 'restore; rm -f "$list" "$kept" "$output"' EXIT
trap 'exit 130' INT TERM

cat >"$list" <<'END'
queries see one key too many|core/src/operator.cc|s@growing \* (growing - 1) / 2@growing * (growing + 1) / 2@|unit_core
attention goes backward with four products|core/src/operator.cc|s@3 \* width + 2 \* value_width@2 * width + 2 * value_width@|unit_core
keys are read for each head of the queries|core/src/operator.cc|s@batch \* kv_heads \* keys@batch * std::max(kv_heads, heads) * keys@|unit_core
Adam reads no master weight|core/src/operator.cc|s@elements(4 \* n, DType::kFp32)@elements(3 * n, DType::kFp32)@|unit_core
an idle expert is read as well|core/src/operator.cc|s@elements(active_experts(op) \* weights@elements(std::max(active_experts(op), d(op.experts)) * weights@|unit_core unit_compute_model
experts of a token may be the same|core/src/routing.cc|s@real(open - here - i) / real(open - i)@real(open - here) / real(open)@|unit_core
the bias of errors has no sign|core/src/error_figures.cc|s@figures.bias += error@figures.bias += std::abs(error)@|unit_core
one direction of a torus has all of its bandwidth|core/src/astra_network.cc|s@bandwidth /= 2;@bandwidth /= 1;@|unit_core
an all-gather has the size of its result|core/src/astra_network.cc|s@gathers ? static_cast<double>(collective.group.size()) : 1@gathers ? 1.0 : 1@|unit_core unit_network_model unit_chakra_io
a skewed router favours no expert|core/src/operator.cc|s@if (!(skew > 0)) return most;@if (skew >= 0) return most;@|unit_core
a softmax goes backward with one input|core/src/operator.cc|s@(forward ? 1 : 2) \* count@(forward ? 1 : 1) * count@|unit_core
the output of a convolution lacks a row and a column|core/src/operator.cc|s@d(op.stride)) + 1;@d(op.stride));@|unit_core
a GPT-2's MLP is no wider than the model|core/src/hugging_face/families_gpt.cc|s@{"n_inner"}, 4 \* model.hidden)@{"n_inner"}, 1 * model.hidden)@|unit_core
a tile has no ramp|compute_model/src/families/gemm.cc|s@(k + ramp)@(k + 0 * ramp)@|unit_compute_model property_compute_model
launches take seconds|compute_model/src/families/gemm.cc|s@return kLaunchAndDrain / machine.clock_rate@return kLaunchAndDrain / (1.5e9 + 0 * machine.clock_rate)@|unit_compute_model property_compute_model
one copy of the weights stays in L2|compute_model/src/families/gemm.cc|s@copies = std::ceil(machine.l2 / std::max(b, 1.0))@copies = 1@|unit_compute_model property_compute_model
long runs do not heat the board|compute_model/src/families/gemm.cc|s@persistent_kernels ? 0.95 : 1.03@persistent_kernels ? 1.07 : 1.07@|unit_compute_model property_compute_model
an address costs no clock|compute_model/src/families/streaming.cc|s@op.by_element ? kByElement : 0@op.by_element ? 0 * kByElement : 0@|unit_compute_model property_compute_model
scattered sums cost what copies do|compute_model/src/families/streaming.cc|s@return known.kernel == op.name@return known.kernel == op.name + "x"@|unit_compute_model property_compute_model
rows stay in L2 for ever|compute_model/src/families/streaming.cc|s@std::log(held / stays) / std::log(leaves / stays), 0.0, 1.0@0 * std::log(held / stays) / std::log(leaves / stays), 0.0, 1.0@|unit_compute_model property_compute_model
a softmax's last elements take one step|compute_model/src/families/streaming.cc|s@std::ceil((columns - whole \* 4 \* block) / block)@std::ceil((columns - whole * 4 * block) / (4 * block))@|unit_compute_model property_compute_model
waves are not rounded up|compute_model/src/families.h|s@whole = std::ceil(exact)@whole = exact@|unit_compute_model property_compute_model
attention goes backward as fast as forward|compute_model/src/families/attention.cc|s@share \*= kBackwardShare@share *= 1@|unit_compute_model property_compute_model
no gap between kernels|compute_model/src/machine.cc|s@? kStreamGap : 0@? 0 : 0@|unit_compute_model property_compute_model
experts cost nothing by their number|compute_model/src/analytic_model.cc|s@e.seconds + experts \* kExpertRamp@e.seconds@|unit_compute_model property_compute_model
bounds are swapped|compute_model/src/families/tiled.cc|s@kernel.compute >= kernel.memory@kernel.compute < kernel.memory@|unit_compute_model property_compute_model
heads are not padded to a kernel of their library|compute_model/src/families/attention.cc|s@return found == kernels.end() ? width : \*found;@return found == kernels.end() ? width : width;@|unit_compute_model
rows of an odd number of elements are no slower|compute_model/src/analytic_model.cc|s@row % 2 != 0; })) return 0@row % 2 > 2; })) return 0@|unit_compute_model
autocast casts no weights|parallelism/src/blocks/common.cc|s@autocast(shape, step.forward, concat(name, ".weights.cast"), weights, true)@autocast(shape, step.forward, concat(name, ".weights.cast"), 0, true)@|unit_parallelism
the first microbatch adds its gradients|parallelism/src/blocks/common.cc|s@static_cast<double>(shape.microbatches - 1) /@static_cast<double>(shape.microbatches) /@|unit_parallelism
gradients and activations of one microbatch add up|parallelism/src/memory.cc|s@max(Bytes(), gradients - used.activations)@max(Bytes(), gradients)@|unit_parallelism
Liger keeps the logits|parallelism/src/blocks/loss.cc|s@if (library == Library::kLiger) {  //@if (library == Library::kFlash3) {  //@|unit_parallelism
an RMSNorm that is written out reads its input once|parallelism/src/blocks/common.cc|s@{"multiply", 2, 1, 1},@{"multiply", 1, 1, 1},@|unit_parallelism
heads of 108 stay on tensor units|compute_model/src/analytic_model.cc|s@return row % line != 0@return row % line > line@|unit_compute_model property_compute_model
bounds of the roofline are swapped|compute_model/src/analytic_model.cc|s@return roofline.compute >= roofline.memory@return roofline.compute < roofline.memory@|unit_compute_model property_compute_model
memory has all of its bandwidth|compute_model/src/families/gemm.cc|s@kGddrShare = 0.78, kShare = 0.8;@kGddrShare = 1, kShare = 1;@|unit_compute_model property_compute_model
k is not split over idle SMs|compute_model/src/families/gemm.cc|s@exact < 0.5 ? std::min@exact < 0 ? std::min@|unit_compute_model property_compute_model
k is split whatever it costs|compute_model/src/families/gemm.cc|s@parts > 1 ? std::min(whole, split) : whole@parts > 1 ? split : whole@|unit_compute_model property_compute_model
results in 8 bits|core/include/ns_dist/dtype.h|s@? DType::kBf16 : operands@? operands : operands@|unit_core unit_compute_model
an epilogue costs nothing|compute_model/src/families/gemm.cc|s@estimate_tiled(launch, product, exposed)@estimate_tiled(launch, product)@|unit_compute_model property_compute_model
each expert multiplies all rows|compute_model/src/analytic_model.cc|s@std::ceil(d(o.rows) / experts)@d(o.rows)@|unit_compute_model property_compute_model
a burst finds nothing in L2|compute_model/src/analytic_model.cc|s@std::max(0.0, bytes - machine_.l2)@std::max(0.0, bytes)@|unit_compute_model property_compute_model
a convolution goes backward with one product|compute_model/src/analytic_model.cc|s@e.seconds \*= 2;@e.seconds *= 1;@|unit_compute_model property_compute_model
an embedding goes backward as fast as forward|compute_model/src/analytic_model.cc|s@Pass::kForward ? 1.2 : 2@Pass::kForward ? 1.2 : 1.2@|unit_compute_model property_compute_model
a normalization goes backward with two tensors|compute_model/src/families/normalization.cc|s@(op.pass == Pass::kForward ? 2 : 3)@(op.pass == Pass::kForward ? 2 : 2)@|unit_compute_model property_compute_model
compute and memory do not overlap|compute_model/src/families/tiled.cc|s@larger \* std::pow(1 + ratio \* ratio \* ratio \* ratio, 0.25)@larger * (1 + ratio)@|unit_compute_model property_compute_model
idle power pays for products|compute_model/src/machine.cc|s@budget = watts - idle_watts@budget = watts@|unit_compute_model property_compute_model
a window saves no time|compute_model/src/families/attention.cc|s@if (op.window > 0) {@if (op.window < 0) {@|unit_compute_model property_compute_model
products include their quantization|compute_model/src/learned_model.cc|s@if (features.product_share == 1) return;@if (features.product_share <= 1) return;@|unit_compute_model property_compute_model
a calibration corrects the wrong way|compute_model/src/kernel_calibration.cc|s@std::log(latency_ms \* 1e-3 / seconds)@std::log(seconds / (latency_ms * 1e-3))@|unit_compute_model property_compute_model
a measurement helps to forecast itself|compute_model/src/kernel_calibration.cc|s@weights(i) / inverse(i, i)@weights(i) * kCalibrationScatter@|unit_compute_model property_compute_model
measured attention goes backward with four products|compute_model/src/families/attention.cc|s@3 \* width + 2 \* value@2 * width + 2 * value@|unit_compute_model property_compute_model
queries are not padded to their block|compute_model/src/families/attention.cc|s@std::ceil(queries / kQueryBlock) \* kQueryBlock / queries;@std::max(kQueryBlock, queries) / queries;@|unit_compute_model property_compute_model
served experts have one projection|compute_model/src/analytic_model.cc|s@rows, 2 \* d(o.intermediate), d(o.hidden)@rows, d(o.intermediate), d(o.hidden)@|unit_compute_model property_compute_model
power grows with voltage, not with its square|compute_model/src/machine.cc|s@products \* voltage \* voltage@products * voltage@|unit_compute_model property_compute_model
power allows any tensor rate|compute_model/src/machine.cc|s@return std::min(bf16_peak, std::cbrt(units \* units \* watts / cost));@return std::max(bf16_peak, std::cbrt(units * units * watts / cost));@|unit_compute_model property_compute_model
a stream is never found in L2|compute_model/src/machine.cc|s@std::clamp(2 \* resident_bytes - bytes, 0.0, bytes)@std::clamp(2 * resident_bytes - bytes, 0.0, 0.0)@|unit_compute_model property_compute_model
the epilogue of a measured product hides|compute_model/src/learned_model.cc|s@estimate.seconds += kExposedEpilogue \* excess;@estimate.seconds += 0 * excess;@|unit_compute_model property_compute_model
a batch takes as long as one product|compute_model/src/learned_model.cc|s@physics.seconds(like) / physics.seconds(measured)@physics.seconds(like) / physics.seconds(like)@|unit_compute_model property_compute_model
few rows do not widen a calibration's interval|compute_model/src/kernel_calibration.cc|s@widen = 1 + 2 / static@widen = 1 + 0 / static@|unit_compute_model property_compute_model
a leaf of a tree is not shrunk|compute_model/src/learn/grow_trees.cc|s@double sum = 0, total = options_.ridge;@double sum = 0, total = 1e-6 * options_.ridge;@|unit_compute_model property_compute_model
outliers pull at trees with all their size|compute_model/src/learn/grow_trees.cc|s@<= huber ? 1.0F : huber / std::abs(error)@<= huber ? 1.0F : std::min(1.0F, std::abs(error))@|unit_compute_model property_compute_model
a split of a tree need not gain|compute_model/src/learn/grow_trees.cc|s@(high_mass + options_.ridge) - whole;@(high_mass + options_.ridge) - 0 * whole;@|unit_compute_model property_compute_model
what nobody measured has the interval of what was|compute_model/src/weights.cc|s@extrapolated ? widened(widening, kUnmeasuredShape) : widening@widening@|unit_compute_model property_compute_model
another machine's correction ignores its pace|compute_model/src/weights.cc|s@return std::clamp(logarithm_of(term), here@return std::clamp(logarithm_of(term), -4 + 0 * here@|unit_compute_model
trees see a changed GPU as it is|compute_model/src/sources.cc|s@if (!c.reference.sold) return@if (true) return@|unit_compute_model property_compute_model
GPUs of another generation are scaled, too|compute_model/src/weights.cc|s@(same_generation \&\& kind_of@((same_generation ? true : true) \&\& kind_of@|unit_compute_model
block scales are free|compute_model/src/predictors/gemm.cc|s@constexpr double kInstructions = 2, kFlop = 2@constexpr double kInstructions = 0, kFlop = 2@|unit_compute_model
one block of attention is never the longest|compute_model/src/predictors/attention.cc|s@std::max(longest, pairs) : std::ceil@pairs : std::ceil@|unit_compute_model
a remedy divides experts|simulator/src/memory_remedy.cc|s@each.plan.etp = 1;@each.plan.etp = 0;@|unit_simulator
a compiler does not fuse the softmax of two heads|parallelism/src/blocks/attention.cc|s@if (shape.element > 2 .. shape.plan->norm_library == Library::kCompiled) return true;@@|unit_parallelism
the nearest GPU alone decides|compute_model/src/weights.cc|s@learned += share \* (carried_over(measured) - learned);@learned += carried_over(measured) - learned;@|unit_compute_model property_compute_model
no format slows down in long runs|compute_model/src/weights.cc|s@logarithm_of(slowdown)), 1.0, kMostSlowdown)@logarithm_of(slowdown)), 1.0, 1.0)@|unit_compute_model property_compute_model
an expected error is a deviation|compute_model/src/next_measurements.cc|s@std::sqrt(2 / std::numbers::pi \* (variance@std::sqrt(2 / 2.0 * (variance@|unit_compute_model property_compute_model
a measurement has no scatter|compute_model/src/next_measurements.cc|s@(variance + kCalibrationScatter)@(variance + 0 * kCalibrationScatter)@|unit_compute_model property_compute_model
a first row of a family gains as much as all of them|compute_model/src/next_measurements.cc|s@(error() - least) / static_cast<double>(count);@(error() - least);@|unit_compute_model property_compute_model
LL is as fast as simple|network_model/src/links.cc|s@kLlShare \* bus@bus@|unit_network_model property_network_model
twice the channels|network_model/src/fair_sharing.cc|s@std::ceil(2 \* sheet@std::ceil(4 * sheet@|unit_network_model unit_simulator property_network_model
a fit forgets how long its targets take|network_model/src/astra_fit.cc|s@{target.collective, ns, ns \* target.count}@{target.collective, ns, 1}@|unit_network_model property_network_model
an all-reduce goes around its ring once|network_model/src/algorithms/ring.cc|s@path \*= 2;@path *= 1;@|unit_network_model property_network_model
a ring sends a rank's own share, too|network_model/src/algorithms/ring.cc|s@2 \* (ranks - 1) / ranks \* call.bytes / bus@2 * call.bytes / bus@|unit_network_model property_network_model
a tree has parts of levels|network_model/src/algorithms/tree.cc|s@std::ceil(std::log2(parts))@std::log2(parts)@|unit_network_model property_network_model
a tree carries its bytes up and not down|network_model/src/algorithms/tree.cc|s@2 \* call.bytes / tree_bandwidth@call.bytes / tree_bandwidth@|unit_network_model property_network_model
LL is as fast across nodes as inside|network_model/src/links.cc|s@nodes <= 1 ? 0 : nodes == 2 ? 1 : 2@nodes <= 1 ? 0 : 0@|unit_network_model property_network_model
LL128 carries no flags|network_model/src/links.cc|s@kRingLl128Share \* bus@1 * bus@|unit_network_model property_network_model
LL128 of a tree is as fast in a node as beyond|network_model/src/links.cc|s@nodes <= 1 ? kTreeLl128InNode : kTreeLl128Beyond@nodes <= 1 ? kTreeLl128Beyond : kTreeLl128Beyond@|unit_network_model property_network_model
NVLS reaches the whole link|network_model/src/links.cc|s@return bus \* constants_of(generation).nvls_efficiency;@return bus * std::ceil(constants_of(generation).nvls_efficiency);@|unit_network_model property_network_model
NVLS sends no share of the result|network_model/src/algorithms/nvls.cc|s@: 1 + 1 / n;@: 1 + 0 / n;@|unit_network_model property_network_model
PAT takes a step for each rank|network_model/src/algorithms/pat.cc|s@std::ceil(std::log2(ranks))@ranks@|unit_network_model property_network_model
the busiest port decides nothing|network_model/src/algorithms/direct.cc|s@result.transfer \*= call.imbalance;@result.transfer *= 1;@|unit_network_model property_network_model
each level of a hierarchy carries everything|network_model/src/algorithms/hierarchical.cc|s@share /= parts;@share /= 1;@|unit_network_model property_network_model
a slow clock delays no message|network_model/src/links.cc|s@std::clamp(kTunedClock / clock, 0.5, 2.0)@std::clamp(kTunedClock / clock, 1.0, 1.0)@|unit_network_model property_network_model
the floor of an all-reduce has a rank's own share|network_model/src/algorithms.h|s@return 2 \* (parts - 1) / parts;@return 2;@|unit_network_model property_network_model
an unmeasured family takes the whole mean|network_model/src/calibration.cc|s@mixed(mean, {}, 1 / (count + 1))@mixed(mean, {}, 0 / (count + 1))@|unit_network_model property_network_model
the interval of a collective is one deviation wide|network_model/src/estimate.cc|s@= kQuantile \* std::max(deviation@= std::max(deviation@|unit_network_model property_network_model
a flow forgets what it has already|network_model/src/fair_sharing.cc|s@flows\[f\].limit.in_base() - rates\[f\])@flows[f].limit.in_base())@|unit_network_model property_network_model
a reduction moves as much memory as a copy|network_model/src/fair_sharing.cc|s@? 3.0 : 2.0@? 2.0 : 2.0@|unit_network_model unit_simulator
a message of ASTRA-Sim's ring is not awaited|network_model/src/astra_formulas.cc|s@times(ring.steps + 1, delay)@times(ring.steps, delay)@|unit_network_model property_network_model
a reduction of ASTRA-Sim reads once|network_model/src/astra_formulas.cc|s@return 3 \* truncated@return 2 * truncated@|unit_network_model property_network_model
a size counts as often as it was measured|network_model/src/learn/network_fit.cc|s@const double weight = 1 / rows_of_size\[point.bytes\];@const double weight = 1;@|unit_network_model property_network_model
peers of a rank are served one by one|network_model/src/algorithms/direct.cc|s@(result.steps - 1) / kPeersAtOnce@(result.steps - 1) / std::min(1.0, kPeersAtOnce)@|unit_network_model property_network_model
a rank sends itself its own part|network_model/src/algorithms.h|s@(reached - beside) / among@(reached - 0 * beside) / among@|unit_network_model property_network_model
a tree of two nodes carries its bytes twice|network_model/src/algorithms/nvls_tree.cc|s@call.nodes() == 2 ? 1 : 2@call.nodes() == 2 ? 2 : 2@|unit_network_model property_network_model
collnet moves the data of a node once|network_model/src/algorithms/collnet.cc|s@2 \* (parts - 1) / parts \* call.bytes / call.bandwidth(tier)@(parts - 1) / parts * call.bytes / call.bandwidth(tier)@|unit_network_model property_network_model
halves do not get smaller|network_model/src/algorithms/halving_doubling.cc|s@piece /= parts;@piece /= 1;@|unit_network_model property_network_model
trees do not add the device's latency|network_model/src/links.cc|s@link.network() ? level.fabric.latency / units::us : shift@link.network() ? shift : shift@|unit_network_model property_network_model
latencies stand still with the size|network_model/src/links.cc|s@if (bytes >= kLast) return 1 + kGrowth;@if (bytes >= kLast) return 1;@|unit_network_model property_network_model
tokens cross the network for each expert|network_model/src/algorithms.cc|s@parts_reached(routing, call.nodes()) / @parts_reached(routing, placement.ranks) / @|unit_network_model property_network_model
a torus is cut once|network_model/src/algorithms.cc|s@return half \* (parts - half) / parts;@return half * (parts - half) / parts / 2;@|unit_network_model property_network_model
what leaves a node passes no inner port|network_model/src/fair_sharing.cc|s@outward += loads\[l\];@outward = loads[l];@|unit_network_model unit_simulator property_network_model
a switch of ASTRA-Sim is one hop|network_model/src/astra_formulas.cc|s@AstraTopology::kSwitch) return 2;@AstraTopology::kSwitch) return 1;@|unit_network_model property_network_model
short messages have the interval of long ones|network_model/src/calibration.cc|s@std::hypot(deviation_short, kBetweenMachines), 1 - share@std::hypot(deviation, kBetweenMachines), 1 - share@|unit_network_model property_network_model
few measurements are as certain as many|network_model/src/learn/network_fit.cc|s@(n + kPrior));@n);@|unit_network_model property_network_model
the error of nine in ten is a deviation|network_model/src/learn/network_fit.cc|s@spread.deviation\[i\] = \*nth / network::kQuantile;@spread.deviation[i] = *nth;@|unit_network_model property_network_model
an unknown route goes through the host|network_model/src/calibration.cc|s@mixed({}, host, 0.5)@mixed({}, host, 1.0)@|unit_network_model property_network_model
a part of a group counts its most ranks|network_model/src/topology.cc|s@tier.members = std::min(tier.members, members);@tier.members = std::max(tier.max_members, members);@|unit_network_model property_network_model
a long way around ASTRA-Sim's ring has no whole laps|network_model/src/astra_formulas.cc|s@slide(0, rest, laps);@slide(0, rest, 0 * laps);@|unit_network_model property_network_model
a gated MLP has one projection|parallelism/src/blocks/mlp.cc|s@gated_mlp ? 2 \* ffn : ffn@gated_mlp ? ffn : ffn@|unit_parallelism property_parallelism
a gated MLP keeps one projection|parallelism/src/blocks/common.cc|s@gated ? (shape.plan->fused_kernels ? 2 : 3) : 1@gated ? 1 : 1@|unit_parallelism property_parallelism
recomputation holds no layer|parallelism/src/memory.cc|s@chunk.working = std::max(chunk.working, part.working);@chunk.working = 0;@|unit_parallelism property_parallelism
gradients are reduced a microbatch early|parallelism/src/stage_passes.cc|s@add_part(loop, l, to - 1, to, false, true)@add_part(loop, l, to - 1, to, false, false)@;s@add_part(loop, l, from, to - 1, false, false)@add_part(loop, l, from, to - 1, false, true)@|unit_parallelism property_parallelism
the optimizer has no master weight|parallelism/src/memory.cc|s@4 + state@state@|unit_parallelism property_parallelism
gradients of a microbatch take no room|parallelism/src/memory.cc|s@used.gradients += unsummed;@used.gradients += 0 * unsummed;@|unit_parallelism property_parallelism
layers that ZeRO 3 gathers take no room|parallelism/src/memory.cc|s@used.weights = whole_bytes;@used.weights = shards_weights(plan) ? Bytes() : whole_bytes;@|unit_parallelism property_parallelism
losses hold nothing|parallelism/src/memory.cc|s@          add(chunk, part.kept, run.count);@          add(chunk, {0, part.kept.after_input_gradient}, run.count);@|unit_parallelism property_parallelism
the host's part of the optimizer stays|parallelism/src/memory.cc|s@(1 - plan.offload_optimizer.value)@1@|unit_parallelism property_parallelism
states of experts are shared by all replicas|parallelism/src/shape.cc|s@static_cast<double>(sharing_replicas(plan, true))@static_cast<double>(sharing_replicas(plan, false))@|unit_parallelism property_parallelism
context parallelism divides no tokens|parallelism/src/shape.cc|s@training.sequence / p.cp),@training.sequence),@|unit_parallelism property_parallelism
a vocabulary is not padded|core/include/ns_dist/parallel_plan.h|s@(vocabulary + multiple - 1) / multiple \* multiple@vocabulary + 0 * multiple@|unit_parallelism property_parallelism
recomputation that stops early repeats the last product|parallelism/src/block.cc|s@step.forward.size() - step.calls_after_kept@step.forward.size()@|unit_parallelism property_parallelism
logits are kept in half precision|parallelism/src/blocks/loss.cc|s@return kFp32;@return kFp32 / 2;@|unit_parallelism property_parallelism
eager cross-entropy runs in the format of the logits|parallelism/src/blocks/loss.cc|s@Operator{std::move(kind), DType::kFp32}@Operator{std::move(kind), DType::kBf16}@|unit_parallelism
a ring passes whole sequences on|parallelism/src/blocks/attention.cc|s@const std::int64_t tokens = shape.document_tokens, window@const std::int64_t tokens = shape.sequence, window@|unit_parallelism
keys have no projection|parallelism/src/blocks/attention.cc|s@out = query + key + value + gate@out = query + value + gate@|unit_parallelism property_parallelism
copies of maps do not travel|parallelism/src/blocks/state_space.cc|s@copied_maps(std::max(groups, shape.cp) \* map)@copied_maps(maps)@|unit_parallelism
DeepSpeed's plans divide sequences|simulator/src/scenario_fields.cc|s@limit.when.empty() \&\& !limit.allows@limit.when.empty() \&\& false \&\& !limit.allows@|unit_simulator
a measured route stays in doubt|network_model/src/learn/network_fit.cc|s@base->source != network::Corrected::Source::kUnknownRoute@true@|unit_network_model
curves of racks are not read|network_model/src/calibration.cc|s@if (!in_table(link_class, call.placement->ranks)) {@if (link_class == LinkClass::kNetwork) {@|unit_network_model
LL128 runs over PCIe|network_model/src/algorithms.h|s@protocol != Protocol::kLl128@protocol != Protocol::kSimple@|unit_network_model
one rank a node hides the network|network_model/src/algorithms/ring.cc|s@one_each ? link.tree_hop@one_each ? link.ring_hop@|unit_network_model
gradients of keys do not travel|parallelism/src/blocks/attention.cc|s@last ? 1.0 : 2.0@last ? 1.0 : 1.0@|unit_parallelism property_parallelism
dropout keeps no mask of scores|parallelism/src/blocks/attention.cc|s@dropout ? 1 + element :@dropout ? element :@|unit_parallelism property_parallelism
what overlaps products is exposed as well|parallelism/src/blocks/common.cc|s@beside ? 1 / ranks : 1@beside ? ranks / ranks : 1@|unit_parallelism property_parallelism
experts in a loop share one gradient|parallelism/src/blocks/moe.cc|s@(size.experts - 1) \* whole@0 * whole@|unit_parallelism property_parallelism
gate and value are tensors of their own|parallelism/src/blocks/moe.cc|s@written_out(shape) \&\& shape.model->gated_mlp@false@|unit_parallelism property_parallelism
a sink is normalized in fp32|parallelism/src/blocks/attention.cc|s@in_fp32 = !sinks \&\& @in_fp32 = @|unit_parallelism property_parallelism
gradients of 16 bits are clipped in fp32|parallelism/src/step_end.cc|s@WeightStorage::kLow ? shape_.dtype : DType::kFp32; }@WeightStorage::kLow ? DType::kFp32 : DType::kFp32; }@|unit_parallelism property_parallelism
each rank has all experts|parallelism/src/blocks/moe.cc|s@experts(shape.model->moe->experts / shape.ep)@experts(shape.model->moe->experts)@|unit_parallelism property_parallelism
a token goes to one expert|parallelism/src/blocks/moe.cc|s@shape.sharded_tokens \* moe.top_k;@shape.sharded_tokens;@|unit_parallelism property_parallelism
a model goes backward with one product|parallelism/src/step_flops.cc|s@passes = backward ? 3 : 1@passes = backward ? 2 : 1@|unit_parallelism property_parallelism
full recomputation runs layers again that it keeps|parallelism/src/step_flops.cc|s@full ? recomputed_layers(model, plan, kinds) : counts@full \&\& kinds.kinds.empty() ? recomputed_layers(model, plan, kinds) : counts@|unit_parallelism property_parallelism
the first stage of 1F1B holds one microbatch more|parallelism/src/schedules/one_f_one_b.cc|s@0, shape.stages - stage - 1}}@0, stage == 0 ? shape.stages : shape.stages - stage - 1}}@|unit_parallelism property_parallelism
interleaved stages warm up as fast as 1F1B's|parallelism/src/schedules/interleaved_order.cc|s@2 \* (shape.stages - stage - 1)@(shape.stages - stage - 1)@|unit_parallelism property_parallelism
ZB-H1 does not put off weight gradients|parallelism/src/schedules/zb_h1.cc|s@0, shape.stages - 1}@0, shape.stages - stage - 1}@|unit_parallelism property_parallelism
a loop holds the most in its first repeat|parallelism/src/schedule_facts.cc|s@std::max({most, peak, peak + further})@std::max({most, peak, held})@|unit_parallelism property_parallelism
the last stages have one layer more|parallelism/src/layer_division.cc|s@(i < layers % parts ? 1 : 0)@(i >= parts - layers % parts ? 1 : 0)@|unit_parallelism property_parallelism
each tensor-parallel rank sends the whole message|parallelism/src/planner.cc|s@gathers_messages() ? static_cast<double>(shape_.tp) : 1@gathers_messages() ? 1.0 : 1@|unit_parallelism property_parallelism
copies of a shard reduce all gradients|parallelism/src/replica_exchange.cc|s@size / static_cast<double>(sharing.size())@size / 1.0@|unit_parallelism property_parallelism
each rank updates all parameters|parallelism/src/step_end.cc|s@const double owned = updated_parameters(held, plan_, shares);@const double owned = held.total();@|unit_parallelism property_parallelism
a product has one 8-bit operand|parallelism/src/shape.h|s@return (has_both_layouts(shape) ? 2 : 1) \* shape.product_element@return (has_both_layouts(shape) ? 1 : 1) * shape.product_element@|unit_parallelism property_parallelism
weights have the scales of activations|parallelism/src/shape.cc|s@weight_element(training.precision == Precision::kFp8Block ? kBlockScaledWeight : product_element)@weight_element(product_element)@|unit_parallelism
layers that the host keeps take no room|parallelism/src/memory.cc|s@kept.chunks) + kept.under_way@kept.chunks) + 0 * kept.under_way@|unit_parallelism property_parallelism
whole gradients of layers take no room|parallelism/src/memory.cc|s@updated \* sum + whole \* each.weight \* units::B;@updated * sum + 0 * whole * each.weight * units::B;@|unit_parallelism property_parallelism
a masked key counts|parallelism/src/block.cc|s@flops.masked += of_call - work_of@flops.masked += of_call - 0.5 * work_of@|unit_parallelism property_parallelism
predictions have no losses|parallelism/src/step_flops.cc|s@static_cast<double>(1 + shape.prediction_layers)@static_cast<double>(1 + 0 * shape.prediction_layers)@|unit_parallelism property_parallelism
selective recomputation computes nothing again|parallelism/src/step_flops.cc|s@again = layers.recomputed + predictions.recomputed;@again = predictions.recomputed;@|unit_parallelism property_parallelism
the row sums of attention are kept in 16 bits|parallelism/src/blocks/attention.cc|s@static_cast<double>(shape.heads) \* 4;@static_cast<double>(shape.heads) * 2;@|unit_parallelism property_parallelism
a tied table is held once by all stages|parallelism/src/blocks/loss.cc|s@ties_logits() .. shape.plan->pp > 1@ties_logits()@|unit_parallelism property_parallelism
stages do not sum their copies of the table|parallelism/src/step_end.cc|s@first_holder_ != second_holder_) embedding@first_holder_ == second_holder_) embedding@|unit_parallelism property_parallelism
the copy of the table for multi-token prediction stays with the loss|parallelism/src/stage_parameters.cc|s@return direction\[position\].stage@return direction.back().stage@|unit_parallelism property_parallelism
a layout leaves room for what it does not name|parallelism/src/layer_division.cc|s@  if (layers != model.layers) {@  if (layers > model.layers) {@|unit_parallelism property_parallelism
gradients are cleared that others hold|parallelism/src/step_end.cc|s@shards_gradients(plan_) ? owned : in_buffers@shards_gradients(plan_) ? in_buffers : in_buffers@|unit_parallelism property_parallelism
ZB-H2 fills as ZB-H1|parallelism/src/schedules/zb_h2.cc|s@0, 2 \* (shape.stages - stage - 1)}@0, shape.stages - stage - 1}@|unit_parallelism property_parallelism
chunks come back in the order in which they went|parallelism/src/schedules/breadth_first.cc|s@run_of(PassKind::kBackward, chunk, 0@run_of(PassKind::kBackward, chunks - 1 - chunk, 0@|unit_parallelism property_parallelism
replicas of DualPipe sum what others hold|parallelism/src/step_end.cc|s@const Bytes size = share_of_rank(held, plan_) \* gradient_size@const Bytes size = held.total() * gradient_size@|unit_parallelism property_parallelism
weights are gathered a layer too late|parallelism/src/planner.cc|s@std::optional<Part> next = gathered(i + 1);@std::optional<Part> next = gathered(i);@|unit_parallelism property_parallelism
DualPipe lets half as many microbatches in|parallelism/src/schedules/dual_order.cc|s@i < 2 \* behind; ++i@i < behind; ++i@|unit_parallelism property_parallelism
a search takes a stage for the whole model|parallelism/src/memory.cc|s@const double share = 1 / static_cast<double>(plan.pp);@const double share = 1 / std::min(1.0, static_cast<double>(plan.pp));@|unit_parallelism unit_simulator property_simulator
an all-to-all connects a rank to itself|parallelism/src/memory.cc|s@ranks - 1, 0, kOthers@ranks, 0, kOthers@|unit_parallelism
MFU counts recomputation|simulator/src/predict.cc|s@report.mfu = flops.model@report.mfu = flops.hardware@|unit_simulator property_simulator
a channel is two SMs|simulator/src/costs.cc|s@taken.channels / static@2 * taken.channels / static@|unit_simulator property_simulator
no time is lost after a failure|simulator/src/time_to_train.cc|s@const double restarts = std::exp(-r);@const double restarts = std::exp(-0 * r);@|unit_simulator property_simulator
checkpoints come too often|simulator/src/time_to_train.cc|s@std::sqrt(2 \* d \* m)@std::sqrt(d * m)@|unit_simulator property_simulator
more GPUs fail as rarely as one|simulator/src/time_to_train.cc|s@reliability.gpu_time_between_failures / gpus@reliability.gpu_time_between_failures / 1.0@|unit_simulator property_simulator
a checkpoint has no master weight|parallelism/src/memory.cc|s@return {low, 4 + state,@return {low, state,@|unit_parallelism unit_simulator
GPU-hours count one GPU|simulator/src/time_to_train.cc|s@time.gpu_hours = paid \* @time.gpu_hours = @|unit_simulator property_simulator
independent deviations are added|simulator/src/step_interval.cc|s@std::hypot(parts.forecasts_above, parts.rest_above, parts.clock_above)@parts.forecasts_above + parts.rest_above + parts.clock_above@|unit_simulator property_simulator
the building takes no power|simulator/src/energy.cc|s@ \* scenario.facility.pue.value@@|unit_simulator property_simulator
a slow stage is fast|simulator/src/costs.cc|s@factor /= stragglers.stage_speed@factor *= stragglers.stage_speed@|unit_simulator property_simulator
one rank with all experts waits for others|simulator/src/scenario.cc|s@const double share = std::min(1.0, std::log2@const double share = 1 + 0 * std::min(1.0, std::log2@|unit_simulator
a shortened model keeps its experts|core/src/model.cc|s@if (!any) model.moe.reset(), @if (!any) @|unit_simulator
the slowest of many ranks is as fast as all|simulator/src/training_clock.cc|s@return 1 + deviation \* mean_of_largest@return 1 + 0 * deviation * mean_of_largest@|unit_simulator property_simulator
copies to the host reach the data sheet|simulator/src/host_work.cc|s@floor / efficiency.share@floor / 1.0@|unit_simulator property_simulator
hosts are all as fast as one|simulator/src/predict.cc|s@const double spread = scenario.host.launch_spread.value@const double spread = 1 + 0 * scenario.host.launch_spread.value@|unit_simulator property_simulator
a slow host is not warned of|simulator/src/warnings.cc|s@longer < kWide \* step@longer < 99 * kWide * step@|unit_simulator property_simulator
slowed kernels hide no more launches|simulator/src/host_waits.cc|s@if (slow > alone)@if (false)@|unit_simulator
twice the FLOPs take twice the energy|simulator/src/sensitivity.cc|s@gpu.flop_energy /= factor;@gpu.flop_energy *= 1;@|unit_simulator
one replica gathers its weights|core/include/ns_dist/parallel_plan.h|s@(has_fp32_shards(plan) .. has_replicas(plan)) \&\&@true \&\&@|unit_parallelism
a node's links carry what leaves it, too|network_model/src/fair_sharing.cc|s@own - leaving(outer)@own - 0 * leaving(outer)@|unit_network_model
launches do not hide behind kernels|core/include/ns_dist/host_launches.h|s@part(p).all - hidden@part(p).all - 0 * hidden@|unit_simulator property_simulator
kernels of a family deviate each for itself|simulator/src/step_difference.cc|s@families\[entry.kind\]@families[entry.name]@|unit_simulator property_simulator
the search's bound adds up all stages|simulator/src/search/search.cc|s@static_cast<double>(scenario.plan.pp);@std::min(1.0, static_cast<double>(scenario.plan.pp));@|unit_simulator property_simulator
the search's bound has collectives block that run beside another pass|simulator/src/search/bounds.cc|s@pairs_passes(plan) ? stage.work.beside() : stage.work.apart()@stage.work.apart()@|unit_simulator property_simulator
the search's bound has a stage wait for itself|simulator/src/search/bounds.cc|s@stage.forward + times \* work@stage.forward + (times + 1) * work@|unit_simulator property_simulator
the search's bound has collectives where they take most|simulator/src/search/bounds.cc|s@least = std::min(least, there->latency)@least = std::max(least, there->latency)@|unit_simulator property_simulator
the search's bound leaves out groups that lie otherwise|simulator/src/search/bounds.cc|s@std::for_each(others.begin(), others.end(), look);@@|unit_simulator property_simulator
plans of a larger batch look slower|simulator/src/search/groups.cc|s@return seconds \* (tokens_ / tokens_of_step(scenario.training))@return seconds * (tokens_ / std::max(tokens_, 0 * tokens_of_step(scenario.training)))@|unit_simulator property_simulator
kernels lose no SMs to collectives|simulator/src/clocks/flow_table.cc|s@std::max(kSlowest, 1 - sms)@std::max(kSlowest, 1 - 0 * sms)@|unit_simulator property_simulator
a slowed flow takes all of its memory traffic|simulator/src/clocks/flow_table.cc|s@demand->memory \* flows_\[lane\].rate@demand->memory@|unit_simulator property_simulator
what two plans share makes their difference wider|simulator/src/step_difference.cc|s@add(from, -1)@add(from, 1)@|unit_simulator property_simulator
runs joined at a period's border are those of before|simulator/src/step_analysis.cc|s@if (record.times != 1 @if (record.times != 7 @|property_simulator
who meets does not wait for messages|core/src/expand.cc|s@meeting.before.push_back(message->second);@@|property_simulator
runs on other GPUs are as alike|validation/src/nearest_runs.cc|s@? 0.5 : 4;@? 0 : 0;@|unit_validation
experts and dense models are mixed|validation/src/nearest_runs.cc|s@traits->experts != own.experts@false@|unit_validation
all sizes of one table are shown|validation/src/nearest_runs.cc|s@if (!seen.emplace@if (false \&\& !seen.emplace@|unit_validation
a rate is that of all GPUs|validation/src/run_suite.cc|s@(gpus \* run.tokens@((1 + 0 * gpus) * run.tokens@|unit_validation
a training is surely in time by its middle|apps/cli/search_case.cc|s@time->high <= \*goals.deadline@time->total <= *goals.deadline@|unit_cli
no larger size is tried for the end of the interval|apps/cli/sizing.cc|s@kMostTried = 2@kMostTried = 0@|unit_cli
parts of the step add up over stages|simulator/src/step_analysis.cc|s@Seconds::from_base(parts_.by\[c\] / stages)@Seconds::from_base(parts_.by[c])@|unit_simulator property_simulator
latencies shrink by more than asked|simulator/src/sensitivity.cc|s@1 / (1 + share)@1 - share@|unit_simulator property_simulator
tokens a second are those of a GPU|simulator/src/predict.cc|s@tokens_of_step(training) / seconds@tokens_of_step(training) / seconds / ranks@|unit_simulator property_simulator
MFU counts masked keys|simulator/src/predict.cc|s@report.mfu_causal = flops.causal@report.mfu_causal = flops.model@|unit_simulator property_simulator
experts are as certain as dense models|simulator/src/step_interval.cc|s@scenario.model.moe ? 1 : 0@scenario.model.moe ? 0 : 0@|unit_simulator
a slow rank is as fast as all|simulator/src/costs.cc|s@? stragglers.slow_factor : 1;@? 1 + 0 * stragglers.slow_factor : 1;@|unit_simulator property_simulator
products in training run at the burst clock|simulator/src/training_clock.cc|s@return is_product(op) \&\& op.dtype != DType::kFp32 ? load : 1;@return is_product(op) \&\& op.dtype != DType::kFp32 ? 1 : 1;@|unit_simulator property_simulator
all storage is one GPU's share|simulator/src/time_to_train.cc|s@value_or(gpus \* kStorageBandwidthPerGpu)@value_or(kStorageBandwidthPerGpu)@|unit_simulator property_simulator
the interval of a training has no failures|simulator/src/time_to_train.cc|s@report.step_high / report.step \* time.total;@report.step_high / report.step * time.without_failures;@|unit_simulator property_simulator
the last stage gets one layer less, however long its loss|simulator/src/search/space.cc|s@last->layers - all_plans.loss_layers@last->layers - 1@|unit_simulator property_simulator
the last stage is that of the embedding|parallelism/src/layer_division.cc|s@seats\[i\].stage != seats.back().stage@seats[i].stage != seats.front().stage@|unit_parallelism property_parallelism
the busiest stage's network time is the last one's|simulator/src/search/answers.cc|s@most = std::max(most, sum);@most = sum;@|unit_simulator property_simulator
weights and states fill no memory|simulator/src/host_waits.cc|s@const bool tight = used.total() > kTight \* scenario.cluster.gpu.memory;@const bool tight = used.activations > kTight * scenario.cluster.gpu.memory;@|unit_simulator property_simulator
hidden collectives are exposed|simulator/src/clocks/fragment_length.h|s@length = std::max(length, stream);@length += duration(index(node.work));@|unit_simulator property_simulator
a remedy keeps its replicas|simulator/src/memory_remedy.cc|s@each.plan.dp = plan.dp / times@each.plan.dp = plan.dp@|unit_simulator
efficient kernels are faster than their floor|simulator/src/predict.cc|s@max(min(forecast.floor, forecast.latency), forecast.latency / efficiency);@max(0 * min(forecast.floor, forecast.latency), forecast.latency / efficiency);@|unit_simulator property_simulator
a weight is listed without its states|chakra_io/src/symbolic_operators.cc|s@kWithStates = 5@kWithStates = 1@|unit_chakra_io property_chakra_io
the shard of an operand counts|chakra_io/src/symbolic_operators.cc|s@if (letters(sums\[0\]) < letters(sums\[1\]))@if (letters(sums[0]) > letters(sums[1]))@|unit_chakra_io property_chakra_io
a product of symbols is one operation a multiply-add|chakra_io/src/symbolic_operators.cc|s@UnknownOperator{"product", 2 \* node.operations@UnknownOperator{"product", node.operations@|unit_chakra_io property_chakra_io
nanoseconds are written as half of them|chakra_io/src/writer.cc|s@\* 1000 + 500);@* 500 + 500);@|unit_chakra_io property_chakra_io
parts of a collective take the whole time each|chakra_io/src/writer.cc|s@exact_ns \*= collective.size / all;@exact_ns *= all / all;@|unit_chakra_io property_chakra_io
microseconds are read as nanoseconds|chakra_io/src/replay.cc|s@options_.most_micros) \* 1000)@options_.most_micros) * 1)@|unit_chakra_io property_chakra_io
a roofline of a trace knows no memory|chakra_io/src/rules.cc|s@std::min(local_memory_gbs \* 1e9 \* (work / size), peak_tflops \* 1e12)@(size > 0 ? peak_tflops * 1e12 : local_memory_gbs)@|unit_chakra_io property_chakra_io
kernels of a call share its time evenly|chakra_io/src/annotate.cc|s@kernel.recorded_ns / call.recorded : 1 / call.kernels@1 / call.kernels : 1 / call.kernels@|unit_chakra_io property_chakra_io
a linear layer has a row for each element|chakra_io/src/pytorch_operators.cc|s@return Gemm{.m = elements(input) / input.back(), @return Gemm{.m = elements(input), @|unit_chakra_io property_chakra_io
an addition reads one tensor|chakra_io/src/pytorch_operators.cc|s@found->inputs > 0 ? found->inputs : given@found->inputs > 0 ? found->inputs : 1@|unit_chakra_io property_chakra_io
rounded durations add up their errors|chakra_io/src/writer.cc|s@told += whole > 0 ? whole : zero;@told = exact_[index(lane)] + 0 * zero;@|unit_chakra_io property_chakra_io
short forecasts lie in their interval|validation/src/error_table.cc|s@row->low <= row->measured \&\& @@|unit_validation
others are judged by their own forecasts|validation/src/error_table.cc|s@found->second / row->measured - 1@row->measured / found->second - 1@|unit_validation
the baseline takes the sum of utilizations|validation/src/run_suite.cc|s@(sum / static_cast<double>(all.size()))@(sum / std::min(1.0, static_cast<double>(all.size())))@|unit_validation
each run of a publication has a vote|validation/src/left_out_constants.cc|s@const double weight = 1 / counts\[judged.run->publication\];@const double weight = 1 / std::min(1.0, static_cast<double>(counts[judged.run->publication]));@|unit_validation
experts have replicas only where other layers have|core/include/ns_dist/parallel_plan.h|s@return replicas(plan, false) > 1 .. replicas(plan, true) > 1;@return replicas(plan, false) > 1;@|unit_parallelism property_parallelism
hidden states are gathered before latents|parallelism/src/blocks/attention.cc|s@const std::int64_t own = shape.sharded_tokens@const std::int64_t own = shape.tokens@|unit_parallelism property_parallelism
experts keep only the rows that they sent|parallelism/src/blocks/moe.cc|s@static_cast<double>(size.rows) \* static_cast<double>(in)@static_cast<double>(size.routed) * static_cast<double>(in)@|unit_parallelism property_parallelism
a cast of an output is all that attention keeps|parallelism/src/blocks/attention.cc|s@!blocks::may_keep_originals(shape) \&\& shape.plan->lora_rank == 0@false@|unit_parallelism
all layers share a cast of the hidden states|parallelism/src/blocks/common.cc|s@!keeps_cast;@(keeps_cast ? true : true);@|unit_parallelism property_parallelism
forward passes alone keep transposes|parallelism/src/shape.h|s@shape.plan->passes == Passes::kForward;@false;@|unit_parallelism
gathered keys take no memory|parallelism/src/blocks/attention.cc|s@(2 + parts + wider) \* (all / units::B)@0 * (all / units::B)@|unit_parallelism
a ring holds one part|parallelism/src/blocks/attention.cc|s@static_cast<double>(parts) \* (travelling / units::B) + held@(travelling / units::B) + held@|unit_parallelism
copies of key heads are not kept|parallelism/src/blocks/attention.cc|s@return std::max(key_heads(shape), shape.cp_inner)@return key_heads(shape)@|unit_parallelism
experts of one rank are gathered|parallelism/src/memory.cc|s@sharing_replicas(plan, true) > 1@sharing_replicas(plan, true) > 0@|unit_parallelism
transformers normalizes in 16 bits|parallelism/src/blocks/attention.cc|s@casts_last = apart \&\&@casts_last = false \&\&@|unit_parallelism
rows come back in 8 bits|parallelism/src/blocks/moe.cc|s@kind == CollectiveKind::kAllGather ? size.to_experts : 1@size.to_experts@|unit_parallelism
the gradient of an embedding is not added to the sums|parallelism/src/blocks/embedding.cc|s@  blocks::add_to_sums(.*@@|unit_parallelism property_parallelism
moments in 8 bits are updated like those in fp32|parallelism/src/step_end.cc|s@plan_.optimizer_state == MomentType::kFp32@plan_.optimizer_state != MomentType::kBf16@|unit_parallelism
gathered keys are seen by all queries|parallelism/src/blocks/attention.cc|s@attention.causal ? seen - 0.5 : seen@2 * seen@|unit_parallelism
a ring computes what lies outside a window|parallelism/src/blocks/attention.cc|s@  whole.query_length = local;@  whole.query_length = local, whole.window = 0;@|unit_parallelism
FlashAttention-2 is as fast as exponentials are|compute_model/src/families/attention.cc|s@older ? Machine::kExponentials@false ? Machine::kExponentials@|unit_compute_model
a rack has fewer ranks than the others|simulator/src/machine_size.cc|s@if (ranks % nodes == 0 \&\&@if (false \&\&@|unit_simulator
checkpoints hold moments in fp32|simulator/src/time_to_train.cc|s@bytes_per_parameter(dtype, plan.optimizer_state, plan.weights)@bytes_per_parameter(dtype, MomentType(), plan.weights)@|unit_simulator
a checkpoint beside training counts at once|simulator/src/time_to_train.cc|s@restart += time.checkpoint;@restart += Seconds();@|unit_simulator
training stands still for all GPUs' shares|simulator/src/time_to_train.cc|s@1 / gpus \* size / link@size / link@|unit_simulator
one node has switches that fail|simulator/src/time_to_train.cc|s@if (network) rate@if (true) rate@|unit_simulator
a rack is one host|simulator/src/time_to_train.cc|s@std::min(node, static_cast<double>(kGpusOfAHost))@node@|unit_simulator
what-if hurries the CPU|simulator/src/predict.cc|s@!std::holds_alternative<Operator>(item.work) .. item.host.any()@!std::holds_alternative<Operator>(item.work)@|unit_simulator
fp16 alone is another kernel|simulator/src/training_clock.cc|s@kernels.forecast(kernel_of(op))@kernels.forecast(op)@|unit_simulator
passes and layouts share a whole correction|compute_model/src/kernel_calibration.cc|s@kUnlike = 0.85@kUnlike = 1@|unit_compute_model
wild kernels are used|compute_model/src/kernel_calibration.cc|s@kWild = 5@kWild = 1e9@|unit_compute_model
errors of calibrations go below the floor|compute_model/src/kernel_calibration.cc|s@kMostCorrected), kernel.floor)@kMostCorrected), -99.0)@|unit_compute_model
wild collectives are used|network_model/src/learn/collective_calibration.cc|s@kWild = 5@kWild = 1e9@|unit_network_model
one size corrects all|network_model/include/ns_dist/collective_calibration.h|s@kFewestSizes = 3@kFewestSizes = 1@|unit_network_model
a calibration has one interval|compute_model/src/kernel_calibration.cc|s@found.doubt = kNinety@found.doubt = 0 * kNinety@|unit_compute_model
repeated rows count again|compute_model/src/kernel_calibration.cc|s@if (is_new) {@if (true) {@|unit_compute_model
fused attention in fp32 is that of 16 bits|compute_model/src/families/attention.cc|s@if (is_single_precision(dtype)) return nullptr;@@|unit_compute_model
spare nodes are not paid|simulator/src/time_to_train.cc|s@gpus + node \* static_cast<double>(time.spare_nodes)@gpus + 0 * node@|unit_simulator
nobody waits for the slowest GPU|simulator/src/time_to_train.cc|s@spread \* mean_of_largest(static_cast<double>(ranks))@0 * spread@|unit_simulator
spare nodes do not replace any|simulator/src/time_to_train.cc|s@servers <= spares + 1@servers <= 1@|unit_simulator
the host launches all experts at once|simulator/src/host_waits.cc|s@double>(grouped->experts - 1)@double>(grouped->experts - grouped->experts)@|unit_simulator
outputs of experts are always kept|parallelism/src/blocks/moe.cc|s@if (!shape.plan->weighted_activation) step@step@|unit_parallelism
all ranks of experts have the mean's tokens|core/src/parallel_plan.cc|s@std::min(plan.expert_imbalance.value, most_over_mean(model, plan))@1@|unit_parallelism
scores of any number of heads are normalized in one kernel|parallelism/src/blocks/attention.cc|s@shape.micro_batch \* shape.heads % kMultiple == 0@true@|unit_parallelism
products in fp16 are others than in bf16|simulator/src/training_clock.cc|s@if (fp16_as_bf16 \&\&@if (false \&\&@|unit_simulator
launches that block do not wait for their kernels|simulator/include/ns_dist/scenario.h|s@return blocking_launches ? kBlockingLaunch \* launch_cost : launch_cost@return launch_cost@|unit_simulator
a plan does not err by itself|simulator/src/step_difference.cc|s@= rest.between \*@= 0 *@|unit_simulator
metrics of the loss need no memory|parallelism/src/memory.cc|s@chunk.logged = std::max(chunk.logged, part.logged);@chunk.logged = 0;@|unit_parallelism
metrics keep what the microbatch kept|parallelism/src/schedule_facts.cc|s@behind + bytes.logged)@bytes.logged)@|unit_parallelism
a loss and a layer that is computed again are held together|parallelism/src/schedule_facts.cc|s@bytes.working - bytes.loss + freed,@bytes.working + freed,@|unit_parallelism
gradients in 16 bits are summed in fp32|parallelism/src/blocks/common.cc|s@sums_in_fp32(how) ? Epilogue::kAccumulateFp32 : Epilogue::kAccumulate@sums_in_fp32(how) ? Epilogue::kAccumulateFp32 : Epilogue::kAccumulateFp32@|unit_parallelism
FlashAttention's loss keeps no gradient|parallelism/src/blocks/loss.cc|s@(forward ? 1 : 2) \* shape.element@1 * shape.element@|unit_parallelism
pairs of passes are of one microbatch|parallelism/src/schedules/interleaved_order.cc|s@(in_pairs ? 1 : 0)@(in_pairs ? 0 : 0)@|unit_parallelism
key-value heads do not bound tensor parallelism's hint|parallelism/src/tensor_parts.cc|s@ \&\& suits_keys(tp) \&\&@ \&\&@|unit_parallelism
a node has the GPUs of its innermost level|core/include/ns_dist/cluster.h|s@while (inside < levels.size() \&\& !is_network@while (false \&\& !is_network@|unit_simulator
a full machine asks for more GPUs before the host|simulator/src/memory_remedy.cc|s@const bool fills = rank_count@const bool fills = false \&\& rank_count@|unit_simulator
a changed GPU finds another neighbor|compute_model/src/reference_gpu.cc|s@reference.sold ? reference.sold->machine : machine, machines@machine, machines@|unit_compute_model
a machine's switches are as fast as any GPU|core/src/cluster.cc|s@std::min(1.0, link_ratio(gpu, cluster))@link_ratio(gpu, cluster)@|unit_core
coefficients see the GPU that is left out|compute_model/src/learn/predictor_fit.cc|s@blind.sums = sums_of(keep)@blind.sums = names.sums@|unit_compute_model
a GPU's own coefficients cost nothing|compute_model/src/learn/fit_sums.cc|s@narrowest ? kind.gpu@narrowest ? 0.0@|unit_compute_model
errors of any size pull at coefficients as squares|compute_model/src/learn/fit_sums.cc|s@weights.r. = kDamped /@weights[r] = 1 + 0 * kDamped /@|unit_compute_model
a compiled row is not padded to its blocks|compute_model/src/families/normalization.cc|s@std::ceil(columns / kColumnBlock) \* kColumnBlock@columns@|unit_compute_model
what a row does not tell is the fastest|validation/src/published_runs.cc|s@(as_fast - 1) / 2@(as_fast - 1) / 200@|unit_validation
a row that does not tell recomputation has another|validation/src/published_runs.cc|s@if (recompute == enumerator_name(known))@if (recompute >= enumerator_name(known))@|unit_validation
a GPU with few rows teaches others|compute_model/src/weights.cc|s@return 100 \* static_cast@return 1e9 * static_cast@|unit_compute_model
a host moves messages of all ranks at once|network_model/src/calibration.cc|s@(2 \* static_cast<double>(ranks) - 1)@(0 * static_cast<double>(ranks) + 1)@|unit_network_model
a graph launches each of its kernels|simulator/src/host_waits.cc|s@if (recorded \&\& n > first@if (false \&\& recorded \&\& n > first@|unit_simulator
the host reads in the middle of a graph|simulator/src/host_waits.cc|s@if (!reads .. is_recorded(host, fragment, works, n)) continue@if (!reads) continue@|unit_simulator
rows for the exchange are in no graph|parallelism/src/blocks/moe.cc|s@step.module = LayerModule::kMoePreprocess@step.module = LayerModule::kMoe@|unit_parallelism
padded experts have places for tokens twice|parallelism/src/blocks/moe.cc|s@std::min(places, shape.sharded_tokens)@places@|unit_parallelism
a frozen router keeps its input|parallelism/src/blocks/linear.cc|s@step.kept_for_weight_gradient = step.output_gradient = 0;@@|unit_parallelism
a limit of a framework holds without its condition|simulator/src/scenario_fields.cc|s@std::all_of(limit.when.begin(), limit.when.end(), holds) \&\& @@|unit_simulator
sliding windows travel around a ring|simulator/src/plan_defaults.cc|s@return model.sliding_window > 0 ? ContextExchange::kAllGather@return model.sliding_window < 0 ? ContextExchange::kAllGather@|unit_simulator
stages share what leaves a rest|parallelism/src/layer_division.cc|s@if (counts\[first ? 0 : last ? 1 : 2\].value_or(count) != count) return false;@@|unit_simulator
factors of delayed scaling are agreed on before the last kernel|parallelism/src/layer_fragments.cc|s@if (kernel >= 0 \&\& @if (kernel < -1 \&\& @|unit_parallelism
passes of weight gradients gather weights|parallelism/src/planner.cc|s@(loads \&\& plan_.reshard)@plan_.reshard@|unit_parallelism
stages sum a whole table that replicas share|parallelism/src/step_end.cc|s@shards_gradients(plan_) ? sharing_replicas(plan_, false) : 1@1@|unit_parallelism
weights in fp32 come back from the host in 16 bits|parallelism/src/step_end.cc|s@const double weight = bytes_per_parameter(shape_.dtype, plan_.optimizer_state, plan_.weights).weight;@const double weight = shape_.element;@|unit_parallelism
sequence parallelism divides what other ranks have|parallelism/src/tensor_parts.cc|s@split ? training.sequence / plan.cp : training.sequence@training.sequence@|unit_parallelism
nodes fail while training waits for one|simulator/src/time_to_train.cc|s@servers <= spares + 1@servers <= spares + 2@|unit_simulator
checkpoints of adapters hold the model|simulator/src/time_to_train.cc|s@plan.lora_rank > 0 ? adapter_parameters@plan.lora_rank < 0 ? adapter_parameters@|unit_simulator
a session serves other clusters|simulator/src/session.cc|s@scenario.cluster != machine_->cluster@scenario.cluster.id != machine_->cluster.id@|unit_simulator
collectives beside fp32 run at the clock of other products|simulator/include/ns_dist/session.h|s@precision == Precision::kFp32 ? \*idle_network_@precision == Precision::kMxFp8 ? *idle_network_@|unit_simulator
a higher clock takes units away|compute_model/src/machine.cc|s@found = std::max(found, least);@found = std::min(found, least);@|unit_compute_model unit_simulator
the load of training follows the nominal rate|simulator/src/training_clock.cc|s@= powered_tensor_rate(gpu) /@= gpu.tensor[DType::kBf16] /@|unit_simulator
the slowest place of a group is not waited for|simulator/src/costs.cc|s@if (there.latency > forecast.latency)@if (there.latency < Seconds())@|unit_simulator
heads that are exchanged are kept once|parallelism/src/blocks/attention.cc|s@shape.cp_inner > 1) {@shape.cp_inner > 99999) {@|unit_parallelism
key-value heads are exchanged among any ranks|parallelism/src/check_plan.cc|s@heads % inner == 0 .. inner % heads == 0@heads > 0@|unit_parallelism
chunks see the whole ring|parallelism/src/blocks/attention.cc|s@(whole.query_length + piece - 1) / piece - 1)@parts)@|unit_parallelism
experts have no kernels for biases|parallelism/src/blocks/moe.cc|s@if (shape.model->bias) add_bias@if (shape.tp < 0) add_bias@|unit_parallelism
gradients of shared experts' inputs are not added|parallelism/src/blocks/moe.cc|s@shared.empty() ? 2 : 3@2@|unit_parallelism
dense weights and experts travel in one mean format|parallelism/src/replica_exchange.cc|s@experts ? held.quantized_experts : held.quantized - held.quantized_experts@all * held.quantized / held.total()@|unit_parallelism
casts are of tables, too|parallelism/src/memory.cc|s@std::min(1.0, whole_layers / in_layers)@std::max(1.0, whole_layers / in_layers)@|unit_parallelism
encoders see earlier tokens alone|parallelism/src/blocks/attention.cc|s@attention.causal = !shape.model->bidirectional@attention.causal = true@|unit_parallelism
up-projections are made again behind the attention's gradient|parallelism/src/blocks/attention.cc|s@if (shape.model->mla) step.drops_for_weight_gradient@if (shape.tp < 0) step.drops_for_weight_gradient@|unit_parallelism
a table that a stage reads twice travels twice|parallelism/src/replica_exchange.cc|s@one_table_(one_table)@one_table_(one_table \&\& plan.pp < 1)@|unit_parallelism
multi-token prediction sends nothing of its own|parallelism/src/planner.cc|s@1 + predictions@1 + 0 * predictions@|unit_parallelism
experts' replicas make any sets|parallelism/src/check_plan.cc|s@model.moe \&\& all %@model.moe \&\& 0 * all %@|unit_parallelism
a search writes no layout|simulator/src/search/answers.cc|s@!layout.empty()@layout.size() > 9999@|unit_simulator
a framework's schedule keeps what it forbids|simulator/src/scenario.cc|s@scenario.plan.overlap_ep = false;@@|unit_simulator
delayed scaling recomputes norms|simulator/src/scenario_fields.cc|s@if (!delayed) modules@if (!delayed + 1) modules@|unit_simulator
what nobody compared is as certain|simulator/src/step_interval.cc|s@scenario.compared_with.empty() ? kNotCompared@scenario.compared_with.empty() ? kCompared@|unit_simulator
a gather beside a layer keeps the host waiting|simulator/src/host_waits.cc|s@spans\[parts\[part\].first\].start@std::max(spans[parts[part].first].start, spans[parts[part].first - 1].end)@|unit_simulator
a gather in a trace keeps the host waiting|chakra_io/src/host_wait.cc|s@: runs\[first\].start@: runs[first - 1].end@|unit_chakra_io
heads of values have keys of their own|parallelism/src/blocks/delta_net.cc|s@keys(net.key_heads / shape.tp@keys(net.value_heads / shape.tp@|unit_parallelism
the delta rule keeps no inverse|parallelism/src/blocks/delta_net.cc|s@size.values + size.heads \* kChunk@size.values + 0 * size.heads * kChunk@|unit_parallelism
the gate of attention is not projected|parallelism/src/blocks/attention.cc|s@out = query + key + value + gate;@out = query + key + value;@|unit_parallelism
the delta rule is in every layer|core/src/model.cc|s@if (!model.full_attention_layers.contains(layer)) {@{@|unit_core unit_parallelism
Muon's products run over the long side|parallelism/src/muon.cc|s@? rows <= columns :@? rows > columns :@|unit_parallelism
Muon keeps two moments|parallelism/src/memory.cc|s@ - shares.owned \* each.moment@ - 0 * shares.owned * each.moment@|unit_parallelism
buffers of matrices have no padding|parallelism/src/weight_matrices.cc|s@packing.fullest \* static_cast<double>(ranks) / packing.all@1@|unit_parallelism
tokens travel to narrow experts in full width|parallelism/src/blocks/moe.cc|s@width(shape.model->moe->latent > 0 ? shape.model->moe->latent : shape.hidden)@width(shape.hidden)@|unit_parallelism
NCCL's buffers need no room|parallelism/include/ns_dist/memory.h|s@return total() + communicators;@return total();@|unit_parallelism unit_simulator
the fullest GPU is the one with the most tensors|parallelism/src/memory.cc|s@max(found, (stage.\*of)())@\&stage == \&fullest() ? (stage.*of)() : found@|unit_parallelism
experts whose weights are whole share all replicas' buffers|parallelism/src/memory.cc|s@(shape.ep > 1 .. shape.etp != plan.tp)@(shape.ep > 1)@|unit_parallelism
experts without an optimizer's shards have one norm|parallelism/src/pipeline.h|s@!shards_optimizer(plan) .. plan.ep == 1@!shards_optimizer(plan)@|unit_parallelism
a wait for the host follows what ran beside it|core/include/ns_dist/host_launches.h|s@double wait = -beside;@double wait = 0 * beside;@|unit_simulator unit_chakra_io
annotate's waits follow what ran beside them|chakra_io/src/host_wait.cc|s@length - behind);@0 * (length - behind));@|unit_chakra_io
a wait becomes what the new durations leave|chakra_io/src/host_wait.cc|s@recorded_wait_ns + wait_ns(wait, now_ns) - wait_ns(wait, recorded_ns)@wait_ns(wait, now_ns) + 0 * recorded_wait_ns@|unit_chakra_io
the host's launches wait for nothing on their stream|chakra_io/src/writer.cc|s@before != last.end()) behind.insert@before == last.end()) behind.insert@|unit_chakra_io unit_cli
collectives beside kernels are no part of their factor|simulator/src/predict.cc|s@out\[w\] = alone.latency \* clock.load_on(\*op)@out[w] = 1.02 * alone.latency * clock.load_on(*op)@|unit_cli
cheaper launches of experts deviate more|simulator/src/host_waits.cc|s@std::pow(each / units::s, 2)@std::pow(launches.all / units::s, 2)@|unit_simulator
bridges take SMs from collectives over PCIe|network_model/src/fair_sharing.cc|s@link.link_class == network::LinkClass::kPcie@false@|unit_simulator
explained kernels have two operands|apps/cli/explain.cc|s@if (!streams) continue;@@;s@std::tuple("--inputs", "inputs", request.inputs)@std::tuple("--inputs", "inputs", std::optional(request.inputs.value_or(2)))@;s@std::tuple("--outputs", "outputs", request.outputs)@std::tuple("--outputs", "outputs", std::optional(request.outputs.value_or(1)))@|unit_cli
a report's layers stay as they were written|core/src/read_model.cc|s@std::sort(set.listed.begin(), set.listed.end())@void()@|unit_simulator
steps of two machines are compared as those of one|simulator/src/step_difference.cc|s@if (err_together(from, to))@if (err_together(from, from))@|unit_simulator
a plan on two networks errs by itself|simulator/src/step_difference.cc|s@rest.between = 0@rest.between *= 1@|unit_simulator unit_cli
an unknown type has the norms of the nearest family|core/src/hugging_face/config_file.cc|s@if (!as_read.delta) as_read.rotary = 1@if (false) as_read.rotary = 1@|unit_core
windows of unknown types are those of Qwen|core/src/hugging_face/config_file.cc|s@as_read.windowed = .type.starts_with("qwen")@as_read.windowed = false@|unit_core
a circle is looked for among the first ranks alone|chakra_io/src/replay.cc|s@step.next == awaited.ranks.size()@step.next == std::min<std::size_t>(1, awaited.ranks.size())@|unit_chakra_io
collectives are numbered in the order of the file|chakra_io/src/lint.cc|s@if (!ascending) std::ranges::stable_sort(collectives_@if (false and !ascending) std::ranges::stable_sort(collectives_@|unit_chakra_io
layers of a hybrid are one each|core/src/hugging_face/families_hybrid.cc|s@model.layer_pattern += has_experts@model.layer_pattern.back() = has_experts@|unit_core
steps on AMD's GPUs were compared|simulator/src/step_interval.cc|s@if (gpu.vendor != "nvidia" ..@if (@|unit_simulator
fused attention runs on any GPU|simulator/src/warnings.cc|s@if (before_ampere) {@if (before_ampere and false) {@|unit_simulator
uneven layers have no chunks|simulator/src/improvements.cc|s@(even .. layers % chunks != 0)@(layers % chunks != 0 and (even or true))@|unit_simulator
ZeRO 2 is no remedy|simulator/src/memory_remedy.cc|s@muon ? 0 : further@muon ? 0 : std::min(further, 1)@|unit_simulator
a search's bound has no host|simulator/src/search/search.cc|s@add_host_waits(each.host, each.constants.hosts, \*program, \*costs)@false@|unit_simulator
all that overlaps is told one by one|simulator/src/without_effect.cc|s@set, named)) continue;@set, named) and false) continue;@|unit_simulator
a GPU with fewer links is scaled|compute_model/src/reference_gpu.cc|s@reference.known.gpu.id = sheet.id;@reference.known.gpu.id = machine.gpu.id;@|unit_compute_model
measurements as forecast tell nothing of others|compute_model/src/kernel_calibration.cc|s@kNinety \* family.amplitude \*@kNinety *@|unit_compute_model
a forward pass keeps its loss for the next|parallelism/src/memory.cc|s@plan->passes == Passes::kForward ? 0 : chunk.loss@plan->passes == Passes::kForward ? chunk.loss : chunk.loss@|unit_parallelism
an encoder caches keys|parallelism/src/blocks/attention.cc|s@  if (!shape.model->bidirectional) block.cached@  block.cached@|unit_parallelism
smaller layers on the host take as much room|parallelism/src/memory.cc|s@(all - largest) \* kept.next_kept@(all - largest) * kept.most_kept@|unit_parallelism
other links fill the nodes of a report|simulator/src/machine.cc|s@gpus_of(cluster) == gpus_of(base->cluster)@gpus_of(cluster) == 0@|unit_simulator
the same schedule resets its chunks|simulator/src/plan_defaults.cc|s@schedule \&\& other_schedule \&\& !keeps_chunks@schedule \&\& (other_schedule or keeps_chunks)@|unit_simulator
layers with a window have the heads of the others|core/src/model.cc|s@if (windowed \&\& model.windowed_heads) return@if (!windowed \&\& model.windowed_heads) return@|unit_core unit_parallelism
decays of channels are as many as heads|parallelism/src/blocks/delta_net.cc|s@net.decay_rank > 0 ? heads \* net.key_dim : heads@heads@|unit_parallelism
collectives without a group are numbered by themselves|chakra_io/src/replay.cc|s@node.group == kAllRanks ? of_rank : of_group@of_group + 0 * of_rank@|unit_chakra_io
steps on a generation that nobody measured were compared|simulator/src/step_interval.cc|s@!is_known_architecture(gpu.architecture)@gpu.architecture.empty()@|unit_simulator
a saving has no lower end|simulator/src/improvements.cc|s@interval = {-difference.high,@interval = {-difference.longer,@|unit_simulator
sparse keys do not overlap|parallelism/src/blocks/compressed_attention.cc|s@return is_sparse() ? 2 : 1@return is_sparse() ? 1 : 1@|unit_parallelism
an indexer scores all keys of all queries|parallelism/src/blocks/indexer.cc|s@std::max<std::int64_t>(1, all / 2)@std::max<std::int64_t>(1, all)@|unit_parallelism
contexts gather their own compressed keys alone|parallelism/src/blocks/compressed_attention.cc|s@compressed \* shape.cp, size.width@compressed, size.width@|unit_parallelism
a recomputed core frees its queries|parallelism/src/blocks/compressed_attention.cc|s@bytes_of(shape, shape.tokens, shape.heads \* size.width) + bytes_of@bytes_of@|unit_parallelism
streams are not mixed|parallelism/src/blocks/common.cc|s@mixes ? n \* (n + 2) : n@mixes ? n * (n + 1) : n@|unit_parallelism
a message has one stream|parallelism/src/planner.cc|s@(1 + predictions) \* shape_.streams@1 + predictions@|unit_parallelism
layers that predict read compressed keys|core/src/model.cc|s@if (model.compressed) kind.compressed_keys@if (false) kind.compressed_keys@|unit_core
a GPU is like any other one|compute_model/src/reference_gpu.cc|s@if (named \&\& !run@if (false \&\& named \&\& !run@|unit_compute_model
three products stand for all|simulator/src/training_clock.cc|s@products / kEnough@1.0 + 0 * kEnough@|unit_simulator
rows faster than the peak are taken|compute_model/src/kernel_calibration.cc|s@kFastest \* compute@0 * kFastest * compute@|unit_compute_model
nodes decide whatever is measured|network_model/src/learn/network_fit.cc|s@return \*middle < kClearlyLonger@return *middle < 1e9 * kClearlyLonger@|unit_network_model
a short causal attention is corrected twice|compute_model/src/compute_model.cc|s@std::max(uncalibrated(whole, unmasked, none).seconds, unmasked.roofline.floor())@answer(whole, unmasked, none).latency / s@|unit_compute_model
nvfp4 is written as fp4|core/src/operator_forms.cc|s@return "nvfp4"@return "fp4"@|unit_core
few heads are few rows of chosen keys|parallelism/src/blocks/indexer.cc|s@std::max(shape.heads, std::min(shape.model->heads, kRows))@std::max(shape.heads, kRows - kRows)@|unit_parallelism
chosen keys have the width of one head|parallelism/src/blocks/chosen_attention.cc|s@(shape.heads + shape.cp) \* width@(shape.heads + 1) * width@|unit_parallelism
each layer has an indexer|core/src/model.cc|s@ && !model.indexer->shared_layers.contains(layer)@@|unit_core unit_parallelism
a rank has a part of the indexer|parallelism/src/blocks/indexer.cc|s@scores.heads = of.heads;@scores.heads = of.heads / std::min(2L, shape.plan->tp);@|unit_parallelism
layers that share keys make their own|parallelism/src/blocks/attention.cc|s@return shape.kind.shares_keys ? 0 : shape.kv_heads \* shape.query_dim@return shape.kv_heads * shape.query_dim@|unit_parallelism
layers that share keys keep them|parallelism/src/blocks/attention.cc|s@kept = shape.kind.shares_keys ? 0 : exchanged@kept = exchanged@|unit_parallelism
one layer more shares keys|core/src/model.cc|s@>= model.layers - model.shared_keys_layers;@>= model.layers - model.shared_keys_layers - 1;@|unit_core unit_parallelism
recomputation drops per-layer embeddings|parallelism/src/block.cc|s@layer.input += blocks@layer.input += 0 * blocks@|unit_parallelism
faster links jump along a curve over sizes|network_model/src/correction.cc|s@time = faster > 1 @time += 0 * faster; if (false) time = faster > 1 @|unit_network_model
slower links jump along it|network_model/src/correction.cc|s@: std::min(time, there)@: std::max(time, there)@|unit_network_model
a GPU like a measured one has no curves|network_model/src/calibration.cc|s@own .. cluster.gpu.like.empty()@true@|unit_network_model
a switch gathers for any number of ranks|network_model/src/algorithms/nvls.cc|s@ranks <= kFewRanks .. ranks > kMostRanks@ranks < 0@|unit_network_model
cards have the links of their server|core/src/cluster.cc|s@if (kind == FabricKind::kPcie) return gpu.pcie_bandwidth;@@|unit_core
all of a step may be saved|simulator/src/step_difference.h|s@step + max(most - saves@step + 0.0 * max(most - saves@|unit_simulator
parts twice as good save all|simulator/src/sensitivity.cc|s@1 / std::max(most, 1.0) - 1@0 * most - 9@|unit_simulator
all MLPs have one width|core/src/model.cc|s@kind.ffn = own == model.ffn ? 0 : own;@kind.ffn = 0 * own;@|unit_core unit_parallelism
layers without attention have it|core/src/model.cc|s@if (model.no_attention_layers.contains(layer)) kind.mixer@if (false) kind.mixer@|unit_core
biases sum the tokens of all ranks|parallelism/src/blocks/common.cc|s@"sum_rows", gradient_rows \* out@"sum_rows", all_rows * out@|unit_parallelism
eager attention reads grouped keys|parallelism/src/blocks/attention.cc|s@const bool repeats = apart@const bool repeats = false@|unit_parallelism
capped logits are free|parallelism/src/blocks/loss.cc|s@!classifier .. shape.model->capped_logits@!classifier \&\& false@|unit_parallelism
positions have no gradient|parallelism/src/blocks/embedding.cc|s@if (model.position_table > 0)@if (model.position_table > 1000000000)@|unit_parallelism
weights in 4 bits take 16|parallelism/src/block.cc|s@(blocks::kNf4Bytes - stored) / trained@0 * (blocks::kNf4Bytes - stored) / trained@|unit_parallelism
the input gradient finds its weights made|parallelism/src/blocks/common.cc|s@{&step.forward, &step.input_gradient})@{\&step.forward})@|unit_parallelism
frozen weights are in fp32 under PEFT|core/include/ns_dist/parallel_plan.h|s@plan.weights == WeightStorage::kFp32 \&\& plan.lora_rank == 0@plan.weights == WeightStorage::kFp32@|unit_parallelism
offloaded gradients stay|parallelism/src/memory.cc|s@stays = offloads_gradients(plan) ? 1 - plan.offload_optimizer.value : 1@stays = 1@|unit_parallelism
shards in low precision are fp32|core/include/ns_dist/parallel_plan.h|s@is_fsdp(plan) \&\& plan.weights != WeightStorage::kLow@is_fsdp(plan)@|unit_parallelism
a small node has a part of a port|simulator/src/machine_size.cc|s@each = std::max(each, std::min(1.0, 1 / static_cast<double>(gpus)))@each = each@|unit_simulator
a known route keeps another server's|network_model/src/calibration.cc|s@if (knows_route \&\& (curve.cluster.empty()@if (false \&\& (curve.cluster.empty()@|unit_network_model
a system is its first GPU's|network_model/src/learn/fit_rows.cc|s@std::pair(row.gpu, row.cluster), clusters@std::pair(std::string(), row.cluster), clusters@|unit_network_model
adapters are compared with whole trainings|validation/src/nearest_runs.cc|s@if (a.adapters != b.adapters) sum += 4;@@|unit_validation
lists of layers may be short|core/src/hugging_face/layers.h|s@if (entries.size() < layers) {@if (false) {@|unit_core
the larger middle is the median|core/src/error_figures.cc|s@sorted.size() % 2 == 1@true@|unit_core
gradients go back to frozen stages|parallelism/src/planner.cc|s@(at.position) >= frozen_positions_@(at.position) >= 0 * frozen_positions_@|unit_parallelism
frozen layers have the operands of a backward pass|parallelism/src/stage_state.cc|s@frozen_.quantized \* (cast@0 * frozen_.quantized * (cast@|unit_parallelism
frozen layers at work take no memory|parallelism/src/schedule_facts.cc|s@{within, bytes.frozen,@{within, 0 * bytes.frozen,@|unit_parallelism
FLOPs of frozen layers count three times|parallelism/src/step_flops.cc|s@frozen.forward += each.forward@frozen.forward += 3 * each.forward@|unit_parallelism
a frozen table that is tied has a gradient|parallelism/src/blocks/loss.cc|s@freezes_tables(\*shape.plan) \&\& shape.model->ties_logits()@false@|unit_parallelism
frozen layers drop nothing out|parallelism/src/model_parts.cc|s@own.dropout = shape.dropout@own.dropout = own.dropout@|unit_parallelism
frozen weights are never gathered again|parallelism/src/replica_exchange.cc|s@if (is_whole_in_passes(plan_)) weights@if (false) weights@|unit_parallelism
checkpoints have optimizer states of frozen layers|simulator/src/time_to_train.cc|s@- frozen \* each.optimizer@- 0 * frozen * each.optimizer@|unit_simulator
END

# Prints up to four tests of the program that fail, or how it ended where it names none; nothing where all pass.
failed_of() {
  timeout 900 "$build/tests/$1" --gtest_brief=1 >"$output" 2>&1 </dev/null
  status=$?
  [ "$status" -eq 0 ] && return
  names=$(sed -n 's/^\[  FAILED  \] \([A-Za-z_.\/0-9]*\).*/\1/p' "$output" | sort -u | head -4 | tr '\n' ' ')
  printf '%s' "${names:-$1 ends with $status }"
}

number=0 unit=0 property=0 unnoticed=0
while IFS='|' read -r what path edit tests; do
  number=$((number + 1))
  if [ "$number" -lt "$from" ] || [ "$number" -gt "$to" ]; then continue; fi
  cp "$path" "$kept" && file=$path
  sed -i "$edit" "$path"
  result=
  if cmp -s "$path" "$kept"; then
    result="the formula is not there any more: mend tools/mutants.sh"
    unnoticed=$((unnoticed + 1))
  else
    for test in $tests; do
      if ! ninja -C "$build" -j"${JOBS:-2}" "$test" >/dev/null 2>&1; then
        result="does not build: mend tools/mutants.sh"
        unnoticed=$((unnoticed + 1))
        break
      fi
      result=$(failed_of "$test")
      if [ -z "$result" ]; then continue; fi
      case $test in
        property_*) property=$((property + 1)) result="$result(property tests alone)" ;;
        *) unit=$((unit + 1)) ;;
      esac
      break
    done
    if [ -z "$result" ]; then
      result="NOBODY"
      unnoticed=$((unnoticed + 1))
    fi
  fi
  printf '%-58s %s\n' "$what" "$result"
  restore
  file=
done <"$list"
echo "noticed by unit tests: $unit, by property tests alone: $property, by nobody: $unnoticed"
[ "$unnoticed" -eq 0 ]
