// Normalizations over rows in half precision, forward and backward, by library.
#include <algorithm>
#include <array>
#include <cmath>

#include "families.h"

namespace ns_dist {
namespace {

// Time of a kernel, or of the kernels of a library that has several, is a sum of these terms. `launch`: us. `memory`:
// the least traffic, and `again`: the traffic of reading once more what a row has beyond 4,096 columns, both at
// achieved bandwidth. `rows`: ns for each row that an SM handles. `elements`: clocks for each element that an SM
// handles, those that only fill a block among them. `columns`: ns for each column, because a row with few others beside
// it waits for its own loads. `weights`: ns for each row, once for each wave of blocks of 32 columns.
//
// The kernels were timed back to back, as a step runs them, with data that L2 does not hold: 34 MB take as long as
// their traffic at memory's bandwidth. A wait for memory takes as long on every GPU, so it is in ns, not in clocks.
//
// Eager PyTorch: one block a row; backward two kernels, of which the one for the weights' gradient has one block for
// each 32 columns, which reads all rows (layer_norm_kernel.cu, LaunchGammaBetaBackwardCUDAKernel). With 5,120 columns
// 28 of 132 SMs have two such blocks, and it takes twice as long as with 4,096.
constexpr std::array<std::string_view, 7> kNormTerms = {"launch",   "memory",  "again",  "rows",
                                                        "elements", "columns", "weights"};
constexpr std::array<std::string_view, 7> kNormNotes = {
    "",
    "least traffic at achieved bandwidth",
    "columns beyond 4,096, read once more",
    "waits for each row of an SM",
    "instructions of the SMs",
    "of a row, one after the other",
    "blocks of 32 columns read all rows for the gradient of the weights"};
// Which terms the kernels of a library have, in the order of kNormTerms.
struct Kernels {
  Library library;
  Pass pass;
  std::array<bool, 7> has;
};
constexpr std::array<Kernels, 6> kKernels = {{
    {Library::kCudnn, Pass::kForward, {true, true, false, true, false, true, false}},
    {Library::kCudnn, Pass::kBackward, {true, true, true, true, false, false, false}},
    {Library::kCompiled, Pass::kForward, {true, true, false, true, true, true, false}},
    {Library::kCompiled, Pass::kBackward, {true, true, false, true, true, true, false}},
    {Library::kEager, Pass::kForward, {true, true, true, true, false, true, false}},
    {Library::kEager, Pass::kBackward, {true, true, true, false, false, true, true}},
}};
// Before any row is seen: a launch, and the least traffic with a tenth more.
constexpr Terms kNormPrior = {3, 1.1};
constexpr double kLongRow = 4096;   // columns that a block keeps without reading a row again
constexpr double kSweepBlock = 32;  // columns, see above
// TorchInductor: a row goes through in blocks of at most so many columns, the last one masked
// (torch/_inductor/runtime/triton_heuristics.py, MAX_R0_BLOCK).
constexpr double kColumnBlock = 2048;
constexpr double kShortRow = 1024;  // TorchInductor: the most columns of a persistent reduction, several rows a block

// Share of `row` that a row costs. TorchInductor's short rows share a block; the loads of long ones hide the wait.
double row_share(Library library, double columns) {
  if (library != Library::kCompiled) return 1;
  if (columns <= kShortRow) return 0;
  const double ratio = std::min(1.0, kLongRow / columns);
  return ratio * ratio;
}

}  // namespace

Library library_of(const Normalization& op) { return op.library == Library::kDefault ? Library::kCudnn : op.library; }

namespace {

// cuDNN's backward pass of LayerNorm against that of RMSNorm: 2.64 and 2.39 on GB200 and H200, one shape each (1,024
// rows of 12,288). It is cuDNN's alone: the fused kernels of training frameworks, which a step runs by default and
// which have its terms otherwise, were not measured.
constexpr double kLayerNormBackward = 2.5;
bool is_cudnn_layer_norm_backward(const Normalization& op) {
  return op.library == Library::kCudnn && op.pass == Pass::kBackward && op.kind == NormalizationKind::kLayerNorm;
}

TermSum sum_of(const Machine& machine, const Normalization& op, DType dtype, const Kernels& kernels) {
  const double rows = static_cast<double>(op.rows), columns = static_cast<double>(op.columns);
  const double element = size_of(dtype) / units::B, clocks = machine.sms * machine.clock_rate;
  TermSum sum;
  sum.kernel.append(name_of(kernels.library))
      .append(op.pass == Pass::kForward ? " forward/" : " backward/")
      .append(machine.gpu.id);
  sum.prior = kNormPrior;
  sum.terms = {1e-6,
               rows * columns * (op.pass == Pass::kForward ? 2 : 3) * element / machine.achieved_bandwidth,
               rows * std::max(0.0, columns - kLongRow) * element / machine.achieved_bandwidth,
               1e-9 * row_share(kernels.library, columns) * rows / machine.sms,
               rows * (columns > kColumnBlock ? std::ceil(columns / kColumnBlock) * kColumnBlock : columns) / clocks,
               1e-9 * columns,
               1e-9 * rows * std::ceil(columns / kSweepBlock / machine.sms)};
  const double longer = is_cudnn_layer_norm_backward(op) ? kLayerNormBackward : 1;
  for (std::size_t t = 0; t < kNormTerms.size(); ++t) sum.terms[t] *= kernels.has[t] ? longer : 0;
  return sum;
}

const Kernels& kernels_of(const Normalization& op) {
  const Library library = library_of(op);
  const Kernels* found = nullptr;
  for (const Kernels& row : kKernels) {
    if (row.pass == op.pass && (row.library == library || found == nullptr)) found = &row;
  }
  return *found;
}

}  // namespace

constinit const SumKind kNormalizationSum = {
    kNormTerms, {3, 0.5, 1, 50, 0.3, 0.5, 2, 1}, 0.001, 0.3, 0.3, [](const Machine& machine, const Operator& whole) {
      const auto& op = std::get<Normalization>(whole.kind);
      return sum_of(machine, op, whole.dtype, kernels_of(op));
    }};

Estimate estimate_normalization(const Machine& machine, const Normalization& op, DType dtype, const Sums& sums,
                                Steps& steps) {
  const Kernels& kernels = kernels_of(op);
  const TermSum sum = sum_of(machine, op, dtype, kernels);
  const Terms parts = parts_of(sums, sum);
  Estimate estimate;
  estimate.seconds = seconds_of(parts);
  estimate.spread = 1.3;
  const double memory = parts[1] + parts[2];
  estimate.bound = 2 * memory > estimate.seconds - parts[0] ? Bound::kMemory : Bound::kLaunch;
  estimate.method = "traffic, rows and columns at the library's rates";
  if (steps.on()) {
    steps.add("library", name_of(kernels.library));
    for (std::size_t t = 0; t < kNormTerms.size(); ++t) {
      if (parts[t] > 0) steps.add(std::string(kNormTerms[t]) + "_s", parts[t], kNormNotes[t]);
    }
  }
  return estimate;
}

}  // namespace ns_dist
