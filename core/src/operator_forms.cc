#include "ns_dist/operator_forms.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "ns_dist/internal/lower_case.h"
#include "ns_dist/internal/number_from.h"
#include "ns_dist/internal/split_at.h"
#include "ns_dist/internal/with_commas.h"

namespace ns_dist {
namespace {

// Rows and columns: older tables call them m and n.
std::int64_t rows(OperatorFields& f, std::int64_t most = kLargestDimension) {
  return f.whole(f.has("b") ? "b" : "m", std::nullopt, most);
}
std::int64_t columns(OperatorFields& f) { return f.whole(f.has("h") ? "h" : "n"); }
// A column that is 0 or 1; `usual` where it is left out.
bool is_set(OperatorFields& f, std::string_view column, bool usual = false) {
  const std::int64_t value = f.whole(column, usual ? 1 : 0);
  if (value != 0 && value != 1) f.note(fmt::format("{} is {}", column, value), "0 or 1");
  return value == 1;
}

// In lower case as operands lie by rows; in capitals as cuBLAS names them, by columns: TN is a linear layer's forward,
// NN the gradient of its input, NT that of its weights.
GemmLayout layout(OperatorFields& f, GemmLayout usual) {
  if (!f.has("layout")) return usual;
  const std::string_view word = f.text("layout");
  if (word == "TN") return GemmLayout::kNT;
  if (word == "NN") return GemmLayout::kNN;
  if (word == "NT") return GemmLayout::kTN;
  const auto given = enumerator_from_name<GemmLayout>(word);
  if (!given) f.note(fmt::format("layout is \"{}\"", word), "nn, nt, tn or tt; or in cuBLAS' capitals TN, NN or NT");
  return given.value_or(usual);
}

// Whether the product adds to what is there, and in which format.
Epilogue accumulation(OperatorFields& f, std::string_view format) {
  const bool accumulates = is_set(f, "accumulate");
  const std::string_view written = f.text(format);
  const auto known = read_format(written);
  if (!written.empty() && !known) {
    f.note(fmt::format("{} is \"{}\"", format, written), fmt::format("one of {}", format_words()));
  }
  if (!accumulates) return Epilogue::kNone;
  return known && known->dtype == DType::kFp32 ? Epilogue::kAccumulateFp32 : Epilogue::kAccumulate;
}

// That of the column dtype; bf16 where it is left out.
NumberFormat format_in(OperatorFields& f) { return read_format(f.text("dtype")).value_or(NumberFormat()); }

// By our names, or by those of benchmarks.
Library library(OperatorFields& f, std::span<const std::string_view> known) {
  constexpr std::array<std::pair<std::string_view, Library>, 8> kBenchmarkNames = {
      {{"torch-cudnn", Library::kCudnn},
       {"flash2", Library::kFlash2},
       {"torch-flash2", Library::kFlash2},
       {"flash3", Library::kFlash3},
       {"torch-math", Library::kEager},
       {"pytorch", Library::kEager},
       {"torch_compile", Library::kCompiled},
       {"fused", Library::kCudnn}}};
  const std::string_view word = f.text(f.has("library") ? "library" : "backend");
  if (word.empty() || word.starts_with("te-")) return Library::kDefault;
  for (const auto& [name, library] : kBenchmarkNames) {
    if (word == name) return library;
  }
  const auto given = enumerator_from_name<Library>(word);
  if (!given || std::find(known.begin(), known.end(), word) == known.end()) {
    f.note(fmt::format("library is \"{}\"", word), fmt::format("one of {}", fmt::join(known, ", ")));
  }
  return given.value_or(Library::kDefault);
}

OperatorKind gemm(OperatorFields& f, std::string_view name) {
  Gemm op{.batch = f.whole("b", 1), .m = f.whole("m"), .n = f.whole("n"), .k = f.whole("k")};
  op.layout = layout(f, name == "bmm" ? GemmLayout::kNN : GemmLayout::kNT);
  op.epilogue = accumulation(f, "out_dtype");
  const NumberFormat format = format_in(f);
  if (format.scaled_by_block) op.scaling = Scaling::kBlock;
  if (name == "linear" && format.dtype == DType::kFp32) op.epilogue = Epilogue::kBias;
  if (name == "linear" && format.dtype == DType::kFp8) op.quantizes = true;
  return op;
}

OperatorKind attention(OperatorFields& f, std::string_view) {
  const auto either = [&](std::string_view one, std::string_view other) { return f.has(one) ? one : other; };
  Attention op;
  op.batch = f.whole("b"), op.heads = f.whole(either("heads", "h"));
  op.kv_heads = f.whole(either("kv_heads", "h_kv"), op.heads);
  op.query_length = f.whole(either("q_len", "s")), op.key_length = f.whole("kv_len", op.query_length);
  op.head_dim = f.whole(either("d_qk", "d")), op.value_dim = f.whole("d_v", op.head_dim);
  op.causal = is_set(f, "causal", true), op.window = f.whole("window", 0);
  op.library = library(f, attention_libraries()), op.deterministic = is_set(f, "deterministic");
  if (format_in(f).scaled_by_block) op.scaling = Scaling::kBlock;
  return op;
}

OperatorKind softmax(OperatorFields& f, std::string_view) {
  return Softmax{.rows = rows(f), .columns = columns(f), .library = library(f, kSoftmaxLibraries)};
}

OperatorKind normalization(OperatorFields& f, std::string_view name) {
  const bool mean = (name == "layernorm" || name == "normalization") && !is_set(f, "rms");
  const auto kind = mean ? NormalizationKind::kLayerNorm : NormalizationKind::kRmsNorm;
  return Normalization{
      .kind = kind, .rows = rows(f), .columns = columns(f), .library = library(f, normalization_libraries())};
}

struct Pointwise {
  std::string_view name;
  double inputs;
  double flops = Elementwise::flops_of(name);
  std::string_view kernel = name;
};
// Pointwise operators of PyTorch: two tensors, or a tensor and a scalar ("u"; a division by a scalar is a product).
// mlp_act reads gate and value and writes n columns. attn_rope is an inference engine's kernel, whose rows were fitted
// with 6 FLOPs an element; those of plans are other kernels, with 3.
constexpr std::array<Pointwise, 24> kPointwise = {{{"add", 2},
                                                   {"sub", 2},
                                                   {"mul", 2},
                                                   {"div", 2},
                                                   {"pow", 2},
                                                   {"addu", 1},
                                                   {"subu", 1},
                                                   {"mulu", 1},
                                                   {"divu", 1},
                                                   {"powu", 1, Elementwise::flops_of("pow")},
                                                   {"relu", 1},
                                                   {"tanh", 1},
                                                   {"gelu", 1},
                                                   {"sigmoid", 1},
                                                   {"silu", 1},
                                                   {"exp", 1},
                                                   {"sqrt", 1},
                                                   {"copy", 1, 0},
                                                   {"cast", 1, 0},
                                                   {"cat", 1, 0, Elementwise::kJoin},
                                                   {Elementwise::kIndexAdd, 2},
                                                   {Elementwise::kScatterAdd, 2},
                                                   {"attn_rope", 1, 6, Elementwise::kRope},
                                                   {"mlp_act", 2, 5, "swiglu"}}};

OperatorKind elementwise(OperatorFields& f, std::string_view name) {
  const auto* known =
      std::find_if(kPointwise.begin(), kPointwise.end(), [&](const auto& row) { return row.name == name; });
  Elementwise op;
  if (known != kPointwise.end()) {
    op.name = known->kernel, op.inputs = known->inputs, op.flops_per_element = known->flops;
  }
  op.inputs = f.real("inputs", op.inputs), op.outputs = f.real("outputs", op.outputs);
  for (const double streams : {op.inputs, op.outputs}) {
    if (!(streams >= 0 && streams <= 1000)) f.note("inputs or outputs are not from 0 to 1000");
  }
  op.by_element = is_set(f, "by_element");
  constexpr double kMost = 9e18;  // of a 64-bit integer
  const bool one_dimension = !f.has("h") && !f.has("n");
  const std::int64_t wide = one_dimension ? 1 : columns(f);
  const std::int64_t high = rows(f, wide == 1 ? kLargestAlone : kLargestDimension);
  if (high < 1 || wide < 1) f.note("a dimension is not positive");
  const double elements = static_cast<double>(high) * static_cast<double>(wide);
  if (elements < kMost) {
    op.elements = static_cast<std::int64_t>(elements);
  } else {
    f.note("the number of elements is too large");
  }
  return op;
}

OperatorKind embedding(OperatorFields& f, std::string_view) {
  return Embedding{.tokens = rows(f), .hidden = columns(f), .vocabulary = f.whole("vocabulary", std::int64_t{1} << 17)};
}

OperatorKind cross_entropy(OperatorFields& f, std::string_view) {
  return CrossEntropy{.rows = rows(f), .columns = columns(f), .library = library(f, fused_loss_libraries())};
}

OperatorKind optimizer(OperatorFields& f, std::string_view) {
  return OptimizerStep{.parameters = rows(f, kLargestAlone)};
}

OperatorKind grouped_gemm(OperatorFields& f, std::string_view) {
  GroupedGemm op{.experts = f.whole(f.has("groups") ? "groups" : "experts"),
                 .rows = f.whole("m"),
                 .n = f.whole("n"),
                 .k = f.whole("k")};
  op.layout = layout(f, GemmLayout::kNT);
  op.epilogue = accumulation(f, f.has("main_grad_dtype") ? "main_grad_dtype" : "out_dtype");
  op.one_kernel = is_set(f, "one_kernel");
  if (format_in(f).scaled_by_block) op.scaling = Scaling::kBlock;
  if (f.has("groups") && __builtin_mul_overflow(op.rows, op.experts, &op.rows)) {
    f.note("the number of rows is too large");
  }
  const std::string_view pass = f.text("pass");
  if (pass == "dgrad") op.layout = GemmLayout::kNN, std::swap(op.n, op.k);
  if (pass == "wgrad") op.layout = GemmLayout::kTN;
  return op;
}

OperatorKind moe(OperatorFields& f, std::string_view) {
  MixtureOfExperts op{.tokens = f.whole("num_tokens"),
                      .hidden = f.whole("hidden"),
                      .intermediate = f.whole("inter"),
                      .experts = f.whole("experts"),
                      .top_k = f.whole("topk")};
  const std::int64_t tp = f.whole("tp", 1);
  if (tp <= 0 || op.intermediate % tp != 0) {
    f.note(fmt::format("tp is {}, which does not divide inter", tp), "a divisor of inter");
  }
  if (tp > 0) op.intermediate /= tp;
  constexpr std::string_view kPowerLaw = "power_law_";
  const std::string_view distribution = f.text("distribution");
  if (distribution.empty() || distribution == "balanced") return op;
  const auto skew = number_from<double>(distribution.substr(std::min(kPowerLaw.size(), distribution.size())));
  if (!distribution.starts_with(kPowerLaw) || !skew) {
    f.note(fmt::format("distribution is \"{}\"", distribution), "balanced, or power_law_1.2 with another exponent");
  }
  op.skew = skew.value_or(0);
  return op;
}

// In a table, copy is the pointwise operator of that name.
OperatorKind copy(OperatorFields& f, std::string_view name) {
  if (!f.has("bytes")) return elementwise(f, name);
  return Copy{f.real("bytes") * units::B};
}

OperatorKind convolution(OperatorFields& f, std::string_view) {
  Convolution op;
  op.batch = f.whole("b"), op.in_channels = f.whole("cin"), op.out_channels = f.whole("cout");
  op.kernel = f.whole("ksize"), op.stride = f.whole("stride");
  op.in_height = f.whole(f.has("height") ? "height" : "isize");
  op.in_width = f.whole(f.has("width") ? "width" : "isize");
  op.padding = f.whole("pad", op.kernel / 2);
  return op;
}

OperatorKind unknown(OperatorFields& f, std::string_view) {
  return UnknownOperator{f.has("name") ? std::string(f.text("name")) : "unknown",
                         f.real("flops", std::nullopt, kMostFlops) * units::FLOP, f.real("read_bytes") * units::B,
                         f.real("written_bytes", 0) * units::B};
}

std::string text_of(std::int64_t value) { return std::to_string(value); }
std::string text_of(double value) { return fmt::format("{}", value); }

// Columns whose value is the usual one are left out.
template <class T>
void add_unless(ColumnTexts& c, std::string_view name, T value, T usual) {
  if (value != usual) c.emplace_back(name, text_of(value));
}

void write_layout(ColumnTexts& c, GemmLayout layout, Epilogue epilogue, std::string_view format) {
  c.emplace_back("layout", name_of(layout));
  if (epilogue != Epilogue::kAccumulate && epilogue != Epilogue::kAccumulateFp32) return;
  c.emplace_back("accumulate", "1");
  if (epilogue == Epilogue::kAccumulateFp32) c.emplace_back(format, "fp32");
}

std::string_view write_gemm(const OperatorKind& kind, ColumnTexts& c) {
  const auto& o = std::get<Gemm>(kind);
  add_unless<std::int64_t>(c, "b", o.batch, 1);
  c.insert(c.end(), {{"m", text_of(o.m)}, {"n", text_of(o.n)}, {"k", text_of(o.k)}});
  write_layout(c, o.layout, o.epilogue, "out_dtype");
  return o.quantizes ? "linear" : "gemm";
}

std::string_view write_attention(const OperatorKind& kind, ColumnTexts& c) {
  const auto& o = std::get<Attention>(kind);
  c.insert(c.end(), {{"b", text_of(o.batch)}, {"s", text_of(o.query_length)}, {"h", text_of(o.heads)}});
  c.insert(c.end(), {{"h_kv", text_of(o.kv_heads)}, {"d", text_of(o.head_dim)}, {"causal", o.causal ? "1" : "0"}});
  add_unless(c, "kv_len", o.key_length, o.query_length);
  add_unless(c, "d_v", o.value_dim, o.head_dim);
  add_unless<std::int64_t>(c, "window", o.window, 0);
  add_unless<std::int64_t>(c, "deterministic", o.deterministic ? 1 : 0, 0);
  c.emplace_back("library", name_of(o.library));
  return "attention";
}

std::string_view write_softmax(const OperatorKind& kind, ColumnTexts& c) {
  const auto& o = std::get<Softmax>(kind);
  c.insert(c.end(), {{"b", text_of(o.rows)}, {"h", text_of(o.columns)}});
  c.emplace_back("library", name_of(o.library));
  return "softmax";
}

std::string_view write_normalization(const OperatorKind& kind, ColumnTexts& c) {
  const auto& o = std::get<Normalization>(kind);
  c.insert(c.end(), {{"b", text_of(o.rows)}, {"h", text_of(o.columns)}});
  c.emplace_back("library", name_of(o.library));
  return name_of(o.kind);
}

std::string_view write_elementwise(const OperatorKind& kind, ColumnTexts& c) {
  const auto& o = std::get<Elementwise>(kind);
  c.insert(c.end(), {{"b", text_of(o.elements)}, {"h", "1"}});
  if (o.by_element) c.emplace_back("by_element", "1");
  for (const Pointwise& known : kPointwise) {
    if (known.kernel == o.name && known.inputs == o.inputs && o.outputs == 1 && known.flops == o.flops_per_element) {
      return known.name;
    }
  }
  c.insert(c.end(), {{"inputs", text_of(o.inputs)}, {"outputs", text_of(o.outputs)}});
  return "elementwise";
}

std::string_view write_embedding(const OperatorKind& kind, ColumnTexts& c) {
  const auto& o = std::get<Embedding>(kind);
  c.insert(c.end(), {{"b", text_of(o.tokens)}, {"h", text_of(o.hidden)}, {"vocabulary", text_of(o.vocabulary)}});
  return "embedding";
}

std::string_view write_cross_entropy(const OperatorKind& kind, ColumnTexts& c) {
  const auto& o = std::get<CrossEntropy>(kind);
  c.insert(c.end(), {{"b", text_of(o.rows)}, {"h", text_of(o.columns)}});
  c.emplace_back("library", name_of(o.library));
  return "cross_entropy";
}

std::string_view write_optimizer(const OperatorKind& kind, ColumnTexts& c) {
  c.insert(c.end(), {{"b", text_of(std::get<OptimizerStep>(kind).parameters)}, {"h", "1"}});
  return "optimizer";
}

std::string_view write_grouped_gemm(const OperatorKind& kind, ColumnTexts& c) {
  const auto& o = std::get<GroupedGemm>(kind);
  c.insert(c.end(), {{"experts", text_of(o.experts)}, {"m", text_of(o.rows)}, {"n", text_of(o.n)}});
  c.emplace_back("k", text_of(o.k));
  write_layout(c, o.layout, o.epilogue, "main_grad_dtype");
  if (o.one_kernel) c.emplace_back("one_kernel", "1");
  return "grouped_gemm";
}

std::string_view write_moe(const OperatorKind& kind, ColumnTexts& c) {
  const auto& o = std::get<MixtureOfExperts>(kind);
  c.insert(c.end(), {{"num_tokens", text_of(o.tokens)}, {"hidden", text_of(o.hidden)}});
  c.insert(c.end(), {{"inter", text_of(o.intermediate)}, {"experts", text_of(o.experts)}});
  c.emplace_back("topk", text_of(o.top_k));
  if (o.skew != 0) c.emplace_back("distribution", fmt::format("power_law_{}", o.skew));
  return "moe";
}

std::string_view write_copy(const OperatorKind& kind, ColumnTexts& c) {
  c.emplace_back("bytes", text_of(std::get<Copy>(kind).bytes / units::B));
  return "copy";
}

std::string_view write_convolution(const OperatorKind& kind, ColumnTexts& c) {
  const auto& o = std::get<Convolution>(kind);
  c.insert(c.end(), {{"b", text_of(o.batch)}, {"cin", text_of(o.in_channels)}, {"cout", text_of(o.out_channels)}});
  c.insert(c.end(), {{"height", text_of(o.in_height)}, {"width", text_of(o.in_width)}});
  c.insert(c.end(), {{"ksize", text_of(o.kernel)}, {"stride", text_of(o.stride)}, {"pad", text_of(o.padding)}});
  return "convolution";
}

std::string_view write_unknown(const OperatorKind& kind, ColumnTexts& c) {
  const auto& o = std::get<UnknownOperator>(kind);
  c.insert(c.end(), {{"name", o.name}, {"flops", text_of(o.flops / units::FLOP)}});
  c.insert(c.end(), {{"read_bytes", text_of(o.read / units::B)}, {"written_bytes", text_of(o.written / units::B)}});
  return "unknown";
}

constexpr std::array<OperatorForm, std::variant_size_v<OperatorKind>> kForms = {{
    {.family = "gemm",
     .description = "matrix products, single or batched, in every layout and with fused epilogues",
     .aliases = "linear matmul bmm attn_pre_proj attn_post_proj mlp_up_proj mlp_down_proj",
     .columns = "m n k (the reduction) [b layout accumulate out_dtype]",
     .shape = "[BATCHx]MxNxK",
     .dimensions = "[b] m n k",
     .example = "8192x8192x8192",
     .options = "layout out_dtype",
     .instead_of_backward = "its gradients are gemms of their own: m, k, n of the inputs and n, k, m of the weights",
     .make = gemm,
     .write = write_gemm},
    {.family = "attention",
     .description = "fused (flash) attention forward and backward; grouped queries, causal, windows",
     .columns = "b s h d (or q_len kv_len heads kv_heads d_qk d_v) [h_kv causal window pass library deterministic]",
     .shape = "BATCHxHEADSxTOKENSxDIM",
     .dimensions = "b h s d",
     .example = "1x32x4096x128",
     .options = "h_kv d_v causal window library deterministic",
     .make = attention,
     .write = write_attention},
    {.family = "softmax",
     .description = "softmax over rows, forward and backward: scaled and masked, or PyTorch's (library eager)",
     .columns = "b h (rows, columns; or m n) [pass library]",
     .shape = "ROWSxCOLUMNS",
     .dimensions = "b h",
     .example = "65536x2048",
     .options = "library",
     .make = softmax,
     .write = write_softmax},
    {.family = "normalization",
     .description = "LayerNorm and RMSNorm over rows, forward and backward",
     .aliases = "layernorm rmsnorm input_layernorm post_attention_layernorm",
     .columns = "b h [rms pass library]",
     .shape = "ROWSxCOLUMNS",
     .dimensions = "b h",
     .example = "8192x4096",
     .options = "rms library",
     .make = normalization,
     .write = write_normalization},
    {.family = "elementwise",
     .description = "pointwise operators and fused chains of them",
     .aliases = "add sub mul div pow addu subu mulu divu powu relu tanh gelu sigmoid silu exp sqrt cast cat "
                "index_add scatter_add attn_rope mlp_act",
     .columns = "b h (or m n, or m) [inputs outputs by_element]",
     .shape = "ELEMENTS or ROWSxCOLUMNS",
     .dimensions = "b [h]",
     .example = "8192x4096",
     .options = "inputs outputs by_element",
     .instead_of_backward = "write a pointwise operator that reads the gradient too: elementwise with one input more",
     .make = elementwise,
     .write = write_elementwise},
    {.family = "embedding",
     .description = "rows gathered from a table, and their gradient",
     .aliases = "emb",
     .columns = "b h (tokens, hidden) [vocabulary pass]",
     .shape = "TOKENSxHIDDENxVOCABULARY",
     .dimensions = "b h vocabulary",
     .example = "8192x4096x32000",
     .make = embedding,
     .write = write_embedding},
    {.family = "cross_entropy",
     .description = "softmax cross-entropy over a slice of the vocabulary",
     .columns = "b h (rows, columns) [pass library]",
     .shape = "ROWSxCOLUMNS",
     .dimensions = "b h",
     .example = "8192x32000",
     .options = "library",
     .make = cross_entropy,
     .write = write_cross_entropy},
    {.family = "optimizer",
     .description = "fused Adam with fp32 state",
     .aliases = "adam",
     .columns = "b (parameters)",
     .shape = "PARAMETERS",
     .dimensions = "b",
     .example = "125000000",
     .instead_of_backward = "leave the pass out",
     .make = optimizer,
     .write = write_optimizer},
    {.family = "grouped_gemm",
     .description = "matrix products of many experts in one call",
     .columns =
         "experts m (rows of all; or groups, m rows of each) n k [layout pass accumulate main_grad_dtype one_kernel]",
     .shape = "EXPERTSxROWSxNxK",
     .dimensions = "experts m n k",
     .example = "8x8192x14336x4096",
     .options = "layout out_dtype one_kernel",
     .instead_of_backward = "its gradients are grouped products of their own, n and k exchanged for the inputs",
     .make = grouped_gemm,
     .write = write_grouped_gemm},
    {.family = "moe",
     .description = "a whole gated mixture-of-experts layer as one call: routing, permutation, both products",
     .columns = "num_tokens hidden inter topk experts [tp distribution]",
     .shape = "TOKENSxHIDDENxFFNxEXPERTSxTOPK",
     .dimensions = "num_tokens hidden inter experts topk",
     .example = "4096x4096x14336x8x2",
     .instead_of_backward = "it is one call of inference; write its grouped_gemm products and pointwise kernels",
     .make = moe,
     .write = write_moe},
    {.family = "copy",
     .description = "device-to-device copies",
     .columns = "b h (or m n, or bytes)",
     .shape = "BYTES with unit",
     .example = "64MiB",
     .instead_of_backward = "leave the pass out",
     .make = copy,
     .write = write_copy},
    {.family = "convolution",
     .description = "2-D convolution as an implicit matrix product",
     .aliases = "conv",
     .columns = "b cin cout ksize isize (or height width) stride [pad pass]",
     .shape = "BATCHxINxHEIGHTxWIDTHxOUTxKERNELxSTRIDE",
     .dimensions = "b cin height width cout ksize stride",
     .example = "32x64x56x56x64x3x1",
     .make = convolution,
     .write = write_convolution},
    {.family = "unknown",
     .description = "anything else, by the FLOPs and bytes that the user gives",
     .columns = "flops read_bytes [written_bytes name]",
     .shape = "NAME, with --flops [--read --written]",
     .example = "my_kernel --flops 2TFLOP",
     .options = "flops read_bytes written_bytes",
     .instead_of_backward = "leave the pass out",
     .make = unknown,
     .write = write_unknown},
}};

}  // namespace

double OperatorFields::real(std::string_view name, std::optional<double> fallback, double most) {
  const std::string_view field = text(name);
  if (field.empty() && fallback) return *fallback;
  const auto value = number_from<double>(field);
  if (!value || !(std::abs(*value) <= most)) {
    note(field.empty() ? fmt::format("no {}", name) : fmt::format("{} is \"{}\"", name, field),
         fmt::format("a number up to {:g}", most));
    return 0;
  }
  return *value;
}

std::int64_t OperatorFields::whole(std::string_view name, std::optional<std::int64_t> fallback, std::int64_t most) {
  const std::string_view field = text(name);
  if (field.empty() && fallback) return *fallback;
  const auto value = number_from<double>(field);  // data frames write 8192 as 8192.0
  if (!value || !(std::abs(*value) <= static_cast<double>(most)) || *value != std::floor(*value)) {
    note(field.empty() ? fmt::format("no {}", name) : fmt::format("{} is \"{}\"", name, field),
         fmt::format("a whole number up to {}", with_commas(most)));
    return 0;
  }
  return static_cast<std::int64_t>(*value);
}

void OperatorFields::note(std::string problem, std::string expected) {
  if (!problem_.empty()) return;
  problem_ = std::move(problem);
  expected_ = std::move(expected);
}

std::span<const OperatorForm> operator_forms() { return kForms; }

std::vector<std::string_view> words_of(std::string_view list) {
  return list.empty() ? std::vector<std::string_view>() : split_at(list, " ");
}

const OperatorForm* find_operator_form(std::string_view name) {
  for (const OperatorForm& form : kForms) {
    if (form.family == name) return &form;
    const std::vector<std::string_view> aliases = words_of(form.aliases);
    if (std::find(aliases.begin(), aliases.end(), name) != aliases.end()) return &form;
  }
  return nullptr;
}

std::vector<std::string> operator_names() {
  std::vector<std::string> names;
  for (const OperatorForm& form : kForms) {
    names.emplace_back(form.family);
    for (const std::string_view alias : words_of(form.aliases)) names.emplace_back(alias);
  }
  return names;
}

std::string_view format_of(const Operator& op) {
  const bool by_block = std::visit(
      [](const auto& kind) {
        if constexpr (requires { kind.scaling; }) {
          return kind.scaling == Scaling::kBlock;
        } else {
          return false;
        }
      },
      op.kind);
  if (by_block && op.dtype == DType::kFp8) return "fp8-block";
  if (by_block && op.dtype == DType::kFp4) return "nvfp4";
  return name_of(op.dtype);
}

ColumnTexts columns_of(const Operator& op) {
  ColumnTexts dimensions;
  const std::string_view name = kForms[op.kind.index()].write(op.kind, dimensions);
  ColumnTexts all = {{"op", std::string(name)}, {"dtype", std::string(format_of(op))}};
  std::visit(
      [&](const auto& kind) {
        if constexpr (requires { kind.pass; }) all.emplace_back("pass", kind.pass == Pass::kForward ? "fwd" : "bwd");
      },
      op.kind);
  all.insert(all.end(), std::make_move_iterator(dimensions.begin()), std::make_move_iterator(dimensions.end()));
  return all;
}

namespace {

struct FormatWord {
  std::string_view word;
  NumberFormat format;
};
// Our names first, then those of PyTorch, of nccl-tests and of kernel benchmarks.
constexpr std::array<FormatWord, 22> kFormatWords = {{{"fp64", {DType::kFp64}},
                                                      {"double", {DType::kFp64}},
                                                      {"float64", {DType::kFp64}},
                                                      {"fp32", {DType::kFp32}},
                                                      {"float", {DType::kFp32}},
                                                      {"float32", {DType::kFp32}},
                                                      {"tf32", {DType::kTf32}},
                                                      {"fp16", {DType::kFp16}},
                                                      {"half", {DType::kFp16}},
                                                      {"float16", {DType::kFp16}},
                                                      {"bf16", {DType::kBf16}},
                                                      {"bfloat16", {DType::kBf16}},
                                                      {"fp8", {DType::kFp8}},
                                                      {"f8e4m3", {DType::kFp8}},
                                                      {"f8e5m2", {DType::kFp8}},
                                                      {"float8_e4m3fn", {DType::kFp8}},
                                                      {"float8_e5m2", {DType::kFp8}},
                                                      {"fp8-block", {DType::kFp8, true}},
                                                      {"fp8_block", {DType::kFp8, true}},
                                                      {"mxfp8", {DType::kFp8, true}},
                                                      {"fp4", {DType::kFp4}},
                                                      {"nvfp4", {DType::kFp4, true}}}};

}  // namespace

std::optional<NumberFormat> read_format(std::string_view word) {
  const auto found = std::find_if(kFormatWords.begin(), kFormatWords.end(),
                                  [lower = lower_case(word)](const FormatWord& each) { return each.word == lower; });
  return found == kFormatWords.end() ? std::nullopt : std::optional(found->format);
}

std::string format_words() {
  std::string words;
  for (const FormatWord& each : kFormatWords) words += fmt::format("{}{}", words.empty() ? "" : ", ", each.word);
  return words;
}

std::string_view family_of(const Operator& op) { return kForms[op.kind.index()].family; }

Result<void> set_pass(OperatorKind& kind, Pass pass) {
  const bool set = std::visit(
      [&](auto& op) {
        if constexpr (requires { op.pass; }) {
          op.pass = pass;
          return true;
        } else {
          return pass == Pass::kForward;
        }
      },
      kind);
  if (set) return {};
  const OperatorForm& form = kForms[kind.index()];
  return fail({ErrorCode::kInvalidInput, fmt::format("{} has no backward pass", form.family), "", "forward",
               std::string(form.instead_of_backward)});
}

}  // namespace ns_dist
