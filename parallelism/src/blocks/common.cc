#include "blocks/common.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <utility>

namespace ns_dist::blocks {

std::string concat(std::string_view a, std::string_view b) {
  std::string text;
  text.reserve(a.size() + b.size());
  text.append(a).append(b);
  return text;
}

Call kernel(const Shape& shape, std::string name, OperatorKind kind) {
  return {std::move(name), Operator{std::move(kind), shape.dtype}};
}

Call hidden_kernel(const Shape& shape, std::string name, OperatorKind kind) {
  return {std::move(name), Operator{std::move(kind), shape.hidden_dtype}};
}

std::vector<Call>::iterator insert_behind_kernels(std::vector<Call>& calls, std::vector<Call> added) {
  const auto last = std::find_if(calls.rbegin(), calls.rend(),
                                 [](const Call& call) { return std::holds_alternative<Operator>(call.what); });
  return calls.insert(last.base(), std::move_iterator(added.begin()), std::move_iterator(added.end()));
}

void add_mirrored(const Shape& shape, BlockStep& step, std::string_view name, const OperatorKind& kind) {
  step.forward.push_back(kernel(shape, std::string(name), kind));
  step.input_gradient.insert(step.input_gradient.begin(), kernel(shape, concat(name, ".backward"), kind));
}

void communicate(const Shape& shape, std::vector<Call>& calls, std::string name, CollectiveKind kind, Bytes size,
                 Axis axis) {
  if ((axis == Axis::kTensor ? shape.tp : shape.etp) > 1) {
    calls.push_back({std::move(name), Communication{kind, size, axis}});
  }
}

void reduce(const Shape& shape, std::vector<Call>& calls, std::string_view name, Bytes size, Axis axis) {
  const bool scatter = shape.sequence_parallel;
  communicate(shape, calls, concat(name, scatter ? ".reduce_scatter" : ".all_reduce"),
              scatter ? CollectiveKind::kReduceScatter : CollectiveKind::kAllReduce, size, axis);
}

void gather(const Shape& shape, std::vector<Call>& calls, std::string_view name, Bytes size, Axis axis) {
  if (!shape.sequence_parallel) return;
  communicate(shape, calls, concat(name, ".all_gather"), CollectiveKind::kAllGather, size, axis);
}

Epilogue accumulation_epilogue(const Shape& shape) {
  const GradAccumulation how = shape.plan->grad_accumulation;
  if (!is_fused(how) || shards_gradients(*shape.plan)) return Epilogue::kNone;
  return sums_in_fp32(how) ? Epilogue::kAccumulateFp32 : Epilogue::kAccumulate;
}

void accumulate(const Shape& shape, std::vector<Call>& calls, std::string_view name, std::int64_t parameters) {
  if (!is_fused(shape.plan->grad_accumulation)) add_to_sums(shape, calls, name, parameters);
}

void add_to_sums(const Shape& shape, std::vector<Call>& calls, std::string_view name, std::int64_t parameters) {
  // Where replicas share the gradients, each adds up its share once they are reduced.
  if (shards_gradients(*shape.plan)) return;
  // The product's gradient is read, the sum is read and written. In fp32, a cast comes first: it writes a copy of the
  // gradient, which is read (deepspeed/runtime/bf16_optimizer.py, update_hp_grads).
  const double sum = gradient_size(*shape.plan, shape.dtype) / units::B / shape.element;
  if (takes_first_gradients(*shape.plan)) {
    // Autograd keeps the first microbatch's gradient as the sum (torch/csrc/autograd/functions/accumulate_grad.h). Here
    // each microbatch has its share of the others' additions.
    const double others = static_cast<double>(shape.microbatches - 1) / static_cast<double>(shape.microbatches);
    if (others == 0) return;
    const Elementwise add{"add", parameters, 2 * sum * others, sum * others, 1};
    calls.push_back(kernel(shape, concat(name, ".wgrad.accumulate"), add));
    return;
  }
  const double cast = shape.plan->grad_accumulation == GradAccumulation::kFp32 ? sum : 0;
  calls.push_back(
      kernel(shape, concat(name, ".wgrad.accumulate"), Elementwise{"add", parameters, 1 + cast + sum, cast + sum, 1}));
}

void autocast(const Shape& shape, std::vector<Call>& calls, std::string name, double elements, bool to_low) {
  if (!shape.autocast || elements < 1) return;
  const double fp32 = shape.hidden_element / shape.element;
  calls.push_back(kernel(
      shape, std::move(name),
      Elementwise{"cast", static_cast<std::int64_t>(elements), to_low ? fp32 : 1, to_low ? 1 : fp32, 1, !to_low}));
}

void quantize(const Shape& shape, std::vector<Call>& calls, std::string_view name, std::int64_t elements,
              bool behind_norm) {
  if (!is_quantized(shape)) return;
  // A copy for the weight gradient's product, too.
  const double written = shape.plan->lora_rank == 0 ? operand_bytes(shape) : shape.product_element;
  // With factors of earlier passes, the normalization writes 8 bits itself; with those of this tensor, it finds the
  // largest value (TransformerEngine, csrc/extensions/normalization.cpp).
  if (behind_norm && delays_scaling(*shape.plan, shape.precision)) {
    if (!(written > shape.product_element)) return;
    const double moved = shape.product_element / shape.element;
    calls.push_back(kernel(shape, concat(name, ".quantize"), Elementwise{"transpose", elements, moved, moved, 0}));
    return;
  }
  calls.push_back(kernel(shape, concat(name, ".quantize"), cast(shape, elements, written, behind_norm)));
}

void quantize_again(const Shape& shape, std::vector<Call>& calls, std::string_view name, std::int64_t elements,
                    double read, double written) {
  Elementwise what = cast(shape, elements, written);
  what.inputs *= read / shape.element;
  calls.push_back(kernel(shape, concat(name, ".quantize"), std::move(what)));
}

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

}  // namespace

BlockStep linear(const Shape& shape, ActivationKind input, const Linear& layer) {
  const std::string_view name = layer.name;
  const std::int64_t rows = layer.rows, in = layer.in, out = layer.out, groups = layer.groups;
  const std::int64_t all_rows = groups * rows;
  const Split split = layer.split;
  const int readers = layer.readers;
  const double encoded = layer.original_element;  // bytes of an element
  const bool quantized = is_quantized(shape) && !layer.unquantized;
  const bool keeps_cast = quantized && keeps_casts(shape, layer.keeps_original);
  const bool casts_again = quantized && layer.keeps_original && shape.plan->lora_rank == 0;
  const double operand = quantized ? shape.product_element : shape.element;  // bytes
  const auto product = [&](std::string text, std::int64_t m, std::int64_t n, std::int64_t k, GemmLayout layout,
                           Epilogue end) {
    Gemm gemm{groups, m, n, k, layout, end};
    if (!quantized) return kernel(shape, std::move(text), gemm);
    // As 8-bit products of Hopper need both operands, with the reduced dimension innermost.
    gemm.layout = GemmLayout::kNT;
    gemm.scaling = scaling_of(shape.precision);
    return Call{std::move(text), Operator{gemm, product_type(shape.precision)}};
  };
  const std::int64_t held_rows = split == Split::kColumn ? groups * shape.sharded_tokens : all_rows;
  const std::int64_t gradient_rows = split == Split::kRow ? groups * shape.sharded_tokens : all_rows;
  // What is gathered has the products' format.
  const auto bytes = [&](std::int64_t columns) {
    return static_cast<double>(all_rows * columns) * shape.element * units::B;
  };
  const Bytes gathered = bytes(split == Split::kRow ? out : in) * (operand / shape.element);
  BlockStep step;
  step.name = name;

  step.forward.reserve(6);
  // Autocast casts the hidden states for each layer that reads them, and the weights once a microbatch; the casts'
  // backward passes bring gradients to fp32.
  const double weights = static_cast<double>(groups) * static_cast<double>(in) * static_cast<double>(out);
  const double hidden = static_cast<double>(readers) * static_cast<double>(held_rows) * static_cast<double>(in);
  autocast(shape, step.forward, concat(name, ".input.cast"), hidden, true);
  autocast(shape, step.forward, concat(name, ".weights.cast"), weights, true);
  if (casts_again) {
    const Elementwise once = cast(shape, held_rows * in, shape.product_element + encoded, layer.behind_norm);
    step.forward.push_back(kernel(shape, concat(name, ".quantize"), once));
  } else if (quantized) {
    quantize(shape, step.forward, name, held_rows * in, layer.behind_norm);
  }
  Around forward;
  forward.gathered = gathered;
  if (split == Split::kColumn) forward.gathers = layer.region;
  if (split == Split::kRow) forward.reduces = layer.region;
  const std::size_t before = step.forward.size();
  add_product(shape, step.forward, product(step.name, rows, out, in, GemmLayout::kNT, layer.epilogue), forward);
  step.calls_after_kept = step.forward.size() - before;

  step.input_gradient.reserve(5);
  const double original = encoded > 0 ? encoded : shape.element;  // bytes of an element
  if (casts_again) {
    // What is encoded is decoded, too, for who reads it as it was.
    quantize_again(shape, step.input_gradient, concat(name, ".input"), held_rows * in, original,
                   shape.product_element + (encoded > 0 ? shape.element : 0));
  }
  if (quantized) quantize(shape, step.input_gradient, concat(name, ".grad"), gradient_rows * out, false);
  const std::string dgrad = concat(name, ".dgrad"), grad = concat(name, ".grad");
  Around backward;
  backward.gathered = gathered;
  if (split == Split::kRow) backward.gathers = grad;
  add_product(shape, step.input_gradient, product(dgrad, rows, in, out, GemmLayout::kNN, Epilogue::kNone), backward);
  autocast(shape, step.input_gradient, concat(name, ".dgrad.cast"), hidden, false);
  // Layers that are one here bring a gradient each.
  if (shape.plan->written_out) {
    for (int other = 1; other < readers; ++other) {
      step.input_gradient.push_back(
          hidden_kernel(shape, concat(name, ".dgrad.add"), Elementwise{"add", held_rows * in, 2, 1, 1}));
    }
  }
  // Runs beside the weight gradient's product.
  if (split == Split::kColumn) reduce(shape, step.input_gradient, dgrad, bytes(in));

  step.weight_gradient.reserve(3);
  if (split == Split::kColumn) gather(shape, step.weight_gradient, concat(name, ".input"), gathered);
  step.weight_gradient.push_back(
      product(concat(name, ".wgrad"), out, in, rows, GemmLayout::kTN, accumulation_epilogue(shape)));
  autocast(shape, step.weight_gradient, concat(name, ".wgrad.cast"), weights, false);
  accumulate(shape, step.weight_gradient, name, groups * out * in);
  if (layer.bias) {
    // The output's gradient summed over rows (Megatron-LM, layers.py: `grad_output.sum(dim=0)`); behind a reduction
    // those of this rank, because the bias is added there.
    step.weight_gradient.push_back(
        kernel(shape, concat(name, ".bias_gradient"), Elementwise{"sum_rows", gradient_rows * out, 1, 0, 1}));
    add_to_sums(shape, step.weight_gradient, concat(name, ".bias"), groups * out);
  }

  // Column-parallel layers keep this rank's part of the input and gather it again.
  const double held = static_cast<double>(held_rows) * static_cast<double>(in);
  step.kept_as = input;
  const double each = keeps_cast ? operand : casts_again ? original : shape.element;
  step.kept_for_weight_gradient = layer.shares_input ? 0 : held * each;
  if (shape.autocast && readers > 1) step.kept_for_weight_gradient *= readers;
  if (casts_again) step.cast_for_weight_gradient = held * operand;
  // The weight gradient's product reads the cast.
  step.output_gradient = static_cast<double>(all_rows * out) * (shape.plan->lora_rank == 0 ? operand : shape.element);
  // Backward: the output's gradient and its cast, and the input's gradient. What closes a region has the gradient that
  // goes around the branch (Block::around), or brings it together. What opens one brings its input together, and has
  // the whole input's gradient and this rank's part of it (Megatron-Core, layers.py,
  // LinearWithGradAccumulationAndAsyncCommunication).
  const bool comes_together = shape.tp > 1 && shape.sequence_parallel;
  const double outputs = static_cast<double>(all_rows * out), inputs = static_cast<double>(all_rows * in);
  step.transient_backward = inputs * shape.element + (quantized ? outputs * operand_bytes(shape) : 0);
  if (split != Split::kRow || (comes_together && !quantized)) step.transient_backward += outputs * shape.element;
  if (split == Split::kRow && shape.dropout)
    step.transient_backward += static_cast<double>(gradient_rows * out) * shape.element;
  if (split == Split::kColumn && comes_together) step.transient_backward += inputs * operand + held * shape.element;
  step.parameters.dense = weights + (layer.bias ? static_cast<double>(groups * out) : 0);
  if (quantized) step.parameters.quantized = weights;
  const Split shared = layer.weights.value_or(split);
  if (!layer.by_element) add_matrices(shape, step, {out, in, side_of(shared), false, layer.sections}, groups);
  layer.unquantized ? freeze(shape, step) : adapt(shape, step, {rows, in, out, 0, shared});
  return step;
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

void freeze(const Shape& shape, BlockStep& step) {
  if (shape.plan->lora_rank == 0) return;
  step.weight_gradient.clear();
  step.matrices.clear();
  step.adapters = {};
  step.kept_for_weight_gradient = step.output_gradient = 0;
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
  const auto scale = [&](std::string_view suffix) {
    return kernel(shape, concat(step.name, suffix), Elementwise{"scale", rows * layer.out, 1, 1, 1});
  };
  const auto sum = [&](std::string_view suffix, std::int64_t columns) {
    return kernel(shape, concat(step.name, suffix), Elementwise{"add", rows * columns, 2, 1, 1});
  };
  std::vector<Call> behind = {forward(".lora_a", rank, layer.in), forward(".lora_b", layer.out, rank)};
  // A compiler makes one kernel of factor and sum.
  if (shape.plan->norm_library != Library::kCompiled) behind.push_back(scale(".lora.scale"));
  behind.push_back(sum(".lora.add", layer.out));
  const auto lora_a = insert_behind_kernels(step.forward, std::move(behind));
  step.calls_after_kept = static_cast<std::size_t>(step.forward.end() - lora_a) - 1;  // the second product's input
  insert_behind_kernels(step.input_gradient,
                        {scale(".lora.scale.backward"), input_gradient(".lora_b.dgrad", layer.out, rank),
                         input_gradient(".lora_a.dgrad", rank, layer.in), sum(".lora.dgrad.add", layer.in)});
  std::erase_if(step.weight_gradient, [](const Call& call) { return std::holds_alternative<Operator>(call.what); });
  weight_gradient(".lora_b.wgrad", layer.out, rank);
  weight_gradient(".lora_a.wgrad", rank, layer.in);
  const std::int64_t layers = std::max<std::int64_t>(1, experts);
  if (freezes_in_4_bits(*shape.plan)) {
    const std::int64_t weights = layers * layer.in * layer.out;
    for (std::vector<Call>* calls : {&step.forward, &step.input_gradient}) {
      const Elementwise made{"dequantize", weights, kNf4Bytes / shape.element, 1, 1};
      calls->insert(calls->begin(), kernel(shape, concat(step.name, ".dequantize"), made));
    }
    const bool one_by_one = experts > 0 && shape.plan->expert_products == ExpertProducts::kLoop;
    const double bytes = static_cast<double>(one_by_one ? weights / layers : weights) * shape.element;
    step.transient_forward += bytes;
    step.transient_backward += bytes;
    (experts == 0 ? step.in_4_bits.dense : step.in_4_bits.experts) = static_cast<double>(weights);
  }
  const double low = bytes_of(shape, rows, rank);
  step.kept_for_weight_gradient += low;
  step.output_gradient += low;
  const double parameters = static_cast<double>(rank) * static_cast<double>(layer.in + layer.out);
  step.matrices.clear();
  step.adapters = {};
  (experts == 0 ? step.adapters.dense : step.adapters.experts) = parameters * static_cast<double>(layers);
  const auto whole_unless = [&](Split other) { return layer.weights == other ? side_of(other) : SplitSide::kNone; };
  add_matrices(shape, step, {rank, layer.in, whole_unless(Split::kRow), experts > 0}, layers);
  add_matrices(shape, step, {layer.out, rank, whole_unless(Split::kColumn), experts > 0}, layers);
}

namespace {

// A kernel of so many elements that are read and written, in fp32 or in the format of hidden states. Products with the
// weight, or with a number of each row, and what that number's gradient becomes handle each element alone.
struct NormKernel {
  const char* what;
  double inputs, outputs, flops;
  bool in_fp32 = true, by_element = false;
};
// LlamaRMSNorm as its class writes it out (modeling_llama.py): w * (x rsqrt(mean(x^2) + eps)), in fp32 but for the
// weight, and as autograd differentiates it. Kernels of one number a row are left out.
constexpr std::array<NormKernel, 4> kRmsNormForward = {
    {{"power", 1, 1, 1}, {"mean", 1, 0, 1}, {"scale", 1, 1, 1, true, true}, {"multiply", 1, 1, 1, false, true}}};
constexpr std::array<NormKernel, 11> kRmsNormBackward = {{{"multiply", 1, 1, 1, false, true},
                                                          {"multiply", 2, 1, 1, false},
                                                          {"sum_rows", 1, 0, 1, false},
                                                          {"scale", 1, 1, 1, true, true},
                                                          {"multiply", 2, 1, 1},
                                                          {"sum", 1, 0, 1},
                                                          {"mean_backward", 0, 1, 1, true, true},
                                                          {"copy", 1, 1, 0},
                                                          {"scale", 1, 1, 1},
                                                          {"multiply", 2, 1, 1},
                                                          {"add", 2, 1, 1}}};

void add_written_out_norm(const Shape& shape, BlockStep& step, std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t kFewColumns = 256;
  const std::int64_t elements = rows * columns;
  const double low = shape.hidden_element / (size_of(DType::kFp32) / units::B);  // elements of fp32
  const auto add = [&](std::vector<Call>& calls, std::string_view suffix, const NormKernel& each) {
    const bool narrow = columns <= kFewColumns && std::string_view(each.what) == "sum_rows";
    calls.push_back(
        {concat(step.name, suffix), Operator{Elementwise{narrow ? Elementwise::kSumNarrowRows : each.what, elements,
                                                         each.inputs, each.outputs, each.flops, each.by_element},
                                             each.in_fp32 ? DType::kFp32 : shape.hidden_dtype}});
  };
  const NormKernel to_fp32{"cast", low, 1, 1, true, true}, back{"cast", 1, low, 1};
  const bool casts = low < 1;
  if (casts) add(step.forward, ".cast", to_fp32);
  for (const NormKernel& each : kRmsNormForward) {
    if (casts && !each.in_fp32) add(step.forward, ".cast", back);
    add(step.forward, "", each);
  }
  for (std::size_t i = 0; i < kRmsNormBackward.size(); ++i) {
    if (casts && kRmsNormBackward[i].in_fp32 && !kRmsNormBackward[i - 1].in_fp32)
      add(step.input_gradient, ".cast", to_fp32);
    add(step.input_gradient, ".backward", kRmsNormBackward[i]);
  }
  if (casts) add(step.input_gradient, ".cast", back);
}

}  // namespace

BlockStep norm_without_sums(const Shape& shape, std::string_view name, std::int64_t rows, std::int64_t columns) {
  const NormalizationKind kind = shape.model->norm;
  const Library library = shape.plan->norm_library;
  BlockStep step;
  step.name = name;
  if (shape.plan->written_out && library == Library::kEager && kind == NormalizationKind::kRmsNorm) {
    add_written_out_norm(shape, step, rows, columns);
  } else {
    step.forward.push_back(
        hidden_kernel(shape, step.name, Normalization{kind, rows, columns, Pass::kForward, library}));
    step.input_gradient.push_back(
        hidden_kernel(shape, concat(name, ".backward"), Normalization{kind, rows, columns, Pass::kBackward, library}));
  }
  step.kept_as = ActivationKind::kNorms;
  step.kept_for_input_gradient = hidden_bytes(shape, rows, columns);
  step.transient_backward = 2 * hidden_bytes(shape, rows, columns);  // gradients of output and input
  // PyTorch runs RMSNorm as its class writes it out (modeling_llama.py, LlamaRMSNorm): the input in fp32, for its
  // square and its product, and the normalized values in the storage format, for the product with the weight.
  if (library == Library::kEager && kind == NormalizationKind::kRmsNorm) {
    const double fp32 = static_cast<double>(rows) * static_cast<double>(columns) * (size_of(DType::kFp32) / units::B);
    step.kept_for_input_gradient += fp32;
    // Gradients of the normalized values by both factors and their sum.
    step.transient_backward += 3 * fp32;
  }
  step.parameters.dense = static_cast<double>(columns) * (kind == NormalizationKind::kLayerNorm ? 2 : 1);
  return step;
}

BlockStep norm(const Shape& shape, std::string_view name, std::int64_t rows, std::int64_t columns) {
  BlockStep step = norm_without_sums(shape, name, rows, columns);
  // Gradients of what is no product's weight are added to the sums by a kernel for each parameter (Megatron-Core,
  // distributed_data_parallel.py: main_grad.add_; PyTorch, AccumulateGrad).
  const int parameters = shape.plan->lora_rank > 0 ? 0 : shape.model->norm == NormalizationKind::kLayerNorm ? 2 : 1;
  for (int i = 0; i < parameters; ++i) add_to_sums(shape, step.input_gradient, name, columns);
  return step;
}

BlockStep stream_sum(const Shape& shape, std::string_view branch, bool mixes) {
  const std::int64_t n = shape.streams, tokens = shape.sharded_tokens, elements = tokens * shape.hidden;
  const auto streams = static_cast<double>(n);
  const std::int64_t weights = mixes ? n * (n + 2) : n, in = n * shape.hidden;
  const auto call = [&](std::string_view name, OperatorKind kind) {
    return hidden_kernel(shape, concat(branch, name), std::move(kind));
  };
  // The n x n weights of a token that mix streams are normalized 20 times by rows and columns (Sinkhorn), all others by
  // a sigmoid.
  constexpr double kRounds = 20;
  const Elementwise normalize{"stream_weights", tokens * weights, 2, 2, mixes ? 2 * kRounds : 6};
  BlockStep step;
  step.name = concat(branch, ".streams");
  step.forward.push_back(call(".streams.weights", Gemm{1, tokens, weights, in, GemmLayout::kNT}));
  step.forward.push_back(call(".streams.weights.normalize", normalize));
  step.forward.push_back(call(".streams.sum", Elementwise{"stream_sum", elements, streams, 1, 2 * streams}));
  // The gradient of each stream: what came around the branch, by the sum, and by the weights.
  step.input_gradient.push_back(call(".streams.weights.normalize.backward", normalize));
  step.input_gradient.push_back(call(".streams.weights.dgrad", Gemm{1, tokens, in, weights, GemmLayout::kNN}));
  step.input_gradient.push_back(call(
      ".streams.sum.backward", Elementwise{"stream_sum_backward", elements, 1 + 3 * streams, streams, 6 * streams}));
  if (shape.plan->lora_rank == 0) {
    step.weight_gradient.push_back(
        call(".streams.weights.wgrad", Gemm{1, weights, in, tokens, GemmLayout::kTN, accumulation_epilogue(shape)}));
    accumulate(shape, step.weight_gradient, concat(branch, ".streams.weights"), weights * in);
  }
  step.kept_as = ActivationKind::kResidualStreams;
  step.kept_for_input_gradient = hidden_bytes(shape, tokens, in);
  // A base for each weight, and scales.
  step.parameters.dense = static_cast<double>(weights * in + weights + (mixes ? 3 : 1));
  return step;
}

BlockStep branch_start(const Shape& shape, std::string_view branch, NormPlacement placement) {
  BlockStep step;
  if (placement == NormPlacement::kPost) {
    step.name = concat(branch, ".branch");
  } else {
    step = norm(shape, concat(branch, ".norm"), shape.sharded_tokens, shape.hidden);
    step.again = set_of(RecomputeModule::kNorm);
  }
  if (shape.streams > 1) return step;  // gradients meet in stream_sum
  step.input_gradient.push_back(hidden_kernel(shape, concat(branch, ".residual.backward"),
                                              Elementwise{"add", shape.sharded_tokens * shape.hidden, 2, 1, 1}));
  return step;
}

void add_gradients(const Shape& shape, BlockStep& start, std::string_view branch, int readers) {
  const Elementwise add{"add", shape.sharded_tokens * shape.hidden, 2, 1, 1};
  for (int other = 1; other < readers; ++other) {
    start.input_gradient.insert(start.input_gradient.begin(),
                                hidden_kernel(shape, concat(branch, ".inputs.dgrad.add"), add));
  }
}

namespace {

// A kernel that reads so many activations for each that it writes.
struct Pointwise {
  const char* what;
  double inputs, flops;
};
// 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), as transformers' NewGELUActivation runs it and as autograd
// differentiates it: both factors of the product, tanh, the cube, and x's gradients of all four places added up.
constexpr std::array<Pointwise, 8> kGeluForward = {{{"power", 1, 2},
                                                    {"scale", 1, 1},
                                                    {"add", 2, 1},
                                                    {"scale", 1, 1},
                                                    {"tanh", 1, 8},
                                                    {"add", 1, 1},
                                                    {"scale", 1, 1},
                                                    {"multiply", 2, 1}}};
constexpr std::array<Pointwise, 11> kGeluBackward = {{{"multiply", 2, 1},
                                                      {"multiply", 2, 1},
                                                      {"scale", 1, 1},
                                                      {"tanh_backward", 2, 3},
                                                      {"scale", 1, 1},
                                                      {"scale", 1, 1},
                                                      {"power", 1, 1},
                                                      {"scale", 1, 1},
                                                      {"multiply", 2, 1},
                                                      {"add", 2, 1},
                                                      {"add", 2, 1}}};
// x, tanh, and both factors of the last product.
constexpr std::int64_t kGeluKept = 4;

}  // namespace

BlockStep activation(const Shape& shape, ActivationKind input, std::string_view name, std::int64_t rows,
                     std::int64_t ffn, bool halves) {
  const bool gated = shape.model->gated_mlp;
  BlockStep step;
  step.name = name;
  const auto add = [&](std::vector<Call>& calls, std::string_view suffix, const char* what, double inputs,
                       double outputs, double flops, bool by_element = false) {
    calls.push_back(
        kernel(shape, concat(name, suffix), Elementwise{what, rows * ffn, inputs, outputs, flops, by_element}));
  };
  const bool written_out = shape.plan->written_out && shape.model->activation == Activation::kGeluNew;
  std::int64_t kept = gated ? (shape.plan->fused_kernels ? 2 : 3) : 1;
  const bool in_8_bits = !written_out && shape.plan->fused_kernels && keeps_activations_in_8_bits(shape);
  const double each = in_8_bits ? shape.product_element / shape.element : 1;  // of a kept element
  if (written_out) {
    // Autocast runs powers in fp32, and what is computed with them is in fp32, too (PyTorch, amp.html).
    const double fp32 = shape.hidden_element / shape.element, elements = static_cast<double>(rows * ffn);
    autocast(shape, step.input_gradient, concat(name, ".cast.backward"), elements, false);
    for (const auto& [what, inputs, flops] : kGeluForward) add(step.forward, "", what, inputs * fp32, fp32, flops);
    for (const auto& [what, inputs, flops] : kGeluBackward)
      add(step.input_gradient, ".backward", what, inputs * fp32, fp32, flops);
    autocast(shape, step.forward, concat(name, ".cast"), elements, true);
    kept = kGeluKept;
  } else if (shape.plan->fused_kernels || !gated) {
    // The kernel writes its inputs in the format in which they are kept, too.
    const double inputs = gated ? 2 : 1, copied = in_8_bits ? inputs * each : 0;
    add(step.forward, "", gated ? "gated_activation" : "bias_activation", inputs, 1 + copied, 10);
    add(step.input_gradient, ".backward", gated ? "gated_activation_backward" : "bias_activation_backward",
        1 + inputs * each, inputs, 20);
  } else {
    // The activation of one half, then its product with the other; backward, two products and the derivative.
    add(step.forward, "", "activation", 1, 1, 8, halves);
    add(step.forward, ".gate", "multiply", 2, 1, 1, halves);
    add(step.input_gradient, ".gate.backward", "multiply", 2, 1, 1, halves);
    add(step.input_gradient, ".gate.backward", "multiply", 2, 1, 1);
    add(step.input_gradient, ".backward", "activation_backward", 2, 1, 16, halves);
    if (halves) add(step.input_gradient, ".join.backward", "copy", 2, 2, 0);
  }
  step.kept_as = input;
  step.kept_for_input_gradient = bytes_of(shape, rows, kept * ffn) * each;
  // Gradients of the output and of one or both inputs; a join of these has both a second time, and no output's.
  step.transient_backward = bytes_of(shape, rows, (gated ? 3 : 2) * ffn);
  if (gated && halves && !shape.plan->fused_kernels) step.transient_backward = bytes_of(shape, rows, 4 * ffn);
  // Autocast: all but the product's half are fp32.
  if (written_out && shape.autocast) {
    step.kept_for_input_gradient += (hidden_bytes(shape, rows, ffn) - bytes_of(shape, rows, ffn)) * (kGeluKept - 1);
  }
  return step;
}

BlockStep gate(const Shape& shape, ActivationKind input, std::string_view name, std::int64_t rows,
               std::int64_t columns) {
  BlockStep step;
  step.name = name;
  step.forward.push_back(kernel(shape, step.name, Elementwise{"gated_activation", rows * columns, 2, 1, 10}));
  step.input_gradient.push_back(
      kernel(shape, concat(name, ".backward"), Elementwise{"gated_activation_backward", rows * columns, 3, 2, 20}));
  step.kept_as = input;
  step.kept_for_input_gradient = bytes_of(shape, rows, 2 * columns);
  step.transient_backward = bytes_of(shape, rows, 3 * columns);
  return step;
}

void dropout_backward(const Shape& shape, BlockStep& step, std::string_view name, DType dtype) {
  const std::int64_t elements = shape.sharded_tokens * shape.hidden;
  const Elementwise backward{"dropout_backward", elements, 1 + mask_elements(dtype), 1, 1};
  step.input_gradient.push_back({concat(name, ".dropout.backward"), Operator{backward, dtype}});
  step.kept_as = ActivationKind::kDropoutMasks;
  step.kept_for_input_gradient += static_cast<double>(elements);
}

namespace {

// The branch has the products' format, which autocast converts one by one as it adds to hidden states in fp32.
BlockStep residual(const Shape& shape, std::string_view branch) {
  const std::int64_t elements = shape.sharded_tokens * shape.hidden;
  const double of_branch = shape.element / shape.hidden_element;
  BlockStep step;
  step.name = concat(branch, ".residual");
  if (shape.dropout && shape.plan->fused_kernels) {
    const Elementwise all{"bias_dropout_add", elements, 1 + of_branch, 1 + mask_elements(shape.hidden_dtype), 4};
    step.forward.push_back(hidden_kernel(shape, concat(branch, ".dropout_add"), all));
  } else {
    if (shape.dropout) {
      const Elementwise dropout{"dropout", elements, 1, 1 + mask_elements(shape.dtype), 3};
      step.forward.push_back(kernel(shape, concat(branch, ".dropout"), dropout));
    }
    step.forward.push_back(hidden_kernel(shape, concat(branch, ".add"),
                                         Elementwise{"add", elements, 1 + of_branch, 1, 1, shape.autocast}));
  }
  if (shape.dropout) dropout_backward(shape, step, branch, shape.dtype);
  return step;
}

// Each stream is a sum of all, and of the branch's output: (n + 1) hidden states are read, n are written. The output is
// kept for the gradient of its weights.
BlockStep mixed_streams(const Shape& shape, std::string_view branch) {
  const auto n = static_cast<double>(shape.streams);
  const std::int64_t elements = shape.sharded_tokens * shape.hidden;
  BlockStep step;
  step.name = concat(branch, ".streams");
  step.forward.push_back(hidden_kernel(shape, concat(branch, ".streams.mix"),
                                       Elementwise{"stream_mix", elements, n + 1, n, 2 * n * (n + 1)}));
  step.input_gradient.push_back(
      hidden_kernel(shape, concat(branch, ".streams.mix.backward"),
                    Elementwise{"stream_mix_backward", elements, 2 * n + 1, n + 1, 4 * n * (n + 1)}));
  step.kept_as = ActivationKind::kResidualStreams;
  step.kept_for_input_gradient = hidden_bytes(shape, shape.sharded_tokens, shape.hidden);
  return step;
}

}  // namespace

void exchange_heads(const Shape& shape, std::vector<Call>& calls, std::string_view name, std::int64_t columns) {
  if (shape.cp == 1) return;
  const Bytes size = bytes_of(shape, shape.tokens, columns) * units::B;
  calls.push_back(kernel(shape, concat(name, ".pack"), Copy{size}));
  calls.push_back({std::string(name), Communication{CollectiveKind::kAllToAll, size, Axis::kContext}});
}

void end_branch(const Shape& shape, Block& block, std::string_view branch, NormPlacement placement) {
  if (placement != NormPlacement::kPre) {
    block.steps.push_back(norm(shape, concat(branch, ".post_norm"), shape.sharded_tokens, shape.hidden));
  }
  block.steps.push_back(shape.streams > 1 ? mixed_streams(shape, branch) : residual(shape, branch));
}

}  // namespace ns_dist::blocks
