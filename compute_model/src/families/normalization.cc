// Normalizations over rows in half precision, forward and backward, by library.
#include <array>
#include <cmath>

#include "families.h"

namespace ns_dist {
namespace {

// Time of a kernel, or of the kernels of a library that has several, as a sum: `launch` s, `passes` times the least
// traffic at achieved bandwidth, and clocks of an SM for each row, for each element and for each column of a row.
struct NormRates {
  Library library;
  Pass pass;
  double launch, passes, row, element, column;
};
// Non-negative least squares of the relative errors over RMSNorm kernels of cuDNN frontend's benchmark on GB200 and
// H200 (mean error 6 % for cuDNN, 8 to 11 % for torch.compile and eager PyTorch). Their traffic was counted once, their
// launches in CUDA graphs; eager PyTorch's backward is a chain of kernels.
constexpr std::array<NormRates, 6> kNormRates = {{
    {Library::kCudnn, Pass::kForward, 2.3e-6, 0.86, 9.9, 0.04, 0.58},
    {Library::kCudnn, Pass::kBackward, 7.7e-6, 0.82, 10.3, 0.08, 0.41},
    {Library::kCompiled, Pass::kForward, 1.6e-6, 0.55, 0, 0.12, 0.94},
    {Library::kCompiled, Pass::kBackward, 7.1e-6, 0.88, 0, 0.48, 0},
    {Library::kEager, Pass::kForward, 0.2e-6, 1.10, 209, 0, 2.28},
    {Library::kEager, Pass::kBackward, 0, 1.29, 798, 0.37, 0},
}};

}  // namespace

Library library_of(const Normalization& op) { return op.library == Library::kDefault ? Library::kCudnn : op.library; }

Estimate estimate_normalization(const Machine& machine, const Normalization& op, DType dtype, Steps& steps) {
  const Library library = library_of(op);
  const NormRates* rates = &kNormRates.front();
  for (const NormRates& row : kNormRates) {
    if (row.pass == op.pass && (row.library == library || rates->pass != op.pass)) rates = &row;
  }
  const double rows = static_cast<double>(op.rows), columns = static_cast<double>(op.columns);
  const double bytes = rows * columns * (op.pass == Pass::kForward ? 2 : 3) * (size_of(dtype) / units::B);
  const double memory = rates->passes * machine.memory_seconds(bytes);
  const double work = (rates->row * rows + rates->element * rows * columns) / (machine.sms * machine.clock_rate);
  const double depth = rates->column * columns / machine.clock_rate;  // a row's columns are reduced by one block
  Estimate estimate;
  estimate.seconds =
      rates->launch + (machine.mode == Mode::kSustained ? machine.launch - 2e-6 : 0) + memory + work + depth;
  estimate.spread = 1.3;
  estimate.bound = memory > work + depth ? Bound::kMemory : Bound::kLaunch;
  estimate.method = "traffic, rows and columns at the library's rates";
  if (steps.on()) {
    steps.add("library", enumerator_name(rates->library));
    steps.add("launch_s", rates->launch);
    steps.add("memory_s", memory, "at achieved bandwidth");
    steps.add("rows_s", work, "instructions of the SMs");
    steps.add("columns_s", depth, "of a row, one after the other");
  }
  return estimate;
}

}  // namespace ns_dist
