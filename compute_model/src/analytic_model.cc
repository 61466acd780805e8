#include "analytic_model.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "ns_dist/internal/overloaded.h"
#include "weights_file.h"

namespace ns_dist {
namespace {

using namespace units;

// Products of experts run as a product each, in a few streams: what each loses where its first and last tiles do not
// hide behind the others', and how fast the host launches them. Transformer Engine's grouped products on B200 with 154
// to 1,024 rows an expert: 3 to 6 us beyond pooled tiles, never below 8.6 us an expert.
constexpr double kExpertRamp = 3e-6, kExpertLaunch = 8.6e-6;

// No table has batches of rows that are no multiple of 16 bytes: their interval is half to twice the forecast. Chosen,
// not fitted.
constexpr double kUnaligned = 2;

// FLOP of an SM in a clock, see odd_rows_seconds: 375, 493 and 543 on H100. On an A100 it would be 76 TFLOP/s.
constexpr double kOddRows = 470;

// A product of 16-bit numbers on a GPU of NVIDIA; null for other operators and GPUs.
const Gemm* half_gemm_on_nvidia(const Machine& machine, const Operator& op) {
  const bool half = op.dtype == DType::kBf16 || op.dtype == DType::kFp16;
  return half && machine.gpu.vendor == "nvidia" ? std::get_if<Gemm>(&op.kind) : nullptr;
}

// Elements of a row of the two operands and of the result.
std::array<std::int64_t, 3> rows_of_matrices(const Gemm& gemm) {
  return {gemm.layout == GemmLayout::kTN ? gemm.m : gemm.k, gemm.layout == GemmLayout::kNT ? gemm.k : gemm.n, gemm.n};
}

Estimate estimate_product(const Machine& machine, const Gemm& o, DType dtype, const Roofline& roofline, Steps& steps) {
  return estimate_gemm(machine, d(o.batch), d(o.m), d(o.n), d(o.k), o.layout, dtype, roofline, steps);
}

Estimate estimate_off_tensor_units(const Machine& machine, const Gemm& o, DType dtype, const Roofline& roofline,
                                   Steps& steps) {
  Estimate e = estimate_vector_gemm(machine, d(o.batch), d(o.m), d(o.n), d(o.k), o.layout, dtype, roofline, steps);
  e.method = "tiles and waves on the vector units: rows are no multiple of 16 bytes";
  e.spread = kUnaligned;
  e.extrapolated = true;
  return e;
}

Estimate estimate_experts(const Machine& machine, const GroupedGemm& o, DType dtype, const Roofline& roofline,
                          Steps& steps) {
  const double experts = std::min(d(o.experts), d(o.rows)), rows = std::ceil(d(o.rows) / experts);
  const bool weights = o.layout == GemmLayout::kTN;
  Estimate e = estimate_gemm(machine, experts, weights ? d(o.n) : rows, weights ? d(o.k) : d(o.n),
                             weights ? rows : d(o.k), o.layout, dtype, roofline, steps);
  if (o.one_kernel) return e;  // tiles of all experts share the waves
  e.seconds = std::max(e.seconds + experts * kExpertRamp, experts * kExpertLaunch);
  if (steps.on()) steps.add("experts_s", experts * kExpertRamp, "first and last tiles of each expert");
  return e;
}

Estimate estimate_moe(const Machine& machine, const MixtureOfExperts& o, DType dtype, Steps& steps) {
  const double copies = d(o.tokens) * d(o.top_k), chosen = std::min(d(o.experts), copies);
  const double rows = std::ceil(copies / chosen);
  const auto product = [&](double n, double k) {
    return estimate_gemm(machine, chosen, rows, n, k, GemmLayout::kNT, dtype, Roofline{}, steps);
  };
  Estimate up = product(2 * d(o.intermediate), d(o.hidden));
  const Estimate down = product(d(o.hidden), d(o.intermediate));
  // Permuted rows in, gated rows between the products, weighted sum out.
  const double moved = copies * (3 * d(o.hidden) + 3 * d(o.intermediate));
  up.seconds += down.seconds + 3 * machine.launch + moved * (size_of(dtype) / B) / machine.achieved_bandwidth;
  up.method = "two grouped products and their permutations";
  up.spread = 1.8;
  return up;
}

Estimate estimate_convolution(const Machine& machine, const Convolution& o, DType dtype, Steps& steps) {
  const double rows = d(o.batch) * o.out_height() * o.out_width();
  const double depth = d(o.in_channels) * d(o.kernel) * d(o.kernel);
  Estimate e = estimate_gemm(machine, 1, rows, d(o.out_channels), depth, GemmLayout::kNN, dtype, Roofline{}, steps);
  if (o.pass == Pass::kBackward) e.seconds *= 2;  // data and weight gradients, as many products each
  e.method = "implicit matrix product";
  e.spread = 1.6;  // chosen, not fitted
  return e;
}

// Neither tile nor kernel is known: the roofline at achieved rates, and a wide interval, both chosen.
Estimate estimate_unknown(const Machine& machine, const Roofline& roofline) {
  constexpr double kShareOfPeak = 0.6;
  const double memory = roofline.memory * machine.bandwidth / machine.achieved_bandwidth;
  const double compute = roofline.compute / kShareOfPeak;
  Estimate e;
  e.seconds = machine.launch + overlap(compute, memory);
  e.bound = machine.launch > std::max(compute, memory) ? Bound::kLaunch
            : compute > memory                         ? Bound::kCompute
                                                       : Bound::kMemory;
  e.method = "roofline of an unknown operator";
  e.spread = 2.5;
  e.extrapolated = true;
  return e;
}

}  // namespace

bool on_matrix_units(const Operator& op) {
  return std::holds_alternative<Gemm>(op.kind) || std::holds_alternative<Attention>(op.kind) ||
         std::holds_alternative<GroupedGemm>(op.kind) || std::holds_alternative<MixtureOfExperts>(op.kind) ||
         std::holds_alternative<Convolution>(op.kind);
}

bool AnalyticModel::is_off_tensor_units(const Operator& op) const {
  const Gemm* gemm = half_gemm_on_nvidia(machine_, op);
  if (gemm == nullptr || gemm->batch == 1) return false;
  // cuBLAS for Hopper and later was seen to fall back to tensor units of before (odd_rows_seconds).
  constexpr double kHopper = 9;  // compute capability
  if (capability_of(machine_.gpu) >= kHopper) return false;
  const std::int64_t line = 8;  // elements of 2 bytes
  const auto rows = rows_of_matrices(*gemm);
  return std::any_of(rows.begin(), rows.end(), [&](std::int64_t row) { return row % line != 0; });
}

double AnalyticModel::odd_rows_seconds(const Operator& op) const {
  const Gemm* gemm = half_gemm_on_nvidia(machine_, op);
  if (gemm == nullptr || machine_.gpu.tensor[op.dtype] <= FlopsPerSecond()) return 0;
  const auto rows = rows_of_matrices(*gemm);
  // A matrix of one row or column is a vector.
  if (is_off_tensor_units(op) || std::min({gemm->m, gemm->n, gemm->k}) == 1) return 0;
  if (std::none_of(rows.begin(), rows.end(), [](std::int64_t row) { return row % 2 != 0; })) return 0;
  return machine_.launch + work_of(op).flops / FLOP / (kOddRows * machine_.sms * machine_.clock_rate);
}

Roofline AnalyticModel::roofline_of(const Operator& op, const Work& work) const {
  double peak = machine_.vector_rate(op.dtype);
  if (on_matrix_units(op)) peak = machine_.peak(op.dtype);
  if (std::holds_alternative<UnknownOperator>(op.kind)) peak = std::max(peak, machine_.peak(op.dtype));
  const double bytes = (work.read + work.written) / B;
  if (machine_.mode == Mode::kSustained) return {work.flops / FLOP / peak, bytes / machine_.bandwidth, bytes};
  // A kernel run again and again alone finds in L2 what fits there; an SM takes 64 bytes a clock from it (Jia et al.
  // 2018, "Dissecting the NVIDIA Volta GPU architecture via microbenchmarking", table 3.1; the same since).
  const double clock = machine_.gpu.boost_clock / Hz;
  const double l2_bandwidth =
      clock > 0 ? std::max(machine_.bandwidth, machine_.sms * 64 * clock) : 4 * machine_.bandwidth;
  return {work.flops / FLOP / peak,
          std::max(bytes / l2_bandwidth, std::max(0.0, bytes - machine_.l2) / machine_.bandwidth), bytes};
}

Bound AnalyticModel::bound_of(const Roofline& roofline, double seconds) const {
  if (roofline.floor() < 0.25 * seconds && seconds < 5 * machine_.launch) return Bound::kLaunch;
  return roofline.compute >= roofline.memory ? Bound::kCompute : Bound::kMemory;
}

double AnalyticModel::seconds(const Operator& op) const {
  Steps no_steps(nullptr);
  const Work work = work_of(op);
  return estimate(op, work, roofline_of(op, work), no_steps).seconds;
}

Estimate AnalyticModel::streaming(const Operator& op, const Work& work, double passes, std::string_view method,
                                  Steps& steps) const {
  const double traffic = passes * ((work.read + work.written) / B);
  return estimate_streaming(machine_, traffic, work.flops / FLOP, op.dtype, method, steps);
}

Estimate AnalyticModel::estimate(const Operator& op, const Work& work, const Roofline& roofline, Steps& steps) const {
  constexpr std::string_view kStreamed = "traffic over achieved bandwidth";
  const double least = (work.read + work.written) / B;
  return std::visit(
      Overloaded{
          [&](const Gemm& o) {
            const auto product = is_off_tensor_units(op) ? estimate_off_tensor_units : estimate_product;
            return product(machine_, o, op.dtype, roofline, steps);
          },
          [&](const GroupedGemm& o) { return estimate_experts(machine_, o, op.dtype, roofline, steps); },
          [&](const MixtureOfExperts& o) { return estimate_moe(machine_, o, op.dtype, steps); },
          [&](const Attention& o) {
            return estimate_attention(machine_, o, op.dtype, roofline, standard_sums(Predictor::kTrainingAttention),
                                      steps);
          },
          [&](const Softmax& o) {
            return estimate_rows(machine_, softmax_kernel(machine_, o, op.dtype), least, kStreamed, steps);
          },
          [&](const Normalization& o) {
            const bool half = op.dtype == DType::kFp16 || op.dtype == DType::kBf16;
            // Fitted in half precision. In fp32 NVIDIA's forward kernels were measured; backward the same ones as in
            // half precision run on more bytes: LayerNorm of eager PyTorch on H100 is 5.8 % off
            // (compute_model/measurements).
            const bool backward = o.pass == Pass::kBackward && machine_.gpu.vendor == "nvidia";
            if ((half || backward) && library_of(o) != Library::kServing) {
              return estimate_normalization(machine_, o, op.dtype, standard_sums(Predictor::kNormalization), steps);
            }
            return estimate_rows(machine_, normalization_kernel(machine_, o, op.dtype), least, kStreamed, steps);
          },
          [&](const Elementwise& o) {
            const RowKernel kernel = pointwise_kernel(machine_, o);
            if (kernel.clocks > 0) return estimate_rows(machine_, kernel, least, kStreamed, steps);
            return streaming(op, work, kernel.passes, kStreamed, steps);
          },
          // Scattered rows and, backward, atomics: traffic over the least. Chosen, not fitted.
          [&](const Embedding& o) { return streaming(op, work, o.pass == Pass::kForward ? 1.2 : 2, kStreamed, steps); },
          // 20 bytes for each bf16 logit. Megatron's vocab_parallel_cross_entropy moves 52 in kernels of its own (cast,
          // maximum, difference, exponential, sum, quotient; backward a product and a cast), TransformerEngine's fused
          // one 10. Published steps do not say which ran: 52 makes zero-bubble's 19 % too long at most.
          // FlashAttention's (csrc/xentropy) 8: it reads them for the maximum and again for the sum, and backward once.
          // Liger's 6, all forward: it reads them twice and writes the gradient in their place.
          [&](const CrossEntropy& o) {
            const bool few = o.library == Library::kFlash2, liger = o.library == Library::kLiger;
            const double passes = o.pass == Pass::kForward ? (few ? 2 : liger ? 3 : 6) : (few ? 1 : 2);
            return streaming(op, work, passes, kStreamed, steps);
          },
          // Four streams in and three or four out.
          [&](const OptimizerStep&) { return streaming(op, work, kChunkPasses, kStreamed, steps); },
          [&](const Copy&) { return streaming(op, work, 1, kStreamed, steps); },
          [&](const Convolution& o) { return estimate_convolution(machine_, o, op.dtype, steps); },
          [&](const UnknownOperator&) { return estimate_unknown(machine_, roofline); },
      },
      op.kind);
}

}  // namespace ns_dist
