// One function a family of operators: how long its kernels take on a machine, in seconds.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "machine.h"
#include "term_sums.h"

namespace ns_dist {

inline double d(std::int64_t value) { return static_cast<double>(value); }  // sizes in formulas

// What physics allows for some work: each pipe at its nominal peak.
struct Roofline {
  double compute = 0, memory = 0;  // s
  double bytes = 0;                // least traffic
  double floor() const { return compute > memory ? compute : memory; }
};

struct Estimate {
  double seconds = 0;
  double low = 0, high = 0;  // 90 % interval; zeros: [seconds / spread, seconds * spread]
  double spread = 1.35;
  Bound bound = Bound::kMemory;
  std::int64_t waves = 0;
  std::string_view tile = "", method = "";
  bool extrapolated = false;
  double watts = 0;  // 0: unknown
};

// A size of tile that libraries have kernels for.
struct Tile {
  double m = 0, n = 0;
  double efficiency = 1;  // of an SM's best rate: a tile loads (m + n) elements for m * n products a step of k
  std::string_view name = "";
};
// Waves that count for time, of `exact` = tiles over SMs: other work hides a share of the last one's idle part (k is
// split or streamed over the idle SMs), never below one tile.
inline double timed_waves(double exact, double tail_overlap = 0.5) {
  const double whole = std::ceil(exact);
  return std::max(1.0, whole - tail_overlap * (whole - exact));
}

// A kernel cut into tiles, as its family found it.
struct Tiled {
  std::string_view tile = "";
  double tiles = 0, waves = 0;                  // waves: tiles over SMs, rounded up
  double compute = 0, memory = 0, seconds = 0;  // s, without launch; seconds: both together
};

// Collects the steps of an explanation; does nothing when nobody asked.
class Steps {
 public:
  explicit Steps(std::vector<ExplanationStep>* out) : out_(out) {}
  template <class Value>
  void add(std::string_view name, const Value& value, std::string_view note = "") {
    if (out_ != nullptr) out_->push_back({std::string(name), to_string(value), std::string(note)});
  }
  static std::string to_string(double value);
  static std::string to_string(std::string_view value) { return std::string(value); }
  bool on() const { return out_ != nullptr; }

 private:
  std::vector<ExplanationStep>* out_;
};

// Tiles finish at different times, so about half of an epilogue's traffic hides behind other tiles' products: weight
// gradients of experts that add to fp32, Transformer Engine on an A100, are within 8 % so.
inline constexpr double kExposedEpilogue = 0.5;
Estimate estimate_gemm(const Machine& machine, double batch, double m, double n, double k, GemmLayout layout,
                       DType dtype, const Roofline& roofline, Steps& steps);
// The same in FP32, on vector units or AMD's FP32 matrix units, and in formats without matrix units.
Estimate estimate_vector_gemm(const Machine& machine, double batch, double m, double n, double k, GemmLayout layout,
                              DType dtype, const Roofline& roofline, Steps& steps);
// Half-precision and FP8 products on tensor units. An SM computes tile after tile at the nominal rate; power caps what
// all SMs do together (`ceiling`, FLOP/s), whether or not the last wave fills them; memory and L2 feed both. So a
// product that leaves SMs idle is slow where nothing else limits (A100: whole waves), and loses nothing where power
// does (H200, B200). Kernels that wait for warps (compute capability 8.x, 12.x) run whole waves; those of Hopper and
// Blackwell (9.x, 10.x) are persistent and split what is left over. `sustained`: in a long run. The constants are
// common to all GPUs: minimum of the mean error on samples of published tables of A100, A40, H100, H200, B200, B300,
// GB200 and L40S, each generation judged with the bias of the others; it is flat, 10 % in any of them changes the error
// by 0.1.
Tiled tensor_product(const Machine& machine, double batch, double m, double n, double k, DType dtype, double ceiling,
                     bool sustained);
// Of such a product, s: its operands and result from memory, nothing in L2.
double streamed_product(const Machine& machine, double batch, double m, double n, double k, DType dtype);
// Of such a product, s: launch and drain.
double tensor_launch(const Machine& machine);
// Bytes of the matrices of a product.
struct ProductBytes {
  double a = 0, b = 0, c = 0;  // b: weights; c: the result, in bf16 where operands have 8 or 4 bits
  double all() const { return a + b + c; }
};
ProductBytes product_bytes(double batch, double m, double n, double k, DType dtype);
// Of these, those that a benchmark finds in L2.
double bytes_found_in_l2(const Machine& machine, const ProductBytes& bytes);
// `sums`: coefficients of kAttentionSum.
Estimate estimate_attention(const Machine& machine, const Attention& op, DType dtype, const Roofline& roofline,
                            const Sums& sums, Steps& steps);
extern const SumKind kAttentionSum, kNormalizationSum;
// Whether the library's kernel was measured on GPUs that run the same kernels.
bool has_attention_rates(const Attention& op, const Gpu& gpu);
// Both passes by library, fitted in half precision; backward in fp32, too. `sums`: coefficients of kNormalizationSum.
Estimate estimate_normalization(const Machine& machine, const Normalization& op, DType dtype, const Sums& sums,
                                Steps& steps);
// A memory-bound kernel that moves `traffic` bytes and does `flops` on the vector units.
Estimate estimate_streaming(const Machine& machine, double traffic, double flops, DType dtype, std::string_view method,
                            Steps& steps);

// A kernel over rows that are normalized: its traffic as a multiple of the least, and the clocks that each SM computes
// beside it.
struct RowKernel {
  double passes = 1, clocks = 0;
};
// Kernels that go through chunks of many tensors (multi_tensor_apply): PyTorch's fused AdamW, the norm of the gradients
// and their clipping in fp32 have 2.65 TB/s on H100, where others have 3.03 (compute_model/measurements).
constexpr double kChunkPasses = 1.14;
RowKernel pointwise_kernel(const Machine& machine, const Elementwise& op);
RowKernel softmax_kernel(const Machine& machine, const Softmax& op, DType dtype);
RowKernel normalization_kernel(const Machine& machine, const Normalization& op, DType dtype);
// Its times. `least`: bytes.
Tiled row_times(const Machine& machine, const RowKernel& kernel, double least);
Estimate estimate_rows(const Machine& machine, const RowKernel& kernel, double least, std::string_view method,
                       Steps& steps);

// The kernel with `launch` and `excess` seconds of traffic beyond its tiles'.
Estimate estimate_tiled(double launch, const Tiled& kernel, double excess = 0);

// The slower of two pipes, rounded where they meet: a kernel near the ridge overlaps them imperfectly.
double overlap(double compute, double memory);

}  // namespace ns_dist
