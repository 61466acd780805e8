// The C library: what is thrown ends here, and so do our types.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ns_dist/cached_cost.h"
#include "ns_dist/chakra_io.h"
#include "ns_dist/compute_model.h"
#include "ns_dist/fields.h"
#include "ns_dist/network_fit.h"
#include "ns_dist/operator_text.h"
#include "ns_dist/simulator.h"
#include "ns_dist/training_clock.h"
#include "ns_dist/version.h"
#include "ns_dist_c.h"

using namespace ns_dist;

namespace {

tl::unexpected<Error> wrong(std::string message, std::string where, std::string expected, std::string hint = "") {
  return fail({ErrorCode::kInvalidInput, std::move(message), std::move(where), std::move(expected), std::move(hint)});
}

// Of this thread alone: the system gives a thread's id to another one when it has ended.
std::uint64_t thread_number() {
  static std::atomic<std::uint64_t> count{0};
  thread_local const std::uint64_t own = count++;
  return own;
}

// A caller's struct with the members that it does not have as zero.
template <class T>
Result<T> read_struct(const T* given, const char* name) {
  constexpr std::size_t kLargest = 4096;
  if (given == nullptr) return wrong("NULL", name, "a struct");
  const std::size_t size = given->struct_size;
  // Every member ends where the next one may begin: half of one would be read with the other half as zero.
  if (size < sizeof(std::size_t) || size > kLargest || size % alignof(T) != 0) {
    return wrong(fmt::format("struct_size is {}", size), name, fmt::format("sizeof, {} here", sizeof(T)));
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  if (size > sizeof(T) && std::any_of(bytes + sizeof(T), bytes + size, [](unsigned char b) { return b != 0; })) {
    return wrong("a member is set that this library does not know", name, "a library as new as the program's header",
                 fmt::format("this is ns-dist {}", version()));
  }
  T out{};
  std::memcpy(&out, given, std::min(size, sizeof(T)));
  if constexpr (requires { out.reserved; }) {
    if (out.reserved != 0) return wrong(fmt::format("reserved is {}", out.reserved), name, "0");
  }
  return out;
}

// A member that a newer version appends begins where sizeof ended, so no struct ends in padding.
template <class T>
constexpr bool ends_with(std::size_t offset, std::size_t size) {
  return offset + size == sizeof(T);
}
static_assert(ends_with<ns_dist_forecast>(offsetof(ns_dist_forecast, reserved), sizeof(std::int32_t)));
static_assert(ends_with<ns_dist_kernel>(offsetof(ns_dist_kernel, reserved), sizeof(std::int32_t)));
static_assert(ends_with<ns_dist_collective>(offsetof(ns_dist_collective, reserved), sizeof(std::int32_t)));
static_assert(ends_with<ns_dist_step>(offsetof(ns_dist_step, reserved), sizeof(std::int32_t)));
static_assert(ends_with<ns_dist_node>(offsetof(ns_dist_node, launched_now_ns), sizeof(const double*)));

// Writes as much of `answer` as the caller has room for.
template <class T>
Result<void> write_struct(const T& answer, T* out, const char* name) {
  if (out == nullptr) return wrong("NULL", name, "a struct");
  const std::size_t size = out->struct_size;
  if (size < sizeof(std::size_t)) {
    return wrong(fmt::format("struct_size is {}", size), name, fmt::format("sizeof, {} here", sizeof(answer)));
  }
  std::memcpy(out, &answer, std::min(size, sizeof(answer)));
  out->struct_size = size;
  return {};
}

std::string_view text_of(const char* text) { return text == nullptr ? std::string_view() : std::string_view(text); }

// "name=value" of a list that ends with NULL.
Result<std::vector<Assignment>> read_list(const char* const* list, std::string_view example) {
  std::vector<Assignment> out;
  for (; list != nullptr && *list != nullptr; ++list) {
    const std::string_view line = *list;
    const std::size_t equals = line.find('=');
    if (equals == std::string_view::npos) {
      return wrong(fmt::format("\"{}\" has no \"=\"", line), "", fmt::format("name=value, as in {}", example));
    }
    out.push_back({std::string(line.substr(0, equals)), std::string(line.substr(equals + 1))});
  }
  return out;
}

ns_dist_forecast to_struct(const Forecast& forecast, std::string_view method) {
  ns_dist_forecast out{};
  out.struct_size = sizeof(out);
  out.ns = forecast.latency / units::ns;
  out.low_ns = forecast.low / units::ns;
  out.high_ns = forecast.high / units::ns;
  out.floor_ns = forecast.floor / units::ns;
  out.method[method.copy(out.method, sizeof(out.method) - 1)] = '\0';
  out.extrapolated = forecast.extrapolated ? 1 : 0;
  return out;
}

}  // namespace

struct ns_dist_session {
 public:
  Result<void> open(std::uint32_t abi, const char* const* fields) {
    if (abi != NS_DIST_ABI) {
      return wrong(fmt::format("the program was built for version {} of the C interface", abi), "NS_DIST_ABI",
                   fmt::format("version {}, which this library (ns-dist {}) has", NS_DIST_ABI, version()),
                   "build the program with the ns_dist_c.h of this library");
    }
    NS_TRY(fields_.assignments, read_list(fields, "machine/gpu=h100-sxm-80gb"));
    NS_TRY(base_, resolve(fields_, catalog_));
    NS_TRY(models_, sessions_.of(*base_));
    return {};
  }

  // `factor`: told by a trace, in the place of that of experts.
  Result<Forecast> kernel(const Operator& op, std::int64_t ranks, bool burst, std::optional<double> factor) {
    NS_TRY_VOID(check_open());
    NS_TRY_VOID(check_ranks(ranks));
    if (burst) {
      NS_TRY(const ComputeCost* kernels, burst_kernels());
      return kernels->forecast(op);
    }
    const TrainingClock clock = training_clock(*base_, std::max<std::int64_t>(ranks, 1));
    NS_TRY(Forecast out, clock.forecast(models_->compute(), op));
    const double longer = factor ? *factor / clock.experts_on(op) : 1;
    out.latency *= longer, out.low *= longer, out.high *= longer;
    out.floor *= std::min(1.0, longer);
    return out;
  }

  // One after the other. Intervals add up: forecasts of one model err together.
  Result<Forecast> kernels(const std::vector<Operator>& operators, std::int64_t ranks, bool burst,
                           const std::vector<double>& factors = {}) {
    const auto factor = [&](std::size_t i) { return factors.empty() ? std::nullopt : std::optional(factors[i]); };
    NS_TRY(Forecast sum, kernel(operators.front(), ranks, burst, factor(0)));
    for (std::size_t i = 1; i < operators.size(); ++i) {
      NS_TRY(const Forecast next, kernel(operators[i], ranks, burst, factor(i)));
      sum.latency += next.latency;
      sum.low += next.low;
      sum.high += next.high;
      sum.floor += next.floor;
      sum.extrapolated = sum.extrapolated || next.extrapolated;
      if (sum.method != next.method) sum.method = "several";
    }
    return sum;
  }

  Result<Forecast> collective(const ns_dist_collective& asked) {
    NS_TRY_VOID(check_open());
    const auto kind = read_enumerator<CollectiveKind>(text_of(asked.kind));
    if (!kind) {
      return wrong(fmt::format("unknown collective \"{}\"", text_of(asked.kind)), "kind",
                   fmt::format("{}", fmt::join(names_of<CollectiveKind>(), ", ")), kind.error().hint);
    }
    if (asked.ranks < 2) return wrong(fmt::format("{} ranks", asked.ranks), "ranks", "at least 2");
    constexpr double kMostBytes = 1e18;
    const int least = *kind == CollectiveKind::kBarrier ? 0 : 1;
    if (!(asked.bytes >= least && asked.bytes <= kMostBytes)) {
      return wrong(fmt::format("{} bytes", asked.bytes), "bytes", fmt::format("a number from {} to 1e18", least));
    }
    const std::int64_t in_node = asked.ranks_per_node == 0 ? asked.ranks : asked.ranks_per_node;
    NS_TRY(const RankGroup group, measured_group(base_->cluster, asked.ranks, in_node));
    return models_->network(base_->training.precision)
        .forecast(Collective{.kind = *kind,
                             .size = asked.bytes * units::B,
                             .group = group,
                             .integer = asked.integer != 0,
                             .imbalance = asked.imbalance == 0 ? 1 : asked.imbalance});
  }

  Result<ns_dist_step> step(const char* const* fields) {
    NS_TRY(const Scenario scenario, scenario_of(fields));
    NS_TRY(const std::shared_ptr<const Session> models, sessions_.of(scenario));
    NS_TRY(const Prediction prediction, predict(scenario, *models));
    const Report known = report(scenario, prediction, {});
    ns_dist_step out{};
    out.struct_size = sizeof(out);
    out.ns = known.step / units::ns;
    out.low_ns = known.step_low / units::ns;
    out.high_ns = known.step_high / units::ns;
    out.tokens_per_second = known.tokens_per_second;
    out.peak_bytes = known.memory.peak() / units::B;
    out.device_bytes = known.memory.device() / units::B;
    out.capacity_bytes = scenario.cluster.gpu.memory / units::B;
    out.gpus = known.ranks;
    out.fits = known.fits ? 1 : 0;
    return out;
  }

  Result<std::string> simulate(const char* const* fields) {
    NS_TRY(const Scenario scenario, scenario_of(fields));
    NS_TRY(const std::shared_ptr<const Session> models, sessions_.of(scenario));
    NS_TRY(const Report report, ns_dist::simulate(scenario, *models));
    return to_json(report);
  }

  // A node's answer is remembered by what tells its operator.
  struct Answer {
    int status = NS_DIST_OK;
    ns_dist_forecast forecast{};
    std::string problem;
  };
  Result<Answer> node(const ns_dist_node& asked) {
    NS_TRY_VOID(check_open());
    NS_TRY_VOID(check_ranks(asked.ranks));
    NS_TRY(const std::vector<Assignment> attributes, read_list(asked.attributes, "num_ops=1000000"));
    std::string key = fmt::format("{}", asked.ranks);
    bool waits = false;  // for the host: other nodes tell its time
    for (const Assignment& each : attributes) {
      key += fmt::format("\n{}={}", each.field, each.text);
      waits = waits || each.field == "ns_dist_launches_ns";
    }
    if (waits) return forecast_node(asked, attributes);
    // Names and shapes count where ns_dist_op does not tell the operator.
    std::string whole = key;
    for (const char* text : {asked.name, asked.input_values, asked.input_shapes, asked.input_types}) {
      whole += fmt::format("\n{}", text_of(text));
    }
    {
      const std::scoped_lock guard(lock_);
      for (const std::string* each : {&key, &whole}) {
        if (const auto known = answers_.find(*each); known != answers_.end()) return known->second;
      }
    }
    Answer answer = forecast_node(asked, attributes);
    const bool told = answer.status == NS_DIST_OK && answer.forecast.method == kOperatorAttribute;
    constexpr std::size_t kMostAnswers = 100'000;
    const std::scoped_lock guard(lock_);
    if (answers_.size() >= kMostAnswers) answers_.clear();
    return answers_[told ? key : whole] = std::move(answer);
  }

  void set_error(std::string text) const {
    const std::scoped_lock guard(lock_);
    const auto own = errors_.insert_or_assign(thread_number(), std::move(text)).first;
    constexpr std::size_t kMostThreads = 4096;
    if (errors_.size() <= kMostThreads) return;
    errors_.erase(own == errors_.begin() ? std::next(own) : errors_.begin());  // of the thread that began first
  }
  const char* error() const {
    const std::scoped_lock guard(lock_);
    const auto own = errors_.find(thread_number());
    return own == errors_.end() ? "" : own->second.c_str();
  }

 private:
  // The session's fields and these.
  Result<Scenario> scenario_of(const char* const* fields) const {
    NS_TRY_VOID(check_open());
    NS_TRY(const std::vector<Assignment> more, read_list(fields, "plan/tp=8"));
    ScenarioSpec spec = fields_;
    spec.assignments.insert(spec.assignments.end(), more.begin(), more.end());
    return resolve(spec, Catalog::standard());  // a catalog that tells the files of this step alone
  }

  Result<void> check_open() const {
    if (models_) return {};
    return wrong("the session was not opened", "ns_dist_open", "a session for which it returned NS_DIST_OK");
  }

  static Result<void> check_ranks(std::int64_t ranks) {
    if (ranks >= 0) return {};
    return wrong(fmt::format("{} ranks", ranks), "ranks", "0, or a positive number");
  }

  // Numbers with "," between them; nothing where one of them is none.
  template <class Number>
  static std::optional<std::vector<Number>> numbers_from(std::string_view text) {
    std::vector<Number> out;
    while (!text.empty()) {
      const std::size_t length = std::min(text.find(','), text.size());
      const auto [end, failed] = std::from_chars(text.data(), text.data() + length, out.emplace_back());
      if (failed != std::errc() || end != text.data() + length) return std::nullopt;
      text.remove_prefix(std::min(length + 1, text.size()));
    }
    return out;
  }

  static TraceValue trace_value(const Assignment& attribute) {
    const auto& [name, text] = attribute;
    constexpr std::string_view kLists[] = {"ns_dist_launched", "ns_dist_launched_deps", "ns_dist_read_before"};
    if (std::find(std::begin(kLists), std::end(kLists), name) != std::end(kLists)) {
      const auto list = numbers_from<std::int64_t>(text);
      return list ? TraceValue(*list) : TraceValue(text);
    }
    const auto list = numbers_from<double>(text);
    if (list && name == "ns_dist_launches_ns") return *list;
    return list && list->size() == 1 ? TraceValue(list->front()) : TraceValue(text);
  }

  // What is left of a wait for the host; it is not forecast by itself, so its interval is empty.
  static Answer forecast_wait(const ns_dist_node& asked, const TraceNode& node) {
    const std::optional<HostWait> wait = host_wait(node);
    const TraceValue* recorded = node.attribute("ns_dist_duration_ns");
    const auto* recorded_ns = recorded == nullptr ? nullptr : std::get_if<double>(recorded);
    const std::size_t count = wait ? wait->launched.size() : 0;
    if (!wait || recorded_ns == nullptr ||
        (count > 0 && (asked.launched_ns == nullptr || asked.launched_now_ns == nullptr))) {
      return {NS_DIST_UNKNOWN, {}, "the wait for the host does not tell what was launched and how long it took"};
    }
    const double ns = wait_ns(*wait, *recorded_ns, {asked.launched_ns, count}, {asked.launched_now_ns, count});
    Forecast left;
    left.latency = left.low = left.high = ns * units::ns;
    return {NS_DIST_OK, to_struct(left, kToldByLaunches), ""};
  }

  Answer forecast_node(const ns_dist_node& asked, const std::vector<Assignment>& attributes) {
    TraceNode node;
    node.name = text_of(asked.name);
    node.inputs = {std::string(text_of(asked.input_values)), std::string(text_of(asked.input_shapes)),
                   std::string(text_of(asked.input_types))};
    for (const Assignment& each : attributes) node.attributes.push_back({each.field, trace_value(each)});
    if (node.attribute("ns_dist_launches_ns") != nullptr) return forecast_wait(asked, node);
    const Result<KernelWork> work = kernel_work(node);
    if (!work) return {NS_DIST_BAD_INPUT, {}, to_text(work.error())};
    if (work->operators.empty()) return {NS_DIST_UNKNOWN, {}, "the node does not tell what it computes"};
    const Result<Forecast> forecast = kernels(work->operators, asked.ranks, false, work->factors);
    if (!forecast) return {NS_DIST_UNKNOWN, {}, to_text(forecast.error())};
    return {NS_DIST_OK, to_struct(*forecast, work->told_by), ""};
  }

  Result<const ComputeCost*> burst_kernels() {
    std::call_once(burst_made_, [&] {
      ComputeModelOptions options;
      options.mode = Mode::kBurst;
      // One of kernels in steps is refused, not left out.
      if (const auto& own = base_->kernel_calibration)
        options.calibration = std::make_shared<const KernelCalibration>(*own);
      burst_ = make_compute_model(base_->cluster.gpu, options);
      if (*burst_) **burst_ = make_cached_cost(std::move(**burst_));
    });
    if (!*burst_) return fail(burst_->error());
    return (*burst_)->get();
  }

  const Catalog catalog_ = Catalog::standard();
  ScenarioSpec fields_;
  std::optional<Scenario> base_;
  Sessions sessions_;  // of the machines that were asked for
  std::shared_ptr<const Session> models_;
  std::once_flag burst_made_;
  std::optional<Result<std::unique_ptr<ComputeCost>>> burst_;
  mutable std::mutex lock_;
  mutable std::map<std::uint64_t, std::string> errors_;  // by thread_number()
  std::unordered_map<std::string, Answer> answers_;
};

namespace {

// Runs what returns a Result<int>; whatever goes wrong becomes the session's error.
template <class Call>
int guarded(const ns_dist_session* session, const Call& call) noexcept {
  if (session == nullptr) return NS_DIST_BAD_INPUT;
  try {
    try {
      const Result<int> done = call();
      if (done) return *done;
      session->set_error(to_text(done.error()));
      return done.error().code == ErrorCode::kInfeasible ? NS_DIST_INFEASIBLE : NS_DIST_BAD_INPUT;
    } catch (const std::bad_alloc&) {
      session->set_error("memory is exhausted");
    } catch (const std::exception& thrown) {
      session->set_error(fmt::format("a bug of ns-dist: {}", thrown.what()));
    }
  } catch (...) {
  }
  return NS_DIST_BUG;
}

}  // namespace

extern "C" {

uint32_t ns_dist_abi(void) { return NS_DIST_ABI; }

const char* ns_dist_version(void) {
  return version().data();  // a literal
}

int ns_dist_open(uint32_t abi, const char* const* fields, ns_dist_session** session) {
  if (session == nullptr) return NS_DIST_BAD_INPUT;
  *session = nullptr;
  try {
    *session = new ns_dist_session;
  } catch (...) {
    return NS_DIST_BUG;
  }
  return guarded(*session, [&]() -> Result<int> {
    NS_TRY_VOID((*session)->open(abi, fields));
    return NS_DIST_OK;
  });
}

void ns_dist_close(ns_dist_session* session) { delete session; }

const char* ns_dist_error(const ns_dist_session* session) {
  if (session == nullptr) return "there is no session: NULL was given, or memory is exhausted";
  try {
    return session->error();
  } catch (...) {
    return "memory is exhausted";
  }
}

int ns_dist_forecast_kernel(ns_dist_session* session, const ns_dist_kernel* kernel, ns_dist_forecast* forecast) {
  return guarded(session, [&]() -> Result<int> {
    NS_TRY(const ns_dist_kernel asked, read_struct(kernel, "ns_dist_kernel"));
    NS_TRY(const std::vector<Operator> operators, operators_from_specs(text_of(asked.op)));
    NS_TRY(const Forecast answer, session->kernels(operators, asked.ranks, asked.burst != 0));
    NS_TRY_VOID(write_struct(to_struct(answer, answer.method), forecast, "ns_dist_forecast"));
    return NS_DIST_OK;
  });
}

int ns_dist_forecast_collective(ns_dist_session* session, const ns_dist_collective* collective,
                                ns_dist_forecast* forecast) {
  return guarded(session, [&]() -> Result<int> {
    NS_TRY(const ns_dist_collective asked, read_struct(collective, "ns_dist_collective"));
    NS_TRY(const Forecast answer, session->collective(asked));
    NS_TRY_VOID(write_struct(to_struct(answer, answer.method), forecast, "ns_dist_forecast"));
    return NS_DIST_OK;
  });
}

int ns_dist_forecast_node(ns_dist_session* session, const ns_dist_node* node, ns_dist_forecast* forecast) {
  return guarded(session, [&]() -> Result<int> {
    NS_TRY(const ns_dist_node asked, read_struct(node, "ns_dist_node"));
    NS_TRY(const ns_dist_session::Answer answer, session->node(asked));
    if (answer.status != NS_DIST_OK) {
      session->set_error(answer.problem);
      return answer.status;
    }
    NS_TRY_VOID(write_struct(answer.forecast, forecast, "ns_dist_forecast"));
    return NS_DIST_OK;
  });
}

int ns_dist_forecast_step(ns_dist_session* session, const char* const* fields, ns_dist_step* step) {
  return guarded(session, [&]() -> Result<int> {
    NS_TRY(const ns_dist_step answer, session->step(fields));
    NS_TRY_VOID(write_struct(answer, step, "ns_dist_step"));
    return NS_DIST_OK;
  });
}

int ns_dist_simulate(ns_dist_session* session, const char* const* fields, char** report) {
  if (report != nullptr) *report = nullptr;
  return guarded(session, [&]() -> Result<int> {
    if (report == nullptr) return wrong("NULL", "report", "where the report goes");
    NS_TRY(const std::string text, session->simulate(fields));
    char* copy = static_cast<char*>(std::malloc(text.size() + 1));
    if (copy == nullptr) throw std::bad_alloc();
    std::memcpy(copy, text.c_str(), text.size() + 1);
    *report = copy;
    return NS_DIST_OK;
  });
}

void ns_dist_free(char* text) { std::free(text); }

}  // extern "C"
