#include "ns_dist/kernel_table.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <memory>
#include <set>

namespace ns_dist {
namespace {

Error error_at(std::string where, std::string message, std::string expected = "", std::string hint = "") {
  Error error;
  error.message = std::move(message);
  error.where = std::move(where);
  error.expected = std::move(expected);
  error.hint = std::move(hint);
  return error;
}

constexpr std::size_t kLargestText = std::size_t{4} << 30;  // of an unpacked table, bytes

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";  // spreadsheets mark UTF-8 so

Error unopened(const std::filesystem::path& path) {
  Error error = error_at(path.string(), "cannot be opened");
  error.code = ErrorCode::kNotFound;
  return error;
}

bool is_blank(char c) { return c == ' ' || c == '\t'; }

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

// Without the blanks and the quotes around it.
std::string_view value_of(std::string_view field) {
  field = trimmed(field);
  if (field.size() >= 2 && field.front() == '"' && field.back() == '"') field = field.substr(1, field.size() - 2);
  return field;
}

// Hands over the fields of a line as they stand there.
template <class OnField>
void split(std::string_view line, const OnField& on_field) {
  std::size_t begin = 0;
  while (true) {
    std::size_t start = begin;
    while (start < line.size() && is_blank(line[start])) ++start;
    std::size_t end = begin;
    if (start < line.size() && line[start] == '"') {
      end = line.find('"', start + 1);
      while (end != std::string_view::npos && end + 1 < line.size() && line[end + 1] == '"')
        end = line.find('"', end + 2);
      if (end == std::string_view::npos) end = line.size();
      end = line.find(',', end);
    } else {
      end = line.find(',', begin);
    }
    if (end == std::string_view::npos) end = line.size();
    on_field(line.substr(begin, end - begin));
    if (end >= line.size()) return;
    begin = end + 1;
  }
}

}  // namespace

Result<CsvTable> CsvTable::read(const std::filesystem::path& path) {
  struct Close {
    void operator()(gzFile file) const { gzclose(file); }
  };
  const std::unique_ptr<gzFile_s, Close> file(gzopen(path.c_str(), "rb"));
  if (!file) return fail(unopened(path));
  std::string text;
  std::vector<char> buffer(1 << 20);
  while (true) {
    const int count = gzread(file.get(), buffer.data(), static_cast<unsigned>(buffer.size()));
    if (count < 0) return fail(error_at(path.string(), "cannot be unpacked", "CSV, plain or gzipped"));
    if (count == 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(count));
    if (text.size() > kLargestText)
      return fail(error_at(path.string(), "unpacks to more than 4 GiB", "a smaller table"));
  }
  int status = Z_OK;
  gzerror(file.get(), &status);
  if (status != Z_OK && status != Z_STREAM_END)
    return fail(error_at(path.string(), "is cut short", "a whole gzip file"));
  return parse(std::move(text), path.string());
}

void CsvTable::find_rows(std::int64_t lines_before) {
  const std::string_view all = text_;
  std::size_t begin = lines_before == 0 && all.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
  std::int64_t line = lines_before;
  while (begin < all.size()) {
    std::size_t end = all.find('\n', begin);
    if (end == std::string_view::npos) end = all.size();
    std::size_t size = end - begin;
    if (size > 0 && all[begin + size - 1] == '\r') --size;
    ++line;
    if (size > 0) rows_.push_back({begin, size, line});
    begin = end + 1;
  }
}

Result<CsvTable> CsvTable::parse(std::string text, std::string where) {
  CsvTable table;
  table.text_ = std::move(text);
  table.where_ = std::move(where);
  table.find_rows(0);
  if (table.rows_.empty()) return fail(error_at(table.where_, "is empty", "a header line and rows"));
  split(table.text(0), [&](std::string_view name) { table.columns_.emplace_back(value_of(name)); });
  table.rows_.erase(table.rows_.begin());
  std::set<std::string> seen;
  for (const std::string& name : table.columns_) {
    if (!seen.insert(name).second) return fail(error_at(table.where_ + ":1", "column \"" + name + "\" appears twice"));
  }
  return table;
}

struct CsvStream::File {
  gzFile file = nullptr;
  double size = 0;  // bytes, packed
  bool ended = false;
  ~File() {
    if (file != nullptr) gzclose(file);
  }
};

CsvStream::CsvStream() : file_(std::make_unique<File>()) {}
CsvStream::CsvStream(CsvStream&&) noexcept = default;
CsvStream::~CsvStream() = default;

// Until `rest_` holds a line break after `size` bytes, or the file ends.
Result<void> CsvStream::fill(std::size_t size) {
  const std::string& where = header_.where_;
  while (!file_->ended && rest_.find('\n', size) == std::string::npos) {
    constexpr std::size_t kStep = std::size_t{1} << 20, kLongestLine = std::size_t{64} << 20;
    if (rest_.size() > size + kLongestLine) {
      return fail(error_at(where, "has a line of more than 64 MiB", "rows, each on a line of its own"));
    }
    const std::size_t before = rest_.size();
    rest_.resize(before + kStep);
    const int count = gzread(file_->file, rest_.data() + before, static_cast<unsigned>(kStep));
    if (count < 0) return fail(error_at(where, "cannot be unpacked", "CSV, plain or gzipped"));
    rest_.resize(before + static_cast<std::size_t>(count));
    file_->ended = count == 0;
  }
  int status = Z_OK;
  gzerror(file_->file, &status);
  if (status != Z_OK && status != Z_STREAM_END) return fail(error_at(where, "is cut short", "a whole gzip file"));
  return {};
}

Result<CsvStream> CsvStream::open(const std::filesystem::path& path) {
  CsvStream stream;
  stream.header_.where_ = path.string();
  stream.file_->file = gzopen(path.c_str(), "rb");
  if (stream.file_->file == nullptr) return fail(unopened(path));
  std::error_code unknown;
  const auto size = std::filesystem::file_size(path, unknown);
  if (!unknown) stream.file_->size = static_cast<double>(size);
  // Blank lines may stand before the header.
  while (true) {
    NS_TRY_VOID(stream.fill(0));
    const std::size_t end = std::min(stream.rest_.find('\n'), stream.rest_.size());
    std::string line = stream.rest_.substr(0, end);
    const bool is_last = end == stream.rest_.size();
    stream.rest_.erase(0, end + (is_last ? 0 : 1));
    if (!is_last && (line.empty() || line == "\r" || line == kByteOrderMark)) {
      ++stream.lines_;
      continue;
    }
    NS_TRY(stream.header_, CsvTable::parse(std::move(line), path.string()));
    return stream;
  }
}

Result<CsvTable> CsvStream::next() {
  constexpr std::size_t kPiece = std::size_t{1} << 20;
  NS_TRY_VOID(fill(kPiece));
  const std::size_t end = file_->ended ? rest_.size() : rest_.rfind('\n') + 1;
  CsvTable piece;
  piece.where_ = header_.where_;
  piece.columns_ = header_.columns_;
  piece.text_ = rest_.substr(0, end);
  rest_.erase(0, end);
  piece.find_rows(lines_);
  lines_ += std::count(piece.text_.begin(), piece.text_.end(), '\n');
  // A piece of blank lines is not the end.
  if (piece.rows_.empty() && !piece.text_.empty() && !(file_->ended && rest_.empty())) return next();
  return piece;
}

double CsvStream::share() const {
  return file_->size > 0 ? std::min(1.0, static_cast<double>(gzoffset(file_->file)) / file_->size) : 0;
}

std::optional<std::size_t> CsvTable::column(std::string_view name) const {
  const auto found = std::find(columns_.begin(), columns_.end(), name);
  if (found == columns_.end()) return std::nullopt;
  return static_cast<std::size_t>(found - columns_.begin());
}

std::size_t CsvTable::fields(std::size_t row, std::vector<std::string_view>& out) const {
  out.clear();
  std::size_t count = 0;
  split(text(row), [&](std::string_view field) {
    if (++count <= columns_.size()) out.push_back(value_of(field));
  });
  return count;
}

void CsvTable::raw_fields(std::size_t row, std::vector<std::string_view>& out) const {
  out.clear();
  split(text(row), [&](std::string_view field) {
    if (out.size() < columns_.size()) out.push_back(field);
  });
}

namespace {

enum Column : std::size_t {
  kGpu,
  kOp,
  kDtype,
  kLatency,
  kB,
  kM,
  kN,
  kK,
  kS,
  kH,
  kHkv,
  kD,
  kCausal,
  kWindow,
  kPass,
  kTokens,
  kHidden,
  kInter,
  kTopk,
  kExperts,
  kTp,
  kDistribution,
  kCin,
  kCout,
  kKsize,
  kIsize,
  kStride,
  kPad,
  kFlops,
  kRead,
  kWritten,
  kInputs,
  kOutputs,
  kPower,
  kFramework,
  kOutlier,
  kOverPeak,
  kQueries,
  kKeys,
  kHeads,
  kKvHeads,
  kHeadDim,
  kValueDim,
  kLibrary,
  kBackend,
  kDeterministic,
  kLayout,
  kAccumulate,
  kOutDtype,
  kGroups,
  kMainGradDtype,
  kColumnCount
};
constexpr std::array<std::string_view, kColumnCount> kNames = {"gpu",
                                                               "op",
                                                               "dtype",
                                                               "latency_ms",
                                                               "b",
                                                               "m",
                                                               "n",
                                                               "k",
                                                               "s",
                                                               "h",
                                                               "h_kv",
                                                               "d",
                                                               "causal",
                                                               "window",
                                                               "pass",
                                                               "num_tokens",
                                                               "hidden",
                                                               "inter",
                                                               "topk",
                                                               "experts",
                                                               "tp",
                                                               "distribution",
                                                               "cin",
                                                               "cout",
                                                               "ksize",
                                                               "isize",
                                                               "stride",
                                                               "pad",
                                                               "flops",
                                                               "read_bytes",
                                                               "written_bytes",
                                                               "inputs",
                                                               "outputs",
                                                               "power_w",
                                                               "framework",
                                                               "outlier",
                                                               "over_peak",
                                                               "q_len",
                                                               "kv_len",
                                                               "heads",
                                                               "kv_heads",
                                                               "d_qk",
                                                               "d_v",
                                                               "library",
                                                               "backend",
                                                               "deterministic",
                                                               "layout",
                                                               "accumulate",
                                                               "out_dtype",
                                                               "groups",
                                                               "main_grad_dtype"};

struct Pointwise {
  std::string_view name;
  double inputs, flops;
};
// Pointwise operators of PyTorch: two tensors, or a tensor and a scalar ("u"). FLOPs of transcendental functions are
// those of their usual polynomial forms.
constexpr std::array<Pointwise, 19> kPointwise = {{{"add", 2, 1},
                                                   {"sub", 2, 1},
                                                   {"mul", 2, 1},
                                                   {"div", 2, 4},
                                                   {"pow", 2, 20},
                                                   {"addu", 1, 1},
                                                   {"subu", 1, 1},
                                                   {"mulu", 1, 1},
                                                   {"divu", 1, 1},
                                                   {"powu", 1, 20},
                                                   {"relu", 1, 1},
                                                   {"tanh", 1, 10},
                                                   {"gelu", 1, 10},
                                                   {"sigmoid", 1, 6},
                                                   {"silu", 1, 7},
                                                   {"exp", 1, 4},
                                                   {"sqrt", 1, 4},
                                                   {"copy", 1, 0},
                                                   {"cast", 1, 0}}};

// What benchmarks call the libraries.
constexpr std::array<std::pair<std::string_view, Library>, 8> kLibraryNames = {{{"torch-cudnn", Library::kCudnn},
                                                                                {"flash2", Library::kFlash2},
                                                                                {"torch-flash2", Library::kFlash2},
                                                                                {"flash3", Library::kFlash3},
                                                                                {"torch-math", Library::kEager},
                                                                                {"pytorch", Library::kEager},
                                                                                {"torch_compile", Library::kCompiled},
                                                                                {"fused", Library::kCudnn}}};

// Reads one row's fields, remembering the first mistake.
struct Fields {
  const std::vector<std::optional<std::size_t>>& columns;
  const std::vector<std::string_view>& values;
  std::string problem;
  std::string expected = "a finite number in its range";

  std::string_view text(Column column) const {
    const auto& index = columns[column];
    return index && *index < values.size() ? values[*index] : std::string_view();
  }
  bool has(Column column) const { return !text(column).empty(); }
  double real(Column column, std::optional<double> fallback = std::nullopt) {
    const std::string_view field = text(column);
    if (field.empty() && fallback) return *fallback;
    double value = 0;
    const auto [end, code] = std::from_chars(field.data(), field.data() + field.size(), value);
    if (field.empty() || code != std::errc() || end != field.data() + field.size() || !std::isfinite(value)) {
      note(field.empty() ? fmt::format("no {}", kNames[column]) : fmt::format("{} is \"{}\"", kNames[column], field));
      return 0;
    }
    return value;
  }
  std::int64_t whole(Column column, std::optional<std::int64_t> fallback = std::nullopt) {
    std::optional<double> real_fallback;
    if (fallback) real_fallback = static_cast<double>(*fallback);
    const double value = real(column, real_fallback);
    if (!(std::abs(value) <= 9e15) || value != std::floor(value)) {  // data frames write 8192 as 8192.0
      note(fmt::format("{} is \"{}\"", kNames[column], text(column)));
      return 0;
    }
    return static_cast<std::int64_t>(value);
  }
  // The first of two names of a column that the table has.
  Column first(Column one, Column other) const { return has(one) ? one : other; }
  std::int64_t product(std::int64_t a, std::int64_t b) {
    std::int64_t value = 0;
    if (__builtin_mul_overflow(a, b, &value)) note("the number of rows is too large");
    return value;
  }
  // As cuBLAS counts, by columns: TN is a linear layer's forward, NN the gradient of its input, NT that of its weights.
  GemmLayout layout() {
    const std::string_view word = text(kLayout);
    if (word == "TN" || word == "tn") return GemmLayout::kNT;
    if (word == "NN" || word == "nn") return GemmLayout::kNN;
    if (word == "NT" || word == "nt") return GemmLayout::kTN;
    refuse(fmt::format("layout is \"{}\"", word), "TN (forward), NN (input gradient) or NT (weight gradient)");
    return GemmLayout::kNT;
  }
  Epilogue accumulation(Column type) {
    if (whole(kAccumulate, 0) == 0) return Epilogue::kNone;
    return text(type) == "fp32" ? Epilogue::kAccumulateFp32 : Epilogue::kAccumulate;
  }
  // By our names, or by those of benchmarks.
  Library library() {
    const std::string_view word = text(first(kLibrary, kBackend));
    if (word.empty() || word.starts_with("te-")) return Library::kDefault;
    for (const auto& [name, library] : kLibraryNames) {
      if (word == name) return library;
    }
    for (std::size_t i = 0; i < names_of<Library>().size(); ++i) {
      if (word == names_of<Library>()[i]) return static_cast<Library>(i);
    }
    refuse(fmt::format("library is \"{}\"", word), fmt::format("one of {}", fmt::join(names_of<Library>(), ", ")));
    return Library::kDefault;
  }
  bool flagged(Column column) const {
    const std::string_view field = text(column);
    return !field.empty() && field != "0" && field != "0.0";
  }
  void note(std::string what) {
    if (problem.empty()) problem = std::move(what);
  }
  void refuse(std::string what, std::string instead) {
    if (problem.empty()) problem = std::move(what), expected = std::move(instead);
  }
  // In words as people write them.
  Pass pass() {
    const std::string_view word = text(kPass);
    if (word == "bwd" || word == "backward") return Pass::kBackward;
    const bool product = word == "dgrad" || word == "wgrad";  // of grouped products, a product of its own
    if (!word.empty() && word != "fwd" && word != "forward" && !product) {
      refuse(fmt::format("pass is \"{}\"", word), "fwd, bwd or nothing; of grouped products fwd, dgrad or wgrad");
    }
    return Pass::kForward;
  }
};

constexpr std::array<KernelShape, 14> kShapes = {{
    {"gemm linear matmul bmm", "m n k (the reduction) [b layout accumulate out_dtype]"},
    {"attn_pre_proj attn_post_proj mlp_up_proj mlp_down_proj", "m n k"},
    {"grouped_gemm", "experts m (rows of all; or groups, m rows of each) n k [pass accumulate main_grad_dtype]"},
    {"attention", "b s h d (or q_len kv_len heads kv_heads d_qk d_v) [h_kv causal window pass library deterministic]"},
    {"moe", "num_tokens hidden inter topk experts [tp distribution]"},
    {"softmax cross_entropy", "b h (rows, columns; or m n) [pass]"},
    {"layernorm rmsnorm normalization input_layernorm post_attention_layernorm", "b h [pass library]"},
    {"embedding emb", "b h (tokens, hidden) [pass]"},
    {"elementwise", "b h [inputs outputs]"},
    {"add sub mul div pow addu subu mulu divu powu relu tanh gelu sigmoid silu exp sqrt copy cast", "b h"},
    {"attn_rope mlp_act", "m n"},
    {"optimizer adam", "b (parameters)"},
    {"conv convolution", "b cin cout ksize isize stride pad [pass]"},
    {"unknown", "flops read_bytes [written_bytes]"},
}};

std::vector<std::string> operator_names() {
  std::vector<std::string> names;
  for (const KernelShape& shape : kShapes) {
    for (std::size_t begin = 0; begin < shape.names.size();) {
      const std::size_t end = std::min(shape.names.find(' ', begin), shape.names.size());
      names.emplace_back(shape.names.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  return names;
}

// What to write for the backward of an operator that has none of its own.
struct InsteadOfBackward {
  std::string operator()(const Gemm&) const {
    return "its gradients are gemms of their own: m, k, n of the inputs and n, k, m of the weights";
  }
  std::string operator()(const GroupedGemm&) const {
    return "its gradients are grouped products of their own, n and k exchanged for the inputs";
  }
  std::string operator()(const MixtureOfExperts&) const {
    return "it is one call of inference; write its grouped_gemm products and pointwise kernels";
  }
  std::string operator()(const Elementwise&) const {
    return "write a pointwise operator that reads the gradient too: elementwise with one input more";
  }
  template <class Other>
  std::string operator()(const Other&) const {
    return "leave the pass out";
  }
};

std::optional<OperatorKind> kind_of(std::string_view op, Fields& f) {
  const auto is = [&](std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), op) != names.end();
  };
  if (is({"linear", "gemm", "matmul", "bmm", "attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj"})) {
    Gemm gemm{.batch = f.whole(kB, 1), .m = f.whole(kM), .n = f.whole(kN), .k = f.whole(kK)};
    if (op == "bmm") gemm.layout = GemmLayout::kNN;
    if (f.has(kLayout)) gemm.layout = f.layout();
    gemm.epilogue = f.accumulation(kOutDtype);
    const std::string_view dtype = f.text(kDtype);
    if (dtype == "fp8_block" || dtype == "mxfp8") gemm.scaling = Scaling::kBlock;
    if (op == "linear" && (dtype.starts_with("fp8") || dtype == "mxfp8")) gemm.quantizes = true;
    if (op == "linear" && f.text(kDtype) == "fp32") gemm.epilogue = Epilogue::kBias;
    return gemm;
  }
  if (op == "attention") {
    Attention a;
    a.batch = f.whole(kB), a.heads = f.whole(f.first(kHeads, kH)),
    a.kv_heads = f.whole(f.first(kKvHeads, kHkv), a.heads);
    a.query_length = f.whole(f.first(kQueries, kS)), a.key_length = f.whole(kKeys, a.query_length);
    a.head_dim = f.whole(f.first(kHeadDim, kD)), a.value_dim = f.whole(kValueDim, a.head_dim);
    a.causal = f.whole(kCausal, 1) != 0, a.window = f.whole(kWindow, 0);
    a.library = f.library(), a.deterministic = f.whole(kDeterministic, 0) != 0;
    if (f.text(kDtype) == "mxfp8") a.scaling = Scaling::kBlock;
    return a;
  }
  if (op == "moe") {
    MixtureOfExperts moe{.tokens = f.whole(kTokens),
                         .hidden = f.whole(kHidden),
                         .intermediate = f.whole(kInter),
                         .experts = f.whole(kExperts),
                         .top_k = f.whole(kTopk)};
    const std::int64_t tp = f.whole(kTp, 1);
    if (tp <= 0 || moe.intermediate % tp != 0) f.note(fmt::format("tp is {}, which does not divide inter", tp));
    if (tp > 0) moe.intermediate /= tp;
    const std::string_view distribution = f.text(kDistribution);
    constexpr std::string_view kPowerLaw = "power_law_";
    if (distribution.starts_with(kPowerLaw)) {
      const std::string_view exponent = distribution.substr(kPowerLaw.size());
      const auto [end, code] = std::from_chars(exponent.data(), exponent.data() + exponent.size(), moe.skew);
      if (code != std::errc() || end != exponent.data() + exponent.size()) {
        f.note(fmt::format("distribution is \"{}\"", distribution));
      }
    } else if (!distribution.empty() && distribution != "balanced") {
      f.note(fmt::format("distribution is \"{}\"", distribution));
    }
    return moe;
  }
  const auto rows = [&] { return f.has(kB) ? f.whole(kB) : f.whole(kM); };
  const auto columns = [&] { return f.has(kH) ? f.whole(kH) : f.whole(kN); };
  if (op == "softmax") return Softmax{.rows = rows(), .columns = columns()};
  if (op == "cross_entropy") return CrossEntropy{.rows = rows(), .columns = columns()};
  if (is({"layernorm", "normalization", "rmsnorm", "input_layernorm", "post_attention_layernorm"})) {
    const bool mean = op == "layernorm" || op == "normalization";
    const auto kind = mean ? NormalizationKind::kLayerNorm : NormalizationKind::kRmsNorm;
    return Normalization{.kind = kind, .rows = rows(), .columns = columns(), .library = f.library()};
  }
  const auto pointwise = [&](std::string name, double inputs, double outputs, double flops) {
    const double elements = static_cast<double>(rows()) * static_cast<double>(columns());
    if (!(elements < 9e18)) f.note("the number of elements is too large");
    const auto count = elements < 9e18 ? static_cast<std::int64_t>(elements) : 1;
    return Elementwise{
        .name = std::move(name), .elements = count, .inputs = inputs, .outputs = outputs, .flops_per_element = flops};
  };
  if (op == "attn_rope") return pointwise("rope", 1, 1, 6);
  if (op == "mlp_act") return pointwise("swiglu", 2, 1, 5);  // gate and value in, n columns out
  if (op == "elementwise") {
    const double inputs = f.real(kInputs, 2), outputs = f.real(kOutputs, 1);
    for (const double streams : {inputs, outputs}) {
      if (!(streams >= 0 && streams <= 1000)) f.note("inputs or outputs are not from 0 to 1000");
    }
    return pointwise("elementwise", inputs, outputs, 1);
  }
  if (is({"optimizer", "adam"})) return OptimizerStep{.parameters = rows()};
  if (op == "grouped_gemm") {
    GroupedGemm grouped{
        .experts = f.whole(f.first(kGroups, kExperts)), .rows = f.whole(kM), .n = f.whole(kN), .k = f.whole(kK)};
    if (f.has(kGroups)) grouped.rows = f.product(grouped.rows, grouped.experts);
    const std::string_view pass = f.text(kPass);
    if (pass == "dgrad") grouped.layout = GemmLayout::kNN, std::swap(grouped.n, grouped.k);
    if (pass == "wgrad") grouped.layout = GemmLayout::kTN;
    grouped.epilogue = f.accumulation(kMainGradDtype);
    return grouped;
  }
  if (is({"emb", "embedding"})) {
    return Embedding{.tokens = rows(), .hidden = columns(), .vocabulary = std::int64_t{1} << 17};
  }
  if (is({"conv", "convolution"})) {
    Convolution c;
    c.batch = f.whole(kB), c.in_channels = f.whole(kCin), c.out_channels = f.whole(kCout), c.kernel = f.whole(kKsize);
    c.in_height = c.in_width = f.whole(kIsize);
    c.stride = f.whole(kStride), c.padding = f.whole(kPad);
    return c;
  }
  if (op == "unknown") {
    return UnknownOperator{"unknown", f.real(kFlops) * units::FLOP, f.real(kRead) * units::B,
                           f.real(kWritten, 0) * units::B};
  }
  for (const Pointwise& row : kPointwise) {
    if (row.name == op) return pointwise(std::string(op), row.inputs, 1, row.flops);
  }
  return std::nullopt;
}

// Of a header that nobody wrote as one: what can be shown of it.
std::string shown(const std::vector<std::string>& columns) {
  constexpr std::size_t kLongest = 200;
  std::string text = fmt::format("{}", fmt::join(columns, ", "));
  const bool cut = text.size() > kLongest;
  if (cut) text.resize(kLongest);
  for (char& c : text) {
    if (c < ' ' || c > '~') c = c == '\t' ? ' ' : '?';
  }
  text.erase(std::unique(text.begin(), text.end(), [](char a, char b) { return a == '?' && b == '?'; }), text.end());
  return cut ? text + " ..." : text;
}

}  // namespace

namespace {

// The operator of a table that has no such column, by a column that only this operator has.
std::string_view operator_of(const CsvTable& table) {
  constexpr std::array<std::pair<Column, std::string_view>, 3> kTold = {
      {{kHeads, "attention"}, {kGroups, "grouped_gemm"}, {kLayout, "gemm"}}};
  for (const auto& [column, op] : kTold) {
    if (table.column(kNames[column])) return op;
  }
  return "";
}

}  // namespace

std::span<const KernelShape> kernel_shapes() { return kShapes; }

Result<void> check_kernel_columns(const CsvTable& table, std::string_view default_gpu) {
  for (const Column column : {kOp, kGpu}) {
    if (table.column(kNames[column]) || (column == kGpu && !default_gpu.empty())) continue;
    if (column == kOp && !operator_of(table).empty()) continue;
    std::string hint = fmt::format("the columns are: {}", shown(table.columns()));
    if (table.columns().size() == 1) {
      hint += "; separate them by commas";
    } else if (column == kGpu) {
      hint += "; or name one with --gpu";
    }
    return fail(error_at(table.where() + ":1", fmt::format("no column \"{}\"", kNames[column]),
                         "columns gpu, op, dtype and the operator's dimensions", std::move(hint)));
  }
  return {};
}

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
  return fail(error_at("", fmt::format("{} has no backward pass", family_of({kind, DType::kBf16})), "forward",
                       std::visit(InsteadOfBackward(), kind)));
}

PreferredFrameworks::PreferredFrameworks(const CsvTable& table, const std::vector<std::string>& order) {
  const auto gpu = table.column("gpu"), framework = table.column("framework");
  if (order.empty() || !gpu || !framework) return;
  std::map<std::string, std::size_t, std::less<>> ranks;
  std::vector<std::string_view> fields;
  for (std::size_t i = 0; i < table.row_count(); ++i) {
    table.fields(i, fields);
    if (std::max(*gpu, *framework) >= fields.size()) continue;
    const auto place = std::find(order.begin(), order.end(), fields[*framework]);
    if (place == order.end()) continue;
    const auto rank = static_cast<std::size_t>(place - order.begin());
    const auto [found, added] = ranks.emplace(std::string(fields[*gpu]), rank);
    if (!added) found->second = std::min(found->second, rank);
  }
  for (const auto& [id, rank] : ranks) by_gpu_.emplace(id, order[rank]);
}

bool PreferredFrameworks::passes_over(const KernelRow& row) const {
  const auto preferred = by_gpu_.find(row.gpu);
  return preferred != by_gpu_.end() && preferred->second != row.framework;
}

KernelReader::KernelReader(const CsvTable& table, std::string default_gpu)
    : table_(&table), default_gpu_(std::move(default_gpu)) {
  for (const std::string_view name : kNames) columns_.push_back(table.column(name));
  operator_ = operator_of(table);
}

Result<KernelRow> KernelReader::row(std::size_t index) const {
  thread_local std::vector<std::string_view> values;
  const std::size_t count = table_->fields(index, values);
  const auto where = [&] { return fmt::format("{}:{}", table_->where(), table_->line(index)); };
  if (count > table_->columns().size()) {
    return fail(error_at(where(), fmt::format("{} fields", count),
                         fmt::format("{}, as in the header", table_->columns().size()),
                         "put fields with commas in quotes"));
  }
  Fields f{columns_, values, {}};
  KernelRow row;
  row.gpu = f.has(kGpu) ? f.text(kGpu) : std::string_view(default_gpu_);
  row.op = f.has(kOp) ? f.text(kOp) : operator_;
  if (row.gpu.empty()) return fail(error_at(where(), "no GPU", "a gpu column", "name one with --gpu"));
  const std::string_view dtype = f.has(kDtype) ? f.text(kDtype) : std::string_view("bf16");
  const auto known = dtype_from_name(dtype == "fp8_block" || dtype == "mxfp8" ? "fp8" : dtype);
  if (!known)
    return fail(error_at(where(), fmt::format("dtype \"{}\" is unknown", dtype),
                         "fp64, fp32, tf32, fp16, bf16, fp8, fp8_block, mxfp8 or fp4"));
  row.work.dtype = *known;
  auto kind = kind_of(row.op, f);
  if (!kind) {
    return fail(error_at(where(), fmt::format("operator \"{}\" is unknown", row.op),
                         fmt::format("one of {}", fmt::join(operator_names(), ", "))));
  }
  const Pass pass = f.pass();
  if (!f.problem.empty()) return fail(error_at(where(), f.problem, std::string(f.expected)));
  if (auto passed = set_pass(*kind, pass); !passed) {
    passed.error().where = where();
    return fail(passed.error());
  }
  row.work.kind = std::move(*kind);
  if (auto valid = validate(row.work); !valid) {
    Error error = std::move(valid).error();
    error.where = where();
    return fail(error);
  }
  if (f.has(kLatency) && f.text(kLatency) != "inf") {  // "inf": the kernel ran out of memory
    const double latency = f.real(kLatency);
    if (!f.problem.empty() || !(latency > 0)) {
      return fail(error_at(where(), fmt::format("latency_ms is \"{}\"", f.text(kLatency)), "a positive number of ms"));
    }
    row.latency_ms = latency;
  }
  if (f.has(kPower)) {
    const double power = f.real(kPower);
    if (!f.problem.empty() || !(power > 0)) {
      return fail(error_at(where(), fmt::format("power_w is \"{}\"", f.text(kPower)), "a positive number of W"));
    }
    row.power_w = power;
  }
  row.framework = f.text(f.first(kFramework, kBackend));
  row.doubtful = f.flagged(kOutlier) || f.flagged(kOverPeak);
  return row;
}

}  // namespace ns_dist
