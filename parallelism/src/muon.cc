#include "muon.h"

#include <string>
#include <utility>

namespace ns_dist {
namespace {

constexpr double kBytes = 4;  // of fp32

// What a gradient, its momentum and a weight take, in elements of fp32.
struct Elements {
  double gradient = 1, momentum = 1, weight = 1;
};
Elements elements_of(const Shape& shape, DType gradient, DType weights) {
  const ParallelPlan& plan = *shape.plan;
  return {size_of(gradient) / units::B / kBytes,
          bytes_per_parameter(shape.dtype, plan.optimizer_state, plan.weights).moment / kBytes,
          size_of(weights) / units::B / kBytes};
}

// One matrix: `rows` x `columns` of it lie on this rank.
class Update {
 public:
  Update(const Shape& shape, const WeightMatrix& matrix, std::vector<Call>& calls)
      : shape_(shape),
        split_(shape.plan->muon_tp == MuonSplit::kBlockwise || ranks(shape, matrix) == 1 ? SplitSide::kNone
                                                                                         : matrix.split),
        axis_(matrix.experts ? Axis::kExpertTensor : Axis::kTensor),
        ranks_(split_ == SplitSide::kNone ? 1 : ranks(shape, matrix)),
        batch_(matrix.batch),
        calls_(calls) {}

  void elementwise(std::string_view name, std::int64_t elements, double inputs, double outputs, double flops) {
    kernel(name, Elementwise{"muon", elements, inputs, outputs, flops}, DType::kFp32);
  }
  void copy(std::string_view name, double bytes) { kernel(name, Copy{bytes * units::B}, DType::kFp32); }

  // Newton-Schulz iterations of a momentum in fp32, whose result is scaled.
  void orthogonalize(std::int64_t rows, std::int64_t columns) {
    const bool whole = shape_.plan->muon_tp == MuonSplit::kDuplicated;
    if (whole && split_ == SplitSide::kRows) rows *= ranks_;
    if (whole && split_ == SplitSide::kColumns) columns *= ranks_;
    const std::int64_t elements = batch_ * rows * columns;
    const double fp32 = kBytes * static_cast<double>(elements);
    if (whole && ranks_ > 1) {
      communicate("all_gather", CollectiveKind::kAllGather, fp32);
      copy("concat", fp32);
    }
    // Divided by its Frobenius norm.
    elementwise("norm", elements, 1, 0, 2);
    if (!whole && ranks_ > 1) communicate("norm.all_reduce", CollectiveKind::kAllReduce, 4);
    elementwise("normalize", elements, 1, 1, Elementwise::flops_of("div"));
    elementwise("cast", elements, 1, 0.5, 1);
    // The Gram matrix is that of the short side; of ranks that share the sums, of the side that is not split.
    const bool of_rows = whole || ranks_ == 1 ? rows <= columns : split_ == SplitSide::kColumns;
    const std::int64_t m = of_rows ? rows : columns, n = of_rows ? columns : rows;
    const double square = 2.0 * static_cast<double>(batch_ * m * m);  // bytes
    for (std::int64_t i = 0; i < shape_.plan->muon_steps; ++i) {
      product("gram", {batch_, m, m, n, GemmLayout::kNT});  // A = X X^T
      if (!whole && ranks_ > 1) communicate("gram.all_reduce", CollectiveKind::kAllReduce, square);
      // B = b A + c A^2 and X = a X + B X: torch.addmm copies what it adds to.
      copy("polynomial.copy", square);
      product("polynomial", {batch_, m, m, m, GemmLayout::kNN, Epilogue::kAccumulate});
      copy("product.copy", 2.0 * static_cast<double>(elements));
      product("product", {batch_, m, n, m, GemmLayout::kNN, Epilogue::kAccumulate});
    }
    elementwise("uncast", elements, 0.5, 1, 1);
    elementwise("scale", elements, 1, 1, 1);
    elementwise("scale", elements, 1, 1, 1);  // by a second factor
  }

 private:
  static std::int64_t ranks(const Shape& shape, const WeightMatrix& matrix) {
    return matrix.split == SplitSide::kNone ? 1 : matrix.experts ? shape.etp : shape.tp;
  }
  static std::string name_of(std::string_view name) { return std::string("optimizer.muon.").append(name); }
  void kernel(std::string_view name, OperatorKind kind, DType dtype) {
    calls_.push_back({name_of(name), Operator{std::move(kind), dtype}});
  }
  void product(std::string_view name, const Gemm& gemm) { kernel(name, gemm, DType::kBf16); }
  void communicate(std::string_view name, CollectiveKind kind, double bytes) {
    calls_.push_back({name_of(name), Communication{kind, bytes * units::B, axis_}});
  }

  const Shape& shape_;
  SplitSide split_;
  Axis axis_;
  std::int64_t ranks_, batch_;
  std::vector<Call>& calls_;
};

}  // namespace

std::vector<Call> muon_update(const Shape& shape, const WeightMatrix& matrix, DType gradient, DType weights) {
  const std::int64_t elements = matrix.batch * matrix.rows * matrix.columns;
  const double whole = kBytes * static_cast<double>(elements);
  const auto [read, state, weight] = elements_of(shape, gradient, weights);
  std::vector<Call> calls;
  Update update(shape, matrix, calls);
  update.elementwise("decay", elements, weight, weight, 1);
  update.elementwise("momentum", elements, read + state, state, 3);
  if (matrix.sections.empty()) {
    update.orthogonalize(matrix.rows, matrix.columns);
  } else {
    // The parts are copied out of the weight, head by head, and joined again (Megatron-Core, emerging_optimizers.py).
    update.copy("split", whole);
    for (const std::int64_t rows : matrix.sections) update.orthogonalize(rows, matrix.columns);
    update.copy("join", whole);
  }
  update.elementwise("update", elements, 1 + weight, weight, 2);
  return calls;
}

MuonParts muon_parts(const Shape& shape, const WeightMatrix& matrix, std::int64_t ranks, DType gradient,
                     DType weights) {
  const std::int64_t part = (matrix.batch * matrix.rows * matrix.columns + ranks - 1) / ranks;
  const double whole = kBytes * matrix.size();
  const auto [read, state, weight] = elements_of(shape, gradient, weights);
  MuonParts parts;
  Update momentum(shape, matrix, parts.momentum);
  momentum.elementwise("momentum", part, read + state, state, 3);
  momentum.elementwise("nesterov", part, read + state, 1, 3);
  Update orthogonal(shape, matrix, parts.orthogonal);
  orthogonal.copy("unpack", whole);
  if (matrix.sections.empty()) orthogonal.orthogonalize(matrix.rows, matrix.columns);
  for (const std::int64_t rows : matrix.sections) orthogonal.orthogonalize(rows, matrix.columns);
  orthogonal.copy("pack", whole);
  Update update(shape, matrix, parts.update);
  update.elementwise("decay", part, weight, weight, 1);
  update.elementwise("update", part, 1 + weight, weight, 2);
  return parts;
}

}  // namespace ns_dist
