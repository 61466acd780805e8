#include "blocks/linear.h"

#include <algorithm>
#include <utility>

namespace ns_dist::blocks {

namespace {

// Collectives around a product that overlap it in parts, one for each rank: all parts but one run beside the product
// (TransformerEngine's userbuffers, ring exchange; PyTorch's async tensor parallelism). Behind a reduction, the last
// part is exposed. Before a gather nothing need be, because a rank begins with its own part; there, the exposed part
// stands for what it costs to split a product. On 60 published steps on H100 (DGX Cloud) the error is 3.1 % so (bias
// -1.4), 3.8 % with free splits (-3.1), and 6.1 % with parts that are products of their own (+4.2).
bool overlaps_products(const Shape& shape) { return shape.plan->overlap_tp && shape.sequence_parallel; }

void communicate_beside_product(const Shape& shape, std::vector<Call>& calls, std::string name, CollectiveKind kind,
                                Bytes size) {
  const auto ranks = static_cast<double>(shape.tp);
  calls.push_back({std::move(name), Communication{kind, size * ((ranks - 1) / ranks), Axis::kTensor, Beside::kKernel}});
}

// `product` between what is gathered before it and what is reduced behind it.
struct Around {
  std::string_view gathers = {}, reduces = {};  // names; empty: nothing
  Bytes gathered;
};
void add_product(const Shape& shape, std::vector<Call>& calls, Call product, const Around& around) {
  const auto ranks = static_cast<double>(shape.tp);
  const bool beside = overlaps_products(shape);
  const double exposed = beside ? 1 / ranks : 1;
  if (!around.gathers.empty()) gather(shape, calls, around.gathers, around.gathered * exposed);
  if (beside && !around.gathers.empty()) {
    communicate_beside_product(shape, calls, concat(around.gathers, ".all_gather"), CollectiveKind::kAllGather,
                               around.gathered);
  }
  if (beside && !around.reduces.empty()) {
    communicate_beside_product(shape, calls, concat(around.reduces, ".reduce_scatter"), CollectiveKind::kReduceScatter,
                               shape.hidden_states());
  }
  calls.push_back(std::move(product));
  if (!around.reduces.empty()) reduce(shape, calls, around.reduces, shape.hidden_states() * exposed);
}

class LinearLayer {
 public:
  LinearLayer(const Shape& shape, const Linear& layer)
      : shape_(shape),
        layer_(layer),
        rows_(layer.groups * layer.rows),
        held_rows_(layer.split == Split::kColumn ? layer.groups * shape.sharded_tokens : rows_),
        gradient_rows_(layer.split == Split::kRow ? layer.groups * shape.sharded_tokens : rows_),
        quantized_(is_quantized(shape) && !layer.unquantized),
        casts_again_(quantized_ && casts_again(shape, layer.keeps_original)),
        operand_(quantized_ ? shape.product_element : shape.element),
        original_(layer.original_element > 0 ? layer.original_element : shape.element),
        gathered_(bytes(layer.split == Split::kRow ? layer.out : layer.in) * (operand_ / shape.element)),
        weights_(static_cast<double>(layer.groups) * static_cast<double>(layer.in) * static_cast<double>(layer.out)),
        hidden_(static_cast<double>(layer.readers) * static_cast<double>(held_rows_) * static_cast<double>(layer.in)) {}

  BlockStep step(ActivationKind input) {
    step_.name = layer_.name;
    step_.kept_as = input;
    name_products();
    add_forward();
    add_input_gradient();
    add_weight_gradient();
    keep();
    add_transients();
    add_parameters();
    return std::move(step_);
  }

 private:
  // Outputs of the layers of the model's class that are one here.
  std::vector<std::int64_t> outputs() const {
    if (!layer_.products.empty()) return layer_.products;
    const auto parts = static_cast<std::size_t>(std::max(1, layer_.readers));
    return std::vector<std::int64_t>(parts, layer_.out / static_cast<std::int64_t>(parts));
  }

  // A product with a bias is another operator (aten.addmm).
  void name_products() {
    if (!layer_.bias) step_.products = outputs();
  }

  // Autocast casts the hidden states for each layer that reads them, and the weights once a microbatch; the casts'
  // backward passes bring gradients to fp32.
  void add_forward() {
    std::vector<Call>& calls = step_.forward;
    calls.reserve(6);
    autocast(shape_, calls, concat(layer_.name, ".input.cast"), hidden_, true);
    autocast(shape_, calls, concat(layer_.name, ".weights.cast"), weights_, true);
    if (casts_again_) {
      const double written = shape_.product_element + layer_.original_element;
      const Elementwise once = cast(shape_, held_rows_ * layer_.in, written, layer_.behind_norm);
      calls.push_back(kernel(shape_, concat(layer_.name, ".quantize"), once));
    } else if (quantized_) {
      quantize(shape_, calls, layer_.name, held_rows_ * layer_.in, layer_.behind_norm);
    }
    Around around;
    around.gathered = gathered_;
    if (layer_.split == Split::kColumn) around.gathers = layer_.region;
    if (layer_.split == Split::kRow) around.reduces = layer_.region;
    const std::size_t before = calls.size();
    add_product(shape_, calls,
                product(step_.name, layer_.rows, layer_.out, layer_.in, GemmLayout::kNT, layer_.epilogue), around);
    step_.calls_after_kept = calls.size() - before;
  }

  void add_input_gradient() {
    std::vector<Call>& calls = step_.input_gradient;
    calls.reserve(5);
    if (casts_again_) {
      // What is encoded is decoded, too, for who reads it as it was.
      quantize_again(shape_, calls, concat(layer_.name, ".input"), held_rows_ * layer_.in, original_,
                     shape_.product_element + (layer_.original_element > 0 ? shape_.element : 0));
    }
    const std::string dgrad = concat(layer_.name, ".dgrad"), grad = concat(layer_.name, ".grad");
    if (quantized_) quantize(shape_, calls, grad, gradient_rows_ * layer_.out, false);
    Around around;
    around.gathered = gathered_;
    if (layer_.split == Split::kRow) around.gathers = grad;
    add_product(shape_, calls, product(dgrad, layer_.rows, layer_.in, layer_.out, GemmLayout::kNN, Epilogue::kNone),
                around);
    autocast(shape_, calls, concat(layer_.name, ".dgrad.cast"), hidden_, false);
    // Layers that are one here bring a gradient each.
    for (int other = 1; other < layer_.readers && shape_.plan->written_out; ++other) {
      const Elementwise sum{"add", held_rows_ * layer_.in, 2, 1, 1};
      calls.push_back(hidden_kernel(shape_, concat(layer_.name, ".dgrad.add"), sum));
    }
    // Runs beside the weight gradient's product.
    if (layer_.split == Split::kColumn) reduce(shape_, calls, dgrad, bytes(layer_.in));
  }

  void add_weight_gradient() {
    std::vector<Call>& calls = step_.weight_gradient;
    calls.reserve(3);
    if (layer_.split == Split::kColumn) gather(shape_, calls, concat(layer_.name, ".input"), gathered_);
    calls.push_back(product(concat(layer_.name, ".wgrad"), layer_.out, layer_.in, layer_.rows, GemmLayout::kTN,
                            accumulation_epilogue(shape_)));
    autocast(shape_, calls, concat(layer_.name, ".wgrad.cast"), weights_, false);
    accumulate(shape_, calls, layer_.name, layer_.groups * layer_.out * layer_.in);
    if (!layer_.bias) return;
    // The output's gradient summed over rows (Megatron-LM, layers.py: `grad_output.sum(dim=0)`); behind a reduction
    // those of this rank, because the bias is added there.
    const Elementwise sum{"sum_rows", gradient_rows_ * layer_.out, 1, 0, 1};
    calls.push_back(kernel(shape_, concat(layer_.name, ".bias_gradient"), sum));
    add_to_sums(shape_, calls, concat(layer_.name, ".bias"), layer_.groups * layer_.out);
  }

  // Column-parallel layers keep this rank's part of the input and gather it again.
  void keep() {
    const bool keeps_cast = quantized_ && keeps_casts(shape_, layer_.keeps_original);
    const double each = keeps_cast ? operand_ : casts_again_ ? original_ : shape_.element;
    step_.kept_for_weight_gradient = layer_.shares_input ? 0 : held() * each;
    if (shape_.autocast && layer_.readers > 1) step_.kept_for_weight_gradient *= layer_.readers;
    if (casts_again_) step_.cast_for_weight_gradient = held() * operand_;
    // The weight gradient's product reads the cast.
    step_.output_gradient =
        static_cast<double>(rows_ * layer_.out) * (shape_.plan->lora_rank == 0 ? operand_ : shape_.element);
  }

  // Backward: the output's gradient and its cast, and the input's gradient. What closes a region has the gradient that
  // goes around the branch (Block::around), or brings it together. What opens one brings its input together, and has
  // the whole input's gradient and this rank's part of it (Megatron-Core, layers.py,
  // LinearWithGradAccumulationAndAsyncCommunication).
  void add_transients() {
    const bool comes_together = shape_.tp > 1 && shape_.sequence_parallel;
    const Split split = layer_.split;
    const auto outputs = static_cast<double>(rows_ * layer_.out), inputs = static_cast<double>(rows_ * layer_.in);
    double& transient = step_.transient_backward;
    transient = inputs * shape_.element + (quantized_ ? outputs * operand_bytes(shape_) : 0);
    if (split != Split::kRow || (comes_together && !quantized_)) transient += outputs * shape_.element;
    if (split == Split::kRow && shape_.dropout)
      transient += static_cast<double>(gradient_rows_ * layer_.out) * shape_.element;
    if (split == Split::kColumn && comes_together) transient += inputs * operand_ + held() * shape_.element;
  }

  void add_parameters() {
    step_.parameters.dense = weights_ + (layer_.bias ? static_cast<double>(layer_.groups * layer_.out) : 0);
    if (quantized_) step_.parameters.quantized = weights_;
    const Split shared = layer_.weights.value_or(layer_.split);
    if (!layer_.by_element) {
      const WeightMatrix matrix{layer_.out, layer_.in, side_of(shared), false, layer_.sections};
      add_matrices(shape_, step_, matrix, layer_.groups);
    }
    if (layer_.unquantized) return freeze_beside_adapters(shape_, step_);
    Adapter adapter{layer_.rows, layer_.in, layer_.out, 0, shared};
    if (shape_.plan->separate_adapters) adapter.parts = outputs();
    adapt(shape_, step_, adapter);
  }

  Call product(std::string text, std::int64_t m, std::int64_t n, std::int64_t k, GemmLayout layout,
               Epilogue end) const {
    Gemm gemm{layer_.groups, m, n, k, layout, end};
    if (!quantized_) return kernel(shape_, std::move(text), gemm);
    // As 8-bit products of Hopper need both operands, with the reduced dimension innermost.
    gemm.layout = GemmLayout::kNT;
    gemm.scaling = scaling_of(shape_.precision);
    return Call{std::move(text), Operator{gemm, product_type(shape_.precision)}};
  }

  Bytes bytes(std::int64_t columns) const { return static_cast<double>(rows_ * columns) * shape_.element * units::B; }
  double held() const { return static_cast<double>(held_rows_) * static_cast<double>(layer_.in); }

  const Shape& shape_;
  const Linear& layer_;
  std::int64_t rows_, held_rows_, gradient_rows_;  // of all groups; of the input and of the output's gradient, as held
  bool quantized_;
  bool casts_again_;         // keeps its input as it comes, and casts it again in the backward pass
  double operand_;           // bytes of an element of the products
  double original_;          // of one of the input as it comes
  Bytes gathered_;           // in the products' format
  double weights_, hidden_;  // elements; hidden: those of the input, for each layer that reads it
  BlockStep step_;
};

}  // namespace

BlockStep linear(const Shape& shape, ActivationKind input, const Linear& layer) {
  return LinearLayer(shape, layer).step(input);
}

BlockStep SideBySide::linear(Linear layer) {
  const bool original = recomputes(shape_, RecomputeModule::kNorm);
  const bool keeps_cast = !layer.unquantized && keeps_casts(shape_, original);
  layer.keeps_original = original && !layer.unquantized;
  layer.readers = 1;
  layer.shares_input = kept_ && !keeps_cast;
  kept_ = kept_ || !keeps_cast;
  return blocks::linear(shape_, input_, layer);
}

void add_matrices(const Shape& shape, BlockStep& step, const WeightMatrix& matrix, std::int64_t count) {
  if (shape.plan->optimizer != OptimizerKind::kMuon) return;
  add({{matrix, count}}, 1, step.matrices);
  RankParameters& trained = shape.plan->lora_rank > 0 ? step.adapters : step.parameters;
  (matrix.experts ? trained.expert_matrices : trained.matrices) += matrix.size() * static_cast<double>(count);
}

void freeze(BlockStep& step) {
  step.weight_gradient.clear();
  step.matrices.clear();
  step.adapters = {};
  step.kept_for_weight_gradient = step.output_gradient = 0;
  step.frozen = true;
}

void freeze_beside_adapters(const Shape& shape, BlockStep& step) {
  if (shape.plan->lora_rank > 0) freeze(step);
}

void adapt(const Shape& shape, BlockStep& step, const Adapter& layer) {
  const std::int64_t rank = shape.plan->lora_rank, rows = layer.rows, experts = layer.experts;
  if (rank == 0) return;
  const auto product = [&](std::string_view suffix, const Gemm& one, const GroupedGemm& grouped) {
    const std::string name = concat(step.name, suffix);
    if (experts == 0) return kernel(shape, name, one);
    GroupedGemm all = grouped;
    all.one_kernel = shape.plan->expert_products == ExpertProducts::kKernel;
    return kernel(shape, name, all);
  };
  const auto forward = [&](std::string_view suffix, std::int64_t out, std::int64_t in) {
    return product(suffix, {1, rows, out, in, GemmLayout::kNT}, {experts, rows, out, in, GemmLayout::kNT});
  };
  const auto input_gradient = [&](std::string_view suffix, std::int64_t out, std::int64_t in) {
    return product(suffix, {1, rows, in, out, GemmLayout::kNN}, {experts, rows, in, out, GemmLayout::kNN});
  };
  const auto weight_gradient = [&](std::string_view suffix, std::int64_t out, std::int64_t in) {
    const Epilogue end = accumulation_epilogue(shape);
    step.weight_gradient.push_back(
        product(suffix, {1, out, in, rows, GemmLayout::kTN, end}, {experts, rows, in, out, GemmLayout::kTN, end}));
    accumulate(shape, step.weight_gradient, step.name, std::max<std::int64_t>(1, experts) * out * in);
  };
  const auto scale = [&](std::string_view suffix, std::int64_t columns) {
    return kernel(shape, concat(step.name, suffix), Elementwise{"scale", rows * columns, 1, 1, 1});
  };
  const auto sum = [&](std::string_view suffix, std::int64_t columns, std::int64_t added = 1) {
    const auto each = static_cast<double>(added);
    return kernel(shape, concat(step.name, suffix), Elementwise{"add", rows * columns, each + 1, 1, each});
  };
  // A compiler makes one kernel of factor and sum, and one of all sums of gradients.
  const bool compiled = shape.plan->norm_library == Library::kCompiled;
  const std::int64_t parts = std::ssize(layer.parts);
  std::vector<Call> behind, gradients;
  std::erase_if(step.weight_gradient, [](const Call& call) { return std::holds_alternative<Operator>(call.what); });
  std::ptrdiff_t last_kept = 0;  // the second product's input
  for (const std::int64_t out : layer.parts) {
    last_kept = std::ssize(behind);
    behind.push_back(forward(".lora_a", rank, layer.in));
    behind.push_back(forward(".lora_b", out, rank));
    if (!compiled) behind.push_back(scale(".lora.scale", out));
    behind.push_back(sum(".lora.add", out));
    gradients.push_back(scale(".lora.scale.backward", out));
    gradients.push_back(input_gradient(".lora_b.dgrad", out, rank));
    gradients.push_back(input_gradient(".lora_a.dgrad", rank, layer.in));
    if (!compiled) gradients.push_back(sum(".lora.dgrad.add", layer.in));
    weight_gradient(".lora_b.wgrad", out, rank);
    weight_gradient(".lora_a.wgrad", rank, layer.in);
  }
  if (compiled) gradients.push_back(sum(".lora.dgrad.add", layer.in, parts));
  const auto first = insert_behind_kernels(step.forward, std::move(behind));
  step.calls_after_kept = static_cast<std::size_t>(step.forward.end() - first - last_kept) - 1;
  insert_behind_kernels(step.input_gradient, std::move(gradients));
  const std::int64_t layers = std::max<std::int64_t>(1, experts);
  if (freezes_in_4_bits(*shape.plan)) {
    const std::int64_t weights = layers * layer.in * layer.out;
    for (std::vector<Call>* calls : {&step.forward, &step.input_gradient}) {
      const Elementwise made{"dequantize", weights, nf4_bytes(shape.plan->frozen_weights) / shape.element, 1, 1};
      calls->insert(calls->begin(), kernel(shape, concat(step.name, ".dequantize"), made));
    }
    const bool one_by_one = experts > 0 && shape.plan->expert_products == ExpertProducts::kLoop;
    const double bytes = static_cast<double>(one_by_one ? weights / layers : weights) * shape.element;
    step.transient_forward += bytes;
    step.transient_backward += bytes;
    (experts == 0 ? step.in_4_bits.dense : step.in_4_bits.experts) = static_cast<double>(weights);
  }
  const double low = bytes_of(shape, rows, parts * rank);
  step.kept_for_weight_gradient += low;
  step.output_gradient += low;
  const double parameters = static_cast<double>(rank) * static_cast<double>(parts * layer.in + layer.out);
  step.matrices.clear();
  step.adapters = {};
  (experts == 0 ? step.adapters.dense : step.adapters.experts) = parameters * static_cast<double>(layers);
  const auto whole_unless = [&](Split other) { return layer.weights == other ? side_of(other) : SplitSide::kNone; };
  add_matrices(shape, step, {rank, layer.in, whole_unless(Split::kRow), experts > 0}, parts * layers);
  for (const std::int64_t out : layer.parts) {
    add_matrices(shape, step, {out, rank, whole_unless(Split::kColumn), experts > 0}, layers);
  }
}

}  // namespace ns_dist::blocks
