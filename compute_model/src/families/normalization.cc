// Normalizations over rows in half precision, forward and backward, by library.
#include <algorithm>
#include <array>
#include <cmath>

#include "families.h"

namespace ns_dist {
namespace {

// Time of a kernel, or of the kernels of a library that has several, as a sum: `launch` us; `passes` times the least
// traffic and `again` times the traffic of reading once more what a row has beyond 4,096 columns, both at achieved
// bandwidth; `row` ns for each row that an SM handles; `element` clocks for each element that an SM handles; `column`
// ns for each column, because a row with few others beside it waits for its own loads; `sweep` ns for each row, once
// for each wave of blocks of 32 columns.
struct NormRates {
  Library library;
  Pass pass;
  double launch, passes, again, row, element, column, sweep;
};
// Non-negative least squares of the relative errors, large ones damped, over the kernels of cuDNN frontend's benchmark
// on GB200 and H200 (11 shapes; mean error 6 to 8 %, eager backward 4 %). Its times are those of data that L2 does not
// hold: 34 MB take as long as their traffic at memory's bandwidth. A wait for memory takes as long on both GPUs, so it
// is in ns, not in clocks.
// Eager PyTorch: one block a row; backward two kernels, of which the one for the weights' gradient has one block for
// each 32 columns, which reads all rows (layer_norm_kernel.cu, LaunchGammaBetaBackwardCUDAKernel). With 5,120 columns
// 28 of 132 SMs have two such blocks, and it takes twice as long as with 4,096.
constexpr std::array<NormRates, 6> kNormRates = {{
    {Library::kCudnn, Pass::kForward, 1.76, 1.07, 0, 4.2, 0, 0.22, 0},
    {Library::kCudnn, Pass::kBackward, 7.6, 1.03, 1.12, 5.1, 0, 0, 0},
    {Library::kCompiled, Pass::kForward, 1.34, 0.375, 0, 120, 0.131, 0.575, 0},
    {Library::kCompiled, Pass::kBackward, 6.1, 1.00, 0, 104, 0.462, 0.115, 0},
    {Library::kEager, Pass::kForward, 0.22, 1.00, 1.18, 95, 0, 1.03, 0},
    {Library::kEager, Pass::kBackward, 0, 1.90, 2.13, 0, 0, 0.52, 3.16},
}};
constexpr double kLongRow = 4096;   // columns that a block keeps without reading a row again
constexpr double kSweepBlock = 32;  // columns, see above
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

Estimate estimate_normalization(const Machine& machine, const Normalization& op, DType dtype, Steps& steps) {
  const Library library = library_of(op);
  const NormRates* rates = &kNormRates.front();
  for (const NormRates& row : kNormRates) {
    if (row.pass == op.pass && (row.library == library || rates->pass != op.pass)) rates = &row;
  }
  const double rows = static_cast<double>(op.rows), columns = static_cast<double>(op.columns);
  const double element = size_of(dtype) / units::B;
  const double bytes = rows * columns * (op.pass == Pass::kForward ? 2 : 3) * element;
  const double again = rates->again * rows * std::max(0.0, columns - kLongRow) * element;
  const double memory = (rates->passes * bytes + again) / machine.achieved_bandwidth;
  const double waits = rates->row * 1e-9 * row_share(rates->library, columns) * rows / machine.sms;
  const double work = rates->element * rows * columns / (machine.sms * machine.clock_rate);
  const double depth = rates->column * 1e-9 * columns;
  const double sweep = rates->sweep * 1e-9 * rows * std::ceil(columns / kSweepBlock / machine.sms);
  Estimate estimate;
  estimate.seconds = rates->launch * 1e-6 + (machine.mode == Mode::kSustained ? machine.launch - 2e-6 : 0) + memory +
                     waits + work + depth + sweep;
  estimate.spread = 1.3;
  estimate.bound = memory > waits + work + depth + sweep ? Bound::kMemory : Bound::kLaunch;
  estimate.method = "traffic, rows and columns at the library's rates";
  if (steps.on()) {
    steps.add("library", enumerator_name(rates->library));
    steps.add("launch_s", rates->launch * 1e-6);
    steps.add("memory_s", memory, "at achieved bandwidth");
    steps.add("rows_s", waits, "waits for each row of an SM");
    steps.add("elements_s", work, "instructions of the SMs");
    steps.add("columns_s", depth, "of a row, one after the other");
    if (sweep > 0) steps.add("weights_s", sweep, "blocks of 32 columns read all rows for the gradient of the weights");
  }
  return estimate;
}

}  // namespace ns_dist
